"""Options that several commands share."""

import math
from pathlib import Path
from typing import Annotated

import typer


def _price(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"found {value}, expected an amount of money")
    return value


Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="HOST:PORT",
        help="Address of the service; by default HONE_<SERVICE>_ADDRESS, then .hone/endpoints.json.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print machine-readable JSON and nothing else.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and print what would run.")
]
PricePerHour = Annotated[
    float | None,
    typer.Option(
        "--price-per-hour",
        min=0,
        callback=_price,
        metavar="MONEY",
        help="What the machine costs, for the estimate of --dry-run.",
        rich_help_panel="Estimate",
    ),
]
PricePerTokens = Annotated[
    float | None,
    typer.Option(
        "--price-per-million-tokens",
        min=0,
        callback=_price,
        metavar="MONEY",
        help="What tokens cost, for the estimate of --dry-run.",
        rich_help_panel="Estimate",
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", help="Start the run and leave; watch it with `hone runs`.")
]
RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="What to run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FIELD=VALUE]...",
        help="Fields to set instead of the file's, for example train.learning_rate=1e-5.",
    ),
]
Folder = Annotated[
    Path, typer.Option("--dir", metavar="FOLDER", help="Folder whose .hone holds the suite.")
]
