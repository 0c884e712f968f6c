"""The tools, one file each; `tools.table` names them."""
