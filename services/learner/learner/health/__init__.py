"""Whether a run still learns what it is meant to."""
