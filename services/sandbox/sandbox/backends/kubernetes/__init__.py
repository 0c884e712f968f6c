"""Pods of a cluster."""
