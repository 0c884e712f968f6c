"""`hone export`: what a run learned, as files that others open."""

from pathlib import Path
from typing import Annotated

import typer

from hone_cli.errors import USAGE, CliError
from hone_cli.options import AsJson, Endpoint


def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run to export.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder to make.", show_default=False)
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, help="The checkpoint after this many steps; default newest."),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="The checkpoint with the highest (held-out) reward.")
    ] = False,
    merged: Annotated[
        bool, typer.Option("--merged", help="A whole model: the adapter put into its base.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier export in DIR.")
    ] = False,
    as_json: AsJson = False,
    endpoint: Endpoint = None,
) -> None:
    """Write what a run learned for transformers, peft and vLLM, with tokenizer and model card.

    The adapter alone, or with --merged a whole model. DIR appears when everything has arrived.
    """
    import asyncio

    from hone_cli import exporting
    from hone_cli.addresses import AddressBook

    if best and step is not None:
        raise CliError("give --step or --best, not both", USAGE)
    choice = exporting.choice_of("best" if best else "latest" if step is None else str(step))
    folder = out.expanduser().absolute()
    manifest = asyncio.run(
        exporting.export(run_id, choice, folder, AddressBook(endpoint), merged=merged, force=force)
    )
    if as_json:
        typer.echo(exporting.as_json(manifest, folder))
    else:
        typer.echo(exporting.described(manifest, folder))
