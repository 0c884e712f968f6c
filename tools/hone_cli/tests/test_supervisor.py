import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hone_cli.launcher.procfs import kill_suite, start_ticks, suite_processes
from hone_cli.launcher.restarts import RestartPolicy
from hone_cli.launcher.supervisor import Supervisor

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Quick(RestartPolicy):
    """The policy with its waits left out."""

    def next_delay(self, now: float) -> float | None:
        return None if super().next_delay(now) is None else 0.01


def supervisor(dummies: Any, *waves: list[Any], drain: tuple[str, ...] = ()) -> Supervisor:
    return Supervisor(waves, drain, say=dummies.say, policy=Quick)


async def test_starts_in_waves_and_drains_in_order(dummies: Any) -> None:
    suite = supervisor(
        dummies,
        [dummies.spec("nats")],
        [dummies.spec("console"), dummies.spec("rollout"), dummies.spec("rollout-2")],
        [dummies.spec("learner")],
        drain=("learner", "rollout", "console", "nats"),
    )
    assert await suite.run(suite.stop) == 0
    started, stopped = dummies.events("ready"), dummies.events("stop")
    assert started[0] == "ready nats"
    assert started[-1] == "ready learner"
    assert stopped[0] == "stop learner"
    assert set(stopped[1:3]) == {"stop rollout", "stop rollout-2"}
    assert stopped[3:] == ["stop console", "stop nats"]
    assert suite_processes(dummies.suite_id) == []


async def test_crashed_process_is_started_again(dummies: Any, until: Until) -> None:
    suite = supervisor(dummies, [dummies.spec("a")])
    running = asyncio.create_task(suite.run(lambda: None))
    await until(lambda: len(dummies.pids("ready", "a")) == 1)
    os.kill(dummies.pids("ready", "a")[0], signal.SIGKILL)
    await until(lambda: len(dummies.pids("ready", "a")) == 2)
    suite.stop()
    assert await running == 0
    assert "a ended by signal 9; starting it again in 0.01 s" in dummies.said


async def test_crash_during_start_is_got_over(dummies: Any) -> None:
    suite = supervisor(dummies, [dummies.spec("a", "crash-once")], [dummies.spec("b")])
    assert await suite.run(suite.stop) == 0
    assert dummies.events("ready") == ["ready a", "ready b"]


async def test_gives_up_after_five_crashes_and_says_which_log(dummies: Any) -> None:
    suite = supervisor(dummies, [dummies.spec("b")], [dummies.spec("a", "crash")])
    assert await suite.run(lambda: None) == 1
    assert dummies.events("start").count("start a") == 5
    log = dummies.folder / "a.log"
    assert suite.gave_up == (
        f"a ended 5 times within 60 s; read {log} (cannot start: no engine); hint for a"
    )
    assert dummies.events("stop") == ["stop b"]


async def test_program_that_does_not_exist_is_said(dummies: Any) -> None:
    spec = dummies.spec("a")
    gone = type(spec)(name="a", argv=("/no/such/program",), log_path=spec.log_path)
    suite = supervisor(dummies, [gone])
    waiting = type(spec)(name="b", argv=gone.argv, log_path=spec.log_path, ready=spec.ready)
    suite = supervisor(dummies, [waiting])
    assert await suite.run(lambda: None) == 1
    assert "leash: cannot run /no/such/program: No such file or directory" in suite.gave_up


async def test_stubborn_process_is_killed_with_a_word(dummies: Any) -> None:
    suite = supervisor(dummies, [dummies.spec("a", "stubborn", drain_seconds=0.2)])
    assert await suite.run(suite.stop) == 0
    assert "a did not stop within 0.2 s and was killed" in dummies.said


async def test_second_stop_kills_at_once(dummies: Any, until: Until) -> None:
    suite = supervisor(dummies, [dummies.spec("a", "stubborn", drain_seconds=60)])
    running = asyncio.create_task(suite.run(lambda: None))
    await until(lambda: bool(dummies.pids("ready", "a")))
    suite.stop()
    suite.stop()
    assert await asyncio.wait_for(running, 5) == 0


async def test_process_that_a_service_left_in_another_session_is_found(
    dummies: Any, until: Until
) -> None:
    suite = supervisor(dummies, [dummies.spec("a", "child")])
    assert await suite.run(suite.stop) == 0
    inner = dummies.pids("inner", "a")
    assert suite_processes(dummies.suite_id) == inner
    assert kill_suite(dummies.suite_id) == inner
    assert start_ticks(inner[0]) is None


LAUNCHER = """
import asyncio, sys
from pathlib import Path
from hone_cli.launcher.child import ProcessSpec
from hone_cli.launcher.supervisor import Supervisor
folder, suite_id = Path(sys.argv[1]), sys.argv[2]
specs = [
    ProcessSpec(
        name=name,
        argv=(sys.executable, "-I", "-S", str(folder / "dummy.py"), name),
        log_path=folder / f"{name}.log",
        environment={"DUMMY_OUT": str(folder / "events.txt"), "HONE_SUITE_ID": suite_id},
    )
    for name in ("a", "b")
]
asyncio.run(Supervisor([specs], (), say=lambda *_: None).run(lambda: None))
"""


async def test_killing_the_launcher_leaves_nothing(
    dummies: Any, until: Until, tmp_path: Path
) -> None:
    dummies.spec("a")
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LAUNCHER, str(tmp_path), dummies.suite_id
    )
    await until(lambda: len(dummies.events("ready")) == 2)
    assert len(suite_processes(dummies.suite_id)) == 2
    launcher.kill()
    await launcher.wait()
    await until(lambda: suite_processes(dummies.suite_id) == [])


def test_restart_policy_backs_off_and_forgets_old_crashes() -> None:
    policy = RestartPolicy()
    assert [policy.next_delay(now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.5, 1.0, 2.0, 4.0]
    assert policy.next_delay(70.0) == 0.5
    assert [policy.next_delay(70.0 + i) for i in range(1, 5)] == [1.0, 2.0, 4.0, None]
