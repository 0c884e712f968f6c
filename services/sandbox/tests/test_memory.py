"""How much memory there is: of the machine, or of the control group that holds the manager."""

from pathlib import Path

import pytest

from sandbox.fleet.memory import available_memory_bytes, total_memory_bytes

MIB = 1024 * 1024
MEMINFO = "MemTotal:       24576000 kB\nMemFree: 1 kB\nMemAvailable:   20480000 kB\n"
UNLIMITED = "9223372036854771712"


@pytest.fixture
def machine(tmp_path):
    """Lay out what the kernel shows: groups by folder, each with its files."""

    def make(own: str, mounts: str, groups: dict[str, dict[str, str]]) -> Path:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/meminfo").write_text(MEMINFO)
        (tmp_path / "proc/self/cgroup").write_text(own)
        (tmp_path / "proc/self/mountinfo").write_text(mounts)
        for folder, files in groups.items():
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (tmp_path / folder / name).write_text(f"{text}\n")
        return tmp_path

    return make


V1 = "31 24 0:22 / /cg/memory rw - cgroup cgroup rw,memory\n30 24 0:27 / /cg/unified rw - cgroup2 cgroup2 rw\n"
V2 = "30 1 0:26 / /cg rw - cgroup2 cgroup2 rw,nsdelegate\n"


def test_a_machine_without_limits_has_all_its_memory(machine):
    root = machine(
        "4:memory:/box\n0::/\n",
        V1,
        {
            "cg/memory": {"memory.limit_in_bytes": UNLIMITED},
            "cg/memory/box": {"memory.limit_in_bytes": UNLIMITED, "memory.usage_in_bytes": "5"},
            "cg/unified": {"cgroup.controllers": "hugetlb"},
        },
    )
    assert total_memory_bytes(root) == 24_000 * MIB
    assert available_memory_bytes(root) == 20_000 * MIB


@pytest.mark.parametrize(
    ("own", "mounts", "base", "names"),
    [
        ("4:memory:/a/b\n0::/\n", V1, "cg/memory", ("limit_in_bytes", "usage_in_bytes")),
        ("0::/a/b\n", V2, "cg", ("max", "current")),
    ],
)
def test_the_narrowest_group_around_the_manager_counts(machine, own, mounts, base, names):
    limit, use = (f"memory.{name}" for name in names)
    controllers = {"cgroup.controllers": "cpu memory pids"}
    root = machine(
        own,
        mounts,
        {
            f"{base}/a": {limit: str(2048 * MIB), use: str(1800 * MIB), **controllers},
            f"{base}/a/b": {limit: str(4096 * MIB), use: str(100 * MIB), **controllers},
        },
    )
    assert total_memory_bytes(root) == 2048 * MIB
    assert available_memory_bytes(root) == 248 * MIB


def test_a_container_that_sees_its_own_group_as_the_root_is_bound_by_it(machine):
    files = {
        "cgroup.controllers": "memory pids",
        "memory.max": str(512 * MIB),
        "memory.current": str(112 * MIB),
        "memory.stat": f"anon 5\ninactive_file {100 * MIB}\nslab 7",
    }
    root = machine("0::/kubepods/pod1/c1\n", V2, {"cg": files})
    assert total_memory_bytes(root) == 512 * MIB
    assert available_memory_bytes(root) == 500 * MIB


def test_this_machine_has_memory():
    assert 0 < available_memory_bytes() < total_memory_bytes()
