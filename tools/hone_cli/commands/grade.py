"""`hone grade`: grade responses of a file, or a run's stored rollouts, without generating again."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hone_cli.commands.rollout import PHASES
from hone_cli.errors import FAILED, INTERRUPTED, USAGE, CliError
from hone_cli.options import AsJson, Endpoint

if TYPE_CHECKING:
    from hone_cli.grading.graderfile import GraderFile
    from hone_cli.grading.session import Graded, Options, Validated

REGRADE = 20
"""Rows that --lint judges a second time."""


def grade(
    grader_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GRADER.json]", help="A grader definition, or a run.yaml that has one."
        ),
    ] = None,
    data_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.jsonl]",
            help="Task rows with a response, completion or messages that end with assistant; or records.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_ID", help="Grade this run's stored rollouts."),
    ] = None,
    other: Annotated[
        Path | None,
        typer.Option(
            "--grader", metavar="GRADER.json", help="With --run: instead of the run's own grader."
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="Only this step, from 0 as in slots.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option("--phase", help=f"Only this phase: {', '.join(PHASES)}.")
    ] = None,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate",
            help="FILE has tasks: each gold answer must score 1, an empty or another task's must not.",
        ),
    ] = False,
    gold: Annotated[
        str | None,
        typer.Option("--gold", metavar="FIELD", help="With --validate: the gold answer's field."),
    ] = None,
    lint: Annotated[
        bool, typer.Option("--lint", help="Warn of what may teach something else than the task.")
    ] = False,
    errors: Annotated[
        bool, typer.Option("--errors", help="Type every response that did not succeed.")
    ] = False,
    hacking: Annotated[
        bool,
        typer.Option(
            "--hacking",
            help="With --run: do rewards rise over the steps while held-out graders do not?",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="OUT.jsonl", help="Write each result as it comes."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --out: skip what it holds.")
    ] = False,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, help="Responses judged at once.")
    ] = 8,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first so many.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of intervals and samples.")] = 0,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """Grade responses on this machine: hone grade GRADER.json FILE.jsonl, or hone grade --run RUN_ID.

    Graders that need no service work without the suite. Exit code 1 if a response could not be graded, or --lint,
    --hacking or --validate found something. Ctrl-C keeps what was graded.
    """
    from hone_cli.grading.session import Options

    if resume and out is None:
        raise CliError("--resume goes on with the file of --out; give both", USAGE)
    if validate and (lint or errors or hacking or out is not None or run is not None):
        raise CliError("--validate goes with GRADER.json and FILE.jsonl alone", USAGE)
    if hacking and run is None:
        raise CliError("--hacking compares the steps of a run; give --run RUN_ID", USAGE)
    if gold is not None and not validate:
        raise CliError("--gold goes with --validate", USAGE)
    options = Options(
        out=out,
        resume=resume,
        parallel=parallel,
        limit=limit,
        regrade=REGRADE if lint else 0,
        seed=seed,
        quiet=as_json,
    )
    if run is not None:
        if data_file is not None or (grader_file is not None and other is not None):
            raise CliError("with --run give no FILE, and one grader at most", USAGE)
        found = _of_run(run, other or grader_file, options, endpoint, phase=phase, step=step)
    else:
        if grader_file is None or data_file is None:
            raise CliError("give GRADER.json and FILE.jsonl, or --run RUN_ID", USAGE)
        if step is not None or phase is not None or other is not None:
            raise CliError("--step, --phase and --grader go with --run", USAGE)
        if validate:
            raise typer.Exit(_validated(grader_file, data_file, options, gold, as_json=as_json))
        found = _of_file(grader_file, data_file, options)
    reports = _Reports(lint=lint, errors=errors, hacking=hacking)
    raise typer.Exit(_shown(found, options, reports, as_json=as_json))


def _of_file(grader_file: Path, data_file: Path, options: "Options") -> "Graded":
    import asyncio

    from hone_cli.addresses import AddressBook
    from hone_cli.grading.graderfile import read_grader_file
    from hone_cli.grading.session import grade_file

    grader = read_grader_file(grader_file)
    return asyncio.run(grade_file(grader, data_file, AddressBook(), options))


def _of_run(
    run_id: str,
    grader_file: Path | None,
    options: "Options",
    endpoint: str | None,
    *,
    phase: str | None,
    step: int | None,
) -> "Graded":
    import asyncio

    from hone_cli.addresses import AddressBook
    from hone_cli.grading.graderfile import read_grader_file
    from hone_cli.grading.session import grade_run

    if phase is not None and phase not in PHASES:
        raise CliError(f"--phase: found {phase!r}, expected one of {', '.join(PHASES)}", USAGE)
    grader: GraderFile | None = None if grader_file is None else read_grader_file(grader_file)
    book = AddressBook(endpoint)
    return asyncio.run(grade_run(grader, run_id, book, options, phase=phase, step=step))


def _validated(
    grader_file: Path, data_file: Path, options: "Options", gold: str | None, *, as_json: bool
) -> int:
    import asyncio
    import json

    from hone_cli.addresses import AddressBook
    from hone_cli.grading import render
    from hone_cli.grading.graderfile import read_grader_file
    from hone_cli.grading.session import validate_file

    grader = read_grader_file(grader_file)
    found: Validated = asyncio.run(
        validate_file(grader, data_file, AddressBook(), options, gold_field=gold)
    )
    if as_json:
        typer.echo(json.dumps(render.validation_plain(found), indent=2))
    else:
        typer.echo(render.validation_text(found))
    if not found.complete:
        return INTERRUPTED
    return FAILED if found.mistakes else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reports:
    """What to say beside the figures."""

    lint: bool
    errors: bool
    hacking: bool


def _shown(found: "Graded", options: "Options", wanted: _Reports, *, as_json: bool) -> int:
    import json

    from grader.analysis.errors import analyse, attempt_of
    from grader.analysis.hacking import hacking_of
    from grader.analysis.lint import lint
    from hone_cli.grading import render
    from hone_cli.grading.summary import summarise
    from hone_cli.text import safe

    summary = summarise(found.rows, seed=options.seed)
    plain: dict[str, object] = {
        "complete": found.complete,
        "summary": render.summary_plain(summary),
    }
    texts = [render.summary_text(summary)]
    failed = any(kind.startswith("grader") for kind in summary.failed)
    if wanted.lint:
        warnings = lint(
            found.rows,
            regraded=found.regraded,
            read_fields=found.grader.read_fields if found.grader else None,
            result_names=found.grader.result_names if found.grader else (),
        )
        plain["lint"] = render.lint_plain(warnings)
        texts.append(render.lint_text(warnings))
        failed |= bool(warnings)
    if wanted.errors:
        report = analyse(
            attempt_of(row.row_id, row.step, row.outcome, phase=row.phase) for row in found.rows
        )
        plain["errors"] = render.errors_plain(report)
        texts.append(render.errors_text(report))
    if wanted.hacking:
        trends = hacking_of(found.rows, seed=options.seed)
        plain["hacking"] = trends.json()
        texts.append(safe(trends.text()))
        failed |= bool(trends.alarms)
    typer.echo(json.dumps(plain, indent=2) if as_json else "\n\n".join(texts))
    if not found.complete:
        typer.echo(safe(_how_to_go_on(found.gave_up, options)), err=True)
        return FAILED if found.gave_up else INTERRUPTED
    return FAILED if failed else 0


def _how_to_go_on(gave_up: str, options: "Options") -> str:
    stopped = f"stopped: {gave_up}" if gave_up else "stopped"
    if options.out is None:
        return f"{stopped}; with --out the results are kept, and --resume goes on"
    return f"{stopped}; the results are in {options.out}, the same command with --resume goes on"
