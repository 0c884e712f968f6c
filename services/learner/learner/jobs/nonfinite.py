"""Steps whose loss or gradient was not finite: what was in them is written down, said, and left out after a resume.

Without that a run could not go on: the step is rebuilt from the same rollouts or rows, and would end as before. Someone
who resumes the run does so knowing which they are.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.runs.store import reading, write_atomically
from learner.training.errors import NonFiniteStep

FILE = "nonfinite.json"
MAX_NAMED = 4
"""Members that the error names; the file names all."""


class StepNotFinite(ArithmeticError):
    """A step cannot be taken; the run ends at the checkpoint before it, and can be resumed without the members."""


class NonFinite:
    """The record of one run."""

    def __init__(self, folder: Path, life: int) -> None:
        """Reads and writes in the run's folder; `life` is how often someone resumed the run."""
        self._path = folder / FILE
        self._life = life

    def left_out(self, step: int) -> frozenset[str]:
        """Returns the members that a step must do without: those that spoilt it before someone resumed the run."""
        entries = [e for e in self._read() if e["step"] == step and e["life"] < self._life]
        return frozenset(member for entry in entries for member in entry["members"])

    def failure(
        self, step: int, what: str, members: Sequence[str], error: NonFiniteStep
    ) -> StepNotFinite:
        """Writes down what was in a step and returns the error for people.

        Args:
            step: that was not finite; it is not trained, and the checkpoint before it stands.
            what: the members are, for example rollouts.
            members: of the step; where the error knows which of them, those alone are written down.
            error: says what was not finite.
        """
        named = list(error.rollout_ids or members)
        entry = {"step": step, "life": self._life, "what": str(error), "members": named}
        entries = [e for e in self._read() if (e["step"], e["life"]) != (step, self._life)]
        write_atomically(self._path, json.dumps([*entries, entry], indent=1).encode())
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        return StepNotFinite(
            f"step {step + 1} is not finite: {error}; the last good checkpoint stands. In it were {what} "
            f"{', '.join(named[:MAX_NAMED])}{more} ({self._path} names all); resuming the run leaves "
            "them out"
        )

    def _read(self) -> list[dict[str, Any]]:
        try:
            with reading(self._path, "remove it, and no step is without its members any more"):
                return [
                    {
                        **entry,
                        "step": int(entry["step"]),
                        "life": int(entry["life"]),
                        "members": [str(member) for member in entry["members"]],
                    }
                    for entry in json.loads(self._path.read_text(encoding="utf-8"))
                ]
        except FileNotFoundError:
            return []
