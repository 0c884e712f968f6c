"""What the benchmarks of the learner share."""
