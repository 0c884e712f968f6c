"""Fields that the kinds which run code in boxes have in common."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from grader.fields import Fields, shown
from grader.instruments.boxes import AgentFilesError, BoxSpec
from grader.results import Graded
from grader.sample import Sample
from grader.templates import Template, TemplateError, check_path
from trajectory.types import OutcomeKind

MIB = 1024 * 1024
MAX_TIMEOUT_SECONDS = 600.0
DEFAULT_FOLDER = "/work"
_HOLE = re.compile(r"\{\{\s*((?:item|sample)\.[\w.\[\]-]+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFields:
    """What a box is like and how long its work may take."""

    timeout_seconds: float
    memory_bytes: int | None
    """None for what the template says."""
    template: str

    def spec(self, *, agent_folders: tuple[str, ...] = (), from_agent: bool = False) -> BoxSpec:
        """Return the box to ask for."""
        return BoxSpec(
            from_agent=from_agent,
            agent_folders=agent_folders,
            template=self.template,
            memory_bytes=self.memory_bytes,
            lifetime_seconds=6 * self.timeout_seconds + 120.0,
        )


def box_fields(fields: Fields, *, timeout_seconds: float, memory_mb: int | None) -> BoxFields:
    """Read `timeout_seconds`, `memory_mb` and `template`."""
    memory = None
    if fields.has("memory_mb") or memory_mb is not None:
        memory = fields.whole("memory_mb", memory_mb, low=128, high=8192) * MIB
    return BoxFields(
        timeout_seconds=fields.number(
            "timeout_seconds", timeout_seconds, low=0.1, high=MAX_TIMEOUT_SECONDS
        ),
        memory_bytes=memory,
        template=fields.text("template") if fields.has("template") else "",
    )


def code_field(fields: Fields, key: str, default: str | None = None) -> Template:
    """Read code with holes; other than in a template, braces that are no hole stay as they are.

    An empty default is code that is empty.
    """
    if default == "" and not fields.has(key):
        return Template(source="", pieces=("",))
    return code_template(fields, key, fields.text(key, default))


def code_template(fields: Fields, key: str, text: str) -> Template:
    """Return code as a template; what is wrong with its holes goes to the fields."""
    pieces = tuple(_HOLE.split(text))
    for path in pieces[1::2]:
        try:
            check_path(path)
        except TemplateError as err:
            fields.problems.add(fields.at(key), str(err))
    return Template(source=text, pieces=pieces)


def path_field(fields: Fields, key: str, default: str | None = None) -> str:
    """Read an absolute path without `..`."""
    path = fields.text(key, default)
    if path and not is_sound_path(path):
        fields.problems.add(
            fields.at(key), f"must be an absolute path without '..', found {shown(path)}"
        )
    return path


def is_sound_path(path: str) -> bool:
    """Whether a path is absolute and does not go up."""
    return path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def asset_fields(fields: Fields, folder: str) -> Mapping[str, Template]:
    """Read `assets`: text by path, relative to the folder or absolute inside it."""
    if not fields.has("assets"):
        return {}
    child = fields.child("assets")
    assets = {}
    for name in child.values if child is not None else ():
        assert child is not None
        path = name if name.startswith("/") else f"{folder.rstrip('/')}/{name}"
        if not is_sound_path(path) or not path.startswith(f"{folder.rstrip('/')}/"):
            fields.problems.add(child.at(name), f"must be a path inside {folder}")
        assets[path] = code_field(child, name)
    return assets


def unusable(err: AgentFilesError, sample: Sample) -> Graded:
    """Return the finding for an agent whose files cannot be taken: its own doing, and no fault."""
    kind = sample.shortfall(OutcomeKind.REASONING)
    return Graded(value=0.0, kind=kind, explanation=f"the agent's files cannot be taken: {err}")


def rendered(assets: Mapping[str, Template], sample: Sample) -> dict[str, str]:
    """Return assets as text."""
    return {path: template.render(sample) for path, template in assets.items()}
