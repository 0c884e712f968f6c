"""TensorBoard: scalars in event files, in the run's folder `tensorboard`. Needs neither torch nor tensorflow."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from learner.loggers.base import RunInfo
from learner.runs.store import Step

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Writes one event file per life of the run and removes those of its earlier lives."""

    def __init__(self, run: RunInfo) -> None:
        """Writes nothing yet."""
        self._run = run
        self._folder = run.folder / FOLDER
        self._writer: Any = None

    def begin(self, steps: Sequence[Step]) -> None:
        """Writes the steps into a file of its own, which then takes the place of older ones."""
        old = list(self._folder.glob("events.out.tfevents.*"))
        # A page that is open on the older file is told to forget it.
        self._writer = EventFileWriter(str(self._folder))
        self._add(0, time.time(), session_log=SessionLog(status=SessionLog.START))
        self._add(0, time.time(), summary=Summary(value=[_text("run.yaml", self._run.settings)]))
        for step in steps:
            self._scalars(step)
        self._writer.flush()
        for file in old:
            file.unlink()

    def step(self, step: Step) -> None:
        """Adds the scalars of a step."""
        self._scalars(step)
        self._writer.flush()

    def end(self, state: str) -> None:
        """Closes the file."""
        self._writer.close()

    def _scalars(self, step: Step) -> None:
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in step.metrics.items()
        ]
        self._add(step.step, step.end_time, summary=Summary(value=values))

    def _add(self, step: int, wall_time: float, **what: Any) -> None:
        self._writer.add_event(Event(step=step, wall_time=wall_time, **what))


def _text(tag: str, settings: Mapping[str, object]) -> Any:
    """A tag of the page's texts."""
    shown = "".join(f"    {line}\n" for line in yaml.safe_dump(dict(settings)).splitlines())
    return Summary.Value(
        tag=tag,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=[shown.encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )
