"""Error analysis: why rollouts did not succeed, step by step, and what to do about it.

Every attempt is a success, an error of one of six types, or unjudged (no grader that counts had an opinion). What was
masked as polluted, or could not be carried out or graded, is of type infrastructure: it says nothing about the policy.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trajectory.types import Failure, Masked, Outcome, OutcomeKind

EXTRACTION_ALARM = 0.02
"""Share of judged responses whose answer could not be read, above which the grader needs mending."""
NOTABLE = 0.05
"""Share of all attempts from which a type of error is worth a sentence."""
TREND = 0.05
"""Fall of the share of reasoning errors, second half of the steps against the first, that promises more."""
MIN_TREND_STEPS = 4
NUM_EXAMPLES = 5
TRAINED = ("", "train")
"""Phases whose steps can show progress; the others use other tasks, or a policy that does not change."""


class Result(StrEnum):
    """How an attempt ended, for the analysis."""

    SUCCESS = "success"
    UNJUDGED = "unjudged"
    REASONING = "reasoning"
    FORMAT = "format"
    EXTRACTION = "extraction"
    TOOL_USE = "tool_use"
    BUDGET = "budget"
    INFRASTRUCTURE = "infrastructure"


ERRORS = (
    Result.REASONING,
    Result.FORMAT,
    Result.EXTRACTION,
    Result.TOOL_USE,
    Result.BUDGET,
    Result.INFRASTRUCTURE,
)
"""The six types, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One rollout as the analysis sees it."""

    rollout_id: str
    step: int | None
    """None outside a run."""
    phase: str = ""
    """For example train; steps are counted within a phase."""
    result: Result
    cause: str = ""
    """Of an infrastructure error: which part, for example sandbox, grader (reference) or polluted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """What the analysis found."""

    counts: Mapping[Result, int]
    """Every result, those that did not occur as 0."""
    by_step: Mapping[str, Mapping[Result, int]]
    """By phase and step, for example "train 3", in their order; empty outside a run."""
    examples: Mapping[Result, Sequence[str]]
    """The first rollout_ids of each type of error that occurred."""
    causes: Mapping[str, int]
    """Of infrastructure errors, most frequent first."""
    accuracy: float | None
    """Successes among judged responses, an answer that could not be read counting as wrong; None without any."""
    accuracy_read: float | None
    """The same without the answers that could not be read."""
    extraction_share: float
    """Of judged responses."""
    alarm: bool
    """Whether that share is above EXTRACTION_ALARM."""
    next_steps: Sequence[str]

    @property
    def num_attempts(self) -> int:
        """All of them."""
        return sum(self.counts.values())


def attempt_of(rollout_id: str, step: int | None, outcome: Outcome, *, phase: str = "") -> Attempt:
    """Type an outcome."""
    result, cause = _typed(outcome)
    return Attempt(rollout_id=rollout_id, step=step, phase=phase, result=result, cause=cause)


def _typed(outcome: Outcome) -> tuple[Result, str]:
    if isinstance(outcome, Failure):
        stopped = f" ({outcome.grader_error})" if outcome.grader_error is not None else ""
        return Result.INFRASTRUCTURE, f"{outcome.kind}{stopped}"
    if outcome.kind is OutcomeKind.POLLUTED:
        return Result.INFRASTRUCTURE, "polluted"
    if outcome.kind is None:
        return (Result.UNJUDGED if isinstance(outcome, Masked) else Result.SUCCESS), ""
    return Result(outcome.kind.value), ""


def analyse(attempts: Iterable[Attempt]) -> ErrorReport:
    """Count errors by type and step, and say what they call for."""
    attempts = list(attempts)
    counts = Counter(attempt.result for attempt in attempts)
    by_step: dict[tuple[str, int], Counter[Result]] = {}
    examples: dict[Result, list[str]] = {}
    for attempt in attempts:
        if attempt.step is not None:
            place = (attempt.phase, attempt.step)
            by_step.setdefault(place, Counter())[attempt.result] += 1
        if attempt.result in ERRORS:
            found = examples.setdefault(attempt.result, [])
            if len(found) < NUM_EXAMPLES:
                found.append(attempt.rollout_id)
    causes = Counter(attempt.cause for attempt in attempts if attempt.cause)
    num_read = sum(counts[result] for result in _READ)
    num_judged = num_read + counts[Result.EXTRACTION]
    share = counts[Result.EXTRACTION] / num_judged if num_judged else 0.0
    steps = [by_step[place] for place in sorted(by_step) if place[0] in TRAINED]
    return ErrorReport(
        counts={result: counts[result] for result in Result},
        by_step={
            f"{phase or 'step'} {step}": {result: found[result] for result in Result}
            for (phase, step), found in sorted(by_step.items())
        },
        examples={result: examples[result] for result in ERRORS if result in examples},
        causes=dict(causes.most_common()),
        accuracy=counts[Result.SUCCESS] / num_judged if num_judged else None,
        accuracy_read=counts[Result.SUCCESS] / num_read if num_read else None,
        extraction_share=share,
        alarm=share > EXTRACTION_ALARM,
        next_steps=_next_steps(counts, steps, share),
    )


_READ = (Result.SUCCESS, Result.REASONING, Result.FORMAT, Result.TOOL_USE, Result.BUDGET)


def _next_steps(
    counts: Mapping[Result, int], steps: Sequence[Mapping[Result, int]], extraction: float
) -> list[str]:
    total = sum(counts.values())
    found = []
    if extraction > EXTRACTION_ALARM:
        found.append(
            f"Mend the grader: it could not read {extraction:.1%} of the answers "
            f"(alarm above {EXTRACTION_ALARM:.0%}); look at the examples of type extraction first."
        )
    for result in sorted(ERRORS, key=lambda result: -counts[result]):
        share = counts[result] / total if total else 0.0
        if result is not Result.EXTRACTION and share >= NOTABLE:
            found.append(f"{share:.0%} {result}: {_advice(result, steps)}")
    return found


def _advice(result: Result, steps: Sequence[Mapping[Result, int]]) -> str:
    if result is not Result.REASONING:
        return _ADVICE[result]
    fall = _fall(steps)
    if fall is not None and fall > TREND:
        return (
            f"More steps: the share of wrong answers fell by {100 * fall:.0f} percentage points "
            "between the first and the second half of the steps."
        )
    return (
        "Data: the answers are definite and wrong; add tasks between too easy and too hard, "
        "or teach by example (hone sft)."
    )


_ADVICE = {
    Result.FORMAT: "Reward weights: no answer is stated; give the format a weight of its own, "
    "or say in the prompt what an answer looks like.",
    Result.TOOL_USE: "Data and reward weights: tools are used wrongly; add examples of right calls "
    "(hone sft) or give the calls a weight (tool_use).",
    Result.BUDGET: "Limits and reward weights: turns, tokens or time ran out; raise the limit, "
    "or give length or efficiency a weight.",
    Result.INFRASTRUCTURE: "Not the policy: mend what the causes name before training on; "
    "bad_task, grader (reference) and grader (definition) are faults of the data or the grader.",
}


def _fall(steps: Sequence[Mapping[Result, int]]) -> float | None:
    """Return by how much the share of reasoning errors among read responses fell, half against half."""
    if len(steps) < MIN_TREND_STEPS:
        return None
    middle = len(steps) // 2
    first, second = _share(steps[:middle]), _share(steps[middle:])
    return None if first is None or second is None else first - second


def _share(steps: Sequence[Mapping[Result, int]]) -> float | None:
    num_read = sum(step[result] for step in steps for result in _READ)
    wrong = sum(step[Result.REASONING] for step in steps)
    return wrong / num_read if num_read else None
