"""`tool_use`: the calls that the agent made against the calls that the task needs.

    {"type": "tool_use", "expected": "{{item.calls}}"}
    {"type": "tool_use", "expected": ["search", "cell"], "match": "names", "order": "in_order", "metric": "recall"}

How expected calls are written is in `grader.calls`; the response has no say in them. match is exact (the default: name
and arguments, compared as JSON values), arguments (further arguments may be there) or names. Of the pairs of a made and
an expected call that agree as many as possible are formed, with order in_order only such as keep both orders (default
any). With m pairs

    precision = m / made, recall = m / expected, f1 = 2 m / (made + expected), exact = 1 if m = made = expected else 0

and metric says which is the value (default f1; precision pays for a single right call, recall for calling everything,
so neither should count alone). Where no call is expected, making none is 1 and making any is 0. Calls
that failed count as made unless failed_calls is ignore. Calls of tools in `ignore`, such as those that only read, are
left out on both sides.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from grader.calls import (
    MATCHES,
    Expected,
    ExpectedCallsError,
    Made,
    agreeing_count,
    read_expected,
    read_made,
)
from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import RESPONSE_IS_NO_REFERENCE, Kinds
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from grader.templates import TemplateError, ValueTemplate, parse_value_template
from trajectory.types import GraderErrorKind, OutcomeKind

ORDERS = ("any", "in_order")
METRICS = ("f1", "precision", "recall", "exact")
FAILED_CALLS = ("count", "ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseGrader:
    """Compares calls."""

    expected: ValueTemplate
    match: str
    order: str
    metric: str
    failed_calls: str
    ignore: tuple[str, ...]
    """Names of tools whose calls do not matter."""

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the metric of the calls; kind tool_use unless they are as expected."""
        return await asyncio.to_thread(self._grade, sample)

    def _grade(self, sample: Sample) -> Graded:
        try:
            listed = read_expected(self.expected.value(sample))
        except ExpectedCallsError as err:
            raise GradingFaultError(
                f"expected: {err}", kind=GraderErrorKind.REFERENCE, retryable=False, client=True
            ) from err
        expected = [call for call in listed if call.name not in self.ignore]
        made = [
            read_made(one.call)
            for one in sample.calls
            if (self.failed_calls == "count" or not one.error_kind)
            and one.call.name not in self.ignore
        ]
        agreeing = agreeing_count(
            expected, made, match=self.match, in_order=self.order == "in_order"
        )
        parts = _figures(agreeing, made=len(made), expected=len(expected))
        value = parts[self.metric]
        return Graded(
            value=value,
            kind=None if value == 1.0 else sample.shortfall(OutcomeKind.TOOL_USE),
            explanation=f"{agreeing} of {len(expected)} expected calls found among {len(made)}: "
            f"expected {_names(expected)}; made {_names(made)}",
            parts=parts,
        )


def _figures(agreeing: int, *, made: int, expected: int) -> dict[str, float]:
    if expected == 0:
        return dict.fromkeys(METRICS, float(made == 0))
    return {
        "f1": 2 * agreeing / (made + expected),
        "precision": agreeing / made if made else 0.0,
        "recall": agreeing / expected,
        "exact": float(agreeing == made == expected),
    }


def _names(calls: Sequence[Expected] | Sequence[Made]) -> str:
    listed = ", ".join(call.name or "a call without a name" for call in calls[:20]) or "none"
    return listed[:160]


def parse(fields: Fields, kinds: Kinds) -> ToolUseGrader | None:
    """Read the definition."""
    expected = _parse_expected(fields)
    match = fields.choice("match", MATCHES, "exact")
    order = fields.choice("order", ORDERS, "any")
    metric = fields.choice("metric", METRICS, "f1")
    failed_calls = fields.choice("failed_calls", FAILED_CALLS, "count")
    ignore = fields.texts("ignore") if fields.has("ignore") else ()
    if expected is None:
        return None
    return ToolUseGrader(
        expected=expected,
        match=match,
        order=order,
        metric=metric,
        failed_calls=failed_calls,
        ignore=ignore,
    )


def _parse_expected(fields: Fields) -> ValueTemplate | None:
    """Read the calls, or the template of them; calls without a template are checked at once."""
    value = fields.raw("expected")
    if value is None:
        return None
    try:
        template = parse_value_template(value)
        if not template.has_holes:
            read_expected(value)
        if template.names_response:
            raise ExpectedCallsError(RESPONSE_IS_NO_REFERENCE)
    except (TemplateError, ExpectedCallsError) as err:
        fields.problems.add(fields.at("expected"), str(err))
        return None
    return template
