"""`hone train`: learn from rewards."""

from pathlib import Path
from typing import Annotated

import typer

from hone_cli.commands.running import start_and_follow
from hone_cli.errors import USAGE, CliError
from hone_cli.options import (
    AsJson,
    Detach,
    DryRun,
    Endpoint,
    Overrides,
    PricePerHour,
    PricePerTokens,
)


def train(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="RUN.yaml", help="What to run.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN_ID",
            help="Go on with a run from its last checkpoint, instead of RUN.yaml.",
        ),
    ] = None,
    rollback: Annotated[
        str | None,
        typer.Option(
            "--rollback",
            metavar="RUN_ID",
            help="Go back to an earlier checkpoint of a run that is not going, as a new version.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="STEP|best", help="With --rollback; default best."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
    detach: Detach = False,
    price_per_hour: PricePerHour = None,
    price_per_million_tokens: PricePerTokens = None,
) -> None:
    """Let the agent act on the tasks of RUN.yaml and train it on the rewards.

    Ctrl-C stops, once an update under way is done, and says how to go on.
    """
    if rollback is not None:
        if run_file is not None or resume is not None or dry_run or detach:
            raise CliError("--rollback RUN_ID goes with --to, --json and --endpoint alone", USAGE)
        _rollback(rollback, to or "best", as_json=as_json, endpoint=endpoint)
        return
    if to is not None:
        raise CliError("--to goes with --rollback RUN_ID", USAGE)
    if resume is not None:
        if run_file is not None:
            raise CliError("give a run file or --resume RUN_ID, not both", USAGE)
        if dry_run:
            raise CliError("--dry-run has nothing to check with --resume", USAGE)
        _resume(resume, as_json=as_json, endpoint=endpoint, detach=detach)
        return
    if run_file is None:
        raise CliError("give a run file, --resume RUN_ID or --rollback RUN_ID", USAGE)
    start_and_follow(
        "train",
        run_file,
        overrides or [],
        dry_run=dry_run,
        as_json=as_json,
        endpoint=endpoint,
        detach=detach,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_million_tokens,
    )


def _resume(run_id: str, *, as_json: bool, endpoint: str | None, detach: bool) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.jobs import resume, run_to_end
    from hone_cli.plain import plain

    book = AddressBook(endpoint)
    run = asyncio.run(resume(run_id, book))
    if not detach:
        raise typer.Exit(run_to_end(run, book, as_json=as_json))
    if as_json:
        typer.echo(json.dumps({"run": plain(run)}))
    else:
        typer.echo(
            f"run {run.run_id} goes on after step {run.step}; "
            f"watch it with `hone runs {run.run_id} --watch`"
        )


def _rollback(run_id: str, to: str, *, as_json: bool, endpoint: str | None) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.exporting import choice_of
    from hone_cli.plain import plain
    from hone_cli.queries import roll_back

    reply = asyncio.run(roll_back(run_id, choice_of(to), AddressBook(endpoint)))
    if as_json:
        typer.echo(json.dumps(plain(reply), indent=2))
    else:
        typer.echo(
            f"run {run_id} has the weights of step {reply.to_step} (policy version "
            f"{reply.to_policy_version}) again, as version {reply.run.policy_version}; "
            f"go on with `hone train --resume {run_id}`"
        )
