"""Ways to make an isolated environment, one file each, behind `sandbox.backends.protocol`."""
