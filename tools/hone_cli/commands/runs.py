"""`hone runs`: list runs, show one, or compare some."""

from typing import Annotated

import typer

from hone_cli.errors import USAGE, CliError
from hone_cli.options import AsJson, Endpoint

_MAX_COMPARED = 8


def runs(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN_ID | compare RUN_ID RUN_ID",
            help="Show this run with its steps, or compare the others with the first.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow the run to its end; Ctrl-C stops the run.")
    ] = False,
    errors: Annotated[
        bool, typer.Option("--errors", help="Type every rollout of the run that did not succeed.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Compare every figure, not only the most telling ones.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="Runs to list.")] = 50,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """List the runs, newest first; show one; or compare some: settings, figures and held-out reward.

    Runs are started by `hone train` and its like, stopped by `hone stop`, resumed by `hone train --resume`.
    """
    import asyncio

    from hone_cli.addresses import AddressBook

    book = AddressBook(endpoint)
    if run_ids and run_ids[0] == "compare":
        if watch or errors:
            raise CliError("compare takes neither --watch nor --errors", USAGE)
        _compare(book, run_ids[1:], everything=everything, as_json=as_json)
        return
    if run_ids and len(run_ids) > 1:
        raise CliError("give one RUN_ID, or `hone runs compare RUN_ID RUN_ID...`", USAGE)
    if everything:
        raise CliError("--all goes with compare", USAGE)
    run_id = run_ids[0] if run_ids else None
    if errors:
        if run_id is None or watch:
            raise CliError("--errors needs a RUN_ID, and no --watch", USAGE)
        _errors(book, run_id, as_json=as_json)
        return
    if watch:
        if run_id is None:
            raise CliError("--watch needs a RUN_ID", USAGE)
        from hone_cli.jobs import run_to_end
        from hone_cli.queries import get_run

        run = asyncio.run(get_run(run_id, book)).run
        raise typer.Exit(run_to_end(run, book, as_json=as_json))
    if run_id is None:
        _list(book, limit, as_json=as_json)
    else:
        _show(book, run_id, as_json=as_json)


def _list(book: object, limit: int, *, as_json: bool) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.queries import list_runs
    from hone_cli.render_run import print_runs

    assert isinstance(book, AddressBook)
    found = asyncio.run(list_runs(book, limit))
    if as_json:
        typer.echo(json.dumps({"runs": [plain(run) for run in found]}, indent=2))
    else:
        print_runs(found)


def _show(book: object, run_id: str, *, as_json: bool) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.plain import plain
    from hone_cli.potential import potential_plain
    from hone_cli.queries import get_run, run_counts
    from hone_cli.render_run import print_run

    assert isinstance(book, AddressBook)

    async def ask() -> None:
        reply = await get_run(run_id, book)
        counts = await run_counts(run_id, book)
        if as_json:
            found = plain(reply) | potential_plain(reply.run)
            found |= {"archive": plain(counts)} if counts is not None else {}
            typer.echo(json.dumps(found, indent=2))
        else:
            print_run(reply, counts)

    asyncio.run(ask())


def _compare(book: object, run_ids: list[str], *, everything: bool, as_json: bool) -> None:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.compare import compare
    from hone_cli.queries import run_figures
    from hone_cli.render_compare import as_plain, print_comparison

    assert isinstance(book, AddressBook)
    if len(set(run_ids)) < 2 or len(set(run_ids)) < len(run_ids) or len(run_ids) > _MAX_COMPARED:
        raise CliError(f"compare needs 2 to {_MAX_COMPARED} different RUN_IDs", USAGE)

    async def ask() -> None:
        found = compare([await run_figures(run_id, book) for run_id in run_ids])
        if as_json:
            typer.echo(json.dumps(as_plain(found), indent=2))
        else:
            print_comparison(found, everything=everything)

    asyncio.run(ask())


def _errors(book: object, run_id: str, *, as_json: bool) -> None:
    import asyncio
    import json

    from grader.analysis.errors import analyse, attempt_of
    from hone_cli.addresses import AddressBook
    from hone_cli.grading.render import errors_plain, errors_text
    from hone_cli.grading.stored import outcome_of_summary, phase_of, step_of, summaries_of

    assert isinstance(book, AddressBook)
    summaries = asyncio.run(summaries_of(run_id, book, phase=None, step=None))
    ended = [(item, outcome_of_summary(item)) for item in summaries]
    report = analyse(
        attempt_of(item.rollout_id, step_of(item), outcome, phase=phase_of(item))
        for item, outcome in ended
        if outcome is not None
    )
    typer.echo(json.dumps(errors_plain(report), indent=2) if as_json else errors_text(report))
