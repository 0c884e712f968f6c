"""Rules of a run that span fields: what an algorithm needs, and what would silently do nothing."""

from collections.abc import Iterator

from runspec.graderfields import rewards_turns
from runspec.problems import Problem, described, nearest
from runspec.schema import WITH_OPTIONAL_STD, WITH_TURN_REWARDS, AgreementSpec, RunSpec
from trajectory.toolformats import TOOL_FORMATS

_ONLY_WITH_ROLLOUTS = (
    "group_size",
    "min_group_size",
    "clip_ratio",
    "clip_ratio_high",
    "dual_clip",
    "kl_coef",
    "kl_estimator",
    "kl_in",
    "importance_sampling",
    "importance_cap",
    "overlong_buffer",
    "norm_adv_by_std",
    "turn_rewards",
    "max_staleness",
    "max_resampled_groups",
    "updates_per_step",
)
_WITHOUT_GROUPS = ("reinforce_pp", "ppo")
_ONLY_IN_PPO = ("gamma", "gae_lambda", "value_coef", "value_clip")
_ONLY_IN_DPO = ("beta", "label_smoothing")


def check_rules(spec: RunSpec) -> list[Problem]:
    """Finds what does not fit together."""
    checks = [_needs(spec), _limits(spec)]
    if spec.reinforces:
        checks.append(_reinforcement(spec))
    return [Problem(field=field, message=message) for check in checks for field, message in check]


def check_no_effect(spec: RunSpec, said: frozenset[str]) -> list[Problem]:
    """Finds keys that the file says but that the algorithm never reads; `said` holds dotted names."""
    unread: tuple[str, ...] = ()
    if spec.algorithm != "evaluate":
        unread += () if spec.reinforces else _ONLY_WITH_ROLLOUTS
        unread += () if spec.algorithm == "ppo" else _ONLY_IN_PPO
        unread += () if spec.algorithm == "dpo" else _ONLY_IN_DPO
        unread += ("loss_aggregation",) if spec.compares else ()
        unread += () if spec.algorithm in ("ppo", "reward_model") else ("value_learning_rate",)
    if spec.reinforces and spec.algorithm not in WITH_OPTIONAL_STD:
        unread += ("norm_adv_by_std",)
    if spec.reinforces and spec.algorithm not in WITH_TURN_REWARDS:
        unread += ("turn_rewards",)
    problems = [
        Problem(
            field=f"train.{key}",
            message=f"has no effect with algorithm {spec.algorithm}; {_instead(spec, key)}",
        )
        for key in unread
        if f"train.{key}" in said
    ]
    return problems + [
        Problem(
            field=key,
            message="has no effect with train.weights full, which trains no adapter; leave it out "
            "(on the command line: lora=null)",
        )
        for key in sorted(said)
        if key.startswith("lora.") and spec.train.weights == "full"
    ]


def _instead(spec: RunSpec, key: str) -> str:
    # Other trainers call the weight of the KL beta.
    if key == "beta" and spec.reinforces:
        return "the KL's weight is train.kl_coef"
    if key == "turn_rewards" and spec.algorithm == "ppo":
        return "ppo always reads them; leave it out"
    return "leave it out"


def _needs(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Parts without which the algorithm cannot start."""
    if spec.algorithm != "evaluate" and not spec.data.train:
        what = "tasks to train on"
        if not spec.reinforces:
            what = "pairs to compare" if spec.compares else "conversations to imitate"
        yield "data.train", f"missing; algorithm {spec.algorithm} needs a file or folder of {what}"
    for key in ("train", "eval"):
        if getattr(spec.data, f"{key}_split") and not getattr(spec.data, key):
            yield f"data.{key}_split", f"names a split, but data.{key} names no folder"
    if spec.algorithm == "evaluate" and not spec.data.eval:
        yield "data.eval", "missing; algorithm evaluate needs a file or folder of tasks"
    if spec.rolls_out and not spec.grader:
        yield (
            "grader",
            f"missing; algorithm {spec.algorithm} needs a grader definition, "
            'for example {type: answer, name: right, reference: "{{item.answer}}"}',
        )
    if not spec.agreement.labels and spec.agreement != AgreementSpec():
        yield "agreement.labels", "missing; an agreement needs a file of the labels of people"
    if spec.agreement.labels and not spec.rolls_out:
        yield (
            "agreement.labels",
            f"has no effect with algorithm {spec.algorithm}, which grades nothing; leave it out",
        )
    if spec.health.off_task and spec.algorithm in ("evaluate", "reward_model"):
        yield (
            "health.off_task",
            f"has no effect with algorithm {spec.algorithm}, which trains no policy; leave it out",
        )
    for key in ("system_prompt", "tools"):
        if spec.algorithm == "reward_model" and getattr(spec.rollout, key):
            yield (
                f"rollout.{key}",
                "has no effect with algorithm reward_model, which reads conversations as graders "
                "send them; leave it out",
            )
    if len(set(spec.metrics.loggers)) != len(spec.metrics.loggers):
        yield "metrics.loggers", f"names a logger twice: {', '.join(spec.metrics.loggers)}"
    if spec.eval.every_steps > 0 and not spec.data.eval:
        yield "eval.every_steps", f"is {spec.eval.every_steps}, but data.eval names no file"


def _limits(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """Limits that contradict one another."""
    rollout, train = spec.rollout, spec.train
    if rollout.max_new_tokens >= rollout.max_total_tokens:
        yield (
            "rollout.max_new_tokens",
            f"is {rollout.max_new_tokens}, which leaves no room for a prompt in "
            f"rollout.max_total_tokens ({rollout.max_total_tokens})",
        )
    if spec.algorithm != "evaluate" and train.weights == "full" and spec.model.dtype == "bfloat16":
        yield (
            "model.dtype",
            "is bfloat16, in which train.weights full would round small updates away; float32 is right",
        )
    if rollout.tool_format not in TOOL_FORMATS:
        meant = nearest(rollout.tool_format, TOOL_FORMATS)
        yield (
            "rollout.tool_format",
            f"found {described(rollout.tool_format)}; one of {', '.join(TOOL_FORMATS)} is right"
            + (f"; did you mean {meant}?" if meant else ""),
        )
    if len(set(rollout.tools)) != len(rollout.tools):
        yield "rollout.tools", f"names a tool twice: {', '.join(rollout.tools)}"
    if spec.algorithm != "evaluate" and train.warmup_steps > train.max_steps:
        yield (
            "train.warmup_steps",
            f"is {train.warmup_steps}, more than train.max_steps ({train.max_steps})",
        )
    if spec.rolls_out and spec.retry.group_timeout < rollout.timeout:
        yield (
            "retry.group_timeout",
            f"is {spec.retry.group_timeout}, shorter than rollout.timeout ({rollout.timeout}): "
            "groups would close before their rollouts may end",
        )


def _reinforcement(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """What learning from rewards needs."""
    train = spec.train
    if train.group_size < 2 and spec.algorithm not in _WITHOUT_GROUPS:
        yield (
            "train.group_size",
            f"is {train.group_size}; {spec.algorithm} compares the rollouts of a group and needs "
            "at least 2",
        )
    elif train.group_size >= 2 and train.min_group_size > train.group_size:
        yield (
            "train.min_group_size",
            f"is {train.min_group_size}, more than train.group_size ({train.group_size})",
        )
    if train.max_resampled_groups and spec.algorithm in _WITHOUT_GROUPS:
        yield (
            "train.max_resampled_groups",
            f"has no effect with algorithm {spec.algorithm}, which learns from groups without spread too; leave it out",
        )
    if 0 < train.dual_clip <= 1:
        yield (
            "train.dual_clip",
            f"is {train.dual_clip}; a bound is above 1, usually 3, or 0 for none",
        )
    if train.turn_rewards and not rewards_turns(spec.grader):
        yield (
            "train.turn_rewards",
            "is true, but no grader of the run rewards turns; one of type step does",
        )
    longest = spec.rollout.max_new_tokens * spec.rollout.max_turns
    if train.overlong_buffer >= longest:
        yield (
            "train.overlong_buffer",
            f"is {train.overlong_buffer}, and a rollout has at most {longest} policy tokens "
            "(rollout.max_new_tokens x rollout.max_turns): all of them would be penalised",
        )
    if spec.rollout.temperature == 0:
        yield (
            "rollout.temperature",
            "is 0; greedy rollouts of a group are all alike and carry no signal. Use 1",
        )
