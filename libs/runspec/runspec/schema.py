"""What a run.yaml may say: frozen models with the names of `hone.common.v1.RunSpec`, ranges and defaults.

Rules that span fields are in `runspec.rules`, reading files in `runspec.load`, the wire in `runspec.convert`.
Types are strict: "10" in quotes is a text, not a number.
"""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

Algorithm = Literal[
    "sft",
    "dpo",
    "reward_model",
    "grpo",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gspo",
    "ppo",
    "evaluate",
]
"""What a run does."""

REINFORCEMENT: tuple[Algorithm, ...] = (
    "grpo",
    "dr_grpo",
    "dapo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gspo",
    "ppo",
)
"""Algorithms that learn from the rewards of rollouts."""

PREFERENCE: tuple[Algorithm, ...] = ("dpo", "reward_model")
"""Algorithms that learn from pairs of responses."""

WITH_OPTIONAL_STD: tuple[Algorithm, ...] = ("grpo", "dapo", "gspo")
"""Of those, the ones that may divide advantages by the group's standard deviation."""

WITH_TURN_REWARDS: tuple[Algorithm, ...] = ("grpo", "dr_grpo", "dapo", "gspo")
"""Those that may let each turn answer for what came from it on."""

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SECONDS = 7 * 24 * 3600.0
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def duration_from(value: object) -> object:
    """Reads seconds as a number, or a text such as 90s, 5m, 1h30m.

    Raises:
        ValueError: the text is no duration, or the duration is not above 0 and at most a week.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    seconds = _seconds_of(value) if isinstance(value, str) else float(value)
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError("expected a duration above 0 and at most 168h")
    return timedelta(seconds=seconds)


def _seconds_of(value: str) -> float:
    text = value.strip().replace(" ", "")
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("expected seconds as a number, or a text such as 90s, 5m or 1h30m")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)


def _duration_text(value: timedelta) -> str:
    seconds = value.total_seconds()
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{seconds:.6f}".rstrip("0") + "s"


PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(duration_from),
    PlainSerializer(_duration_text, when_used="json"),
]
"""A span of time: seconds as a number, or a text such as 90s, 5m, 1h30m."""


class Section(BaseModel):
    """Base of all sections: frozen, strict, unknown keys refused."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


class ModelSpec(Section):
    """Which weights to start from."""

    path: str = Field(min_length=1)
    """Folder of the model (relative to the run file), or package:NAME for a model that a Python package carries."""
    adapter: str = ""
    """Adapter to start from: the run_id of a run that is complete, or a folder (./name)."""
    dtype: Literal["float32", "bfloat16", "auto"] | None = None
    """Number type of the weights: float32 (default), bfloat16, or auto: the faster one, measured as the run starts."""
    reference: str = "start"
    """Policy that KL is measured against: base, start (the policy at the start of the run), or a folder (./name)."""


MAX_RANK = 1024
"""Of an adapter's matrices."""


class LoraSpec(Section):
    """The adapter that is trained; a run that goes on with model.adapter has its rank, scale and layers."""

    rank: int | None = Field(default=None, ge=1, le=MAX_RANK)
    """Rank of the adapter's matrices; by default 16, or that of model.adapter."""
    alpha: float | None = Field(default=None, gt=0)
    """Scale of the adapter; by default twice the rank, or that of model.adapter."""
    target_modules: tuple[str, ...] = Field(default=(), strict=False)
    """Names of the linear layers of the blocks that get an adapter; empty means all, or those of model.adapter."""

    @property
    def new_rank(self) -> int:
        """The rank, or what its default stands for in a new adapter."""
        return 16 if self.rank is None else self.rank

    @property
    def new_alpha(self) -> float:
        """The scale, or what its default stands for in a new adapter."""
        return 2.0 * self.new_rank if self.alpha is None else self.alpha

    def filled(self) -> "LoraSpec":
        """Returns it with what the defaults stand for in a new adapter."""
        return self.model_copy(update={"rank": self.new_rank, "alpha": self.new_alpha})


class DataSpec(Section):
    """Which rows to learn from and to measure on: files or folders relative to the run file, ids once uploaded."""

    train: str = ""
    """Rows to train on: conversations or texts for sft, pairs for dpo and reward_model, tasks for reinforcement."""
    eval: str = ""
    """Rows to measure on: pairs for dpo and reward_model, tasks for reinforcement and evaluate."""
    train_split: str = ""
    """Split of a folder with several to train on; by default train."""
    eval_split: str = ""
    """Split of a folder with several to measure on; by default test, validation or eval."""


class TrainSpec(Section):
    """How the weights are updated."""

    max_steps: int = Field(ge=1, le=1_000_000)
    """Optimiser updates in all; by default 10 for reinforcement, 30 for all others."""
    learning_rate: float = Field(gt=0, le=1)
    """Peak learning rate; by default 2e-4 for sft, 5e-5 for dpo, 1e-4 for all others; a tenth with weights full."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from zero."""
    schedule: Literal["constant", "linear"] = "constant"
    """What the learning rate does after the warm-up: stay, or fall linearly to zero at max_steps."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to at most this norm."""
    weight_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decoupled weight decay."""
    batch_size: int = Field(ge=1, le=65_536)
    """Rows or pairs per step for sft, dpo and reward_model (default 16), tasks (groups) for reinforcement (8)."""
    group_size: int = Field(default=8, ge=1, le=4096)
    """Rollouts per task and step."""
    min_group_size: int = Field(default=2, ge=2)
    """A group closes at its deadline with at least this many scored members."""
    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """The policy's probability ratio is clipped below at 1 minus this."""
    clip_ratio_high: float = Field(
        default_factory=lambda data: data.get("clip_ratio", 0.2), gt=0, le=10
    )
    """The ratio is clipped above at 1 plus this; by default equal to clip_ratio."""
    dual_clip: float = Field(default=0.0, ge=0)
    """Bound on the loss of a bad token that became likelier, in advantages; above 1, usually 3; 0 means none."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference policy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL is estimated from sampled tokens; by default k1 in the reward, k3 in the loss."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts; by default in the reward for ppo and reinforce_pp, in the loss for all others."""
    max_staleness: int = Field(default=0, ge=0, le=64)
    """Policy versions that the acting weights may lag behind: so many further steps roll out while one trains."""
    max_resampled_groups: int = Field(default=0, ge=0, le=65_536)
    """Further groups per step in place of those whose rewards do not differ, as dynamic sampling does; 0 means none."""
    importance_sampling: Literal["none", "token", "sequence"] = Field(
        default_factory=lambda data: "token" if data.get("max_staleness", 0) > 0 else "none"
    )
    """Weights for tokens sampled with other probabilities than the learner's; by default token where stale ones are."""
    importance_cap: float = Field(default=2.0, ge=1)
    """These weights are cut off at this."""
    overlong_buffer: int = Field(default=0, ge=0)
    """Policy tokens before the longest rollout over which a penalty rises to 1; 0 means no penalty."""
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    """How token losses are averaged: over all policy tokens of the step, per rollout first, or by a fixed length."""
    norm_adv_by_std: bool = True
    """Divide advantages by the group's standard deviation: grpo, dapo and gspo."""
    gradient_checkpointing: bool = False
    """Keep no activations within a layer and compute them again for the backward pass: less memory, more work."""
    turn_rewards: bool = False
    """Let each turn answer for the rewards from it on, where the grader rewards turns: grpo, dr_grpo, dapo and gspo."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """For ppo: discount of rewards per turn."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """For ppo: from 0, advantages of one token, to 1, whole returns."""
    value_coef: float = Field(default=0.1, ge=0)
    """For ppo: weight of the value head's loss."""
    value_clip: float = Field(default=0.2, gt=0)
    """For ppo: how far a value may move per batch before its loss is clipped."""
    value_learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """For ppo and reward_model: peak learning rate of the head that gives values or scores."""
    beta: float = Field(default=0.1, gt=0, le=100)
    """For dpo: how closely the policy keeps to the reference, as the weight of the KL that the loss stands for."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """For dpo: share of pairs that are taken to be labelled the wrong way round; soft labels may be so too."""
    updates_per_step: int = Field(default=1, ge=1, le=64)
    """Optimiser updates per batch of rollouts."""
    checkpoint_every_steps: int = Field(default=1, ge=1)
    """Save a checkpoint every this many steps: sft, dpo, reward_model. Runs with rollouts save after every update."""
    weights: Literal["lora", "full"] = "lora"
    """What is trained: an adapter over the frozen model, or every weight (default learning rates are then a tenth)."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes of the learner's machine that train together, each with a part of the weights; with GPUs one each."""
    keep_checkpoints: int = Field(default=2, ge=1, le=10_000)
    """Newest checkpoints that are kept, besides the best one by held-out reward, or training reward without it."""


class RolloutSpec(Section):
    """How the agent acts."""

    temperature: float = Field(default=1.0, ge=0, le=10)
    """Sampling temperature; 0 is greedy, which training refuses."""
    max_new_tokens: int = Field(default=256, ge=1, le=1_000_000)
    """Tokens per turn."""
    max_turns: int = Field(default=8, ge=1, le=1000)
    """Generations per rollout; 1 is single-turn."""
    max_total_tokens: int = Field(default=4096, ge=2, le=10_000_000)
    """Tokens over all turns of a rollout, prompt and tool results included."""
    tools: tuple[str, ...] = Field(default=(), strict=False)
    """Names from the tool gateway; empty means no tools."""
    tool_format: str = "hermes"
    """How the model writes tool calls."""
    system_prompt: str = ""
    """Put before the messages of each task that has no system message of its own."""
    timeout: PositiveDuration = timedelta(minutes=5)
    """Time for one rollout from request to end."""
    sandbox_template: str = ""
    """Template from the sandbox service; empty means its default."""


class RetrySpec(Section):
    """How often to try again."""

    infra_attempts: int = Field(default=5, ge=0, le=100)
    """New attempts per slot after infrastructure faults; 0 means none."""
    data_attempts: int = Field(default=1, ge=0, le=100)
    """New attempts per slot after faults of the data; 0 means none."""
    group_timeout: PositiveDuration = timedelta(minutes=10)
    """Time that a group may take before it closes with what it has."""


class EvalSpec(Section):
    """How the policy is measured."""

    samples: int = Field(default=1, ge=1, le=1024)
    """Samples per task; 2 or more also tell pass@k and which tasks have spread."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature, 0 is greedy; by default the rollout's."""
    max_tasks: int = Field(default=0, ge=0)
    """At most this many tasks of the evaluation set; 0 means all."""
    every_steps: int = Field(default=0, ge=0)
    """Evaluate during training every this many steps; 0 means never (dpo and reward_model: only before and after)."""


class HealthSpec(Section):
    """What is watched while the policy learns; a limit of 0 switches its alarm off."""

    off_task: str = ""
    """Rows away from the task, as sft takes them (JSONL, relative to the run file); empty means none."""
    every_steps: int = Field(default=10, ge=0)
    """Measure off_task before, after and every this many steps; 0 means only before and after."""
    max_rows: int = Field(default=64, ge=0)
    """At most this many rows of off_task, from its start; 0 means all."""
    on_alarm: Literal["warn", "stop"] = "warn"
    """What an alarm does to the run: told only, or stopped after the step, with the best checkpoint kept."""
    window: int = Field(default=5, ge=2, le=1000)
    """Steps over which means are taken."""
    forgetting: float = Field(default=0.05, ge=0)
    """Alarm: relative fall of the log-probability of off_task from its first value."""
    reward_fall: float = Field(default=0.3, ge=0)
    """Alarm reward_collapse: fall of the training reward from its best window, as a share of the best."""
    entropy_floor: float = Field(default=0.1, ge=0, lt=1)
    """Alarm entropy_collapse: share of the first window's entropy; only where the agent acts."""
    repetition_rise: float = Field(default=0.2, ge=0, le=1)
    """Alarm repetition: rise of the share of 4-grams that repeat within a rollout, over the first window."""
    hacking_gap: float = Field(default=0.05, ge=0)
    """Alarm reward_hacking: by which the training reward rises while the held-out one falls, as shares of each."""
    kl_rise: float = Field(default=0.1, ge=0)
    """Alarm kl_drift: nats per token by which the KL grows past the best reward."""
    held_out: str = Field(default="eval/reward/mean", min_length=1)
    """Figure that says how good the policy truly is: eval/reward/mean, or rewards/NAME/mean of one that is not paid."""


_REINFORCEMENT_DEFAULTS: Mapping[str, object] = {
    "max_steps": 10,
    "learning_rate": 1e-4,
    "batch_size": 8,
}


class AgreementSpec(Section):
    """How far people must agree, by a file of labels, before anything is started or paid for."""

    labels: str = ""
    """File of labels (csv, tsv, jsonl or json), relative to the run file; empty means that nothing is demanded."""
    minimum: float = Field(default=0.6, ge=0, le=1)
    """For the lower end of the 95% interval of Cohen's kappa: of each judge against the majority, or of each pair."""
    weights: Literal["none", "linear", "quadratic"] = "none"
    """How far apart two labels count; for labels in an order."""
    raters: tuple[str, ...] = Field(default=(), strict=False)
    """Columns that are raters; empty means all but id and ignore."""
    judges: tuple[str, ...] = Field(default=(), strict=False)
    """Raters that are no people: held against the majority, without a vote in it."""
    id: tuple[str, ...] = Field(default=(), strict=False)
    """Columns that name the item together; empty means id, item, item_id, idx or task_id."""
    ignore: tuple[str, ...] = Field(default=(), strict=False)
    """Columns that are no raters."""
    layout: Literal["wide", "long"] = "wide"
    """A row per item and a column per rater, or a row per label with columns item, rater and label."""
    order: tuple[str, ...] = Field(default=(), strict=False)
    """Labels from lowest to highest, for weights; numbers have an order by themselves."""
    missing: tuple[str, ...] = Field(default=(), strict=False)
    """Words that stand for a missing label."""


class MetricsSpec(Section):
    """Where the figures of a run go beside the file metrics.jsonl of its folder."""

    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(default=(), strict=False)
    """Further loggers: tensorboard, wandb (offline), mlflow (a local store); each needs its package at the learner."""
    project: str = Field(default="hone", min_length=1, max_length=128)
    """Project of W&B, experiment of MLflow."""


TRAIN_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "sft": {"max_steps": 30, "learning_rate": 2e-4, "batch_size": 16},
    "dpo": {"max_steps": 30, "learning_rate": 5e-5, "batch_size": 16},
    "reward_model": {"max_steps": 30, "learning_rate": 1e-4, "batch_size": 16},
    "grpo": _REINFORCEMENT_DEFAULTS,
    "dr_grpo": {
        **_REINFORCEMENT_DEFAULTS,
        "loss_aggregation": "constant",
    },
    "dapo": {**_REINFORCEMENT_DEFAULTS, "clip_ratio_high": 0.28},
    "rloo": _REINFORCEMENT_DEFAULTS,
    "reinforce_pp": {**_REINFORCEMENT_DEFAULTS, "kl_in": "reward", "kl_estimator": "k1"},
    "reinforce_pp_baseline": _REINFORCEMENT_DEFAULTS,
    "gspo": {
        **_REINFORCEMENT_DEFAULTS,
        "clip_ratio": 3e-4,
        "clip_ratio_high": 4e-4,
        "loss_aggregation": "sequence_mean",
    },
    "ppo": {**_REINFORCEMENT_DEFAULTS, "kl_in": "reward", "kl_estimator": "k1"},
    "evaluate": {"max_steps": 1, "learning_rate": 1e-4, "batch_size": 8},
}
"""Defaults of TrainSpec that depend on the algorithm, from its paper; for evaluate they are never read."""


FULL_WEIGHTS_RATE = 0.1
"""Learning rate of full weights by default, as a part of an adapter's (thinkingmachines.ai/blog/lora, 2025)."""


class RunSpec(Section):
    """One job: what run.yaml says."""

    name: str = Field(default="run", pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    """For people, part of the run_id: lower-case letters, digits and dashes, at most 40; default the file's name."""
    algorithm: Algorithm
    """sft imitates, dpo and reward_model learn from pairs, evaluate only measures, all others learn from rewards."""
    model: ModelSpec
    """Which weights to start from."""
    lora: LoraSpec = LoraSpec()
    """The adapter that is trained."""
    data: DataSpec = DataSpec()
    """Which rows to learn from and to measure on."""
    train: TrainSpec
    """How the weights are updated."""
    rollout: RolloutSpec = RolloutSpec()
    """How the agent acts."""
    grader: dict[str, Any] | None = None
    """Grader definition, as in the grader service; in a run file also the path of a JSON file that holds it."""
    retry: RetrySpec = RetrySpec()
    """How often to try again."""
    eval: EvalSpec = EvalSpec()
    """How the policy is measured."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of everything random in the run."""
    agreement: AgreementSpec = AgreementSpec()
    """How far people must agree before the run may start."""
    metrics: MetricsSpec = MetricsSpec()
    """Where the figures go."""
    health: HealthSpec = HealthSpec()
    """What is watched while the policy learns."""

    @property
    def reinforces(self) -> bool:
        """Whether the run learns from rewards."""
        return self.algorithm in REINFORCEMENT

    @property
    def compares(self) -> bool:
        """Whether the run learns from pairs of responses."""
        return self.algorithm in PREFERENCE

    @property
    def rolls_out(self) -> bool:
        """Whether the agent acts in the run."""
        return self.reinforces or self.algorithm == "evaluate"

    @model_validator(mode="before")
    @classmethod
    def _fill_train_defaults(cls, data: object) -> object:
        """Adds the training defaults that depend on the algorithm."""
        if not isinstance(data, dict):
            return data
        train = data.get("train", {})
        if not isinstance(train, dict):
            return data
        defaults = TRAIN_DEFAULTS.get(str(data.get("algorithm")), TRAIN_DEFAULTS["grpo"])
        if train.get("weights") == "full":
            rate = FULL_WEIGHTS_RATE * float(str(defaults["learning_rate"]))
            defaults = {**defaults, "learning_rate": rate}
        return {**data, "train": {**defaults, **train}}

    def with_datasets(self, *, train: str, eval: str, off_task: str = "") -> "RunSpec":
        """The same run with its files replaced by the ids of the uploaded sets."""
        health = self.health.model_copy(update={"off_task": off_task})
        return self.model_copy(update={"data": DataSpec(train=train, eval=eval), "health": health})


def sections() -> dict[str, type[Section]]:
    """The sections of a run file by key."""
    found: dict[str, type[Section]] = {}
    for key, info in RunSpec.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            found[key] = info.annotation
    return found


def all_fields() -> tuple[str, ...]:
    """Dotted names of every field of a run file."""
    inner = sections()
    names: list[str] = []
    for key in RunSpec.model_fields:
        names.append(key)
        if key in inner:
            names.extend(f"{key}.{field}" for field in inner[key].model_fields)
    return tuple(names)


def flat(spec: RunSpec) -> dict[str, str | int | float | bool]:
    """What a run file says, by dotted name: lists and the grader as JSON, fields without a value left out."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in spec.model_dump(mode="json", exclude_none=True).items():
        inner = value if key in sections() else {"": value}
        for field, item in inner.items():
            name = f"{key}.{field}" if field else key
            found[name] = (
                item
                if isinstance(item, str | int | float | bool)
                else json.dumps(item, sort_keys=True, ensure_ascii=False)
            )
    return found
