"""Final answers: finding the one that a response states, and deciding whether it equals the reference."""
