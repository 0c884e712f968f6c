"""Ending one command of a container with all it started, which the Docker API cannot do.

Every command runs under the engine's own init (`docker-init -s`, mounted read-only), which takes in whatever its
descendants leave behind, so everything that a command started stays below it whatever sessions it makes. The init is
known by a random word in its environment, read only from processes whose parent is outside the container, which nobody
inside can make. A workload that kills its own init ends its command by it, and what is left then counts as a survivor.

`Beside` does it from a second, pristine container in the same process namespace while the first is paused: the tree
stands still, a full process limit does not matter, and no program that the workload may have replaced is run. `Within`
runs the same script in the container, in rounds, for runtimes that keep process namespaces apart (gVisor, Kata).
"""

import asyncio
import contextlib
import logging
from typing import Any, Protocol

from sandbox.backends.docker_engine import Engine, Missing, Refused
from servicekit.errors import Unavailable

log = logging.getLogger(__name__)

TOKEN_NAME = "SANDBOX_COMMAND"
"""Environment variable that marks a command's init."""

HELPER_MARK = "-kill-"
"""In the name of a helper's container, after the name of the one that it is for."""

SUPERVISOR = ("/sbin/docker-init", "-s", "--")
"""What every command is run under."""

SCRIPT = r"""
token=$1 offset=$2 rounds=$3
slurp() {
  text=
  while IFS= read -r line || [ -n "$line" ]; do text="$text$line "; line=; done
}
look() {
  table=
  for folder in /proc/[0-9]*; do
    text=; slurp 2>/dev/null <"$folder/stat" || continue
    [ -n "$text" ] || continue
    set -- ${text##*) }
    [ "$1" = Z ] || table="$table ${folder#/proc/}:$2:${20}"
    [ "$folder" = /proc/1 ] && birth=${20}
  done
}
choose() {
  doomed=" " spared=" "
  for entry in $table; do
    pid=${entry%%:*} rest=${entry#*:}
    [ "${rest%:*}" = 0 ] && [ "$pid" != 1 ] || continue
    text=; [ "$pid" = "$$" ] || slurp 2>/dev/null <"/proc/$pid/environ"
    case "$text" in *"$token"*) doomed="$doomed$pid ";; *) spared="$spared$pid ";; esac
  done
  [ "$offset" = -1 ] || for entry in $table; do
    rest=${entry#*:}
    [ "${rest%:*}" = 1 ] && [ "${rest#*:}" -ge $((birth + offset)) ] && doomed="$doomed${entry%%:*} "
  done
  grown=1
  while [ "$grown" = 1 ]; do
    grown=0
    for entry in $table; do
      pid=${entry%%:*} rest=${entry#*:}
      case "$doomed" in *" $pid "*) continue;; esac
      case "$doomed" in *" ${rest%:*} "*) doomed="$doomed$pid "; grown=1;; esac
    done
  done
}
while :; do
  look; choose
  [ "$doomed" = " " ] && exit 0
  kill -9 $doomed 2>/dev/null
  rounds=$((rounds - 1))
  [ "$rounds" -gt 0 ] || exit 1
done
"""
"""POSIX shell, builtins only. Arguments: the word, from how many 1/100 s after the container's start on orphans die too
(-1: none), rounds."""

_ROUNDS = 200
_MEMORY_BYTES = 64 * 1024 * 1024
_MAX_PROCESSES = 16


class Killer(Protocol):
    """Ends what a command started."""

    async def kill(self, container: str, token: str, orphans_from: float | None) -> None:
        """End the tree of a command, and with `orphans_from` what no command holds and that began later than that.

        Args:
            container: The container's name.
            token: What marks the command.
            orphans_from: Seconds since the container's start.

        Raises:
            Refused, Unavailable: the daemon could not do it.
        """
        ...


def arguments(token: str, orphans_from: float | None, rounds: int) -> list[str]:
    """Return the command line that runs the script."""
    offset = -1 if orphans_from is None else max(0, int(orphans_from * 100))
    return ["/bin/sh", "-c", SCRIPT, "sh", f"{TOKEN_NAME}={token}", str(offset), str(rounds)]


class Beside:
    """Kills from a second container in the first one's process namespace, while the first is paused."""

    def __init__(self, engine: Engine, options: dict[str, Any], seconds: float) -> None:
        """`options` are of `create_container`, for any such container; it may run for `seconds`."""
        self._engine = engine
        self._options = options
        self._seconds = seconds

    async def kill(self, container: str, token: str, orphans_from: float | None) -> None:
        """See `Killer.kill`."""
        engine, sdk = self._engine, self._engine.sdk
        found = await engine.call("inspect", sdk.inspect_container, container)
        limit = int(found["HostConfig"]["PidsLimit"])
        helper = f"{container}{HELPER_MARK}{token[:8]}"
        is_paused = True
        try:
            is_paused = await self._pause(container)
            words = arguments(token, orphans_from, rounds=1 if is_paused else _ROUNDS)
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

    async def kill(self, container: str, token: str, orphans_from: float | None) -> None:
        """See `Killer.kill`."""
        engine = self._engine
        made = await engine.call(
            "create the killer",
            engine.sdk.exec_create,
            container,
            arguments(token, orphans_from, _ROUNDS),
            user=self._user,
        )
        stream = await engine.start_exec(made["Id"])
        try:
            async for _ in stream.read():
                pass  # it writes nothing; the end is the end of the stream
        finally:
            stream.close()
