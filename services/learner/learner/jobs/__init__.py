"""What a run does, one file per kind: sft, reinforce, evaluate."""
