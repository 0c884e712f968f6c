"""The grader: scores finished rollouts by a grader definition."""
