"""The backend `remote` against a service that limits, hangs, forgets, answers late or not at all; test vector 14."""

import asyncio
import itertools
import json
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from remote_service import API_KEY, FakeService, Fault, running_service

from sandbox.backends.protocol import Backend
from sandbox.backends.remote.backend import RemoteBackend
from sandbox.backends.remote.box import RemoteBox
from sandbox.settings import RemoteOptions
from sandbox.types import BoxSpec, Command, Owner, Purpose, Template
from servicekit.errors import FailedPrecondition, HoneError, ResourceExhausted, Unavailable

IDS = itertools.count()


class MovedClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[FakeService]:
    async with running_service(tmp_path / "service", hollow=True) as made:
        yield made
        assert made.complaints == []


@pytest.fixture
def options(service: FakeService, tmp_path: Path) -> RemoteOptions:
    key = tmp_path / "key"
    key.write_text(f"{API_KEY}\n")
    return RemoteOptions(
        api_key_file=key,
        api_url=service.url,
        envd_url=service.url + "/vm/{sandbox_id}",
        creates_per_second=10_000.0,
        call_seconds=5.0,
        create_seconds=5.0,
    )


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
async def opened(
    tmp_path: Path, options: RemoteOptions, clock: MovedClock
) -> AsyncIterator[Callable[..., RemoteBackend]]:
    made: list[RemoteBackend] = []

    def make(folder: str = "data", **changes: object) -> RemoteBackend:
        backend = RemoteBackend(
            tmp_path / folder,
            options.model_copy(update=changes),
            random_source=random.Random(7),
            clock=clock,
        )
        made.append(backend)
        return backend

    yield make
    for backend in made:
        await backend.close()


@pytest.fixture
async def backend(opened: Callable[..., RemoteBackend]) -> RemoteBackend:
    made = opened()
    await made.start()
    return made


def _spec(**changes: object) -> BoxSpec:
    owner = Owner(rollout_id="r-1", run_id="run-1", purpose=Purpose.AGENT)
    base = BoxSpec(sandbox_id=f"sbx_{next(IDS):06d}", owner=owner)
    return replace(base, **changes)  # type: ignore[arg-type]


async def _make(backend: Backend, lost: list[str] | None = None, **changes: object) -> RemoteBox:
    told = lost if lost is not None else []
    box = await backend.create(_spec(**changes), told.append)
    assert isinstance(box, RemoteBox)
    return box


async def _until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_sandbox_bears_our_tags_and_ends_by_itself_soon(backend, service, clock):
    box = await _make(backend, lifetime_seconds=3600)
    vm = service.vms[box.remote_id]
    assert vm.timeout == 300
    assert vm.template == "base"
    assert vm.metadata["hone_sandbox"] == box.sandbox_id
    assert vm.metadata["hone_rollout"] == "r-1"
    assert vm.metadata["hone_run"] == "run-1"
    assert vm.metadata["hone_purpose"] == "agent"
    assert vm.metadata["hone_deadline"] == "2027-01-15T09:01:00+00:00"
    assert backend.live_count() == 1
    await asyncio.gather(box.destroy(), box.destroy())
    assert service.vms == {}
    assert backend.live_count() == 0


async def test_the_template_of_a_sandbox_is_the_services(backend, service):
    first = await _make(backend, template=Template(image="python"))
    second = await _make(backend)
    assert service.vms[first.remote_id].template == "python"
    assert first.rootfs_digest != second.rootfs_digest


async def test_what_lives_is_extended_and_never_past_its_lifetime(backend, service, clock):
    box = await _make(backend, lifetime_seconds=400)  # with the margin it may live 460 s
    other = await _make(backend, lifetime_seconds=3600)
    known = frozenset({box.sandbox_id, other.sandbox_id})
    await backend.reap(known)
    assert ("extend", box.remote_id) not in service.requests  # both have long enough
    clock.now += 200
    await backend.reap(known)
    assert service.vms[box.remote_id].timeout == 260
    assert service.vms[other.remote_id].timeout == 300
    before = service.requests.count(("extend", other.remote_id))
    await backend.reap(known)
    assert service.requests.count(("extend", other.remote_id)) == before


@pytest.mark.parametrize(
    ("fault", "error", "reason", "retryable"),
    [
        (Fault.RATE_LIMIT, ResourceExhausted, "REMOTE_LIMIT", True),
        (Fault.QUOTA, ResourceExhausted, "REMOTE_LIMIT", True),
        (Fault.ERROR, Unavailable, "UNAVAILABLE", True),
        (Fault.ERROR_AFTER, Unavailable, "UNAVAILABLE", True),
        (Fault.DROP_AFTER, Unavailable, "UNAVAILABLE", True),
        (Fault.NONSENSE, Unavailable, "UNAVAILABLE", True),
    ],
)
async def test_a_failed_creation_is_typed_and_leaves_nothing(
    backend, service, fault, error, reason, retryable
):
    service.misbehave("create", fault)
    with pytest.raises(error) as caught:
        await _make(backend)
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)
    assert caught.value.attributable == "infra"
    done = fault in (Fault.ERROR_AFTER, Fault.DROP_AFTER, Fault.NONSENSE)
    assert service.made_count == done
    await _until(lambda: not service.vms)
    await _until(lambda: backend.live_count() == 0)


async def test_the_services_wish_to_wait_is_passed_on_and_kept(opened, service):
    backend = opened(pace_seconds=1.0)
    await backend.start()
    service.misbehave("create", Fault.RATE_LIMIT)
    with pytest.raises(ResourceExhausted) as caught:
        await _make(backend)
    assert caught.value.retry_after_seconds == 3.0
    with pytest.raises(ResourceExhausted) as caught:
        await _make(backend)  # it is not asked again before that
    assert caught.value.reason == "REMOTE_PACE"
    assert 2.0 < caught.value.retry_after_seconds <= 3.0
    assert len(service.create_times) == 0


async def test_a_creation_without_an_answer_ends_in_time_and_its_late_success_is_destroyed(
    opened, service
):
    backend = opened(create_seconds=0.3)
    await backend.start()
    service.misbehave("create", Fault.LATE)
    with pytest.raises(Unavailable) as caught:
        await _make(backend)
    assert caught.value.reason == "REMOTE_TIMEOUT"
    await _until(
        lambda: ("list", "") in service.requests[1:]
    )  # it was looked for, and was not there
    service.released.set()
    await _until(lambda: service.made_count == 1)
    assert await backend.reap(frozenset()) == 1
    assert service.vms == {}
    assert backend.live_count() == 0


async def test_a_cancelled_creation_is_destroyed_when_its_answer_comes(backend, service):
    service.misbehave("create", Fault.LATE)
    making = asyncio.ensure_future(_make(backend))
    await _until(lambda: ("create", "") in service.requests)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert service.made_count == 0
    service.released.set()
    await _until(lambda: service.made_count == 1 and not service.vms)
    await _until(lambda: backend.live_count() == 0)


@pytest.mark.parametrize("template", ["no-such-template"])
async def test_a_template_that_does_not_exist_is_the_callers_fault(backend, service, template):
    with pytest.raises(FailedPrecondition, match=template) as caught:
        await _make(backend, template=Template(image=template))
    assert (caught.value.retryable, caught.value.attributable) == (False, "client")


async def test_a_wrong_key_is_said_at_start_and_never_shown(opened, tmp_path, caplog):
    key = tmp_path / "wrong"
    key.write_text("e2b_secretsecret")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(FailedPrecondition, match="401 invalid API key") as caught:
        await opened(api_key_file=key).start()
    assert caught.value.attributable == "infra"
    assert "secretsecret" not in repr(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"api_key_file": None}, "api_key_file is not set"),
        ({"api_key_file": Path("/nowhere/key")}, "must be a readable text file"),
        ({"api_url": "http://service.example"}, "must begin with https"),
        ({"envd_url": "http://{sandbox_id}.example"}, "must begin with https"),
    ],
)
async def test_what_cannot_work_is_refused_at_start(opened, changes, said):
    with pytest.raises(FailedPrecondition, match=said):
        await opened(**changes).start()


async def test_a_key_file_with_more_than_a_key_is_refused(opened, tmp_path):
    key = tmp_path / "two"
    key.write_text("one two")
    with pytest.raises(FailedPrecondition, match="must hold the key alone"):
        await opened(api_key_file=key).start()


async def test_the_reaper_ends_strangers_of_ours_and_of_nobody_else(backend, service):
    kept = [await _make(backend) for _ in range(4)]  # more than a page
    strangers = [await _make(backend) for _ in range(4)]
    foreign = await _make(backend)
    service.vms[foreign.remote_id].metadata["hone_manager"] = "somebody"
    for box in strangers:
        del backend._boxes[box.sandbox_id]  # as if the reply to their creation had been lost
    known = frozenset(box.sandbox_id for box in kept)
    assert await backend.reap(known) == 4
    assert set(service.vms) == {box.remote_id for box in [*kept, foreign]}
    assert await backend.reap(known) == 0


async def test_what_a_dead_manager_left_is_ended_at_start(opened, service):
    first = opened()
    await first.start()
    for _ in range(5):
        await _make(first)
    first._folder.release()  # as the kernel does when the process dies
    second = opened()
    await second.start()
    assert service.vms == {}
    assert await second.reap(frozenset()) == 5
    assert await second.reap(frozenset()) == 0
    assert second.live_count() == 0


async def test_another_manager_of_the_same_account_is_left_alone(opened, service):
    first, second = opened("one"), opened("two")
    await first.start()
    box = await _make(first)
    await second.start()
    assert await second.reap(frozenset()) == 0
    assert set(service.vms) == {box.remote_id}


async def test_a_sandbox_that_the_service_lost_is_told_once(backend, service):
    lost: list[str] = []
    box = await _make(backend, lost)
    await service.vanish(box.remote_id)
    await backend.reap(frozenset({box.sandbox_id}))
    await backend.reap(frozenset({box.sandbox_id}))
    assert lost == [box.sandbox_id]
    await box.destroy()
    assert backend.live_count() == 0


async def test_an_end_that_fails_is_made_up_for_by_the_reaper(backend, service):
    box = await _make(backend)
    service.misbehave("delete", Fault.ERROR, Fault.RATE_LIMIT)
    await box.destroy()
    assert backend.live_count() == 1
    assert await backend.reap(frozenset()) == 1
    assert backend.live_count() == 1
    assert await backend.reap(frozenset()) == 1
    assert (service.vms, backend.live_count()) == ({}, 0)


async def test_a_service_that_is_down_does_not_stop_the_reaper(backend, service):
    service.misbehave("list", Fault.ERROR, Fault.DROP_AFTER)
    assert await backend.reap(frozenset()) == 0
    assert await backend.reap(frozenset()) == 0


async def test_a_service_that_refuses_us_for_a_while_does_not_end_ours(backend, service, clock):
    boxes = [await _make(backend, lifetime_seconds=3600) for _ in range(2)]
    known = frozenset(box.sandbox_id for box in boxes)
    clock.now += 200
    service.misbehave("list", Fault.REFUSED)
    service.misbehave("extend", Fault.REFUSED)
    assert await backend.reap(known) == 0
    extended = [id_ for what, id_ in service.requests if what == "extend"]
    assert sorted(extended) == sorted(box.remote_id for box in boxes)  # one in vain
    await backend.reap(known)
    assert sum(what == "extend" for what, _ in service.requests) == 3


async def test_creations_keep_the_services_pace(opened, service):
    backend = opened(creates_per_second=20.0, pace_seconds=60.0)
    await backend.start()
    begun = asyncio.get_running_loop().time()
    await asyncio.gather(*(_make(backend) for _ in range(40)))
    # 20 at once, the other 20 within a second; later only where this machine is slow.
    assert max(service.create_times) - begun >= 0.9
    assert sum(time < begun + 0.5 for time in service.create_times) <= 32


async def test_a_queue_that_is_too_long_is_refused_at_once(opened, service):
    backend = opened(creates_per_second=2.0, pace_seconds=0.4)
    await backend.start()
    results = await asyncio.gather(*(_make(backend) for _ in range(6)), return_exceptions=True)
    refused = [r for r in results if isinstance(r, ResourceExhausted)]
    assert refused
    assert all(r.reason == "REMOTE_PACE" and r.retry_after_seconds > 0.4 for r in refused)
    assert service.made_count == len(results) - len(refused)


@pytest.mark.slow
async def test_14_a_burst_against_a_service_that_misbehaves_loses_nothing(opened, service):
    backend = opened(create_seconds=6.0)
    await backend.start()
    faults = [f for f in Fault if f not in (Fault.RATE_LIMIT, Fault.REFUSED)] * 20
    random.Random(14).shuffle(faults)
    service.misbehave("create", *faults)
    service.page_size = 100
    results = await asyncio.gather(*(_make(backend) for _ in range(500)), return_exceptions=True)
    boxes = [r for r in results if isinstance(r, RemoteBox)]
    errors = [r for r in results if not isinstance(r, RemoteBox)]
    assert len(errors) == len(faults)
    assert all(isinstance(error, HoneError) and error.retryable for error in errors)
    assert len({box.remote_id for box in boxes}) == len(boxes) == 500 - len(faults)
    known = frozenset(box.sandbox_id for box in boxes)
    service.released.set()  # what hung is answered, what was late is made
    done = [f for f in faults if f not in (Fault.QUOTA, Fault.ERROR, Fault.HANG)]
    await _until(lambda: service.made_count == len(boxes) + len(done))
    await backend.reap(known)
    assert set(service.vms) == {box.remote_id for box in boxes}
    assert backend.live_count() == len(boxes)
    await asyncio.gather(*(box.destroy() for box in boxes))
    assert (service.vms, backend.live_count()) == ({}, 0)


async def test_ids_are_on_disk_while_a_sandbox_lives(backend, tmp_path):
    box = await _make(backend)
    noted = tmp_path / "data/remote/ids" / box.sandbox_id
    assert noted.read_text() == box.remote_id
    await box.destroy()
    assert not noted.exists()


async def test_an_id_on_disk_is_ended_even_if_no_list_shows_it(opened, service):
    first = opened()
    await first.start()
    box = await _make(first)
    service.vms[box.remote_id].metadata.clear()
    first._folder.release()
    await opened().start()
    assert service.vms == {}


async def test_a_file_that_names_no_snapshot_is_refused(backend, tmp_path):
    from servicekit.errors import DataLoss

    path = tmp_path / "saved"
    path.write_text(json.dumps({"name": "x"}))
    with pytest.raises(DataLoss):
        await _make(backend, snapshot=path)


async def test_another_network_profile_is_refused(backend, service):
    with pytest.raises(FailedPrecondition, match="network_profile"):
        await _make(backend, network_profile="internet")
    assert service.made_count == 0


async def test_a_command_in_a_hollow_sandbox_ends(backend):
    box = await _make(backend)
    outcome = await box.run(Command(exec_id="a", argv=("true",)), {}, None)
    assert outcome.exit_code == 0
