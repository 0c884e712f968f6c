"""`hone doctor`: can the suite run on this machine?"""

from pathlib import Path

import typer

from hone_cli.errors import FAILED
from hone_cli.options import AsJson, Folder


def doctor(folder: Folder = Path("."), as_json: AsJson = False) -> None:
    """Check what the suite needs of this machine, with the remedy for what is missing.

    Exit code 1 if something fails.
    """
    import json
    from dataclasses import asdict

    from hone_cli.doctor import checks

    failed = False
    found = []
    for result in checks(folder.absolute()):
        failed |= result.state == "fail"
        found.append(asdict(result))
        if not as_json:
            remedy = f"; {result.remedy}" if result.remedy else ""
            typer.echo(f"{result.state:<5} {result.name:<12} {result.detail}{remedy}")
    if as_json:
        typer.echo(json.dumps({"checks": found}, indent=2))
    raise typer.Exit(FAILED if failed else 0)
