"""`function`: a reward function of an installed package (entry points `hone.reward_functions`).

    {"type": "function", "function": "brevity", "timeout_seconds": 30, "pass_threshold": 0.5}
    {"type": "function", "function": "gsm8k_score", "style": "verl", "data_source": "openai/gsm8k",
     "ground_truth": "{{item.answer}}"}

style trl (default) calls `f(prompts, completions, completion_ids, **columns) -> list[float | None]`, also `async def`,
with lists of one: `prompts` and `completions` hold messages, or with `"completions": "text"` the last user message and
the last response as texts; each field of the task is a column; None is no opinion. style verl calls
`f(data_source, solution_str, ground_truth, extra_info) -> float | {"score": ..., other figures}`; `extra_info` is the
task's field of that name, or the whole task.

A function runs in a process of its own that is killed at `timeout_seconds`; importing its package has its own time.
What it raises is a grader's fault of kind code, never a zero. A response from `pass_threshold` up succeeded.
"""

from dataclasses import dataclass
from itertools import compress

from grader.fields import Fields, nearest, shown
from grader.functions.registry import known_functions
from grader.functions.styles import STYLES
from grader.instruments.all import Instruments
from grader.instruments.functions import FunctionCall
from grader.kinds.base import Kinds, template_field
from grader.kinds.outside import judged_outside
from grader.results import Graded, abstain
from grader.sample import Sample
from grader.sample_json import message_json, prompt_messages
from grader.templates import ResponseLacksError, Template
from trajectory.types import Role, RolloutRecord

FORMS = ("messages", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionGrader:
    """Runs a reward function."""

    function: str
    style: str
    as_text: bool
    data_source: Template | None
    ground_truth: Template
    timeout_seconds: float
    pass_threshold: float

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the function's reward."""
        try:
            arguments = self._for_trl(sample) if self.style == "trl" else self._for_verl(sample)
        except ResponseLacksError as lack:
            return Graded(value=0.0, kind=sample.shortfall(lack.kind), explanation=lack.detail)
        score = await instruments.functions.call(
            FunctionCall(
                function=self.function,
                style=self.style,
                arguments=arguments,
                timeout_seconds=self.timeout_seconds,
            )
        )
        if score.value is None:
            return abstain(f"{self.function} has no opinion")
        return judged_outside(
            sample,
            score.value,
            pass_threshold=self.pass_threshold,
            explanation=f"{self.function} gives {score.value:g}",
            parts=score.parts,
        )

    def _for_trl(self, sample: Sample) -> dict[str, object]:
        prompt = prompt_messages(sample)
        said = sample.record.messages[len(prompt) :]
        if self.as_text:
            asked = [message.text for message in prompt if message.role is Role.USER]
            prompts: object = (asked or [""])[-1]
            completions: object = sample.output_text
        else:
            prompts = [message_json(message) for message in prompt]
            completions = [message_json(message) for message in said]
        columns = {name: [value] for name, value in sample.item.items()}
        return {
            **columns,
            "prompts": [prompts],
            "completions": [completions],
            "completion_ids": [completion_ids(sample.record)],
        }

    def _for_verl(self, sample: Sample) -> dict[str, object]:
        if self.data_source is not None:
            data_source: object = self.data_source.render(sample)
        else:
            data_source = sample.item.get("data_source", "")
        return {
            "data_source": data_source,
            "solution_str": sample.output_text,
            "ground_truth": self.ground_truth.value(sample),
            "extra_info": sample.item.get("extra_info", dict(sample.item)),
        }


def completion_ids(record: RolloutRecord) -> list[int]:
    """Return the ids from the first sampled token to the last; of forked rows the last one's, which holds the end."""
    if not record.tokens.rows:
        return []
    row = record.tokens.rows[-1]
    sampled = list(compress(range(len(row.token_ids)), row.loss_mask))
    return list(row.token_ids[sampled[0] : sampled[-1] + 1]) if sampled else []


def parse(fields: Fields, kinds: Kinds) -> FunctionGrader:
    """Read the definition."""
    name = fields.text("function")
    known = known_functions()
    if name and name not in known:
        hint = nearest(name, known) if known else "no installed package offers any"
        fields.problems.add(fields.at("function"), f"{shown(name)} is not installed; {hint}")
    style = fields.choice("style", STYLES, "trl")
    for key, only in (("completions", "trl"), ("data_source", "verl"), ("ground_truth", "verl")):
        if fields.has(key) and style != only:
            fields.problems.add(fields.at(key), f"is for style {only}, and the style is {style}")
    return FunctionGrader(
        function=name,
        style=style,
        as_text=fields.choice("completions", FORMS, "messages") == "text",
        data_source=template_field(fields, "data_source") if fields.has("data_source") else None,
        ground_truth=template_field(fields, "ground_truth", "{{item.answer}}"),
        timeout_seconds=fields.number("timeout_seconds", 30.0, low=0.1, high=600.0),
        pass_threshold=fields.number("pass_threshold", 0.5),
    )
