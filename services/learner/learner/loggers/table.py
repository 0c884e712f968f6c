"""Loggers by the name that `metrics.loggers` gives, which is also the name of the package that each needs."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from learner.loggers.base import MetricsLogger, RunInfo
from servicekit.errors import InvalidArgument

Installed = Callable[[str], bool]


def is_installed(package: str) -> bool:
    """Says whether a package can be imported here, without importing it."""
    return find_spec(package) is not None


def check_installed(names: Sequence[str], installed: Installed = is_installed) -> None:
    """Refuses loggers whose package is not there, before a run exists.

    Raises:
        InvalidArgument: names the packages and the command that installs them.
    """
    absent = [name for name in names if not installed(name)]
    if absent:
        said = (
            f"found {', '.join(absent)}, which is not installed at the learner; run: "
            f"pip install {' '.join(absent)}"
        )
        raise InvalidArgument(f"metrics.loggers: {said}", violations={"metrics.loggers": said})


def make_logger(name: str, run: RunInfo) -> MetricsLogger:
    """Makes a logger; its package is imported only here.

    Raises:
        Exception: whatever the package raises.
    """
    match name:
        case "tensorboard":
            from learner.loggers.tensorboard_events import TensorBoardLogger

            return TensorBoardLogger(run)
        case "wandb":
            from learner.loggers.wandb_offline import WandbLogger

            return WandbLogger(run)
        case "mlflow":
            from learner.loggers.mlflow_runs import MlflowLogger

            return MlflowLogger(run)
    raise ValueError(f"metrics.loggers: {name!r} is unknown")
