"""Puts a grading desk together from settings; the service and `hone grade` build it here.

A grader that needs a service which is not there gets a stand-in that says what is missing.
"""

import random
import time
from collections.abc import Awaitable, Callable, Collection
from importlib.metadata import version

from opentelemetry import trace

from grader.answer.symbolic import SymbolicProcess
from grader.clients.addresses import Addresses
from grader.clients.boxes import IDEMPOTENT_METHODS, SandboxRooms
from grader.clients.critic import CriticJudges
from grader.clients.endpoints import EndpointClient
from grader.clients.grpc_endpoints import GrpcTransport
from grader.clients.http_endpoints import HttpTransport
from grader.clients.reward_models import RolloutRewardModels
from grader.clients.signing import Secrets
from grader.definition import Definitions
from grader.desk import GradingDesk
from grader.functions.pool import FunctionPool
from grader.instruments.all import Instruments
from grader.instruments.judges import NoJudges
from grader.instruments.reward_models import NoRewardModels
from grader.settings import GraderSettings
from servicekit.channels import connect, resolve
from servicekit.settings import SERVICES
from servicekit.tokens import TokenMinter

OnClose = Callable[[Callable[[], Awaitable[None]]], object]
"""Registers what to call at the end, last registered first."""


def build_desk(
    settings: GraderSettings, on_close: OnClose, *, services: Collection[str] = SERVICES
) -> GradingDesk:
    """Return a desk with every instrument that these settings allow; nothing connects before its first use.

    Args:
        settings: of the grader.
        on_close: takes what must end with the desk.
        services: names of the services that may be asked.
    """
    instruments = Instruments(
        symbolic=_symbolic(settings, on_close),
        endpoints=_endpoints(settings, on_close),
        functions=_functions(settings, on_close),
        judges=_judges(settings, on_close) if "critic" in services else NoJudges(),
        reward_models=(
            _reward_models(settings, on_close) if "rollout" in services else NoRewardModels()
        ),
    )
    return GradingDesk(
        Definitions(package_version=version("hone-grader")),
        instruments,
        rooms=_rooms(settings, on_close) if "sandbox" in services else None,
    )


def _rooms(settings: GraderSettings, on_close: OnClose) -> SandboxRooms | None:
    """Return rooms over the sandbox service; None without a key, since it answers no call without a token."""
    if settings.token_key_file is None:
        return None
    minter = TokenMinter(settings.token_key_file, time.time)
    ttl = 2 * settings.lease_seconds
    rooms = SandboxRooms(
        lambda: connect(resolve("sandbox", settings), idempotent_methods=IDEMPOTENT_METHODS),
        lambda rollout_id, epoch: minter.mint(rollout_id, epoch, "grader", ttl),
        clock=time.time,
        rng=random.Random(),
    )
    on_close(rooms.close)
    return rooms


def _endpoints(settings: GraderSettings, on_close: OnClose) -> EndpointClient:
    addresses = Addresses(settings.endpoint_allow)
    http, grpc = HttpTransport(addresses), GrpcTransport(addresses)
    client = EndpointClient(
        {"http": http, "https": http, "grpc": grpc, "grpcs": grpc},
        Secrets(folder=settings.endpoint_secrets_dir),
        clock=time.time,
        rng=random.Random(),
        tracer=trace.get_tracer("hone.grader"),
    )
    on_close(client.close)
    return client


def _functions(settings: GraderSettings, on_close: OnClose) -> FunctionPool:
    pool = FunctionPool(workers=settings.function_workers)
    on_close(pool.close)
    return pool


def _judges(settings: GraderSettings, on_close: OnClose) -> CriticJudges:
    client = CriticJudges(
        lambda: connect(resolve("critic", settings), idempotent_methods=("Judge",))
    )
    on_close(client.close)
    return client


def _reward_models(settings: GraderSettings, on_close: OnClose) -> RolloutRewardModels:
    client = RolloutRewardModels(
        lambda: connect(resolve("rollout", settings), idempotent_methods=("ScoreRewards",))
    )
    on_close(client.close)
    return client


def _symbolic(settings: GraderSettings, on_close: OnClose) -> SymbolicProcess:
    symbolic = SymbolicProcess(
        timeout_seconds=settings.symbolic_timeout_seconds, workers=settings.symbolic_workers
    )

    async def close() -> None:
        symbolic.close()

    on_close(close)
    return symbolic
