"""TRL's side: GRPOTrainer or SFTTrainer, driven step by step. Run with .venv-trl's Python; see work.py."""

import argparse
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from datasets import Dataset
from safetensors.torch import load_file, save_file
from work import GROUP_SIZE, GROUPS, LEARNING_RATE, Meter, Orders, Rollouts, peak_bytes, rollouts

MANY_STEPS = 1000


class OrdersEnded(Exception):
    """There is no more to do."""


class Steps(transformers.TrainerCallback):
    """Waits for an order before each step, and answers at its end."""

    def __init__(self, orders: Orders, gradient: Path | None, *, waits: bool) -> None:
        """Takes where the first step's gradient goes, and whether a step begins with an order."""
        self.waits = waits
        self._orders = orders
        self._next = iter(orders)
        self._gradient = gradient
        self.trainer: Any = None
        self.number = 0
        self.meter = Meter()
        self.figures: dict[str, float] = {}

    def wait(self) -> None:
        """Waits for the next order.

        Raises:
            OrdersEnded: there is none.
        """
        number = next(self._next, None)
        if number is None:
            raise OrdersEnded
        self.number = number
        self.meter = Meter()
        self.figures = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tells that all is loaded."""
        self._orders.tell(ready=True, peak_loaded=peak_bytes())

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Waits where nothing else does."""
        if self.waits:
            self.wait()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keeps the first gradient, as it was clipped."""
        if self._gradient is None:
            return
        found = {
            name: value.grad
            for name, value in self.trainer.model.named_parameters()
            if value.grad is not None
        }
        save_file(found, self._gradient)
        self._gradient = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Answers."""
        self._orders.tell(**(self.meter.read() | self.figures), peak=peak_bytes())


class Updates(trl.GRPOTrainer):
    """Begins to measure once the advantages are there."""

    steps: Steps
    whole: bool

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.steps.wait()
        found = super()._generate_and_score_completions(inputs)
        if not self.whole:
            self.steps.meter = Meter()
        return found


def model_of(given: argparse.Namespace) -> Any:
    """Opens the base model in float32."""
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        str(given.model), dtype=torch.float32, local_files_only=True
    )


def lora_of(given: argparse.Namespace) -> Any:
    """Returns the shape of the adapter, or None for full weights."""
    if given.adapter is None:
        return None
    config = peft.LoraConfig.from_pretrained(str(given.adapter))
    config.inference_mode = False
    return config


def start_from(trainer: Any, adapter: Path | None) -> None:
    """Gives the adapter the weights that the other side starts from."""
    if adapter is not None:
        weights = load_file(adapter / "adapter_model.safetensors")
        outcome = peft.set_peft_model_state_dict(trainer.model, weights)
        assert not outcome.unexpected_keys, outcome.unexpected_keys


def common(given: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Settings of both trainers: float32, constant rate, nothing logged, nothing saved."""
    return {
        "output_dir": folder,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "max_steps": MANY_STEPS,
        "per_device_train_batch_size": given.micro_batch,
        "bf16": False,
        "gradient_checkpointing": given.checkpointing,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def updates(given: argparse.Namespace, steps: Steps, folder: str) -> Any:
    """Returns a GRPOTrainer whose rollouts are given, or sampled where `--prompts` names some."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(given.model))
    current: list[Rollouts] = []

    def given_rollouts(prompts: list[str], _: Any) -> dict[str, Any]:
        current[:] = [rollouts(given.prompt_tokens, given.completion_tokens, steps.number)]
        work = current[0]
        return {
            "prompt_ids": [ids for ids in work.prompts for _ in range(GROUP_SIZE)],
            "completion_ids": [ids for group in work.completions for ids in group],
            "logprobs": [[-10.0] * given.completion_tokens for _ in prompts],
        }

    def rewards(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        if given.prompts:
            # Any rule serves, so long as members of a group differ.
            return [float(index % 2) for index in range(len(completions))]
        return [reward for group in current[0].rewards for reward in group]

    if given.prompts:
        lines = given.prompts.read_text(encoding="utf-8").splitlines()
        rows = [{"prompt": json.loads(line)["messages"]} for line in lines]
    else:
        rows = [{"prompt": str(index)} for index in range(GROUPS)]
    args = trl.GRPOConfig(
        **common(given, folder),
        gradient_accumulation_steps=GROUPS * GROUP_SIZE // given.micro_batch,
        num_generations=GROUP_SIZE,
        max_completion_length=given.completion_tokens,
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        loss_type="dapo",
        shuffle_dataset=False,
    )
    trainer = Updates(
        model=model_of(given),
        processing_class=tokenizer,
        args=args,
        train_dataset=Dataset.from_list(rows),
        reward_funcs=rewards,
        peft_config=lora_of(given),
        callbacks=[steps],
        rollout_func=None if given.prompts else given_rollouts,
    )
    trainer.steps, trainer.whole = steps, bool(given.prompts)
    return trainer


def supervised(given: argparse.Namespace, steps: Steps, folder: str) -> Any:
    """Returns an SFTTrainer over the rows, in their order."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(given.model))
    rows = [json.loads(line) for line in given.sft.read_text(encoding="utf-8").splitlines()]
    data = [{"prompt": row["messages"][:-1], "completion": row["messages"][-1:]} for row in rows]
    args = trl.SFTConfig(
        **common(given, folder),
        gradient_accumulation_steps=given.batch // given.micro_batch,
        train_sampling_strategy="sequential",
        max_length=None,
    )

    class Supervised(trl.SFTTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            so_far = steps.figures.get("tokens", 0.0)
            steps.figures["tokens"] = so_far + float(inputs["attention_mask"].sum())
            return super().training_step(model, inputs, *rest)

    return Supervised(
        model=model_of(given),
        processing_class=tokenizer,
        args=args,
        train_dataset=Dataset.from_list(data),
        peft_config=lora_of(given),
        callbacks=[steps],
    )


def main() -> None:
    """Take steps as they are ordered."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--threads", type=int, required=True)
    options.add_argument("--adapter", type=Path, help="to start from; full weights without it")
    options.add_argument("--micro-batch", type=int, default=8)
    options.add_argument("--checkpointing", action="store_true")
    options.add_argument("--onednn", action="store_true", help="multiply as Hone found to be fast")
    options.add_argument("--prompt-tokens", type=int, default=0)
    options.add_argument("--completion-tokens", type=int, default=0)
    options.add_argument("--prompts", type=Path, help="to sample from, in place of given rollouts")
    options.add_argument("--sft", type=Path, help="rows to imitate, in place of rollouts")
    options.add_argument("--batch", type=int, default=16, help="rows of a supervised step")
    options.add_argument("--gradient", type=Path, help="where the first step's gradient goes")
    given = options.parse_args()
    orders = Orders()
    torch.set_num_threads(given.threads)
    if given.onednn:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    steps = Steps(orders, given.gradient, waits=bool(given.sft))
    with tempfile.TemporaryDirectory() as folder:
        trainer = (supervised if given.sft else updates)(given, steps, folder)
        steps.trainer = trainer
        start_from(trainer, given.adapter)
        with suppress(OrdersEnded):
            trainer.train()


if __name__ == "__main__":
    main()
