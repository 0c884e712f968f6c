"""Asks one question: takes a turn, asks the judge, reads its verdict; measures and traces what happened."""

import asyncio
from dataclasses import dataclass

from opentelemetry.trace import Span, Tracer

from critic import faults
from critic.instructions import instructed, schema
from critic.judge import Judge, Prompt, Reply
from critic.measures import Measures
from critic.questions import AnswerForm, Judgement, Question, Verdict
from critic.tracing import span_in_trace
from critic.turns import Turns
from critic.verdicts.reader import Reading, UnreadableError
from critic.verdicts.table import KIND_NAMES, read_verdict
from servicekit import attributes
from servicekit.errors import HoneError


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a question leaves open."""

    model: str
    max_tokens: int


class Critic:
    """Answers questions by asking a judge."""

    def __init__(
        self, judge: Judge, turns: Turns, defaults: Defaults, *, measures: Measures, tracer: Tracer
    ) -> None:
        """Ask `judge`, in turns."""
        self._judge = judge
        self._turns = turns
        self._defaults = defaults
        self._measures = measures
        self._tracer = tracer

    async def judge(self, question: Question, *, seconds: float) -> Judgement:
        """Ask and read the verdict, in at most `seconds`, waiting and all tries included.

        Raises:
            HoneError: there is no verdict; its reason (`critic.faults`) says what kept the judge from one.
        """
        kind = KIND_NAMES[type(question.kind)]
        with span_in_trace(
            self._tracer, attributes.SPAN_JUDGE, {attributes.GEN_AI_EVALUATION_NAME: kind}
        ) as span:
            try:
                judgement = await self._judged(question, seconds)
            except HoneError as error:
                span.set_attribute(attributes.ERROR_KIND, error.reason)
                self._measures.ended(kind, error.reason)
                raise
            _describe(span, judgement.verdict)
            self._measures.ended(kind, "contradicted" if judgement.contradicted else "verdict")
            return judgement

    async def _judged(self, question: Question, seconds: float) -> Judgement:
        deadline = asyncio.get_running_loop().time() + seconds
        prompt = self._prompt(question)
        asked = False
        try:
            async with asyncio.timeout_at(deadline) as limit, self._turns.turn(question.run_id):
                asked = True
                reply = await self._judge.ask(prompt, deadline=deadline)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise faults.timed_out(seconds, asked=asked) from error
        reading = await asyncio.to_thread(_read, reply, question)
        return Judgement(
            verdict=reading.verdict,
            reasoning="\n\n".join(part for part in (reply.thinking, reading.reasoning) if part),
            model=reply.model or prompt.model,
            text=reply.text,
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
            contradicted=reading.contradicted,
            num_tries=reply.num_tries,
        )

    def _prompt(self, question: Question) -> Prompt:
        return Prompt(
            messages=instructed(question.messages, question.kind, question.form),
            model=question.model or self._defaults.model,
            temperature=question.temperature,
            max_tokens=question.max_tokens or self._defaults.max_tokens,
            seed=question.seed,
            schema=schema(question.kind) if question.form is AnswerForm.JSON else None,
        )


def _read(reply: Reply, question: Question) -> Reading[Verdict]:
    """Read the verdict; may take a while for a long text."""
    if reply.refusal:
        raise faults.refused(reply.refusal)
    if reply.cut_off:
        why = f"it was cut off after {reply.output_tokens} tokens; allow more than max_tokens does"
        raise faults.unparsable(why, reply.text)
    try:
        return read_verdict(reply.text, question.kind)
    except UnreadableError as error:
        if faults.sounds_like_refusal(reply.text):
            raise faults.refused(reply.text) from error
        raise faults.unparsable(str(error), reply.text) from error


def _describe(span: Span, verdict: Verdict) -> None:
    if isinstance(verdict, float):
        span.set_attribute(attributes.GEN_AI_EVALUATION_SCORE, verdict)
    else:
        span.set_attribute(attributes.GEN_AI_EVALUATION_LABEL, str(verdict))
