"""Sandboxes of a micro-VM service."""
