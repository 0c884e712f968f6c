"""MeasureAgreement over a real in-process server."""

# The async stub types exist for type checkers only.
from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hone.grader.v1 import grader_pb2, grader_pb2_grpc

from grader.desk import GradingDesk
from grader.servicer import GraderServicer
from servicekit.channels import connect
from servicekit.errors import InvalidArgument
from servicekit.testing import running_server


@pytest.fixture
async def stub(desk: GradingDesk) -> AsyncIterator[grader_pb2_grpc.GraderServiceAsyncStub]:
    servicer = GraderServicer(desk)
    add = grader_pb2_grpc.add_GraderServiceServicer_to_server
    async with (
        running_server(lambda server: add(servicer, server)) as address,
        connect(address) as channel,
    ):
        yield grader_pb2_grpc.GraderServiceStub(channel)


def _request(**labels: str) -> grader_pb2.MeasureAgreementRequest:
    """A letter is the label of the item at its place, a dot is none."""
    return grader_pb2.MeasureAgreementRequest(
        ratings=[
            grader_pb2.Rating(item_id=str(item), rater=rater, label=label.strip("."))
            for rater, column in labels.items()
            for item, label in enumerate(column)
        ]
    )


async def test_ratings_come_back_as_a_table(
    stub: grader_pb2_grpc.GraderServiceAsyncStub,
) -> None:
    request = _request(x="aabb" * 10, y="aabb" * 9 + "abbb", z="aab." * 10, judge="abab" * 10)
    request.judges.append("judge")
    request.minimum = 0.5
    reply = await stub.MeasureAgreement(request)
    by_name = {(row.first, row.second): row for row in reply.comparisons}
    pair = by_name["x", "y"]
    assert pair.kappa == pytest.approx(0.95, abs=1e-9)
    assert pair.interval.low < pair.kappa <= pair.interval.high
    assert (pair.observed, pair.item_count) == (pytest.approx(0.975), 40)
    assert (by_name["x", "z"].missing_count, by_name["x", "z"].kappa) == (10, 1.0)
    assert by_name["x", ""].tied_count == 1
    assert [group.coefficient for group in reply.group_agreements] == [
        "fleiss_kappa",
        "krippendorff_alpha",
    ]
    assert not reply.group_agreements[1].HasField("interval")
    assert (list(reply.labels), reply.item_count) == (["a", "b"], 40)
    (short,) = reply.shortfalls
    assert short.startswith("judge ~ majority has kappa") and "minimum of 0.5" in short
    again = await stub.MeasureAgreement(request)
    assert again == reply


async def test_undefined_kappa_is_unset_and_says_why(
    stub: grader_pb2_grpc.GraderServiceAsyncStub,
) -> None:
    reply = await stub.MeasureAgreement(_request(x="aaaa", y="aaaa"))
    (row,) = reply.comparisons
    assert not row.HasField("kappa") and not row.HasField("interval")
    assert row.undefined_reason == "both always say 'a'"
    assert reply.shortfalls == []
    assert "kappa is undefined" in reply.warnings[0]


async def test_weights_and_their_order_are_passed_on(
    stub: grader_pb2_grpc.GraderServiceAsyncStub,
) -> None:
    request = _request(x="lmhl", y="lhhm")
    request.weights = grader_pb2.AGREEMENT_WEIGHTS_LINEAR
    request.order[:] = ["l", "m", "h"]
    weighted = (await stub.MeasureAgreement(request)).comparisons[0].kappa
    request.weights = grader_pb2.AGREEMENT_WEIGHTS_NONE
    assert weighted > (await stub.MeasureAgreement(request)).comparisons[0].kappa


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"minimum": 1.5}, "minimum"),
        ({"minimum": float("nan")}, "minimum"),
        ({"weights": 9}, "weights"),
        ({"weights": grader_pb2.AGREEMENT_WEIGHTS_LINEAR}, "weights"),
        ({"judges": ["z"]}, "judges"),
        ({"order": ["a"]}, "order"),
        ({"ratings": [grader_pb2.Rating(item_id="0", rater="x", label="a")]}, "ratings[8]"),
        ({"ratings": [grader_pb2.Rating(item_id="", rater="x", label="a")]}, "ratings[8]"),
    ],
)
async def test_what_cannot_be_compared_is_refused_by_field(
    stub: grader_pb2_grpc.GraderServiceAsyncStub, change: dict[str, object], field: str
) -> None:
    request = _request(x="abcd", y="bacd")
    request.MergeFrom(grader_pb2.MeasureAgreementRequest(**change))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as caught:
        await stub.MeasureAgreement(request)
    assert caught.value.reason == "RATINGS_INVALID"
    assert list(caught.value.violations) == [field]
