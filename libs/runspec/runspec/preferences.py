r"""Preference rows in JSONL: two responses to one prompt, of which the first was preferred.

    {"prompt": text or messages, "chosen": text or messages, "rejected": ..., "tools": optional, "margin": optional}
    beside them, optional: how sure a judge is that the first is better; see `soft_labels`
    {"chosen": messages, "rejected": messages}          what both begin with is the prompt
    {"chosen": "\n\nHuman: ...\n\nAssistant: ...", "rejected": ...}    the same, as hh-rlhf has it

A response that repeats the prompt's messages before its own is read as if it did not. Other columns are not read.
Errors name file, line and field.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from runspec.jsonl import Row
from runspec.messages import read_messages, read_tools
from runspec.problems import described, nearest
from runspec.rows import RowProblems, parse_rows
from runspec.soft_labels import FIRST_SHOWN, HARD, SOFT_LABEL, read_soft_label
from trajectory.types import ChatMessage, Role, ToolDefinition

_PROMPT_KEYS = ("prompt", "messages")
_SIDES = ("chosen", "rejected")
_KEYS = (*_PROMPT_KEYS, *_SIDES, "tools", "margin", SOFT_LABEL, FIRST_SHOWN)
_TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
_SPEAKERS = {"Human": Role.USER, "Assistant": Role.ASSISTANT}

Note = Callable[[str, str], None]
Messages = tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRow:
    """One comparison."""

    prompt: Messages
    chosen: Messages
    """What follows the prompt; the last is from assistant."""
    rejected: Messages
    tools: tuple[ToolDefinition, ...] = ()
    margin: float = 0.0
    """By how much the chosen one should be ahead, in units of the reward; at least 0."""
    soft_label: float = HARD
    """Probability that the chosen one is better; under 0.5 a judge holds the rejected one for better."""


def parse_preferences(data: bytes, *, source: str) -> list[PreferenceRow]:
    """Reads comparisons.

    Args:
        data: the JSONL file.
        source: its name, for errors.

    Raises:
        RowErrors: the first 20 problems.
    """
    return parse_rows(data, source, _read)


def _read(row: Row, errors: RowProblems) -> PreferenceRow | None:
    before = len(errors.found)

    def note(field: str, message: str) -> None:
        errors.add(row.line, field, message)

    if row.error:
        note("", row.error)
        return None
    _check_keys(row, note)
    margin = row.value.get("margin")
    if margin is not None and not _is_margin(margin):
        note("margin", f"found {described(margin)}, expected a number from 0 to below 1e9")
    soft_label = read_soft_label(row.value, note)
    said_tools = row.value.get("tools")
    tools = read_tools(said_tools, "tools", note) if said_tools is not None else ()
    if len(errors.found) > before:
        return None
    prompt = _read_prompt(row, note)
    chosen, rejected = (
        _read_side(row.value[side], side, note, whole=not prompt) for side in _SIDES
    )
    if len(errors.found) > before:
        return None
    shared = len(prompt) or _shared(chosen, rejected)
    prompt = prompt or chosen[:shared]
    # A response may repeat the prompt; without one, both do.
    chosen, rejected = (
        side[shared:] if side[:shared] == prompt else side for side in (chosen, rejected)
    )
    _check_sides(prompt, chosen, rejected, note)
    if len(errors.found) > before:
        return None
    return PreferenceRow(
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        tools=tools,
        margin=float(margin) if isinstance(margin, int | float) else 0.0,
        soft_label=soft_label,
    )


def _check_keys(row: Row, note: Note) -> None:
    has = ", ".join(row.value) or "no keys"
    others = [name for name in row.value if name not in _KEYS]
    if row.value.keys() >= {"completion", "label"} and not row.value.keys() & set(_SIDES):
        note(
            "label",
            "found a completion with a label, expected chosen and rejected: put a good and a bad "
            "completion of the same prompt into one row",
        )
        return
    for side in _SIDES:
        if row.value.get(side) is None:
            meant = nearest(side, others)
            hint = f"; did you mean {side} by {meant}?" if meant else ""
            note(side, f"missing; the row has {has}{hint}")
    for name in others:
        # Rows of others may have a column `label`, which is no typing error.
        meant = nearest(name, ("tools", "margin")) or nearest(
            name, (SOFT_LABEL, FIRST_SHOWN), cutoff=0.7
        )
        if meant is not None:
            note(name, f"unknown key; did you mean {meant}?")
    if all(row.value.get(key) is not None for key in _PROMPT_KEYS):
        note("prompt", "found messages and prompt, expected one of them")


def _is_margin(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # A whole number may have any number of digits in JSON.
    return 0 <= value < 1e9 and math.isfinite(value)


def _read_prompt(row: Row, note: Note) -> Messages:
    """Returns the messages of the prompt; none if the row does not say it by itself."""
    key = next((key for key in _PROMPT_KEYS if row.value.get(key) is not None), None)
    if key is None:
        texts = [row.value[side] for side in _SIDES if isinstance(row.value[side], str)]
        if any(not _TURN.match(str(text)) for text in texts):
            note(
                "prompt",
                "missing; the responses are texts that do not begin with Human: either, so there "
                "is nothing that they answer. Give a prompt, or messages",
            )
        return ()
    value = row.value[key]
    if not isinstance(value, str):
        return read_messages(value, key, note)
    if not value.strip():
        note(key, "found an empty text, expected a question or a task")
    dialogue = _dialogue(value)
    if dialogue and dialogue[-1].role is Role.ASSISTANT and not dialogue[-1].text:
        # hh-rlhf's prompts end with the speaker whose words are to come.
        dialogue = dialogue[:-1]
    return dialogue or (ChatMessage(role=Role.USER, content=(value,)),)


def _read_side(value: object, side: str, note: Note, *, whole: bool) -> Messages:
    """Reads a response, or with `whole` a conversation that ends with one."""
    if not isinstance(value, str):
        return read_messages(value, side, note)
    if whole:
        return _dialogue(value)
    return (ChatMessage(role=Role.ASSISTANT, content=(value,) if value.strip() else ()),)


def _dialogue(text: str) -> Messages:
    """Reads turns that begin with Human: or Assistant: after an empty line; none if the text is no such thing."""
    if not _TURN.match(text):
        return ()
    _, *parts = _TURN.split(text)
    turns = zip(parts[::2], parts[1::2], strict=True)
    return tuple(
        ChatMessage(role=_SPEAKERS[speaker], content=(said.strip(),) if said.strip() else ())
        for speaker, said in turns
    )


def _shared(chosen: Messages, rejected: Messages) -> int:
    """Counts the messages that both begin with."""
    pairs = zip(chosen, rejected, strict=False)
    return next(
        (index for index, (one, other) in enumerate(pairs) if one != other),
        min(len(chosen), len(rejected)),
    )


def _check_sides(prompt: Messages, chosen: Messages, rejected: Messages, note: Note) -> None:
    if chosen == rejected:
        note("rejected", "found the same as chosen; a comparison needs two responses")
        return
    if not prompt:
        note("prompt", "missing; chosen and rejected have no first message in common")
        return
    for side, messages in zip(_SIDES, (chosen, rejected), strict=True):
        if not messages:
            note(side, "found nothing beyond what the other begins with, expected a response")
        elif messages[0].role in (Role.USER, Role.SYSTEM):
            what = f"goes on with {messages[0].role} after what both share"
            note(side, f"{what}, expected a response of the assistant to the same prompt")
            return
        elif messages[-1].role is not Role.ASSISTANT:
            what = f"ends with {messages[-1].role}"
            note(side, f"{what}, expected the last message to be by assistant")
