"""`hone stop`: stop a run that is going."""

import json
from typing import Annotated

import typer

from hone_cli.options import AsJson, Endpoint


def stop(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run to stop.")],
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """Stop a run; an update under way is finished first.

    `hone train --resume` goes on with it, and with the rollouts that were under way.

    A run that is not going is left as it is.
    """
    import asyncio

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.queries import stop_run
    from hone_cli.render_run import state_of

    run = asyncio.run(stop_run(run_id, AddressBook(endpoint)))
    if as_json:
        typer.echo(json.dumps(plain(run), indent=2))
    else:
        typer.echo(f"run {run.run_id} is {state_of(run)} at step {run.step}")
