"""`hone audit`: check the invariants of a run's log."""

from typing import Annotated

import typer

from hone_cli.errors import FAILED
from hone_cli.options import AsJson, Endpoint


def audit(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run to check.")],
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            min=0,
            metavar="SECONDS",
            help="How long to wait until the archive has the run's end.",
        ),
    ] = 15.0,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """Check a run's log: each slot has one outcome, is trained once, nothing was left behind.

    Exit code 1 if something does not hold.
    """
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.queries import audit_run, wait_for_end

    book = AddressBook(endpoint)
    ended = asyncio.run(wait_for_end(run_id, book, seconds=wait))
    reply = asyncio.run(audit_run(book, run_id))
    if as_json:
        typer.echo(json.dumps({**plain(reply), "run_ended": ended}, indent=2))
    else:
        if not ended:
            typer.echo("the archive does not have the run's end: this is the log so far")
        for finding in reply.findings:
            typer.echo(f"{finding.rule}: {finding.detail}")
            for rollout_id in finding.rollout_ids:
                typer.echo(f"  {rollout_id}")
        counts = ", ".join(f"{name} {reply.counts[name]}" for name in sorted(reply.counts))
        typer.echo(f"checked up to event {reply.stream_sequence}: {counts or 'nothing'}")
        num = len(reply.findings)
        typer.echo(f"{num} findings" if num else "clean: every invariant holds")
    raise typer.Exit(FAILED if reply.findings else 0)
