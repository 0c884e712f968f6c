"""Turns schema errors into sentences: what was found, what would be right, which key was meant."""

from typing import Any

from pydantic import ValidationError

from runspec.problems import Problem, described, nearest
from runspec.schema import RunSpec, Section, all_fields, sections

_NO_TRUNCATION = (
    "is refused: with truncated sampling the recorded log-probabilities are not the policy's. "
    "Use rollout.temperature"
)
_OTHER_NAMES = {
    "num_generations": "train.group_size",
    "n": "train.group_size",
    "train_batch_size": "train.batch_size",
    "per_device_train_batch_size": "train.batch_size",
    "lr": "train.learning_rate",
    "steps": "train.max_steps",
    "kl_beta": "train.kl_coef",
    "eps_clip": "train.clip_ratio",
    "epsilon": "train.clip_ratio",
    "epsilon_high": "train.clip_ratio_high",
    "eps_clip_high": "train.clip_ratio_high",
    "loss_type": "train.loss_aggregation",
    "loss_agg_mode": "train.loss_aggregation",
    "max_off_policy_steps": "train.max_staleness",
    "max_async_level": "train.max_staleness",
    "dynamic_sampling": "train.max_resampled_groups",
    "filter_groups": "train.max_resampled_groups",
    "max_num_gen_batches": "train.max_resampled_groups",
    "num_iterations": "train.updates_per_step",
    "scale_rewards": "train.norm_adv_by_std",
    "lr_scheduler_type": "train.schedule",
    "max_completion_length": "rollout.max_new_tokens",
    "max_tokens": "rollout.max_new_tokens",
    "max_model_len": "rollout.max_total_tokens",
    "r": "lora.rank",
    "lora_alpha": "lora.alpha",
    "save_steps": "train.checkpoint_every_steps",
    "save_total_limit": "train.keep_checkpoints",
    "reward": "grader",
    "rewards": "grader",
    "model_name_or_path": "model.path",
    "train_file": "data.train",
    "eval_file": "data.eval",
    "report_to": "metrics.loggers",
    "logger": "metrics.loggers",
    "train_dataset_id": "data.train",
    "eval_dataset_id": "data.eval",
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "time_delta_type": "seconds as a number, or a text such as 90s, 5m or 1h30m",
    "finite_number": "a finite number",
}


def problems_of(error: ValidationError) -> list[Problem]:
    """One problem per schema error, without a place; `field` is the dotted name."""
    found = []
    for detail in error.errors(include_url=False):
        if detail["type"] == "default_factory_not_called":
            continue  # a default that hangs on a field which is itself in the list
        path = tuple(str(part) for part in detail["loc"])
        found.append(Problem(field=dotted(path), message=_message(path, dict(detail))))
    return found


def dotted(path: tuple[str, ...]) -> str:
    """Joins a path; list positions become [n]."""
    text = ""
    for part in path:
        text += f"[{part}]" if part.isdigit() else f".{part}" if text else part
    return text


def unknown_key(path: tuple[str, ...]) -> str:
    """Explains a key that no section has, with the key that was most likely meant."""
    *parents, key = path
    if key in ("top_p", "top_k", "min_p"):
        return _NO_TRUNCATION
    siblings = _keys_under(tuple(parents))
    meant = nearest(key, siblings)
    if meant is not None:
        return f"unknown key; did you mean {dotted((*parents, meant))}?"
    if key.lower() in _OTHER_NAMES:
        return f"unknown key; Hone calls it {_OTHER_NAMES[key.lower()]}"
    elsewhere = [name for name in all_fields() if name.rpartition(".")[2] == key]
    if not elsewhere:
        by_leaf = {name.rpartition(".")[2]: name for name in all_fields() if "." in name}
        close = nearest(key, by_leaf)
        elsewhere = [by_leaf[close]] if close else []
    if elsewhere:
        return f"unknown key here; did you mean {' or '.join(elsewhere)}?"
    where = dotted(tuple(parents)) or "a run file"
    return f"unknown key; {where} has {', '.join(siblings)}"


def _keys_under(parents: tuple[str, ...]) -> list[str]:
    model: type[Section] | None = RunSpec
    for part in parents:
        model = sections().get(part)
    return list(model.model_fields) if model else []


def _message(path: tuple[str, ...], detail: dict[str, Any]) -> str:
    kind = str(detail["type"])
    found = described(detail.get("input"))
    context = detail.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return unknown_key(path)
        case "missing":
            return f"missing; {_description(path)}"
        case "literal_error":
            meant = nearest(str(detail.get("input")), str(context["expected"]).split("'")[1::2])
            hint = f"; did you mean {meant}?" if meant else ""
            return f"found {found}, expected {context['expected']}{hint}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return f"found {found}, expected {_bound(kind, context)}"
        case "string_pattern_mismatch":
            return f"found {found}, expected {_description(path)}"
        case "string_too_short":
            return f"found {found}; {_description(path)}"
        case "value_error":
            return f"found {found}, {context['error']}"
    expected = _EXPECTED.get(kind)
    if kind == "float_type" and path[-1:] == ("float",):
        expected = "a number"
    return f"found {found}, expected {expected}" if expected else f"{detail['msg']} (found {found})"


def _bound(kind: str, context: dict[str, Any]) -> str:
    words = {
        "greater_than": ("gt", "more than"),
        "greater_than_equal": ("ge", "at least"),
        "less_than": ("lt", "less than"),
        "less_than_equal": ("le", "at most"),
    }
    key, text = words[kind]
    limit = context[key]
    return f"{text} {int(limit) if limit == int(limit) else limit}"


def _description(path: tuple[str, ...]) -> str:
    """The field's own docstring, in lower case at its start."""
    model: type[Section] = RunSpec
    for part in path[:-1]:
        model = sections().get(part, model)
    info = model.model_fields.get(path[-1])
    text = (info.description or "") if info else ""
    return text[:1].lower() + text[1:].rstrip(".") if text else "a value"
