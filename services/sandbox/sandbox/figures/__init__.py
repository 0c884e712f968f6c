"""What the service counts, and when it raises an alarm."""
