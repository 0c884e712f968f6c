"""A tokenizer and renderer without a model, and a scripted engine over them."""

from pathlib import Path

import pytest

from modelstore.tiny import make_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of a million parameters and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-model")
    make_tiny_model(folder, seed=0)
    return folder
