"""Training rows of recorded text: conversations as rollouts of them would lie, plain texts, and pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from learner.ports import RowData
from runspec.preferences import PreferenceRow
from runspec.schema import RunSpec
from runspec.sft_rows import SftRow
from servicekit.errors import InvalidArgument
from trajectory.plaintext import render_text
from trajectory.rendering import (
    ChatRenderer,
    ChatTokenizer,
    RenderedRow,
    RenderError,
    with_system_prompt,
)
from trajectory.types import ChatMessage, ToolDefinition

Rows = tuple[RenderedRow, ...]
"""Of one conversation; a template that rewrites history makes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPair:
    """Both responses of a preference, each with its prompt."""

    chosen: Rows
    rejected: Rows
    margin: float
    soft_label: float


class RowRenderer:
    """Renders the rows of one run."""

    def __init__(self, tokenizer: ChatTokenizer, spec: RunSpec, data: RowData) -> None:
        """Takes the model's tokenizer and what the run file says."""
        self._tokenizer = tokenizer
        self._algorithm = spec.algorithm
        self._spec = spec.rollout
        self._named = tuple(data.tools[name] for name in spec.rollout.tools)

    @cached_property
    def _renderer(self) -> ChatRenderer:
        """Made when a row needs it: plain texts need no chat template."""
        return ChatRenderer(self._tokenizer, tool_format=self._spec.tool_format)

    def conversations(self, data: RowData) -> list[Rows]:
        """Renders what is to be imitated.

        Raises:
            InvalidArgument: a row is longer than a rollout may be, or the chat template refuses it.
        """
        return [
            self._imitated(f"data.train row {number}", row)
            for number, row in enumerate(data.conversations, start=1)
        ]

    def off_task(self, data: RowData) -> list[Rows]:
        """Renders what is watched.

        Raises:
            InvalidArgument: a row is longer than a rollout may be, or the chat template refuses it.
        """
        return [
            self._imitated(f"health.off_task row {number}", row)
            for number, row in enumerate(data.off_task, start=1)
        ]

    def pairs(self, rows: Sequence[PreferenceRow], field: str) -> list[RenderedPair]:
        """Renders comparisons.

        Args:
            rows: of one data set.
            field: its field in the run file, for errors.

        Raises:
            InvalidArgument: a response is longer than a rollout may be, or the chat template refuses it.
        """
        made = []
        for number, row in enumerate(rows, start=1):
            chosen, rejected = (
                self._response(f"{field} row {number}, {side}", row, messages)
                for side, messages in (("chosen", row.chosen), ("rejected", row.rejected))
            )
            made.append(
                RenderedPair(
                    chosen=chosen,
                    rejected=rejected,
                    margin=row.margin,
                    soft_label=row.soft_label,
                )
            )
        return made

    def _imitated(self, place: str, row: SftRow) -> Rows:
        if not row.text:
            return self._laid_out(place, row.messages, row.tools, num_given=row.num_given)
        try:
            made = render_text(self._tokenizer, row.text)
        except RenderError as error:
            raise InvalidArgument(f"{place}: {error}") from error
        return self._checked(place, (made,))

    def _response(self, place: str, row: PreferenceRow, response: Sequence[ChatMessage]) -> Rows:
        messages = (*row.prompt, *response)
        if self._algorithm != "reward_model":
            return self._laid_out(place, messages, row.tools, num_given=len(row.prompt))
        # Exactly what the rollout service scores when a grader asks it.
        try:
            ids = self._renderer.conversation(messages).token_ids
        except RenderError as error:
            raise InvalidArgument(f"{place}: {error}") from error
        return self._checked(place, (RenderedRow(token_ids=ids, loss_mask=(False,) * len(ids)),))

    def _laid_out(
        self,
        place: str,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        num_given: int = 0,
    ) -> Rows:
        whole = with_system_prompt(messages, self._spec.system_prompt)
        try:
            made = self._renderer.render_conversation(
                whole,
                tools or self._named,
                num_given=num_given + len(whole) - len(messages),
            )
        except RenderError as error:
            raise InvalidArgument(f"{place}: {error}") from error
        return self._checked(place, tuple(made))

    def _checked(self, place: str, made: Rows) -> Rows:
        longest = max(len(part.token_ids) for part in made)
        if longest > self._spec.max_total_tokens:
            raise InvalidArgument(
                f"{place} has {longest} tokens; rollout.max_total_tokens is "
                f"{self._spec.max_total_tokens}"
            )
        return made
