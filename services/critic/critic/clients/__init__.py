"""Judges over the network, one file per API."""
