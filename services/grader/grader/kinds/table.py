"""All grader kinds by the name that a definition uses."""

from collections.abc import Mapping

from grader.kinds import (
    answer,
    efficiency,
    endpoint,
    format,
    function,
    grounding,
    label_model,
    length,
    multi,
    performance,
    python,
    reward_model,
    safety,
    score_model,
    state,
    step,
    string_check,
    tests,
    text_similarity,
    tool_use,
)
from grader.kinds.base import ParseGrader

KINDS: Mapping[str, ParseGrader] = {
    "answer": answer.parse,
    "efficiency": efficiency.parse,
    "endpoint": endpoint.parse,
    "format": format.parse,
    "function": function.parse,
    "grounding": grounding.parse,
    "label_model": label_model.parse,
    "length": length.parse,
    "multi": multi.parse,
    "performance": performance.parse,
    "python": python.parse,
    "reward_model": reward_model.parse,
    "safety": safety.parse,
    "score_model": score_model.parse,
    "state": state.parse,
    "step": step.parse,
    "string_check": string_check.parse,
    "tests": tests.parse,
    "text_similarity": text_similarity.parse,
    "tool_use": tool_use.parse,
}
"""Add a kind by one file beside these and one line here."""
