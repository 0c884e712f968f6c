"""The learner: owns runs, policy weights, optimiser, checkpoints and retries."""
