"""Starts the learner: `python -m learner`."""

import random
import time
from functools import partial

from hone.learner.v1 import learner_pb2, learner_pb2_grpc

from eventbus.nats_bus import NatsBus
from learner.clients import IDEMPOTENT_METHODS, ToolCatalogue
from learner.datasets import DatasetStore
from learner.runner import Runner, spec_of
from learner.runs.adapters import AdapterStore
from learner.runs.exports import Exporter
from learner.runs.manager import RunManager
from learner.runs.rollback import Rollbacks
from learner.runs.store import RunStore
from learner.scratch import use_scratch
from learner.servicer import LearnerServicer
from learner.settings import LearnerSettings
from learner.workers.dtype_probe import DtypeProbe
from learner.workers.torch_core import TorchCore
from servicekit.channels import connect, resolve
from servicekit.serve import App, run


async def build(app: App[LearnerSettings]) -> None:
    """Puts the learner together."""
    settings = app.settings
    use_scratch(settings.data_dir / "learner-tmp")
    bus = await NatsBus.connect(settings.nats_url, name="learner")
    app.on_close(bus.close)
    gateway = connect(resolve("tool_gateway", settings), idempotent_methods=IDEMPOTENT_METHODS)
    app.on_close(gateway.close)
    tools = ToolCatalogue(gateway)
    store = RunStore(settings.data_dir / "runs")
    datasets = DatasetStore(settings.data_dir / "datasets")
    adapters = AdapterStore(store)
    runner = Runner(
        bus=bus,
        store=store,
        datasets=datasets,
        adapters=adapters,
        make_core=partial(TorchCore, settings=settings),
        measure_dtypes=DtypeProbe(settings.model_cache_dir, settings.threads),
        tools=tools,
        rng=random.Random(),
    )
    rollbacks = Rollbacks(store, adapters, runner.announce_rollback, spec_of)
    manager = RunManager(store, runner.run, runner.announce_end, time.time, rollbacks)
    servicer = LearnerServicer(
        manager=manager,
        store=store,
        datasets=datasets,
        adapters=adapters,
        exporter=Exporter(store, settings.model_cache_dir, spec_of),
        tools=tools,
        max_dataset_bytes=settings.max_dataset_bytes,
    )
    learner_pb2_grpc.add_LearnerServiceServicer_to_server(servicer, app.server)
    app.add_service(learner_pb2.DESCRIPTOR.services_by_name["LearnerService"].full_name)
    app.on_drain(manager.drain)
    manager.resume_interrupted()


if __name__ == "__main__":
    run("learner", LearnerSettings, build)
