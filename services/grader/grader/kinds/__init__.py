"""Grader kinds, one file each; `kinds.table` names them."""
