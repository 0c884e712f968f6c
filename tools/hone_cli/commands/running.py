"""The part that the commands that start runs share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hone_cli.errors import USAGE, CliError

if TYPE_CHECKING:
    from hone_cli.jobs import Verb


def start_and_follow(
    verb: "Verb",
    run_file: Path,
    overrides: Sequence[str],
    *,
    dry_run: bool,
    as_json: bool,
    endpoint: str | None,
    detach: bool,
    price_per_hour: float | None = None,
    price_per_million_tokens: float | None = None,
) -> None:
    """Checks, starts and follows a run; ends the command with the run's exit code."""
    import asyncio
    import json

    from hone_cli import dryrun
    from hone_cli.addresses import AddressBook
    from hone_cli.estimate import Prices, estimate
    from hone_cli.jobs import check_grader, prepare, run_to_end, start
    from hone_cli.plain import plain
    from hone_cli.sizing import inputs_of

    job = prepare(run_file, overrides, verb)
    book = AddressBook(endpoint)
    if dry_run:
        prices = Prices(per_hour=price_per_hour, per_million_tokens=price_per_million_tokens)
        grader = asyncio.run(check_grader(job, book))
        inputs, missing = asyncio.run(inputs_of(job, book, prices))
        show = dryrun.as_json if as_json else dryrun.as_text
        typer.echo(show(job, grader, estimate(inputs), missing))
        return
    if price_per_hour is not None or price_per_million_tokens is not None:
        raise CliError("prices are for the estimate of --dry-run; add it, or leave them out", USAGE)
    run = asyncio.run(start(job, book))
    if detach:
        if as_json:
            typer.echo(json.dumps({"run": plain(run)}))
        else:
            typer.echo(f"started run {run.run_id}; watch it with `hone runs {run.run_id} --watch`")
        return
    raise typer.Exit(run_to_end(run, book, as_json=as_json))
