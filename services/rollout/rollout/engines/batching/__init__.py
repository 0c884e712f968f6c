"""Batched sampling on a CPU: weights, key-value rows, prefix cache, sampling, scheduler."""
