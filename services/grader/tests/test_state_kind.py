"""The kind `state`, over the stand-in for boxes."""

import pytest
from boxed_desk import Desk, desk, problems

from trajectory.types import OutcomeKind

__all__ = ["desk"]

pytestmark = pytest.mark.slow


async def test_state_looks_at_what_the_agent_left(desk: Desk) -> None:
    agent = desk.rooms.leave(
        "a", {"/work/out.txt": b"done in 3 s\n", "/work/r.json": b'{"rows": [{"total": 72.0}]}'}
    )
    digest = "27dd8ed44a83ff94d557f9fd0412ed5a8cbca69ea04922d88c01184a07300a5a"
    holds = [
        {"path": "/work/out.txt"} | {"exists": True},
        {"path": "/work", "exists": True},
        {"path": "/work/none", "exists": False},
        {"path": "/work/out.txt", "equals": "done in {{item.n}} s\n"},
        {"path": "/work/out.txt", "matches": r"^done in \d+ s$"},
        {"path": "/work/r.json", "json_path": "rows[0].total", "value": "{{item.total}}"},
        {"command": ["cat", "/work/out.txt"], "stdout_matches": "^done"},
        {"command": ["sh", "-c", "exit 3"], "exit_code": 3},
    ]
    fails = [
        {"path": "/work/none", "equals": "x"},
        {"path": "/work", "matches": "."},
        {"path": "/work/out.txt", "sha256": digest},
        {"path": "/work/out.txt", "json_path": "rows", "value": 1},
        {"path": "/work/r.json", "json_path": "rows[1].total", "value": 72},
        {"path": "/work/r.json", "json_path": "rows[0].total", "value": "72"},
        {"command": ["false"]},
        {"command": ["echo", "no"], "stdout_matches": "^yes"},
    ]
    item = {"n": 3, "total": 72}
    for check in holds:
        found = await desk.grade({"type": "state", "checks": [check]}, "", agent=agent, item=item)
        assert (found.value, found.kind) == (1.0, None), check
    for check in fails:
        found = await desk.grade({"type": "state", "checks": [check]}, "", agent=agent, item=item)
        assert (found.value, found.kind) == (0.0, OutcomeKind.REASONING), check
    some = {"type": "state", "checks": [holds[0], fails[0]], "per_check": True}
    assert (await desk.grade(some, "", agent=agent, item=item)).value == 0.5


async def test_a_file_too_large_to_check_does_not_hold_and_is_no_fault(desk: Desk) -> None:
    agent = desk.rooms.leave("a", {"/work/big": b"x" * (3 * 1024 * 1024 + 1)})
    check = {"path": "/work/big", "matches": "x"}
    assert (await desk.grade({"type": "state", "checks": [check]}, "", agent=agent)).value == 0.0


def test_a_check_of_state_needs_exactly_one_way() -> None:
    checks = [
        {"path": "/a"},
        {"path": "b", "exists": True},
        {"path": "/c", "equals": "x", "matches": "y"},
    ]
    found = problems({"type": "state", "checks": checks})
    assert set(found) == {"checks[0]", "checks[1].path", "checks[2]"}
