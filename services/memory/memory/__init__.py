"""Memories that learn how useful they are (MemRL); see README.md."""
