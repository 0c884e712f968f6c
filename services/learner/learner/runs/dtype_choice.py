"""Which number type `model.dtype: auto` stands for in a run: the rule, and what a run keeps of it. Pure.

The choice is made once, before the run does anything else, and kept with the run: resumed on another machine or beside
other work, it goes on as it began.
"""

from dataclasses import dataclass

from runspec.schema import RunSpec

AUTO = "auto"

MIN_GAIN = 0.05
"""Share of float32's time that bfloat16 must save; less is within the noise of the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeSeconds:
    """What one micro-batch takes forward and back through the whole model."""

    float32: float
    bfloat16: float
    of_cpu: bool
    """Of the processor, all threads together; else by the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeChoice:
    """What auto stands for in a run."""

    dtype: str
    """float32 or bfloat16."""
    reason: str
    """A clause for people, with the figures."""
    float32_seconds: float = 0.0
    """As measured; 0 where nothing was."""
    bfloat16_seconds: float = 0.0


def choice_without_measuring(spec: RunSpec) -> DtypeChoice | None:
    """Returns the choice where bfloat16 is none; None where it is to be measured."""
    if spec.algorithm == "evaluate":
        return DtypeChoice(dtype="float32", reason="an evaluation trains nothing")
    if spec.train.weights == "full":
        return DtypeChoice(
            dtype="float32", reason="train.weights full is trained in float32 and nothing else"
        )
    return None


def choose_dtype(seconds: DtypeSeconds) -> DtypeChoice:
    """Returns the faster one; float32, which is exact, where they are within `MIN_GAIN` of each other."""
    gained = 1.0 - seconds.bfloat16 / seconds.float32
    unit = "CPU-seconds" if seconds.of_cpu else "seconds"
    told = f"a micro-batch takes {seconds.bfloat16:.3g} {unit} in bfloat16, {seconds.float32:.3g} in float32"
    if gained < 0:
        dtype, reason = "float32", told
    elif gained < MIN_GAIN:
        dtype, reason = "float32", f"{told}, which is as fast"
    else:
        dtype, reason = "bfloat16", told
    return DtypeChoice(
        dtype=dtype,
        reason=reason,
        float32_seconds=seconds.float32,
        bfloat16_seconds=seconds.bfloat16,
    )
