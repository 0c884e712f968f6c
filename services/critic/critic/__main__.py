"""Starts the critic: `python -m critic`."""

import logging
import random

from hone.critic.v1 import critic_pb2, critic_pb2_grpc

from critic.clients.chat_api import ChatApi, Endpoint
from critic.judge import Judge, NoJudge
from critic.judging import Critic, Defaults
from critic.measures import Measures
from critic.servicer import CriticServicer
from critic.settings import CriticSettings
from critic.turns import Turns
from servicekit.serve import App, run

log = logging.getLogger(__name__)


async def build(app: App[CriticSettings]) -> None:
    """Put the critic together."""
    settings = app.settings
    measures = Measures(app.meter)
    critic = Critic(
        _judge(app, measures),
        Turns(max_in_flight=settings.max_in_flight, max_waiting=settings.max_waiting),
        Defaults(model=settings.model, max_tokens=settings.default_max_tokens),
        measures=measures,
        tracer=app.tracer,
    )
    servicer = CriticServicer(critic, default_timeout_seconds=settings.default_timeout_seconds)
    critic_pb2_grpc.add_CriticServiceServicer_to_server(servicer, app.server)
    app.add_service(critic_pb2.DESCRIPTOR.services_by_name["CriticService"].full_name)


def _judge(app: App[CriticSettings], measures: Measures) -> Judge:
    settings = app.settings
    if not settings.endpoint_url:
        log.info("no judge is set up; questions fail until HONE_CRITIC_ENDPOINT_URL is set")
        return NoJudge()
    # The client library's line per request would hide the service's own.
    for noisy in ("openai", "httpx", "httpx2", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    judge = ChatApi(
        Endpoint(
            url=settings.endpoint_url,
            api_key_file=settings.api_key_file,
            max_tries=settings.max_tries,
        ),
        measures=measures,
        tracer=app.tracer,
        rng=random.Random(),
    )
    app.on_close(judge.close)
    return judge


if __name__ == "__main__":
    run("critic", CriticSettings, build)
