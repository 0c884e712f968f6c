"""`hone evaluate`: measure a policy."""

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


def evaluate(
    run_file: RunFile,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    detach: Detach = False,
    price_per_hour: PricePerHour = None,
    price_per_million_tokens: PricePerTokens = None,
) -> None:
    """Measure a policy on the evaluation tasks of RUN.yaml, without training it.

    A file made for `hone train` will do if its data names eval tasks. Add model.adapter=RUN_ID to measure
    what a run has learnt, and eval.samples=4 to learn pass@k and which tasks can teach.
    """
    start_and_follow(
        "evaluate",
        run_file,
        overrides or [],
        dry_run=dry_run,
        as_json=as_json,
        endpoint=endpoint,
        detach=detach,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_million_tokens,
    )
