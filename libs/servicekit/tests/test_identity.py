import itertools
import random
import uuid

from servicekit.identity import new_rollout_id, rollout_id_of, rollout_scope, trace_id_of
from servicekit.telemetry import RolloutSampler, tracer_provider


def test_rollout_id_is_a_version_7_uuid_whose_time_leads() -> None:
    rng = random.Random(1)
    first = new_rollout_id(lambda: 1_700_000_000.0, rng)
    later = new_rollout_id(lambda: 1_700_000_000.002, rng)
    parsed = uuid.UUID(first)
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == 1_700_000_000_000
    assert first < later


def test_rollout_id_and_trace_id_are_the_same_bits() -> None:
    rollout_id = new_rollout_id(lambda: 1.0, random.Random(2))
    assert rollout_id_of(trace_id_of(rollout_id)) == rollout_id


def test_root_span_in_a_rollout_scope_has_the_rollout_id_and_no_parent() -> None:
    provider = tracer_provider("test", ratio=1.0, exporter=None, rng=random.Random(3))
    tracer = provider.get_tracer("test")
    rollout_id = new_rollout_id(lambda: 1_700_000_000.0, random.Random(4))
    with rollout_scope(rollout_id), tracer.start_as_current_span("root") as root:
        child = tracer.start_span("child")
    assert root.get_span_context().trace_id == trace_id_of(rollout_id)
    assert root.parent is None
    assert child.get_span_context().trace_id == trace_id_of(rollout_id)
    outside = tracer.start_span("outside")
    assert outside.get_span_context().trace_id != trace_id_of(rollout_id)


def test_sampler_keeps_the_asked_share_of_rollout_ids() -> None:
    rng = random.Random(5)
    seconds = itertools.count(1_700_000_000, 0.01)
    ids = [new_rollout_id(lambda: next(seconds), rng) for _ in range(10_000)]
    for ratio, tolerance in ((0.1, 0.01), (0.5, 0.02)):
        sampler = RolloutSampler(ratio)
        kept = sum(sampler.keeps(trace_id_of(i)) for i in ids) / len(ids)
        assert abs(kept - ratio) <= tolerance
    assert all(RolloutSampler(1.0).keeps(trace_id_of(i)) for i in ids)
    assert not any(RolloutSampler(0.0).keeps(trace_id_of(i)) for i in ids)


def test_unsampled_root_spreads_to_its_children() -> None:
    provider = tracer_provider("test", ratio=0.0, exporter=None, rng=random.Random(6))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("root") as root:
        child = tracer.start_span("child")
    assert not root.get_span_context().trace_flags.sampled
    assert not child.is_recording()
