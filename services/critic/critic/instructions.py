"""How a judge is told to state its verdict, and the JSON schema of an object that states it."""

from collections.abc import Mapping
from dataclasses import replace

from critic.questions import AnswerForm, BinaryKind, Kind, LabelKind, PairwiseKind, ScoreKind
from trajectory.types import ChatMessage, Role

_FIELD: Mapping[type[Kind], str] = {
    ScoreKind: "score",
    LabelKind: "label",
    PairwiseKind: "winner",
    BinaryKind: "passed",
}
"""Name of the verdict's field, by kind."""


def instructed(
    messages: tuple[ChatMessage, ...], kind: Kind, form: AnswerForm
) -> tuple[ChatMessage, ...]:
    """Return the messages with a closing instruction, in the last message if it is the user's, else in one more.

    Last, so that it comes after the material that is judged; in no system message: chat templates admit one only first.
    """
    if form is AnswerForm.AS_ASKED:
        return messages
    said = _line(kind) if form is AnswerForm.LINE else _object(kind)
    last = messages[-1]
    if last.role is Role.USER:
        return (*messages[:-1], replace(last, content=(f"{last.text}\n\n{said}",)))
    return (*messages, ChatMessage(role=Role.USER, content=(said,)))


def schema(kind: Kind) -> Mapping[str, object]:
    """Return the schema of {"reasoning": ..., <the verdict's field>: ...}, the reasons first."""
    name = _FIELD[type(kind)]
    return {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, name: _field_schema(kind)},
        "required": ["reasoning", name],
        "additionalProperties": False,
    }


def _field_schema(kind: Kind) -> Mapping[str, object]:
    match kind:
        case ScoreKind():
            return {"type": "number"}
        case LabelKind(labels=labels):
            return {"type": "string", "enum": list(labels)}
        case PairwiseKind(ties_allowed=ties_allowed):
            return {"type": "string", "enum": ["A", "B", "tie"] if ties_allowed else ["A", "B"]}
        case BinaryKind():
            return {"type": "boolean"}


def _line(kind: Kind) -> str:
    begin = "End your reply with one line that states your verdict and nothing else: "
    match kind:
        case ScoreKind(low=low, high=high):
            return f'{begin}"Score: " and a number from {low:g} to {high:g}.'
        case LabelKind(labels=labels):
            return f'{begin}"Label: " and one of these labels: {", ".join(labels)}.'
        case PairwiseKind(ties_allowed=ties_allowed):
            tie = ", or [[C]] for a tie" if ties_allowed else ""
            return f"{begin}[[A]] if answer A is better, [[B]] if answer B is better{tie}."
        case BinaryKind():
            return f'{begin}"Verdict: yes" or "Verdict: no".'


def _object(kind: Kind) -> str:
    begin = 'Reply with one JSON object and nothing else: {"reasoning": "<your reasons>", '
    match kind:
        case ScoreKind(low=low, high=high):
            return f'{begin}"score": <a number from {low:g} to {high:g}>}}'
        case LabelKind(labels=labels):
            named = ", ".join(f'"{label}"' for label in labels)
            return f'{begin}"label": <one of {named}>}}'
        case PairwiseKind(ties_allowed=ties_allowed):
            winners = '"A", "B" or "tie"' if ties_allowed else '"A" or "B"'
            return f'{begin}"winner": {winners}}}'
        case BinaryKind():
            return f'{begin}"passed": true or false}}'
