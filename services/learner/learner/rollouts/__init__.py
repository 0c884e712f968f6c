"""Which tasks and rows a step takes, what it asks for, and what the event log says became of it."""
