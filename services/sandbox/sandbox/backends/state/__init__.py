"""A database per rollout."""
