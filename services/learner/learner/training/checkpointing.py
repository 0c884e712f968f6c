"""Activation checkpointing (arXiv:1604.06174): layers keep their input alone and are computed again for the gradients.

transformers checkpoints layers that are in training mode. Here the layers alone are: what is inside them stays in
evaluation mode, so that no dropout begins.
"""

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from modelstore.resolve import ModelUnusableError


def checkpoint_activations(model: Any) -> None:
    """Lets every layer of a transformers model be computed again for the backward pass.

    To be called after `eval`, which would undo it.

    Raises:
        ModelUnusableError: the model's layers cannot be computed again.
    """
    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers or not model.supports_gradient_checkpointing:
        raise ModelUnusableError(
            f"train.gradient_checkpointing: {type(model).__name__} does not support it; leave it out"
        )
    # Nothing within the layers is random, so no random state is put aside.
    options = {"use_reentrant": False, "preserve_rng_state": False}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    for layer in layers:
        layer.training = True
