"""For tests of runs that really train: a learner in a folder, without its wire."""

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from google.protobuf import json_format
from learner_world import never_measured

from eventbus.memory_bus import MemoryBus
from learner.datasets import DatasetStore
from learner.runner import Runner, spec_of
from learner.runs.adapters import AdapterStore
from learner.runs.manager import RunManager
from learner.runs.rollback import Rollbacks
from learner.runs.store import Run, RunStore
from learner.settings import LearnerSettings
from learner.workers.dtype_probe import MeasureDtypes
from learner.workers.torch_core import TorchCore
from runspec.convert import run_spec_to_proto
from runspec.schema import RunSpec
from trajectory.types import ToolDefinition


class NoTools:
    async def definitions(self, names: Sequence[str]) -> Mapping[str, ToolDefinition]:
        return {}


class LocalLearner:
    """A learner in a folder, as it is after a start."""

    def __init__(
        self, folder: Path, bus: MemoryBus, measure: MeasureDtypes = never_measured
    ) -> None:
        self.store = RunStore(folder / "runs")
        self.datasets = DatasetStore(folder / "datasets")
        adapters = AdapterStore(self.store)
        settings = LearnerSettings(model_cache_dir=folder / "models", threads=1)
        runner = Runner(
            bus=bus,
            store=self.store,
            datasets=self.datasets,
            adapters=adapters,
            make_core=partial(TorchCore, settings=settings),
            measure_dtypes=measure,
            tools=NoTools(),
            rng=random.Random(0),
        )
        rollbacks = Rollbacks(self.store, adapters, runner.announce_rollback, spec_of)
        self.manager = RunManager(self.store, runner.run, runner.announce_end, time.time, rollbacks)

    def begin(self, spec: RunSpec) -> Run:
        message = json_format.MessageToJson(run_spec_to_proto(spec))
        return self.manager.start("run", str(uuid.uuid4()), message)

    async def ended(self, run_id: str) -> Run:
        """Waits for a run's end."""
        news = [item async for item in self.manager.hub(run_id).watch()]
        assert isinstance(news[-1], Run)
        return news[-1]
