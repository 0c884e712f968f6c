"""`hone up`: start the suite on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from hone_cli.errors import FAILED, INTERRUPTED, USAGE, CliError
from hone_cli.options import AsJson, Folder


def up(
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; `hone down` stops it.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="auto (default), transformers, vllm or scripted."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME,...", help="Start only these services (and NATS)."),
    ] = None,
    replicas: Annotated[
        list[str] | None,
        typer.Option("--replicas", metavar="NAME=N", help="For example rollout=2; repeatable."),
    ] = None,
    log_level: Annotated[
        str, typer.Option("--log-level", help="DEBUG, INFO, WARNING or ERROR.")
    ] = "INFO",
    first_port: Annotated[
        int,
        typer.Option("--first-port", help="Take all ports from this one up (default: 50051 ...)."),
    ] = 0,
    folder: Folder = Path("."),
    as_json: AsJson = False,
) -> None:
    """Start NATS and all services on this machine and keep them running.

    Everything they write is in the folder .hone. One Ctrl-C drains and stops them.
    """
    import sys

    from hone_cli.launcher.detached import DetachedStartError, start_detached
    from hone_cli.launcher.plan import UpOptions
    from hone_cli.launcher.state import AlreadyRunningError
    from hone_cli.launcher.up import run_suite

    if log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise CliError(
            f"--log-level: found {log_level!r}, expected DEBUG, INFO, WARNING, ERROR", USAGE
        )
    options = UpOptions(
        folder=folder.absolute(),
        engine=engine,
        only=tuple(name.strip() for name in only.split(",")) if only else (),
        replicas=_counts(replicas or []),
        log_level=log_level,
        first_port=first_port,
    )
    try:
        if detach:
            _report(start_detached(options).endpoints, as_json=as_json)
            return
        code = run_suite(options, detached=False, colour=sys.stdout.isatty())
    except ValueError as error:
        raise CliError(str(error), USAGE) from error
    except (AlreadyRunningError, DetachedStartError, OSError) as error:
        raise CliError(str(error), FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)


def _counts(texts: list[str]) -> dict[str, int]:
    counts = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not number.isdigit():
            raise CliError(f"--replicas: found {text!r}, expected for example rollout=2", USAGE)
        counts[name] = int(number)
    return counts


def _report(endpoints: dict[str, str], *, as_json: bool) -> None:
    import json

    if as_json:
        typer.echo(json.dumps({"endpoints": endpoints}, indent=2))
        return
    for name, address in endpoints.items():
        typer.echo(f"{name:<14} {address}")
    typer.echo("running in the background; `hone down` stops it")
