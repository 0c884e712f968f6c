"""What torch raises of a checkpoint ends a run as any error does."""

from pathlib import Path
from traceback import StackSummary

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from learner.training.checkpoint import CheckpointError, plain_errors


def test_full_disk_is_an_error_like_others(tmp_path: Path) -> None:
    found = CheckpointException(
        "save", {0: (OSError(28, "No space left on device"), StackSummary())}
    )
    assert not isinstance(found, Exception)
    with pytest.raises(CheckpointError, match="No space left") as caught, plain_errors(tmp_path):
        raise found
    assert isinstance(caught.value, Exception)
