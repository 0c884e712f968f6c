"""Puts a replica together from its settings."""

import os
import random
import socket
import time
import uuid
from functools import partial
from pathlib import Path

from hone.rollout.v1 import rollout_pb2, rollout_pb2_grpc

from eventbus.bus import EventBus
from eventbus.jetstream.options import BusOptions
from eventbus.nats_bus import NatsBus
from modelstore.resolve import resolve_model
from rollout.adapters import AdapterFolders
from rollout.clients import IDEMPOTENT_METHODS, SandboxClient, Tokens, ToolGatewayClient
from rollout.consumer import BusBlobFetcher, BusReporter, consume_requests, follow_policies
from rollout.engines.base import EngineError, ModelKey
from rollout.engines.table import ENGINES, EngineOptions, choose_engine
from rollout.executor import Executor, LeaseTimes
from rollout.policies import Policies
from rollout.reward_models import RewardModels, RewardScorer
from rollout.servicer import RolloutServicer
from rollout.settings import RolloutSettings
from servicekit.channels import connect, resolve
from servicekit.errors import Unavailable
from servicekit.serve import App
from servicekit.tokens import TokenMinter

DRAIN_SHARE = 0.6
"""Of the drain time: how long rollouts may finish before the rest is handed back."""


async def build(app: App[RolloutSettings]) -> None:
    """Connects everything; the replica takes work once this has returned.

    Raises:
        Unavailable: the model to preload cannot be opened; names its path and the cause.
    """
    settings = app.settings
    engine_name = choose_engine(settings.engine)
    options = BusOptions(drain_seconds=settings.drain_seconds)
    bus = await NatsBus.connect(settings.nats_url, name="rollout", options=options)
    app.on_close(bus.close)
    blobs = await bus.blobs()
    policies = make_policies(
        settings, AdapterFolders(settings.data_dir / "adapters", BusBlobFetcher(blobs))
    )
    app.on_close(policies.close)
    if settings.preload_model:
        await _preload(policies, settings.preload_model)
    reporter = BusReporter(bus, blobs, time.time)
    executor = await _make_executor(app, bus, policies, reporter)
    rewards = make_reward_models(settings)
    app.on_close(rewards.close)
    rollout_pb2_grpc.add_RolloutServiceServicer_to_server(
        RolloutServicer(policies, rewards, executor, engine_name), app.server
    )
    app.add_service(rollout_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name)
    app.on_drain(partial(executor.drain, settings.drain_seconds * DRAIN_SHARE))
    app.spawn(
        consume_requests(
            bus,
            executor,
            reporter,
            stop=app.stopping,
            max_in_flight=settings.max_in_flight,
            ack_wait_seconds=settings.ack_wait_seconds,
        ),
        name="rollout requests",
    )
    app.spawn(follow_policies(bus, policies, stop=app.stopping), name="published policies")


def make_policies(settings: RolloutSettings, adapters: AdapterFolders) -> Policies:
    """Makes the policies over the engine that the settings choose."""
    make_engine = ENGINES[choose_engine(settings.engine)]
    options = EngineOptions(
        threads=settings.threads,
        max_batch=settings.max_batch,
        prefix_cache_bytes=settings.prefix_cache_bytes,
        script_file=settings.script_file,
    )
    return Policies(
        make_engine=partial(make_engine, options),
        resolve=lambda path: resolve_model(path, settings.model_cache_dir),
        adapters=adapters,
    )


def make_reward_models(settings: RolloutSettings) -> RewardModels:
    """Makes the reward models; torch is imported with the first of them."""

    def open_model(folder: Path, dtype: str) -> RewardScorer:
        from rollout.engines.reward_head import RewardHead

        return RewardHead(folder, dtype, settings.reward_device)

    return RewardModels(
        open_model=open_model,
        resolve=lambda path: resolve_model(path, settings.model_cache_dir),
        max_loaded=settings.reward_models,
    )


async def _make_executor(
    app: App[RolloutSettings], bus: EventBus, policies: Policies, reporter: BusReporter
) -> Executor:
    settings = app.settings
    minter = None
    if settings.token_key_file is not None:
        minter = TokenMinter(settings.token_key_file, time.time)
    tokens = Tokens(minter, ttl_seconds=2 * settings.lease_seconds)
    channels = {
        service: connect(resolve(service, settings), idempotent_methods=IDEMPOTENT_METHODS)
        for service in ("sandbox", "tool_gateway")
    }
    for channel in channels.values():
        app.on_close(channel.close)
    return Executor(
        owner=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        claims=await bus.claims(),
        policies=policies,
        sandboxes=SandboxClient(channels["sandbox"], tokens, random.Random()),
        tools=ToolGatewayClient(channels["tool_gateway"], tokens, time.time),
        reporter=reporter,
        times=LeaseTimes(
            lease_seconds=settings.lease_seconds, renew_seconds=settings.renew_seconds
        ),
        clock=time.time,
        tracer=app.tracer,
    )


async def _preload(policies: Policies, path: str) -> None:
    try:
        await policies.open_model(ModelKey(path=path))
    except EngineError as error:
        raise Unavailable(f"HONE_ROLLOUT_PRELOAD_MODEL: {error}") from error
