"""Model judging: asks a judge and reads its verdict."""
