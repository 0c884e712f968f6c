"""The embedded backend: Linux namespaces and control groups on this machine."""
