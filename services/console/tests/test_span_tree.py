from hypothesis import given
from hypothesis import strategies as st

from console.span_tree import build_tree
from console.spans import Span


def span(span_id: str, parent: str = "", *, start: int = 0, end: int = 10) -> Span:
    return Span(
        trace_id="t",
        span_id=span_id,
        parent_span_id=parent,
        service_name="s",
        name=span_id,
        start_ns=start * 10**9,
        end_ns=end * 10**9,
    )


def shape(*spans: Span) -> list[tuple[str, int]]:
    return [(row.span.span_id, row.depth) for row in build_tree(spans).rows]


def test_children_follow_their_parent_by_start() -> None:
    tree = [span("c", "a", start=3), span("b", "a", start=1), span("d", "b", start=2), span("a")]
    assert shape(*tree) == [("a", 0), ("b", 1), ("d", 2), ("c", 1)]


def test_offsets_and_length_count_from_the_first_span() -> None:
    tree = build_tree([span("a", start=5, end=9), span("b", "a", start=6, end=12)])
    assert [row.offset_seconds for row in tree.rows] == [0.0, 1.0]
    assert tree.seconds == 7.0


def test_a_missing_parent_is_marked() -> None:
    tree = build_tree([span("a"), span("b", "gone", start=1)])
    assert [(r.span.span_id, r.missing_parent) for r in tree.rows] == [("a", False), ("b", True)]
    assert tree.num_missing_parents == 1


def test_a_circle_of_parents_still_shows_each_span_once() -> None:
    assert shape(span("a", "b"), span("b", "a", start=1)) == [("a", 0), ("b", 1)]
    assert shape(span("a", "a")) == [("a", 0)]


def test_a_very_deep_trace_is_no_problem() -> None:
    chain = [span(str(i), str(i - 1) if i else "", start=i, end=i + 1) for i in range(20_000)]
    assert build_tree(chain).rows[-1].depth == 19_999


def test_no_spans_make_an_empty_tree() -> None:
    tree = build_tree([])
    assert (tree.rows, tree.seconds) == ((), 0.0)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 5)), max_size=20))
def test_every_span_appears_exactly_once(edges: list[tuple[int, int, int]]) -> None:
    spans = [span(str(a), str(b), start=t) for a, b, t in edges]
    ids = [row.span.span_id for row in build_tree(spans).rows]
    assert sorted(ids) == sorted({s.span_id for s in spans})
