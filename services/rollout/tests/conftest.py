"""A tokenizer and renderer without a model, and a scripted engine over them."""

from pathlib import Path

import pytest

from modelstore.tiny import make_tiny_model, make_tiny_reward_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of a million parameters and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-model")
    make_tiny_model(folder, seed=0)
    return folder


@pytest.fixture(scope="session")
def tiny_reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random reward model, whose pad token is its end of sequence."""
    folder = tmp_path_factory.mktemp("tiny-reward-model")
    make_tiny_reward_model(folder, seed=1)
    return folder
