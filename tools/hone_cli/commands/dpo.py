"""`hone dpo`: learn from pairs of responses."""

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


def dpo(
    run_file: RunFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    detach: Detach = False,
    price_per_hour: PricePerHour = None,
    price_per_million_tokens: PricePerTokens = None,
) -> None:
    """Train the agent on the pairs that RUN.yaml names: the chosen response likelier, the rejected one less (DPO).

    Ctrl-C stops, once an update under way is done, and says how to go on.
    """
    start_and_follow(
        "dpo",
        run_file,
        overrides or [],
        dry_run=dry_run,
        as_json=as_json,
        endpoint=endpoint,
        detach=detach,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_million_tokens,
    )
