"""The seam between the agent loop and whatever samples tokens.

An engine serves one model and any number of policies: weights of a run at a version, an adapter over
the model or a whole model of the same shape. Prompts and completions are token ids; no engine turns text into ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trajectory.rendering import ChatTokenizer
from trajectory.types import SamplingParams, Task

DEFAULT_MAX_NEW_TOKENS = 256
"""Per turn, when the request does not say."""


class EngineError(Exception):
    """The engine cannot start or a generation failed; the message names the cause."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        """Takes whether a new attempt can succeed."""
        super().__init__(message)
        self.retryable = retryable


class PolicyMissingError(EngineError):
    """The policy that a request names is not loaded."""


@dataclass(frozen=True, slots=True, order=True)
class PolicyKey:
    """Weights of a run at a version; version 0 without an adapter is the model alone."""

    run_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKey:
    """A model as opened: its folder and number type."""

    path: str
    """As the run names it: a folder or package:NAME."""
    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Which place of which rollout a generation is for; only the scripted engine acts by it."""

    task: Task
    turn: int
    sample_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn to sample."""

    policy: PolicyKey
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop_ids: tuple[int, ...]
    """Sampling ends with any of these; the id itself is part of the completion."""
    may_continue: bool = False
    """A further turn may extend this one, so its key-value cache is worth keeping."""
    episode: Episode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What was sampled, and by which weights."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """At the sampling temperature (greedy: at 1); NaN where the engine has none."""
    finish_reason: str
    """stop or length."""
    policy_version: int


class Engine(Protocol):
    """Samples from one model's policies."""

    @property
    def name(self) -> str:
        """Name in the table of engines."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer; there once the engine has started."""

    @property
    def max_context_tokens(self) -> int:
        """Most tokens that prompt and completion may have together."""

    async def start(self, folder: Path, model: ModelKey) -> None:
        """Opens the model.

        Raises:
            EngineError: it cannot be opened; names the folder and the cause.
        """

    async def load_policy(self, policy: PolicyKey, adapter_dir: Path | None) -> None:
        """Makes a policy ready to serve, or leaves everything as it was. Idempotent.

        The folder holds an adapter as peft writes it, or a whole model.

        Raises:
            EngineError: the weights do not fit the model, or the engine does not serve their kind.
        """

    async def unload_policy(self, policy: PolicyKey) -> None:
        """Drops a policy with its caches. Idempotent."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Samples one turn.

        Raises:
            PolicyMissingError: the policy is not loaded.
            EngineError: the engine failed or has stopped.
        """

    async def close(self) -> None:
        """Stops; requests in flight fail with `EngineError`."""


def max_new_tokens(sampling: SamplingParams, prompt_tokens: int, max_context: int) -> int:
    """Returns how many tokens a turn may sample, at least 0."""
    wanted = sampling.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
    return max(0, min(wanted, max_context - prompt_tokens))


MODEL_WEIGHTS = "model.safetensors"
"""File of a whole model's weights."""


def is_whole_model(folder: Path) -> bool:
    """Says whether published weights are a whole model rather than an adapter."""
    return (folder / MODEL_WEIGHTS).is_file()


def check_adapter_files(adapter_dir: Path, names: Sequence[str]) -> None:
    """Refuses an adapter folder that lacks a file.

    Raises:
        EngineError: names the folder and what is missing.
    """
    missing = [name for name in names if not (adapter_dir / name).is_file()]
    if missing:
        raise EngineError(f"adapter {adapter_dir}: {', '.join(missing)} missing")
