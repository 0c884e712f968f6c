"""What the graders that ask a model have in common: the messages, the model and how its tokens are drawn."""

from dataclasses import dataclass

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.instruments.judges import Question
from grader.prompts import Prompt, parse_prompt
from grader.sample import Sample

ON_REFUSAL = ("error", "fail")
_MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_completions_tokens")
"""The spellings in use for the same limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a judge is asked about a response."""

    prompt: Prompt
    model: str
    temperature: float
    max_tokens: int
    seed: int | None
    timeout_seconds: float
    refusal_fails: bool
    """Whether a response that the judge refuses to judge failed; otherwise it could not be graded."""

    def question(self, sample: Sample, instruments: Instruments) -> Question | None:
        """Return the question about a response; None if the response has nothing to judge.

        Raises:
            GradingFaultError: the task's reference lacks a field.
        """
        messages = self.prompt.render(sample)
        if messages is None:
            return None
        return Question(
            messages=messages,
            model=self.model,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed,
            timeout_seconds=self.timeout_seconds,
            run_id=instruments.run_id,
        )


def parse_asking(fields: Fields) -> Asking:
    """Read `input`, `model`, `sampling_params`, `timeout_seconds` and `on_refusal`."""
    prompt = parse_prompt(fields)
    temperature, max_tokens, seed = 0.0, 512, None
    sampling = fields.child("sampling_params") if fields.has("sampling_params") else None
    if sampling is not None:
        temperature = sampling.number("temperature", 0.0, low=0.0, high=2.0)
        given = [key for key in _MAX_TOKENS if sampling.has(key)]
        if len(given) > 1:
            sampling.problems.add(sampling.at(given[1]), f"says the same as {given[0]}; keep one")
        elif given:
            max_tokens = sampling.whole(given[0], low=1, high=1 << 17)
        if sampling.has("seed"):
            seed = sampling.whole("seed", low=0, high=2**63 - 1)
        sampling.finish()
    return Asking(
        prompt=prompt,
        model=fields.text("model") if fields.has("model") else "",
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        timeout_seconds=fields.number("timeout_seconds", 60.0, low=1.0, high=600.0),
        refusal_fails=fields.choice("on_refusal", ON_REFUSAL, "error") == "fail",
    )
