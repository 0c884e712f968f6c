"""The training core: model, exact log-probabilities, algorithms, trainer, checkpoints.

It knows torch, transformers and peft, and neither services nor events.
"""
