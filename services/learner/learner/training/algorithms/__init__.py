"""Algorithms, one file each, told apart by advantages, token loss and aggregation only."""
