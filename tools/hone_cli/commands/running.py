"""The part that the commands that start runs share."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

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
) -> None:
    """Checks, starts and follows a run; ends the command with the run's exit code."""
    import asyncio
    import json

    from hone_cli import dryrun
    from hone_cli.addresses import AddressBook
    from hone_cli.jobs import check_grader, prepare, run_to_end, start
    from hone_cli.plain import plain

    job = prepare(run_file, overrides, verb)
    book = AddressBook(endpoint)
    if dry_run:
        grader = asyncio.run(check_grader(job, book))
        typer.echo(dryrun.as_json(job, grader) if as_json else dryrun.as_text(job, grader))
        return
    run = asyncio.run(start(job, book))
    if detach:
        if as_json:
            typer.echo(json.dumps({"run": plain(run)}))
        else:
            typer.echo(f"started run {run.run_id}; watch it with `hone runs {run.run_id} --watch`")
        return
    raise typer.Exit(run_to_end(run, book, as_json=as_json))
