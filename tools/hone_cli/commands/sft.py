"""`hone sft`: imitate conversations."""

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


def sft(
    run_file: RunFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    detach: Detach = False,
    price_per_hour: PricePerHour = None,
    price_per_million_tokens: PricePerTokens = None,
) -> None:
    """Teach the model by example: train on the conversations that RUN.yaml names.

    Ctrl-C stops, once an update under way is done, and says how to go on.
    """
    start_and_follow(
        "sft",
        run_file,
        overrides or [],
        dry_run=dry_run,
        as_json=as_json,
        endpoint=endpoint,
        detach=detach,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_million_tokens,
    )
