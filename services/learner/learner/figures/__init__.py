"""What the rollouts of a step or an evaluation say, as numbers."""
