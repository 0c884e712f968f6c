"""The training core: torch on a thread or in processes of its own, and the rows it is given."""
