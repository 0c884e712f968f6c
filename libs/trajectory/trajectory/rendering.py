"""Turns conversations into exact token ids, the same way for rollouts and for supervised training.

A rollout starts from `initial` ids; after each sampled turn `tool_result_suffix` says which ids
come next. Sampled ids are never made from text. `render_conversation` lays a recorded conversation
out exactly as a rollout of it would lie.

The ids after a turn are found by rendering the chat template again and taking what the new text
adds, so that any template works. Where a template rewrites what was said before, there is no such
addition: the row forks.

This file knows no torch and no transformers; the tokenizer is passed in.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trajectory.toolformats import TOOL_FORMATS, ToolFormat, tools_text
from trajectory.types import ChatMessage, Role, ToolDefinition


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that rendering needs."""

    @property
    def eos_token_id(self) -> Any:
        """Id that ends a sequence."""

    @property
    def all_special_ids(self) -> Any:
        """Ids that text must not be able to write."""

    @property
    def added_tokens_decoder(self) -> Any:
        """Added tokens by id, each with `content` and `special`."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Renders messages to text (`tokenize=False`)."""

    def encode(self, text: Any, **kwargs: Any) -> Any:
        """Turns text into ids."""

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Turns ids into text."""


class RenderError(ValueError):
    """A conversation that the model's chat template cannot express."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What the model reads before its first turn."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What comes after a sampled turn, up to the next turn's first token."""

    text: str
    """The whole prompt of the next turn, as text."""
    token_ids: tuple[int, ...]
    """Ids to append to the row; of a fork, all ids of the new row."""
    forked: bool
    """The template rewrote earlier turns, so the row cannot be extended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRow:
    """One training row; the mask is true where the policy would have sampled."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


def with_system_prompt(
    messages: Sequence[ChatMessage], system_prompt: str
) -> tuple[ChatMessage, ...]:
    """Puts a system message first, unless there is one already or the prompt is empty."""
    if not system_prompt or (messages and messages[0].role is Role.SYSTEM):
        return tuple(messages)
    return (ChatMessage(role=Role.SYSTEM, content=(system_prompt,)), *messages)


class ChatRenderer:
    """Renders conversations with one tokenizer and one tool-call format."""

    def __init__(self, tokenizer: ChatTokenizer, *, tool_format: str = "") -> None:
        """Takes the tokenizer and the name of the tool-call format; empty means hermes.

        Raises:
            RenderError: the format is unknown or the tokenizer has no usable chat template.
        """
        name = tool_format or "hermes"
        if name not in TOOL_FORMATS:
            raise RenderError(
                f"rollout.tool_format: {name!r} is unknown; one of {', '.join(TOOL_FORMATS)}"
            )
        self._tokenizer = tokenizer
        self._format: ToolFormat = TOOL_FORMATS[name]
        self._special_texts = tuple(
            str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special
        )
        self._template_knows_tools = self._probe_tools()
        self.end_of_turn_id: int = self._find_end_of_turn()
        """Token that closes an assistant turn; engines stop at it."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which a turn ends: the template's end of turn and the model's end of sequence."""
        return tuple(dict.fromkeys((self.end_of_turn_id, int(self._tokenizer.eos_token_id))))

    def initial(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]) -> Prompt:
        """Renders the prompt of the first turn.

        Raises:
            RenderError: the template refuses the conversation.
        """
        text = self._render(messages, tools, add_generation_prompt=True)
        return Prompt(text=text, token_ids=self._encode(text))

    def initial_ids(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]
    ) -> tuple[int, ...]:
        """Ids of the prompt of the first turn."""
        return self.initial(messages, tools).token_ids

    def conversation(self, messages: Sequence[ChatMessage]) -> Prompt:
        """Renders a conversation that is over, calls included, for a model that judges it.

        Raises:
            RenderError: the template refuses the conversation.
        """
        text = self._render([self._raw(m) for m in messages], (), add_generation_prompt=False)
        return Prompt(text=text, token_ids=self._encode(text))

    def assistant_text(self, sampled_ids: Sequence[int]) -> str:
        """Text of a sampled turn, without the token that ended it."""
        ids = list(sampled_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return str(
            self._tokenizer.decode(
                ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def tool_result_suffix(
        self,
        *,
        prompt_text: str,
        history: Sequence[ChatMessage],
        sampled_ids: Sequence[int],
        results: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
    ) -> Continuation:
        """Finds the ids after a sampled turn: its end if not sampled, results, next prompt.

        Args:
            prompt_text: text of the prompt that the turn answered.
            history: messages of that prompt; assistant turns as raw text without `tool_calls`.
            sampled_ids: ids of the turn, with the end-of-turn token if it was sampled.
            results: tool (or user) messages that follow the turn.
            tools: as for `initial`.

        Raises:
            RenderError: the template refuses the conversation.
        """
        said = self._clean(self.assistant_text(sampled_ids))
        turn = ChatMessage(role=Role.ASSISTANT, content=(said,))
        text = self._render((*history, turn, *results), tools, add_generation_prompt=True)
        if not text.startswith(prompt_text + said):
            return Continuation(text=text, token_ids=self._encode(text), forked=True)
        suffix = self._encode(text[len(prompt_text) + len(said) :])
        if sampled_ids and suffix and sampled_ids[-1] == suffix[0] == self.end_of_turn_id:
            suffix = suffix[1:]
        return Continuation(text=text, token_ids=suffix, forked=False)

    def render_conversation(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        num_given: int = 0,
    ) -> list[RenderedRow]:
        """Lays a recorded conversation out as a rollout of it would lie, one row per fork.

        Messages after the last assistant turn are left out, since nothing was sampled after them; rows without a
        sampled token are, too.

        Args:
            messages: the conversation.
            tools: as for `initial`.
            num_given: how many messages at the start were given, even those of the assistant.

        Raises:
            RenderError: there is no assistant message, or the template refuses the conversation.
        """
        turns = [i for i, message in enumerate(messages) if message.role is Role.ASSISTANT]
        if not turns:
            raise RenderError("messages: no assistant message, so there is nothing to learn from")
        raw = [self._raw(message) for message in messages]
        prompt = self.initial(raw[: turns[0]], tools)
        text = prompt.text
        rows: list[RenderedRow] = []
        ids = list(prompt.token_ids)
        mask = [False] * len(ids)
        for index, start in enumerate(turns):
            sampled = (*self._encode(self._clean(raw[start].text)), self.end_of_turn_id)
            ids += sampled
            mask += [start >= num_given] * len(sampled)
            if index + 1 == len(turns):
                break
            step = self.tool_result_suffix(
                prompt_text=text,
                history=raw[:start],
                sampled_ids=sampled,
                results=raw[start + 1 : turns[index + 1]],
                tools=tools,
            )
            if step.forked:
                rows.append(RenderedRow(token_ids=tuple(ids), loss_mask=tuple(mask)))
                ids, mask = [], []
            ids += step.token_ids
            mask += [False] * len(step.token_ids)
            text = step.text
        rows.append(RenderedRow(token_ids=tuple(ids), loss_mask=tuple(mask)))
        return [row for row in rows if any(row.loss_mask)]

    def write_assistant(self, message: ChatMessage) -> str:
        """Writes an assistant message as the policy would have: reasoning, content, calls."""
        parts = [f"<think>\n{message.reasoning_content}\n</think>\n"] * bool(
            message.reasoning_content
        )
        if message.text:
            parts.append(message.text)
        if message.tool_calls:
            parts.append(self._format.write(message.tool_calls))
        return "\n".join(parts)

    def _raw(self, message: ChatMessage) -> ChatMessage:
        if message.role is not Role.ASSISTANT:
            return message
        return ChatMessage(role=Role.ASSISTANT, content=(self.write_assistant(message),))

    def _clean(self, text: str) -> str:
        """Breaks special tokens apart, so that no text can forge a turn of another speaker."""
        for special in self._special_texts:
            if special in text:
                text = text.replace(special, f"{special[0]} {special[1:]}")
        return text

    def _render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition],
        *,
        add_generation_prompt: bool,
    ) -> str:
        known = list(messages)
        if tools and not self._template_knows_tools:
            known = _with_tools_text(known, tools_text(tools, self._format))
            tools = ()
        return self._apply(
            [self._to_dict(message) for message in known],
            tools=[_tool_dict(tool) for tool in tools] or None,
            add_generation_prompt=add_generation_prompt,
        )

    def _apply(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        try:
            text = self._tokenizer.apply_chat_template(conversation, tokenize=False, **kwargs)
        except Exception as err:  # A template is foreign code that may raise anything.
            roles = ", ".join(str(message["role"]) for message in conversation)
            raise RenderError(
                f"the model's chat template refuses a conversation of roles [{roles}]: {err}"
            ) from err
        return str(text)

    def _to_dict(self, message: ChatMessage) -> dict[str, Any]:
        if any(not isinstance(part, str) for part in message.content):
            raise RenderError(
                f"messages: a {message.role.value} message holds an image; this model reads text"
            )
        known: dict[str, Any] = {"role": message.role.value, "content": self._clean(message.text)}
        if message.role is Role.TOOL:
            known["tool_call_id"] = message.tool_call_id
            known["name"] = message.name
        return known

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _probe_tools(self) -> bool:
        probe = [{"role": "user", "content": "x"}]
        tool = {"name": "probe_tool", "description": "", "parameters": {"type": "object"}}
        text = self._apply(
            probe, tools=[{"type": "function", "function": tool}], add_generation_prompt=True
        )
        return "probe_tool" in text

    def _find_end_of_turn(self) -> int:
        user = {"role": "user", "content": "x"}
        said = {"role": "assistant", "content": "y"}
        before = self._apply([user], tools=None, add_generation_prompt=True)
        after = self._apply([user, said], tools=None, add_generation_prompt=False)
        if after.startswith(before + "y"):
            rest = self._encode(after[len(before) + 1 :])
            if rest and rest[0] in set(self._tokenizer.all_special_ids):
                return rest[0]
        return int(self._tokenizer.eos_token_id)


def _with_tools_text(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    if messages and messages[0].role is Role.SYSTEM:
        system = messages[0]
        joined = f"{system.text}\n{text}" if system.text else text
        return [replace(system, content=(joined,)), *messages[1:]]
    return [ChatMessage(role=Role.SYSTEM, content=(text,)), *messages]


def _tool_dict(tool: ToolDefinition) -> Mapping[str, Any]:
    schema = json.loads(tool.parameters_json) if tool.parameters_json.strip() else {}
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": schema,
        },
    }
