"""What claims promise, on both buses."""

import asyncio

import pytest

from eventbus.claims import Acquired, ClaimState, Committed, Expired, Held, Lost
from eventbus.errors import ClaimLost
from servicekit.errors import NotFound


async def test_claim_is_won_once_among_many(make_bus, rollout_id):
    claims = [await (await make_bus()).claims() for _ in range(4)]
    outcomes = await asyncio.gather(
        *(claims[n % 4].try_claim(rollout_id, f"replica-{n}", 30) for n in range(20))
    )
    won = [outcome for outcome in outcomes if isinstance(outcome, Acquired)]
    assert len(won) == 1
    assert all(isinstance(outcome, Acquired | Held) for outcome in outcomes)
    assert won[0].claim.epoch == 1
    held = [outcome for outcome in outcomes if isinstance(outcome, Held)]
    assert {outcome.claim for outcome in held} == {won[0].claim}
    assert held[0].remaining_seconds == 30


async def test_claim_with_a_live_lease_is_left_alone(bus, rollout_id, clock):
    claims = await bus.claims()
    first = await claims.try_claim(rollout_id, "a", 10)
    assert isinstance(first, Acquired)
    clock.advance(9)
    assert await claims.take_over(rollout_id, "b") == Held(claim=first.claim, remaining_seconds=1)
    renewed = await claims.renew(first.claim)
    clock.advance(9)
    # Its own name does not open it either: the process may have died and come back.
    again = await claims.try_claim(rollout_id, "a", 10)
    assert again == Held(claim=renewed, remaining_seconds=1)


async def test_claim_with_an_expired_lease_is_taken_over_as_lost(bus, rollout_id, clock):
    claims = await bus.claims()
    first = (await claims.try_claim(rollout_id, "a", 10)).claim
    clock.advance(11)
    assert isinstance(await claims.try_claim(rollout_id, "b", 10), Expired)
    lost = await claims.take_over(rollout_id, "b")
    assert isinstance(lost, Lost)
    assert (lost.claim.owner, lost.claim.epoch) == ("b", 2)
    with pytest.raises(ClaimLost, match="lost by 'b' under epoch 2"):
        await claims.renew(first)
    with pytest.raises(ClaimLost):
        await claims.commit(first)
    assert isinstance(await claims.try_claim(rollout_id, "c", 10), Lost)
    assert await claims.take_over(rollout_id, "c") == lost


async def test_claim_of_a_slow_owner_lives_until_somebody_takes_it_over(bus, rollout_id, clock):
    claims = await bus.claims()
    claim = (await claims.try_claim(rollout_id, "a", 10)).claim
    clock.advance(60)
    claim = await claims.renew(claim)
    assert claim.lease_deadline == clock() + 10
    assert isinstance(await claims.take_over(rollout_id, "b"), Held)


async def test_claim_commits_under_a_stale_revision_of_its_own(bus, rollout_id):
    claims = await bus.claims()
    old = (await claims.try_claim(rollout_id, "a", 10)).claim
    await claims.renew(old)
    committed = await claims.commit(old)
    assert committed.state is ClaimState.COMMITTED
    assert await claims.commit(old) == committed
    assert await claims.get(rollout_id) == committed
    assert await claims.try_claim(rollout_id, "b", 10) == Committed(claim=committed)
    assert await claims.take_over(rollout_id, "b") == Committed(claim=committed)
    with pytest.raises(ClaimLost):
        await claims.renew(committed)


async def test_claim_is_committed_or_lost_but_never_both(make_bus, rollout_id, clock):
    claims = [await (await make_bus()).claims() for _ in range(3)]
    for round_number in range(10):
        key = f"{rollout_id}-{round_number}"
        claim = (await claims[0].try_claim(key, "a", 10)).claim
        clock.advance(11)
        results = await asyncio.gather(
            claims[0].commit(claim),
            claims[1].take_over(key, "b"),
            claims[2].take_over(key, "c"),
            return_exceptions=True,
        )
        if isinstance(results[0], ClaimLost):
            assert [type(r) for r in results[1:]] == [Lost, Lost]
            assert results[1].claim.epoch == results[2].claim.epoch == 2
        else:
            assert [type(r) for r in results[1:]] == [Committed, Committed]


async def test_claim_that_is_missing(bus, rollout_id):
    claims = await bus.claims()
    assert await claims.get(rollout_id) is None
    with pytest.raises(NotFound, match=rollout_id):
        await claims.take_over(rollout_id, "b")
