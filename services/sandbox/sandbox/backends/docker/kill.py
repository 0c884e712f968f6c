"""Ending one command of a container with all it started, which the Docker API cannot do.

Every command runs with a group of its own. Nothing that it starts can leave that group, whatever sessions it makes and
whoever adopts it: changing a group needs a capability that nothing inside has. So what bears the group in /proc is the
command's, and nothing else is.

`Beside` kills it from a second, pristine container in the same process namespace while the first is paused: nothing
moves meanwhile, a full process limit does not matter, and no program that the workload may have replaced is run.
`Within` runs the same script in the container, in rounds, for runtimes that keep process namespaces apart (gVisor,
Kata).
"""

import asyncio
import contextlib
import logging
from typing import Any, Protocol

from sandbox.backends.docker.engine import Engine, Missing, Refused
from servicekit.errors import Unavailable

log = logging.getLogger(__name__)

HELPER_MARK = "-kill-"
"""In the name of a helper's container, after the name of the one that it is for."""

SCRIPT = r"""
group=$1 rounds=$2
while :; do
  doomed=
  for folder in /proc/[0-9]*; do
    while read -r key first rest; do
      case $key in
        State:) [ "$first" = Z ] && break ;;
        Gid:) [ "$first" = "$group" ] && doomed="$doomed ${folder#/proc/}"; break ;;
      esac
    done 2>/dev/null <"$folder/status"
  done
  [ -n "$doomed" ] || exit 0
  kill -9 $doomed 2>/dev/null
  rounds=$((rounds - 1))
  [ "$rounds" -gt 0 ] || exit 1
done
"""
"""POSIX shell, builtins only. Arguments: the group, rounds."""

_ROUNDS = 200
_MEMORY_BYTES = 64 * 1024 * 1024
_MAX_PROCESSES = 16


class Killer(Protocol):
    """Ends what a command started."""

    async def kill(self, container: str, group: int) -> None:
        """End every process of a container that has a group.

        Raises:
            Refused, Unavailable: the daemon could not do it.
        """
        ...


def arguments(group: int, rounds: int) -> list[str]:
    """Return the command line that runs the script."""
    return ["/bin/sh", "-c", SCRIPT, "sh", str(group), str(rounds)]


class Beside:
    """Kills from a second container in the first one's process namespace, while the first is paused."""

    def __init__(self, engine: Engine, options: dict[str, Any], seconds: float) -> None:
        """`options` are of `create_container`, for any such container; it may run for `seconds`."""
        self._engine = engine
        self._options = options
        self._seconds = seconds

    async def kill(self, container: str, group: int) -> None:
        """See `Killer.kill`."""
        engine, sdk = self._engine, self._engine.sdk
        found = await engine.call("inspect", sdk.inspect_container, container)
        limit = int(found["HostConfig"]["PidsLimit"])
        helper = f"{container}{HELPER_MARK}{group}"
        is_paused = True
        try:
            is_paused = await self._pause(container)
            words = arguments(group, rounds=1 if is_paused else _ROUNDS)
            await engine.call(
                "create the killer",
                sdk.create_container,
                found["Image"],
                words,
                name=helper,
                host_config=self._host_config(container),
                entrypoint=[],
                **self._options,
            )
            await engine.call("start the killer", sdk.start, helper)
            await engine.call("wait for the killer", sdk.wait, helper, timeout=self._seconds)
        finally:
            await asyncio.shield(self._clear(container, helper, None if is_paused else limit))

    async def _pause(self, container: str) -> bool:
        """Pause a container; where that fails let it start no process. Return whether it is paused.

        The kernel gives up freezing what has many processes and little CPU: a fork bomb. What runs beside one is
        refused processes anyway.
        """
        try:
            await self._engine.call("pause", self._engine.sdk.pause, container)
        except Unavailable:
            await self._engine.limit_processes(container, 1)
            return False
        return True

    async def _clear(self, container: str, helper: str, limit: int | None) -> None:
        """Let the container go on, its processes limited as before, and remove the helper."""
        engine, sdk = self._engine, self._engine.sdk
        with contextlib.suppress(Refused, Unavailable):  # it was not paused, or is gone
            await engine.call("unpause", sdk.unpause, container)
        if limit is not None:
            with contextlib.suppress(Missing):
                await engine.limit_processes(container, limit)
        try:
            await engine.call("remove the killer", sdk.remove_container, helper, force=True)
        except Missing:
            pass
        except (Refused, Unavailable) as error:
            log.warning("killer not removed; reaping does it", extra={"error": str(error)})

    def _host_config(self, container: str) -> Any:
        return self._engine.sdk.create_host_config(
            network_mode="none",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            read_only=True,
            pid_mode=f"container:{container}",
            mem_limit=_MEMORY_BYTES,
            memswap_limit=_MEMORY_BYTES,
            pids_limit=_MAX_PROCESSES,
            log_config={"Type": "none"},
        )


class Within:
    """Kills by a command in the container itself."""

    def __init__(self, engine: Engine, user: str) -> None:
        """`user` is whom the commands run as."""
        self._engine = engine
        self._user = user

    async def kill(self, container: str, group: int) -> None:
        """See `Killer.kill`."""
        engine = self._engine
        made = await engine.call(
            "create the killer",
            engine.sdk.exec_create,
            container,
            arguments(group, _ROUNDS),
            user=self._user,
        )
        stream = await engine.start_exec(made["Id"])
        try:
            async for _ in stream.read():
                pass  # it writes nothing; the end is the end of the stream
        finally:
            stream.close()
