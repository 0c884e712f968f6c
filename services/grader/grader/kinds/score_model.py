"""`score_model`: a model's score of the response, inside `range`.

    {"type": "score_model", "model": "judge", "range": [1, 5], "pass_threshold": 4, "num_samples": 1,
     "input": [{"role": "user", "content": "How clear is this answer to {{item.question}}? {{sample.output_text}}"}],
     "sampling_params": {"temperature": 0, "max_completion_tokens": 512, "seed": 7}}

The value is the score as it is, the mean over `num_samples`; what brings it into the range of the combined score is
`range` and `rule` of the whole definition. A response from `pass_threshold` (default the middle of the range) up
succeeded. A response without text gets the lowest score and costs no call. `model` empty means the critic's default.
"""

import asyncio
import math
from dataclasses import dataclass, replace

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.instruments.judges import Judgement, Judges, Question
from grader.kinds.base import Kinds
from grader.kinds.judging import Asking, parse_asking
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from trajectory.types import GraderErrorKind, OutcomeKind

MAX_SAMPLES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreModelGrader:
    """Has a model score the response."""

    asking: Asking
    low: float
    high: float
    pass_threshold: float
    num_samples: int

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the mean score."""
        question = self.asking.question(sample, instruments)
        if question is None:
            return self._lowest(sample, OutcomeKind.FORMAT, "the response has nothing to judge")
        question = replace(question, low=self.low, high=self.high)
        asked = (_ask(instruments.judges, _nth(question, n)) for n in range(self.num_samples))
        replies = await asyncio.gather(*asked)
        found = [reply for reply in replies if isinstance(reply, Judgement)]
        for fault in replies:
            if isinstance(fault, GradingFaultError):
                if fault.kind is GraderErrorKind.REFUSAL and self.asking.refusal_fails:
                    return self._lowest(sample, OutcomeKind.REASONING, fault.detail)
                raise fault
        scores = [self._checked(judgement) for judgement in found]
        value = math.fsum(scores) / len(scores)
        reasons = " ".join(found[0].reasoning.split())
        parts = {"lowest": min(scores), "highest": max(scores)} if len(scores) > 1 else {}
        return Graded(
            value=value,
            kind=None if value >= self.pass_threshold else sample.shortfall(OutcomeKind.REASONING),
            explanation=f"{found[0].model or 'the judge'} gives {value:g} of {self.high:g}: {reasons}",
            parts=parts,
        )

    def _lowest(self, sample: Sample, kind: OutcomeKind, explanation: str) -> Graded:
        return Graded(value=self.low, kind=sample.shortfall(kind), explanation=explanation)

    def _checked(self, judgement: Judgement) -> float:
        if judgement.score is None or not self.low <= judgement.score <= self.high:
            raise GradingFaultError(
                f"the judge's score must lie from {self.low:g} to {self.high:g}, found {judgement.score}",
                kind=GraderErrorKind.PARSE,
                retryable=True,
                client=False,
            )
        return judgement.score


def parse(fields: Fields, kinds: Kinds) -> ScoreModelGrader:
    """Read the definition."""
    low, high = fields.pair("range", (0.0, 1.0))
    num_samples = fields.whole("num_samples", 1, low=1, high=MAX_SAMPLES)
    asking = parse_asking(fields)
    if num_samples > 1 and asking.temperature == 0:
        fields.problems.add(
            fields.at("num_samples"),
            "asks the same question again; set sampling_params.temperature above 0",
        )
    return ScoreModelGrader(
        asking=asking,
        low=low,
        high=high,
        pass_threshold=fields.number("pass_threshold", (low + high) / 2, low=low, high=high),
        num_samples=num_samples,
    )


async def _ask(judges: Judges, question: Question) -> Judgement | GradingFaultError:
    try:
        return await judges.judge(question)
    except GradingFaultError as fault:
        return fault


def _nth(question: Question, number: int) -> Question:
    """Return the question with a seed of its own, so that the samples differ."""
    return question if question.seed is None else replace(question, seed=question.seed + number)
