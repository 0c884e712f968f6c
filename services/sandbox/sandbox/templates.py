"""Reads the file that names what sandboxes start from.

    host:                       # always there; may be changed
      warm: 8
    python-tools:
      rootfs: /srv/python-tools.tar
      limits: {memory_bytes: 1073741824, disk_bytes: 402653184}
      env: {PIP_NO_INDEX: "1"}

Keys are the fields of `sandbox.types.Template`. Whatever is wrong is said at once, each with file, line and field.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from runspec.problems import Problem, SpecError, described, nearest
from runspec.yamldoc import Document, parse_yaml
from sandbox.requests import Policy, fill_limits, wrong_env, wrong_limits
from sandbox.rootfs import HOST_ROOT
from sandbox.types import Limits, Template

_KEYS: Mapping[str, type] = {
    "rootfs": str,
    "image": str,
    "limits": dict,
    "env": dict,
    "network_profile": str,
    "warm": int,
}
_LIMITS = ("memory_bytes", "max_processes", "cpus", "disk_bytes", "max_inodes")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_WORDS: Mapping[type, str] = {
    str: "a text",
    int: "a whole number, 0 or more",
    dict: "a mapping",
}


def load_templates(
    path: Path | None,
    default: str = "host",
    network_profiles: tuple[str, ...] = ("none",),
    starts_from: Literal["rootfs", "image"] | None = None,
) -> dict[str, Template]:
    """Read the templates of a file, `host` added where it does not say another; without a file there is `host` alone.

    `starts_from` is the field that the backend goes by: a template that says the other one alone would start from
    something else than it says, and is refused.

    Raises:
        SpecError: the file cannot be read or something in it is wrong, or it lacks the default template.
    """
    templates = {"host": Template()}
    source = str(path or "")
    if path is not None:
        try:
            document = parse_yaml(path.read_text(encoding="utf-8"), source)
        except (OSError, UnicodeDecodeError) as error:
            message = f"templates_file cannot be read: {error}"
            raise SpecError([Problem(field="", message=message, source=source)]) from error
        templates |= _Reader(document, source, network_profiles, starts_from).templates()
    if default not in templates:
        message = _unknown("default_template", default, templates)
        raise SpecError([Problem(field="default_template", message=message, source=source)])
    return templates


class _Reader:
    """Turns a document into templates and gathers what is wrong."""

    def __init__(
        self,
        document: Document,
        source: str,
        network_profiles: tuple[str, ...],
        starts_from: Literal["rootfs", "image"] | None,
    ) -> None:
        self._document = document
        self._starts_from = starts_from
        self._network_profiles = network_profiles
        self._source = source
        self._problems: list[Problem] = []

    def templates(self) -> dict[str, Template]:
        value = self._document.value
        if value is None:
            return {}
        found = {}
        if not isinstance(value, dict):
            self._note((), f"found {described(value)}; must be a mapping of names to templates")
        else:
            for name, fields in value.items():
                found[name] = self._template(name, fields)
        if self._problems:
            raise SpecError(self._problems)
        return found

    def _template(self, name: str, fields: object) -> Template:
        if not _NAME.fullmatch(name):
            self._note((name,), "a name has 1 to 63 of a-z, 0-9, '.', '_' and '-', first no sign")
        if not isinstance(fields, dict):
            self._note((name,), f"found {described(fields)}; must be a mapping")
            return Template(name=name)
        for key, value in fields.items():
            self._check_field((name, key), value)
        other = {"rootfs": "image", "image": "rootfs"}.get(self._starts_from or "")
        if other in fields and self._starts_from not in fields and fields[other] != HOST_ROOT:
            said = f"the backend goes by {self._starts_from}, which is not set; it has no use for {other}"
            self._note((name, str(other)), said)
        asked = fields.get("limits")
        limits = self._limits(name, asked if isinstance(asked, dict) else {})
        if self._problems:
            return Template(name=name)
        return Template(name=name, **(fields | {"limits": limits}))

    def _check_field(self, path: tuple[str, str], value: object) -> None:
        kind = _KEYS.get(path[1])
        if kind is None:
            self._note(path, _unknown("key", path[1], _KEYS))
        elif not isinstance(value, kind) or (kind is int and not _is_count(value)):
            self._note(path, f"found {described(value)}; must be {_WORDS[kind]}")
        elif path[1] == "network_profile" and value not in self._network_profiles:
            self._note(path, _unknown("network profile", str(value), self._network_profiles))
        elif path[1] == "env":
            self._check_env(path, value)

    def _check_env(self, path: tuple[str, ...], value: object) -> None:
        assert isinstance(value, dict)
        for name, text in value.items():
            if not isinstance(text, str):
                self._note((*path, name), f"found {described(text)}; must be a text, in quotes")
            else:
                for wrong in wrong_env({name: text}).values():
                    self._note((*path, name), wrong)

    def _limits(self, name: str, fields: dict[str, Any]) -> Limits:
        before = len(self._problems)
        for key, value in fields.items():
            path = (name, "limits", key)
            if key not in _LIMITS:
                self._note(path, _unknown("key", key, _LIMITS))
            elif not isinstance(value, int | float) or isinstance(value, bool):
                self._note(path, f"found {described(value)}; must be a number")
            elif key != "cpus" and not _is_count(value):
                self._note(path, f"found {described(value)}; must be a whole number")
        if len(self._problems) > before:
            return Limits()
        limits = fill_limits(**({key: 0 for key in _LIMITS} | fields))
        for field, wrong in wrong_limits(limits, Policy()).items():
            self._note((name, *field.split(".")), wrong)
        return limits

    def _note(self, path: tuple[str, ...], message: str) -> None:
        line = self._document.line_of(path)
        self._problems.append(
            Problem(field=".".join(path), message=message, source=self._source, line=line)
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _unknown(what: str, word: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    near = nearest(word, known)
    hint = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}"
    return f"unknown {what} {word!r}; {hint}"
