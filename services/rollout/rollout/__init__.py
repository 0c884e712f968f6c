"""The rollout service: the agent loop, the engines, and exact token records."""
