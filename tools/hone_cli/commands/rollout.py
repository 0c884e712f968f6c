"""`hone rollout`: one rollout turn by turn, or a list of a run's rollouts."""

from typing import Annotated

import typer

from hone_cli.errors import USAGE, CliError
from hone_cli.options import AsJson, Endpoint

OUTCOMES = ("scored", "masked", "failed", "open")
PHASES = ("baseline", "train", "evaluate", "prefer", "memory")


def rollout(
    rollout_id: Annotated[
        str | None, typer.Argument(metavar="[ROLLOUT_ID]", help="Show this rollout whole.")
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="RUN_ID", help="List the rollouts of this run.")
    ] = None,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help=f"List only these: {', '.join(OUTCOMES)}.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--phase", help=f"List only this phase: {', '.join(PHASES)}.")
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="List only this step, from 0 as in slots.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rollouts to list.")] = 100,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """Show one rollout: prompt, turns, tool calls and results, tokens, rewards and its trace.

    With --run, list the rollouts of a run.
    """
    if (rollout_id is None) == (run is None):
        raise CliError("give a ROLLOUT_ID, or --run RUN_ID to list a run's rollouts", USAGE)
    if rollout_id is not None:
        if outcome or phase or step is not None:
            raise CliError("--outcome, --phase and --step go with --run", USAGE)
        _show(rollout_id, endpoint, as_json=as_json)
        return
    _check_word("--outcome", outcome, OUTCOMES)
    _check_word("--phase", phase, PHASES)
    _list(str(run), outcome, phase, step, limit, endpoint, as_json=as_json)


def _check_word(option: str, word: str | None, known: tuple[str, ...]) -> None:
    if word is not None and word not in known:
        raise CliError(f"{option}: found {word!r}, expected one of {', '.join(known)}", USAGE)


def _show(rollout_id: str, endpoint: str | None, *, as_json: bool) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.queries import get_rollout
    from hone_cli.render_rollout import print_rollout, span_line
    from hone_cli.waterfall import verdict

    full_id = as_rollout_id(rollout_id)
    reply = asyncio.run(get_rollout(AddressBook(endpoint), full_id))
    if as_json:
        trace_id = full_id.replace("-", "")
        problems = verdict([span_line(item) for item in reply.spans], trace_id)
        trace = {"trace_id": trace_id, "problems": problems}
        typer.echo(json.dumps({**plain(reply), "trace": trace}, indent=2))
    else:
        print_rollout(reply)


def as_rollout_id(text: str) -> str:
    """A rollout_id as the log writes it; a trace id without dashes will do.

    Raises:
        CliError: it is neither.
    """
    import uuid

    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise CliError(
            f"{text!r} is no rollout_id; it looks like 0198c0de-1234-7abc-8def-0123456789ab, "
            "and `hone rollout --run RUN_ID` lists them",
            USAGE,
        ) from None


def _list(
    run_id: str,
    outcome: str | None,
    phase: str | None,
    step: int | None,
    limit: int,
    endpoint: str | None,
    *,
    as_json: bool,
) -> None:
    import asyncio
    import json

    from hone.common.v1 import identity_pb2
    from hone.console.v1 import console_pb2

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.queries import list_rollouts
    from hone_cli.render_rollout import print_rollouts

    request = console_pb2.ListRolloutsRequest(run_id=run_id, outcome=outcome or "", step=step)
    if phase is not None:
        request.phase = identity_pb2.Phase.Value(f"PHASE_{phase.upper()}")
    found, more = asyncio.run(list_rollouts(AddressBook(endpoint), request, limit))
    if as_json:
        typer.echo(
            json.dumps({"rollouts": [plain(item) for item in found], "more": more}, indent=2)
        )
        return
    if not found:
        typer.echo(f"the archive has no such rollouts of run {run_id}")
        return
    print_rollouts(found)
    if more:
        typer.echo(f"there are more; --limit {limit * 2} shows them")
