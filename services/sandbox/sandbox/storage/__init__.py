"""The files of sandboxes, reached from outside, and what the manager keeps of them."""
