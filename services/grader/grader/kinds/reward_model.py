"""`reward_model`: the scalar of a learned reward model, which the rollout service holds.

    {"type": "reward_model", "model": "/models/reward", "pass_threshold": 0, "timeout_seconds": 60,
     "input": [{"role": "user", "content": "{{item.question}}"},
               {"role": "assistant", "content": "{{sample.output_text}}"}]}

`model` is a folder (a sequence classifier with one output) as the rollout service sees it. Without `input` the whole
conversation is scored, calls and results included. The value is the model's own, any finite number: give the whole
definition a `range`, and rule affine with `from` to bring it there. What the response lacks of `input` is empty text,
and the model says what that is worth. A response from `pass_threshold` (default 0) up succeeded. What is longer than
1 MiB as JSON is not sent and has no vote (kind budget): a zero could be more than the model gives.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Kinds, lacking, template_field
from grader.kinds.outside import judged_outside
from grader.results import Graded
from grader.sample import Sample
from grader.sample_json import MAX_BYTES, fits, message_json
from grader.templates import Template
from trajectory.types import ChatMessage, OutcomeKind, Role

ROLES = ("user", "assistant", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelGrader:
    """Asks a reward model."""

    model: str
    input: tuple[tuple[Role, Template], ...]
    """Empty means the whole conversation."""
    pass_threshold: float
    timeout_seconds: float

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the model's scalar."""
        messages = self._messages(sample)
        if not await asyncio.to_thread(_fits, messages):
            detail = f"is longer than the {MAX_BYTES} bytes that reward models are sent"
            return Graded(value=0.0, kind=OutcomeKind.BUDGET, explanation=detail, masked=True)
        score = await instruments.reward_models.score(self.model, messages, self.timeout_seconds)
        explanation = f"the reward model gives {score.value:g}"
        if score.truncated:
            explanation += "; the beginning of the conversation did not fit its context"
        graded = judged_outside(
            sample,
            score.value,
            pass_threshold=self.pass_threshold,
            explanation=explanation,
            parts={},
        )
        lack = lacking(sample, *(template for _, template in self.input))
        if lack is None:
            return graded
        return replace(graded, kind=lack.kind, explanation=f"{lack.explanation}; {explanation}")

    def _messages(self, sample: Sample) -> Sequence[ChatMessage]:
        if not self.input:
            return sample.record.messages
        return [
            ChatMessage(role=role, content=(template.render(sample),))
            for role, template in self.input
        ]


def _fits(messages: Sequence[ChatMessage]) -> bool:
    return fits([message_json(message) for message in messages])


def parse(fields: Fields, kinds: Kinds) -> RewardModelGrader:
    """Read the definition."""
    messages = []
    for child in fields.children("input") if fields.has("input") else ():
        role = Role(child.choice("role", ROLES))
        messages.append((role, template_field(child, "content")))
        child.finish()
    return RewardModelGrader(
        model=fields.text("model"),
        input=tuple(messages),
        pass_threshold=fields.number("pass_threshold", 0.0),
        timeout_seconds=fields.number("timeout_seconds", 60.0, low=1.0, high=600.0),
    )
