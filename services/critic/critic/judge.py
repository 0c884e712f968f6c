"""The seam behind which a judge answers: a prompt in, a text out. Reads no verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from servicekit.errors import FailedPrecondition
from trajectory.types import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a judge is given."""

    messages: tuple[ChatMessage, ...]
    model: str
    temperature: float
    max_tokens: int
    seed: int | None = None
    schema: Mapping[str, object] | None = None
    """JSON schema of the object that is wanted; None leaves the form to the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a judge said."""

    text: str
    thinking: str = ""
    """Where the endpoint gives it apart from the text."""
    refusal: str = ""
    """Why it would not answer; empty if it did."""
    cut_off: bool = False
    """The tokens ran out before it had ended."""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    num_tries: int = 1


class Judge(Protocol):
    """Answers prompts."""

    async def ask(self, prompt: Prompt, *, deadline: float) -> Reply:
        """Ask, again where that may help and the deadline allows it.

        Args:
            prompt: what is asked.
            deadline: on the event loop's clock; the caller cancels at it.

        Raises:
            HoneError: with a reason of `critic.faults`.
        """
        ...


class NoJudge:
    """For a critic without an endpoint: it starts, is ready, and says what is missing when it is asked."""

    async def ask(self, prompt: Prompt, *, deadline: float) -> Reply:
        """Raise FailedPrecondition, which names the setting."""
        raise FailedPrecondition(
            "no judge is set up: set HONE_CRITIC_ENDPOINT_URL to the base URL of an OpenAI-compatible endpoint, for "
            "example http://127.0.0.1:8000/v1, and HONE_CRITIC_MODEL to a model that it serves",
            reason="JUDGE_UNCONFIGURED",
        )
