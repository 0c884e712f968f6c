"""Starts the whole suite as processes on one machine and leaves nothing behind."""
