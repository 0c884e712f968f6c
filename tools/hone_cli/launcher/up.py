"""Runs a suite in this process until it is told to stop."""

import asyncio
import contextlib
import signal
import sys
import uuid
from collections.abc import Callable

from hone_cli.launcher.layout import Layout
from hone_cli.launcher.logtail import LogTail, Printer
from hone_cli.launcher.plan import Plan, UpOptions, make_plan
from hone_cli.launcher.procfs import kill_suite
from hone_cli.launcher.state import SuiteLock
from hone_cli.launcher.supervisor import Supervisor

LAUNCHER = "hone"


def run_suite(options: UpOptions, *, detached: bool, colour: bool) -> int:
    """Starts the suite and stays until Ctrl-C, SIGTERM or a service that cannot be kept running.

    Raises:
        AlreadyRunningError: a launcher runs in the folder.
        OSError: there is no nats-server, no free port or no permission.
        ValueError: the options do not make sense.
    """
    options.check()
    layout = Layout.in_folder(options.folder)
    suite_id = str(uuid.uuid4())
    lock = SuiteLock(layout)
    killed = lock.acquire(suite_id, detached=detached)
    try:
        from servicekit.tokens import generate_key_file

        generate_key_file(layout.key_file)
        plan = make_plan(options, layout, suite_id)
        lock.publish(plan.endpoints)
        names = (LAUNCHER, *(spec.name for wave in plan.waves for spec in wave))
        printer = Printer(_write, colour=colour, names=names)
        if killed:
            printer.line(LAUNCHER, f"cleared {len(killed)} processes that an earlier launcher left")
        for wanted, given in plan.moved.items():
            printer.line(LAUNCHER, f"port {wanted} is busy; taking {given}", "WARNING")
        code: int = asyncio.run(_run(plan, lock, printer, suite_id, echo=not detached))
        return code
    finally:
        lock.release()


async def _run(plan: Plan, lock: SuiteLock, printer: Printer, suite_id: str, *, echo: bool) -> int:
    def say(text: str, level: str) -> None:
        printer.line(LAUNCHER, text, level)

    supervisor = Supervisor(plan.waves, plan.drain_order, say=say)
    _on_signals(supervisor.stop)

    def ready() -> None:
        lock.mark_ready()
        for line in summary(plan.endpoints):
            say(line, "INFO")

    tails_stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for child in supervisor.children:
            tail = LogTail(child.spec.name, child.spec.log_path, printer if echo else None)
            tasks.create_task(tail.follow(tails_stop))
        try:
            code = await supervisor.run(ready)
        finally:
            left = await asyncio.to_thread(_clear_stragglers, suite_id)
            tails_stop.set()
    if left:
        say(f"killed {left} processes that services had left behind", "WARNING")
    say(
        "stopped" if code == 0 else f"stopped: {supervisor.gave_up}",
        "INFO" if code == 0 else "ERROR",
    )
    return code


def summary(endpoints: dict[str, str]) -> list[str]:
    """What to print when everything answers."""
    services = ", ".join(
        f"{name} {address}" for name, address in endpoints.items() if name not in ("page", "otlp")
    )
    lines = [f"up: {services}"]
    if "page" in endpoints:
        lines.append(f"console page {endpoints['page']}; traces to {endpoints['otlp']}")
    lines.append("Ctrl-C drains and stops")
    return lines


def _clear_stragglers(suite_id: str) -> int:
    return len(kill_suite(suite_id))


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop)


def _write(text: str) -> None:
    # A terminal that is gone must not keep the suite from draining.
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text)
        sys.stdout.flush()
