"""The same contract and the same hostile cases as an ordinary user, and a table of what holds at each level.

Each level runs `test_contract.py` and `test_vectors.py` themselves, in a process of uid 65534. A case that cannot hold
at a level has to fail in exactly the way that `hostile_cases.BY_DESIGN` says. `python test_levels.py` prints the table
that the README shows.
"""

import contextlib
import os
import shutil
import site
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_cases import BY_DESIGN, CASES

from sandbox.backends.local.cgroups import CgroupsUnavailable, find_tree

NOBODY = 65534
HERE = Path(__file__).parent
LEVELS = ("ns-root", "ns-rootless", "ns-root-rlimits", "ns-rootless-rlimits")
_RUN = "import site, sys; site.addsitedir(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"

Held = dict[str, str]
"""By case: yes, or what was seen instead."""


def run_level(level: str, folder: Path) -> tuple[Held, str]:
    """Run the suite at a level; return what held, and pytest's own words where something was not as it should be."""
    prefix = [] if "root-" in f"{level}-" and "rootless" not in level else _become_nobody()
    python = sys.executable if not prefix else _python_for_nobody(prefix)
    row = "local-rlimits" if level.endswith("-rlimits") else "local"
    chosen = f"{row} and not rlimits" if row == "local" else row
    report = folder / "report.xml"
    if prefix:
        os.chown(folder, NOBODY, NOBODY)
    with contextlib.ExitStack() as stack:
        if level == "ns-rootless":
            prefix = [*_enter(stack.enter_context(delegated_groups())), *prefix]
        done = subprocess.run(
            [
                *prefix,
                *(python, "-c", _RUN, site.getsitepackages()[0]),
                *(str(HERE / name) for name in ("test_vectors.py", "test_contract.py")),
                *("-q", "-k", chosen, "-p", "no:cacheprovider", f"--junitxml={report}"),
                *(f"--basetemp={folder}/tmp", "-o", "addopts=--import-mode=importlib"),
            ],
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    if not report.exists():
        return {}, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return read_report(report, level), "" if done.returncode == 0 else done.stdout[-6000:]


def read_report(report: Path, level: str) -> Held:
    """Return what a run says of each case; a test that was skipped says why."""
    held: Held = {}
    skipped: set[str] = set()
    for test in ET.parse(report).iter("testcase"):
        said = {one.get("name"): one.get("value") or "" for one in test.iter("property")}
        if said.get("level") == level:
            held[said["case"] or ""] = said.get("held") or "FAILED"
        for skip in test.iter("skipped"):
            skipped.add(skip.get("message") or "")
    if not held and skipped:
        pytest.skip(f"{level}: {'; '.join(sorted(skipped))[:500]}")
    return held


def _become_nobody() -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv to become an ordinary user")
    return [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _python_for_nobody(prefix: list[str]) -> str:
    """Find an interpreter of this version that another user may execute and that reaches this checkout."""
    check = (
        f"import os, sys; assert sys.version_info[:2] == {sys.version_info[:2]}; "
        f"os.stat({__file__!r}); os.listdir({site.getsitepackages()[0]!r}); "
        "assert os.access(sys.executable, os.X_OK)"
    )
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists():
            done = subprocess.run([*prefix, python, "-c", check], cwd="/", capture_output=True)
            if done.returncode == 0:
                return python
    pytest.skip(
        f"no Python {sys.version_info[0]}.{sys.version_info[1]} that uid {NOBODY} may execute and "
        "that reaches this checkout and its packages"
    )


@contextlib.contextmanager
def delegated_groups() -> Iterator[list[Path]]:
    """Make control groups that belong to uid 65534, as systemd does for a user's session."""
    if os.geteuid() != 0:
        pytest.skip("needs root to delegate control groups")
    try:
        tree = find_tree()
    except CgroupsUnavailable as error:
        pytest.skip(f"no control groups to delegate: {error}")
    folders = [parent / f"hone-test-{os.getpid()}" for parent in set(tree.folders.values())]
    try:
        for folder in folders:
            if tree.version == 2:
                controllers = " ".join(f"+{name}" for name in tree.controllers)
                (folder.parent / "cgroup.subtree_control").write_text(controllers)
            folder.mkdir()
            os.chown(folder, NOBODY, NOBODY)
            for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                if (folder / name).exists():
                    os.chown(folder / name, NOBODY, NOBODY)
    except OSError as error:
        _remove(folders)
        pytest.skip(f"control groups cannot be delegated here: {error}")
    try:
        yield folders
    finally:
        _remove(folders)


def _enter(folders: list[Path]) -> list[str]:
    """Return a command that enters control groups and goes on as what follows."""
    joins = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in folders)
    return ["sh", "-c", f'{joins}exec "$@"', "sh"]


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        for top, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(top)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", [level for level in LEVELS if "rootless" in level])
def test_the_suite_as_an_ordinary_user(level: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies below a folder of root's own
        held, wrong = run_level(level, Path(folder))
    assert not wrong, wrong
    assert held == expected(level)


def expected(level: str) -> Held:
    """Return what has to hold at a level, and what cannot."""
    return {name: "no" if name in BY_DESIGN.get(level, {}) else "yes" for name in CASES}


def table(results: dict[str, Held]) -> str:
    """Return the README's table: what holds at each level, and why not."""
    everywhere = [
        name for name in CASES if {held.get(name) for held in results.values()} == {"yes"}
    ]
    lines = [f"| case | {' | '.join(f'`{level}`' for level in results)} |"]
    lines.append("|---|" + "---|" * len(results))
    names = "; ".join(f"{name} {CASES[name].what}" for name in everywhere)
    lines.append(f"| {names} | {' | '.join('yes' for _ in results)} |")
    for name, case in CASES.items():
        if name not in everywhere:
            cells = [held.get(name, "not run") for held in results.values()]
            lines.append(f"| {name} {case.what} | {' | '.join(cells)} |")
    reasons: dict[str, list[str]] = {}
    for name, (_, reason) in BY_DESIGN["ns-root-rlimits"].items():
        reasons.setdefault(reason, []).append(name)
    why = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return "\n".join([*lines, "", f"Why not: {why}."])


def test_the_readme_shows_the_table() -> None:
    shown = (HERE.parent / "README.md").read_text()
    wanted = table({level: expected(level) for level in LEVELS})
    assert wanted in shown, f"put this into README.md:\n{wanted}"


def main() -> None:
    """Run every level and print the table."""
    results = {}
    for level in LEVELS:
        with tempfile.TemporaryDirectory() as folder:
            results[level], wrong = run_level(level, Path(folder))
        if wrong:
            print(f"{level}: {wrong}", file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
