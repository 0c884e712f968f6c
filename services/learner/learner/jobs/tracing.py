"""The traces of an update: one of its own, linked both ways with the traces of the rollouts that it learns from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span

from learner.rollouts.ledger import Attempt
from servicekit import attributes


@contextmanager
def training_spans(run_id: str, step: int, attempts: Sequence[Attempt]) -> Iterator[None]:
    """Spans an update, and a part of each rollout's trace that it takes."""
    tracer = trace.get_tracer("hone.learner")
    with tracer.start_as_current_span(
        attributes.SPAN_LEARNER_STEP,
        context=Context(),
        attributes={attributes.RUN_ID: run_id, attributes.STEP: step},
    ) as step_span:
        spans = [_of_rollout(tracer, attempt, step, step_span) for attempt in attempts]
        try:
            yield
        finally:
            for span in spans:
                span.end()


def _of_rollout(tracer: trace.Tracer, attempt: Attempt, step: int, step_span: Span) -> Span:
    assert isinstance(attempt.judged_in, Context)
    span = tracer.start_span(
        attributes.SPAN_LEARNER_TRAIN,
        context=attempt.judged_in,
        links=[Link(step_span.get_span_context())],
        attributes={attributes.ROLLOUT_ID: attempt.rollout_id, attributes.STEP: step},
    )
    step_span.add_link(span.get_span_context())
    return span
