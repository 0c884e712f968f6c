"""`hone init`: a small example to start from."""

from pathlib import Path
from typing import Annotated

import typer

from hone_cli.errors import USAGE, CliError


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where to write; made if missing.")
    ] = Path("."),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Other seeds give other tasks.")] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that are there.")
    ] = False,
) -> None:
    """Write a small example that works: run.yaml, sft.yaml and their data."""
    from hone_cli.examples.wordproblems import write_example

    there = [name for name in ("run.yaml", "sft.yaml") if (folder / name).exists()]
    if there and not force:
        raise CliError(
            f"{folder / there[0]} is there already; choose another folder or add --force", USAGE
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_example(folder, seed)
    except OSError as error:
        raise CliError(f"cannot write to {folder}: {error.strerror or error}", USAGE) from error
    for file in sorted(folder.iterdir()):
        if file.suffix in (".yaml", ".jsonl", ".json", ".md"):
            typer.echo(f"wrote {file}")
    where = "" if folder == Path(".") else f"cd {folder} && "
    typer.echo(f"next: {where}hone up --detach && hone sft sft.yaml")
