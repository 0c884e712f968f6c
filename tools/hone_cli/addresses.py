"""Finds where a service is: --endpoint, then HONE_<SERVICE>_ADDRESS, then .hone/endpoints.json here or above."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from hone_cli.errors import UNREACHABLE, USAGE, CliError

_ADDRESS = re.compile(r"^(\[[0-9a-fA-F:]+\]|[^\s:/]+):\d{1,5}$")


class AddressBook:
    """Looks addresses up anew each time, as a suite that was restarted may have moved."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        folder: Path | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """Remembers where to look.

        Args:
            endpoint: what --endpoint said.
            folder: where the search for .hone starts; by default the current folder.
            environ: the environment.
        """
        self._endpoint = endpoint
        self._folder = folder or Path.cwd()
        self._environ = environ

    def find(self, service: str, *, own: bool = True) -> str:
        """host:port of a service.

        Args:
            service: its name.
            own: whether it is the service that --endpoint speaks of.

        Raises:
            CliError: no address is known, or it is no host:port.
        """
        variable = f"HONE_{service.upper()}_ADDRESS"
        if own and self._endpoint:
            return _checked(self._endpoint, "--endpoint")
        if self._environ.get(variable):
            return _checked(self._environ[variable], variable)
        file = self.endpoints_file()
        if file is None:
            raise CliError(
                f"no suite is known here: no --endpoint, no {variable}, and no .hone/endpoints.json "
                f"in {self._folder} or above; start one with `hone up`",
                UNREACHABLE,
            )
        endpoints = _read(file)
        if service not in endpoints:
            known = ", ".join(endpoints)
            raise CliError(f"{file} names no {service}; it names {known}", UNREACHABLE)
        return _checked(endpoints[service], str(file))

    def endpoints_file(self) -> Path | None:
        """The nearest .hone/endpoints.json, if there is one."""
        for folder in (self._folder, *self._folder.parents):
            file = folder / ".hone" / "endpoints.json"
            if file.is_file():
                return file
        return None


def _checked(address: str, origin: str) -> str:
    if not _ADDRESS.match(address):
        raise CliError(f"{origin}: found {address!r}, expected host:port", USAGE)
    return address


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CliError(f"cannot read {file}: {error}", UNREACHABLE) from error
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
