from pathlib import Path

import pytest

from hone_cli import doctor
from hone_cli.launcher.natsserver import find_binary
from hone_cli.main import main


def test_each_check_says_how_it_stands_and_what_would_help(tmp_path: Path) -> None:
    found = {check.name: check for check in doctor.checks(tmp_path)}
    assert {"python", "services", "versions", "nats", "cgroups", "ports", "disk", "memory"} <= set(
        found
    )
    assert ("sandbox" in found) != ("namespaces" in found)
    if "sandbox" in found:  # what the kernel refuses is an error of the backend's, in its words
        assert "crashed" not in found["sandbox"].detail
    assert found["nats"].state == ("ok" if find_binary() else "fail")
    for check in found.values():
        assert check.detail
        assert check.remedy or check.state == "ok"


def test_doctor_prints_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dir", str(tmp_path)]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.split()[0] in ("ok", "warn", "fail") for line in lines)
    assert any(line.startswith("ok    python") for line in lines)
    assert not (tmp_path / ".hone").exists()
