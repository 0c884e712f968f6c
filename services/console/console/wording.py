"""How the page writes times, durations, numbers and long texts."""

import json
import math

from console.archive import moment
from trajectory.types import Phase

MAX_TEXT = 20_000
"""Characters of one text that the page shows; the archive keeps all of it."""


def when(us: int | None) -> str:
    """Writes a moment, in UTC."""
    return moment(us).strftime("%Y-%m-%d %H:%M:%S") if us is not None else ""


def duration(seconds: float | None) -> str:
    """Writes a duration with a unit that suits it."""
    if seconds is None:
        return ""
    if seconds == 0:
        return "0 ms"
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: float | None) -> str:
    """Writes a figure with as many digits as help."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.3f}" if 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def step_number(step: int, phase: str = Phase.TRAIN) -> int:
    """Counts as people do: steps of training from 1; the step of any other phase is a policy version, and stays."""
    return step + 1 if phase == Phase.TRAIN else step


def clipped(value: str) -> str:
    """Cuts a text that is too long for a page, and says so."""
    if len(value) <= MAX_TEXT:
        return value
    return f"{value[:MAX_TEXT]}\n... {len(value) - MAX_TEXT} more characters"


def pretty_json(value: str) -> str:
    """Indents JSON; anything else stays as it is."""
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return value
