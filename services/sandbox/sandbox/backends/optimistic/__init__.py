"""An environment that rollouts share."""
