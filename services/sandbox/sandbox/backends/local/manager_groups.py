"""The control groups of one manager on this machine, and the end of those that dead managers left."""

import time
from collections.abc import Callable
from pathlib import Path

from sandbox.backends.folder import StateFolder
from sandbox.backends.local.cgroups import Cgroups, Tree
from sandbox.backends.manager_name import ManagerName

_UNKNOWN_SECONDS = 60.0
"""A group without a sandbox in the table is removed after this long."""

_GROUPS_FILE = "groups"
"""In the state folder: where managers before this one had their control groups, a path a line."""


class ManagerGroups:
    """Makes them, and knows from the state folder where earlier managers had theirs."""

    def __init__(
        self,
        folder: StateFolder,
        name: ManagerName,
        tree: Tree,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The folder's lock is held by this process.

        Raises:
            CgroupsUnavailable: they cannot be made.
        """
        self._name = name
        self._clock = clock
        self._first_seen: dict[str, float] = {}
        # Managers started from another shell or unit have another place.
        earlier = [Path(line) for line in folder.read(_GROUPS_FILE).splitlines()]
        self.cgroups = Cgroups(tree, str(name), earlier)
        roots = dict.fromkeys([*earlier, *self.cgroups.roots()])
        folder.write(_GROUPS_FILE, "".join(f"{root}\n" for root in roots if root.exists()))

    def live(self) -> list[str]:
        """Return the ids of this manager's sandboxes that have groups."""
        return self.cgroups.sandboxes(self.cgroups.generation)

    def reap(self, known: frozenset[str]) -> int:
        """End what dead managers left and what no sandbox of this one is; return how many there were. Blocks."""
        reaped = 0
        for generation in self.cgroups.generations():
            manager = ManagerName.parse(generation)
            if manager is not None and self._name.knows_dead(manager):
                reaped += len(self.cgroups.sandboxes(generation))
                self.cgroups.remove_generation(generation)
        unknown = set(self.live()) - known
        self._first_seen = {name: self._first_seen.get(name, self._clock()) for name in unknown}
        for name, seen in self._first_seen.items():
            if self._clock() - seen > _UNKNOWN_SECONDS:
                group = self.cgroups.find(self.cgroups.generation, name)
                group.kill_all()
                reaped += group.remove()
        return reaped
