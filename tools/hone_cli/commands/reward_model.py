"""`hone reward-model`: learn to score responses from pairs of them."""

from hone_cli.commands.running import start_and_follow
from hone_cli.options import (
    AsJson,
    Detach,
    DryRun,
    Endpoint,
    Overrides,
    PricePerHour,
    PricePerTokens,
    RunFile,
)


def reward_model(
    run_file: RunFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    detach: Detach = False,
    price_per_hour: PricePerHour = None,
    price_per_million_tokens: PricePerTokens = None,
) -> None:
    """Train a reward model on the pairs that RUN.yaml names: the chosen response scores above the rejected one.

    Ctrl-C stops, once an update under way is done, and says how to go on.
    """
    start_and_follow(
        "reward-model",
        run_file,
        overrides or [],
        dry_run=dry_run,
        as_json=as_json,
        endpoint=endpoint,
        detach=detach,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_million_tokens,
    )
