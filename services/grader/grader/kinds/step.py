"""`step`: rewards for single turns, and the final answer's reward on the last turn.

    {"type": "step",
     "rules": [{"when": {"tool": "cell", "ok": true, "first": true}, "reward": 0.1},
               {"when": {"ok": false}, "reward": -0.05, "name": "failed"}],
     "final": {"type": "answer", "reference": "{{item.answer}}"}, "gamma": 0.9, "total": "discounted"}

A rule pays its reward once for each turn with a call that fulfils all of its `when`: `tool` (name), `ok` (the call went
well, or failed), `result_matches` and `arguments_match` (patterns found in the result, in the arguments' JSON). A rule
whose `when` says nothing of calls pays for every turn. `first` pays for the first such turn only; without it the policy
can earn a positive reward again by making the same call again. The final grader's value is added to the last turn.

total sum (the default) is the sum of the turns' rewards; discounted is G_0 of G_t = r_t + gamma G_(t+1), see
`grader.returns`. The turns' rewards go out with the score. Why the response did not succeed the final grader says.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from grader.fields import Fields
from grader.instruments.all import Instruments
from grader.kinds.base import Grader, Kinds, nested_grader
from grader.patterns import Pattern, pattern_field
from grader.results import Graded
from grader.returns import returns_to_go, total_reward
from grader.sample import Sample
from trajectory.types import ToolCallRecord, TurnRecord

TOTALS = ("sum", "discounted")
MAX_REWARD = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a turn earns a reward."""

    name: str
    reward: float
    tool: str
    """Empty: any."""
    ok: bool | None
    result_matches: Pattern | None
    arguments_match: Pattern | None
    first: bool

    def turns(self, turns: Sequence[TurnRecord]) -> list[int]:
        """Return the turns that earn the reward."""
        earning = [index for index, turn in enumerate(turns) if self._holds(turn)]
        return earning[:1] if self.first else earning

    def _holds(self, turn: TurnRecord) -> bool:
        if self.tool or self.ok is not None or self.result_matches or self.arguments_match:
            return any(self._fulfils(call) for call in turn.tool_calls)
        return True

    def _fulfils(self, made: ToolCallRecord) -> bool:
        return (
            self.tool in ("", made.call.name)
            and self.ok in (None, not made.error_kind)
            and (self.result_matches is None or self.result_matches.search(made.result))
            and (
                self.arguments_match is None
                or self.arguments_match.search(made.call.arguments_json)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGrader:
    """Adds the rewards of turns."""

    rules: tuple[Rule, ...]
    final: Grader | None
    gamma: float
    total: str

    async def grade(self, sample: Sample, instruments: Instruments) -> Graded:
        """Return the total, with the reward of each turn; masked or without opinion where the final grader is."""
        final = None
        if self.final is not None:
            final = await self.final.grade(sample, instruments)
            if not final.counts:
                return final
        rewards, earned = await asyncio.to_thread(self._rewards, sample)
        if final is not None:
            rewards = rewards or [0.0]
            rewards[-1] += final.value
        value = total_reward(rewards)
        if self.total == "discounted":
            value = returns_to_go(rewards, self.gamma)[0] if rewards else 0.0
        return Graded(
            value=value,
            kind=final.kind if final is not None else None,
            explanation=_explained(earned, final, len(sample.record.turns)),
            parts=earned if final is None else {**earned, "final": final.value},
            step_values=tuple(rewards),
        )

    def _rewards(self, sample: Sample) -> tuple[list[float], dict[str, float]]:
        """Return the rules' rewards by turn and by rule."""
        rewards = [0.0] * len(sample.record.turns)
        earned = {}
        for rule in self.rules:
            turns = rule.turns(sample.record.turns)
            for turn in turns:
                rewards[turn] += rule.reward
            earned[rule.name] = rule.reward * len(turns)
        return rewards, earned


def parse(fields: Fields, kinds: Kinds) -> StepGrader | None:
    """Read the definition."""
    rules = [_parse_rule(child, index) for index, child in enumerate(fields.children("rules"))]
    names = [rule.name for rule in rules] + ["final"]
    for name in sorted({name for name in names if names.count(name) > 1}):
        fields.problems.add(
            fields.at("rules"), f"the name {name!r} is used more than once; each rule needs its own"
        )
    final = nested_grader(fields, "final", kinds) if fields.has("final") else None
    total = fields.choice("total", TOTALS, "sum")
    gamma = fields.number("gamma", 1.0, low=0.0, high=1.0)
    return StepGrader(rules=tuple(rules), final=final, gamma=gamma, total=total)


def _parse_rule(fields: Fields, index: int) -> Rule:
    when = fields.child("when") or Fields({}, fields.at("when"), fields.problems)
    rule = Rule(
        name=fields.text("name", f"rule_{index}"),
        reward=fields.number("reward", low=-MAX_REWARD, high=MAX_REWARD),
        tool=when.text("tool") if when.has("tool") else "",
        ok=when.flag("ok", True) if when.has("ok") else None,
        result_matches=pattern_field(when, "result_matches")
        if when.has("result_matches")
        else None,
        arguments_match=(
            pattern_field(when, "arguments_match") if when.has("arguments_match") else None
        ),
        first=when.flag("first", False),
    )
    when.finish()
    fields.finish()
    return rule


def _explained(earned: dict[str, float], final: Graded | None, turns: int) -> str:
    listed = ", ".join(f"{name} {reward:g}" for name, reward in earned.items())
    ending = f"; final: {final.explanation}" if final is not None else ""
    return f"{turns} turns earned {listed}{ending}"
