"""An engine that says what a script says, for tests of everything around an engine.

The script comes with the task (reference field `script`) or from a file. Text is turned into ids by
the model's real tokenizer, so that records are as exact as with any other engine. The reported
log-probability of every token is that of one chance in two.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.engines.base import (
    EngineError,
    Episode,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
    PolicyMissingError,
    max_new_tokens,
)
from trajectory.rendering import ChatTokenizer

LOGPROB: float = struct.unpack("f", struct.pack("f", math.log(0.5)))[0]
"""Rounded to float32, as every engine's are; the wire carries no more."""
MAX_CONTEXT_TOKENS = 32_768


class ScriptedEngine:
    """Answers turn n with line n of the script.

    A script is a list of turns, or a list of such lists that the samples of a group take in turn.
    """

    name = "scripted"

    def __init__(self, script_file: Path | None = None) -> None:
        """Takes a JSON file of {task_id: script}; the key "*" is for all other tasks."""
        self._file = script_file
        self._scripts: Mapping[str, Any] = {}
        self._tokenizer: ChatTokenizer | None = None
        self._policies: set[PolicyKey] = set()

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        if self._tokenizer is None:
            raise EngineError("the engine has not started")
        return self._tokenizer

    @property
    def max_context_tokens(self) -> int:
        """A generous number; there is no model behind."""
        return MAX_CONTEXT_TOKENS

    async def start(self, folder: Path, model: ModelKey) -> None:
        """Opens the tokenizer and reads the script file."""
        # Imported here, because this engine is also in processes that never need it.
        from transformers import AutoTokenizer

        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as err:
            raise EngineError(f"tokenizer of {folder} cannot be opened: {err}") from err
        if self._file is not None:
            self._scripts = _read_scripts(self._file)

    async def load_policy(self, policy: PolicyKey, adapter_dir: Path | None) -> None:
        """Notes the policy; a script acts the same under all of them."""
        if adapter_dir is not None and not adapter_dir.is_dir():
            raise EngineError(f"adapter {adapter_dir} is not a folder")
        self._policies.add(policy)

    async def unload_policy(self, policy: PolicyKey) -> None:
        """Forgets the policy."""
        self._policies.discard(policy)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Says the turn's line."""
        if request.policy not in self._policies:
            policy = request.policy
            raise PolicyMissingError(f"policy {policy.run_id} v{policy.version} is not loaded")
        text = self._line(request.episode)
        ids = [*self.tokenizer.encode(text, add_special_tokens=False), request.stop_ids[0]]
        limit = max_new_tokens(request.sampling, len(request.prompt_ids), MAX_CONTEXT_TOKENS)
        kept = ids[:limit]
        return Generation(
            token_ids=tuple(kept),
            logprobs=(LOGPROB,) * len(kept),
            finish_reason="stop" if len(kept) == len(ids) else "length",
            policy_version=request.policy.version,
        )

    async def close(self) -> None:
        """Has nothing to stop."""

    def _line(self, episode: Episode | None) -> str:
        if episode is None:
            return "ok"
        task = episode.task
        script = task.reference.get("script")
        if script is None:
            script = self._scripts.get(task.task_id, self._scripts.get("*"))
        if script is None:
            raise EngineError(
                f"task {task.task_id}: no script; give the task a reference field `script` or set "
                "HONE_ROLLOUT_SCRIPT_FILE"
            )
        turns = _variant(script, episode.sample_index, task.task_id)
        return turns[min(episode.turn, len(turns) - 1)]


def _variant(script: Any, sample_index: int, task_id: str) -> Sequence[str]:
    turns = script
    if isinstance(script, list) and script and isinstance(script[0], list):
        turns = script[sample_index % len(script)]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise EngineError(
            f"task {task_id}: script must be a list of texts, or a list of such lists; "
            f"found {type(script).__name__}"
        )
    return turns


def _read_scripts(file: Path) -> Mapping[str, Any]:
    try:
        scripts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise EngineError(f"script file {file} cannot be read: {err}") from err
    if not isinstance(scripts, dict):
        raise EngineError(f"script file {file}: expected an object of task_id to script")
    return scripts
