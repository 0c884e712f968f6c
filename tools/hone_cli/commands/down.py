"""`hone down`: stop the suite of a folder."""

from pathlib import Path

import typer

from hone_cli.options import Folder


def down(folder: Folder = Path(".")) -> None:
    """Drain and stop the suite that `hone up` started in this folder."""
    from hone_cli.launcher.detached import stop_suite
    from hone_cli.launcher.layout import Layout

    layout = Layout.in_folder(folder)
    result = stop_suite(layout)
    if result.cleared_count:
        typer.echo(f"cleared {result.cleared_count} processes that a killed launcher had left")
    elif not result.was_running:
        typer.echo(f"nothing is running in {layout.root.parent}")
    elif result.forced:
        typer.echo(f"launcher {result.pid} did not stop in time; it and its services were killed")
    else:
        typer.echo("stopped")
