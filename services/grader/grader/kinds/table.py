"""All grader kinds by the name that a definition uses, which is the name of the file."""

from collections.abc import Mapping
from importlib import import_module

from grader.kinds.base import ParseGrader

NAMES = (
    "answer",
    "efficiency",
    "endpoint",
    "format",
    "function",
    "grounding",
    "label_model",
    "length",
    "multi",
    "performance",
    "python",
    "reward_model",
    "safety",
    "score_model",
    "state",
    "step",
    "string_check",
    "tests",
    "text_similarity",
    "tool_use",
)
"""Add a kind by one file beside these and one line here."""

KINDS: Mapping[str, ParseGrader] = {
    name: import_module(f"grader.kinds.{name}").parse for name in NAMES
}
