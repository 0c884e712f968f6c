"""Grading on one's own machine: where rows come from, how they are graded, what is said about them."""
