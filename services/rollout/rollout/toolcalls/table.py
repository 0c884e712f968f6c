"""The table of tool-call formats, by the name that `rollout.tool_format` of run.yaml uses."""

from collections.abc import Callable

from rollout.toolcalls.base import ToolCallParser
from rollout.toolcalls.hermes import HermesParser
from rollout.toolcalls.llama3_json import Llama3JsonParser
from rollout.toolcalls.openai_json import OpenAIJsonParser
from rollout.toolcalls.pythonic import PythonicParser
from rollout.toolcalls.qwen3_xml import Qwen3XmlParser

PARSERS: dict[str, Callable[[], ToolCallParser]] = {
    "hermes": HermesParser,
    "qwen2.5": HermesParser,
    "llama3_json": Llama3JsonParser,
    "pythonic": PythonicParser,
    "openai_json": OpenAIJsonParser,
    "qwen3_xml": Qwen3XmlParser,
}
"""Parsers by format."""


def make_parser(tool_format: str) -> ToolCallParser:
    """Makes the parser of a format; empty means hermes.

    Raises:
        ValueError: the format is unknown; names the known ones.
    """
    name = tool_format or "hermes"
    if name not in PARSERS:
        raise ValueError(f"rollout.tool_format: {name!r} is unknown; one of {', '.join(PARSERS)}")
    return PARSERS[name]()
