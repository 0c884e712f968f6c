"""The vLLM engine: AsyncLLM with one adapter name per policy version.

Exact by construction: prompts go in as ids, ids and log-probabilities of the processed logits come
out. An adapter name is never used twice, so no cache of one version serves another.
"""

import asyncio
import itertools
import os
import random
import tempfile
from pathlib import Path

import vllm
from transformers import AutoTokenizer
from vllm.lora.request import LoRARequest
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from rollout.engines.base import (
    EngineError,
    Generation,
    GenerationRequest,
    ModelKey,
    PolicyKey,
    PolicyMissingError,
    check_adapter_files,
    is_whole_model,
    max_new_tokens,
)
from trajectory.rendering import ChatTokenizer
from trajectory.types import SamplingParams

MAX_LORAS = 3
"""Adapters that can sample at once; at least max_staleness + 2."""

MAX_LORA_RANK = 64
DEFAULT_KV_GIB = "2"


class VllmEngine:
    """Samples with vLLM, on CPU or GPU, whichever build is installed."""

    name = "vllm"

    def __init__(self, *, threads: int, max_rows: int) -> None:
        """Takes limits; `threads` 0 leaves the choice to vLLM."""
        self._threads = threads
        self._max_rows = max_rows
        self._numbers = itertools.count(1)
        self._request_ids = itertools.count()
        self._engine: AsyncLLM | None = None
        self._tokenizer: ChatTokenizer | None = None
        self._max_context = 0
        self._policies: dict[PolicyKey, LoRARequest | None] = {}
        # vLLM leaves the sockets between its processes where they are.
        self._sockets = tempfile.TemporaryDirectory(prefix="hone-vllm-")

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        if self._tokenizer is None:
            raise EngineError("the engine has not started")
        return self._tokenizer

    @property
    def max_context_tokens(self) -> int:
        """Positions that vLLM serves."""
        return self._max_context

    async def start(self, folder: Path, model: ModelKey) -> None:
        """Starts vLLM; 30 to 100 seconds on two cores."""
        # vLLM reads these when it starts and nothing else sets them.
        os.environ["VLLM_RPC_BASE_PATH"] = self._sockets.name
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", DEFAULT_KV_GIB)
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        if self._threads:
            os.environ.setdefault("OMP_NUM_THREADS", str(self._threads))
        arguments = vllm.AsyncEngineArgs(
            model=str(folder),
            dtype=model.dtype,
            enforce_eager=True,
            enable_lora=True,
            max_loras=MAX_LORAS,
            max_lora_rank=MAX_LORA_RANK,
            max_num_seqs=self._max_rows,
            logprobs_mode="processed_logprobs",
            enable_log_requests=False,
            # A prompt read in parts makes vLLM rewind the request's seeded generator, which a CPU one
            # cannot: the engine core dies of it.
            enable_chunked_prefill=False if current_platform.is_cpu() else None,
        )
        try:
            # Takes half a minute and more: the event loop must go on renewing leases meanwhile.
            engine = await asyncio.to_thread(AsyncLLM.from_engine_args, arguments)
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, RuntimeError) as err:
            raise EngineError(
                f"engine vllm cannot start with model folder {folder}: {err}"
            ) from err
        self._engine = engine
        self._max_context = int(engine.model_config.max_model_len)

    async def load_policy(self, policy: PolicyKey, adapter_dir: Path | None) -> None:
        """Adds the adapter under a name that is new."""
        if policy in self._policies:
            return
        if adapter_dir is None:
            self._policies[policy] = None
            return
        if is_whole_model(adapter_dir):
            raise EngineError(
                f"weights {adapter_dir}: a whole model was published (train.weights full), which this engine does not "
                "load; set HONE_ROLLOUT_ENGINE=transformers, or train with train.weights lora"
            )
        check_adapter_files(adapter_dir, ("adapter_config.json", "adapter_model.safetensors"))
        number = next(self._numbers)
        lora = LoRARequest(
            lora_name=f"{policy.run_id}-v{policy.version}-{number}",
            lora_int_id=number,
            lora_path=str(adapter_dir),
        )
        try:
            added = await self._started().add_lora(lora)
        except (ValueError, RuntimeError) as err:
            raise EngineError(f"adapter {adapter_dir}: vLLM cannot load it: {err}") from err
        if not added:
            raise EngineError(f"adapter {adapter_dir}: vLLM refused it")
        self._policies[policy] = lora

    async def unload_policy(self, policy: PolicyKey) -> None:
        """Removes the adapter."""
        lora = self._policies.pop(policy, None)
        if lora is not None:
            await self._started().remove_lora(lora.lora_int_id)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Samples one turn."""
        policy = request.policy
        if policy not in self._policies:
            raise PolicyMissingError(f"policy {policy.run_id} v{policy.version} is not loaded")
        limit = max_new_tokens(request.sampling, len(request.prompt_ids), self._max_context)
        if limit == 0:
            return Generation(
                token_ids=(), logprobs=(), finish_reason="length", policy_version=policy.version
            )
        final = None
        stream = self._started().generate(
            {"prompt_token_ids": list(request.prompt_ids)},
            _sampling(request.sampling, request.stop_ids, limit),
            request_id=f"hone-{next(self._request_ids)}",
            lora_request=self._policies[policy],
        )
        async for output in stream:
            final = output
        if final is None or not final.outputs:
            raise EngineError("engine vllm: the request ended without an output", retryable=True)
        completion = final.outputs[0]
        ids = tuple(completion.token_ids)
        entries = completion.logprobs or [{} for _ in ids]
        return Generation(
            token_ids=ids,
            logprobs=tuple(
                entry[token].logprob if token in entry else float("nan")
                for token, entry in zip(ids, entries, strict=True)
            ),
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            policy_version=policy.version,
        )

    async def close(self) -> None:
        """Shuts vLLM down."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
        self._sockets.cleanup()

    def _started(self) -> AsyncLLM:
        if self._engine is None:
            raise EngineError("the engine has not started")
        return self._engine


def _sampling(
    params: SamplingParams, stop_ids: tuple[int, ...], limit: int
) -> "vllm.SamplingParams":
    seed = params.seed
    return vllm.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p if 0 < params.top_p < 1 else 1.0,
        top_k=params.top_k or -1,
        min_p=params.min_p,
        max_tokens=limit,
        seed=random.getrandbits(63) if seed is None else seed & ((1 << 63) - 1),
        logprobs=0,
        stop_token_ids=list(stop_ids),
        include_stop_str_in_output=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
