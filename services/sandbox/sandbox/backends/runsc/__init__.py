"""gVisor, one process of its own per sandbox, without a daemon."""
