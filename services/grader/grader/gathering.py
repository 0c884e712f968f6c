"""Asks the graders of a combination, all at once, and keeps what each found or why it could not."""

import asyncio
import math

from grader.combination import Combination, Finding, Member
from grader.instruments.all import Instruments
from grader.results import Graded, GradingFaultError
from grader.sample import Sample
from trajectory.types import GraderErrorKind


async def gather(
    combination: Combination, sample: Sample, instruments: Instruments
) -> tuple[Finding, ...]:
    """Return what each grader found, in their order.

    Raises:
        GradingFaultError: a grader that counts could not do its work; of several the first that another try cannot
            mend, else the first.
    """
    asked = [
        asyncio.ensure_future(_ask(member, sample, instruments)) for member in combination.members
    ]
    try:
        findings = await asyncio.gather(*asked)
    finally:
        # After a defect of one the others would go on, in boxes that are being removed.
        for task in asked:
            task.cancel()
    faults = [f.error for f in findings if f.error is not None and f.member.counted]
    if faults:
        raise min(faults, key=lambda fault: fault.retryable)
    return tuple(findings)


async def _ask(member: Member, sample: Sample, instruments: Instruments) -> Finding:
    try:
        graded = await member.grader.grade(sample, instruments)
        _check(member, graded)
    except GradingFaultError as fault:
        return Finding(member=member, graded=None, error=fault)
    return Finding(member=member, graded=graded)


def _check(member: Member, graded: Graded) -> None:
    numbers = {"": graded.value, **{f"part {k} ": v for k, v in graded.parts.items()}}
    numbers |= {f"step {i} ": v for i, v in enumerate(graded.step_values)}
    for where, number in numbers.items():
        if not math.isfinite(number):
            raise GradingFaultError(
                f"grader {member.name} returned {where}{number}, which is not a finite number",
                kind=GraderErrorKind.CODE,
                retryable=False,
                client=True,
            )
