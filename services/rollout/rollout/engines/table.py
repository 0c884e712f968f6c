"""The table of engines; each is imported only when it is chosen, because engines are heavy."""

import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollout.engines.base import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What engines can be told."""

    threads: int
    max_batch: int
    prefix_cache_bytes: int
    script_file: Path | None


def _transformers(options: EngineOptions) -> Engine:
    from rollout.engines.transformers import TransformersEngine

    return TransformersEngine(
        threads=options.threads,
        max_rows=options.max_batch,
        cache_bytes=options.prefix_cache_bytes,
        rng=random.Random(),
    )


def _vllm(options: EngineOptions) -> Engine:
    from rollout.engines.vllm import VllmEngine

    return VllmEngine(threads=options.threads, max_rows=options.max_batch)


def _scripted(options: EngineOptions) -> Engine:
    from rollout.engines.scripted import ScriptedEngine

    return ScriptedEngine(options.script_file)


ENGINES: Mapping[str, Callable[[EngineOptions], Engine]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "scripted": _scripted,
}
"""Makers of engines by name."""


def choose_engine(name: str, device_folder: Path = Path("/dev")) -> str:
    """Returns the engine that `auto` means on this machine; any other name stands for itself.

    On CPUs the transformers engine is the faster of the two as measured.
    """
    if name != "auto":
        return name
    has_gpu = any(device_folder.glob("nvidia[0-9]*"))
    return "vllm" if has_gpu and importlib.util.find_spec("vllm") else "transformers"
