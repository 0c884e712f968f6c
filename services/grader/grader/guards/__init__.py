"""Guards against reward hacking: one file per guard, beside the graders and apart from their values."""
