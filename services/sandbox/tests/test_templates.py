"""The file of templates: what it may say, and how it is refused."""

import pytest

from runspec.problems import SpecError
from sandbox.requests import Policy, check_create, fill_limits
from sandbox.settings import DockerOptions, SandboxSettings
from sandbox.templates import load_templates
from sandbox.types import MIB, BoxKey, CreateSpec, Limits, Purpose, Template
from servicekit.errors import InvalidArgument


def _load(tmp_path, text: str, default: str = "host"):
    file = tmp_path / "templates.yaml"
    file.write_text(text)
    return load_templates(file, default)


def test_network_profiles_are_those_of_the_backend(tmp_path):
    docker = DockerOptions(networks={"egress": "some-network"})
    assert SandboxSettings(docker=docker).network_profiles() == ("none",)
    settings = SandboxSettings(backend="docker", docker=docker)
    assert settings.network_profiles() == ("none", "egress")
    file = tmp_path / "templates.yaml"
    file.write_text("tools: {network_profile: egress}\n")
    found = load_templates(file, "tools", settings.network_profiles())
    spec = CreateSpec(
        key=BoxKey(
            rollout_id="00000000-0000-7000-8000-000000000000", purpose=Purpose.AGENT, sequence=0
        ),
        run_id="run-1",
        limits=Limits(),
        lifetime_seconds=60,
        idle_seconds=60,
        network_profile=found["tools"].network_profile,
    )
    check_create(spec, "", Policy(network_profiles=settings.network_profiles()))
    with pytest.raises(InvalidArgument, match="network_profile: found 'egress'; known are none"):
        check_create(spec, "", Policy())


def test_host_is_there_without_a_file_and_beside_others(tmp_path):
    assert load_templates(None) == {"host": Template()}
    assert _load(tmp_path, "") == {"host": Template()}
    found = _load(tmp_path, "tools: {rootfs: /srv/tools.tar}\n", default="tools")
    assert found == {
        "host": Template(),
        "tools": Template(name="tools", rootfs="/srv/tools.tar"),
    }


def test_every_field_is_read(tmp_path):
    text = """
host:
  warm: 8
python:
  rootfs: /srv/python
  image: python@sha256:aa
  limits: {memory_bytes: 268435456, cpus: 0.5}
  env: {LANG: C.UTF-8, EMPTY: ""}
  network_profile: none
"""
    found = _load(tmp_path, text)
    assert found["host"] == Template(warm=8)
    python = found["python"]
    assert (python.rootfs, python.image, python.warm) == ("/srv/python", "python@sha256:aa", 0)
    assert python.env == {"LANG": "C.UTF-8", "EMPTY": ""}
    assert python.limits == Limits(
        memory_bytes=256 * MIB, cpus=0.5, disk_bytes=128 * MIB, shm_bytes=32 * MIB
    )


def test_what_is_wrong_is_said_at_once_with_its_line(tmp_path):
    text = """
host:
  worm: 8
Python:
  rootfs: 3
tools:
  warm: -1
  network_profile: non
  env: {PORT: 80}
"""
    with pytest.raises(SpecError) as caught:
        _load(tmp_path, text)
    file = tmp_path / "templates.yaml"
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{file}:") for line in lines] == [
        "3: host.worm: unknown key 'worm'; did you mean 'warm'?",
        "4: Python: a name has 1 to 63 of a-z, 0-9, '.', '_' and '-', first no sign",
        "5: Python.rootfs: found the number 3; must be a text",
        "7: tools.warm: found the number -1; must be a whole number, 0 or more",
        "8: tools.network_profile: unknown network profile 'non'; did you mean 'none'?",
        "9: tools.env.PORT: found the number 80; must be a text, in quotes",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {limits: {memory: 1}}", "1: a.limits.memory: unknown key 'memory'; did you mean"),
        ("a: {limits: {memory_bytes: 1}}", "1: a.limits.memory_bytes: found 1; must be"),
        ("a: {limits: {max_inodes: 1.5}}", "1: a.limits.max_inodes: found the number 1.5; must be"),
        ("a: {limits: {cpus: yes}}", "1: a.limits.cpus: found the text 'yes'; must be a number"),
        ("a: {limits: {disk_bytes: 999999999}}", "1: a.limits.disk_bytes: found 999999999; with"),
        ("[a]", "1: found a list of 1; must be a mapping of names to templates"),
        ("a: 3", "1: a: found the number 3; must be a mapping"),
        ("a: {warm: true}", "1: a.warm: found true; must be a whole number"),
        ("a: {}\na: {}", "2: a: stands twice; first on line 1"),
        ("a: {rootfs: [", "not YAML"),
        ('a: {env: {"A=B": c}}', "1: a.env.A=B: found 'A=B'; names need"),
    ],
)
def test_a_template_that_cannot_be_is_refused(tmp_path, text, said):
    with pytest.raises(SpecError) as caught:
        _load(tmp_path, text)
    assert said in str(caught.value)


def test_whatever_is_wrong_is_said_at_once(tmp_path):
    text = "a: {rootf: x, limits: {memory_byte: 1}}\nb: {warm: no, limits: {disk_bytes: 999999999}}"
    with pytest.raises(SpecError) as caught:
        _load(tmp_path, text)
    for field in ("a.rootf", "a.limits.memory_byte", "b.warm", "b.limits.disk_bytes"):
        assert f"{field}: " in str(caught.value)


def test_a_template_says_what_the_backend_goes_by(tmp_path):
    file = tmp_path / "templates.yaml"
    file.write_text(
        "a: {rootfs: /a.tar}\nb: {image: b}\nc: {rootfs: /c.tar, image: c}\nd: {rootfs: host}"
    )
    for settings, said in (
        (SandboxSettings(backend="docker"), "a.rootfs: the backend goes by image"),
        (SandboxSettings(backend="local"), "b.image: the backend goes by rootfs"),
    ):
        with pytest.raises(SpecError) as caught:
            load_templates(file, "host", ("none",), settings.starts_from())
        assert said in str(caught.value)
        assert len(caught.value.problems) == 1
    over = SandboxSettings(backend="optimistic", optimistic={"inner": "docker"})
    assert over.starts_from() == "image"


def test_a_missing_file_and_a_missing_default_are_named(tmp_path):
    with pytest.raises(SpecError, match="templates_file cannot be read"):
        load_templates(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match=r"default_template: unknown .* did you mean 'tools'"):
        _load(tmp_path, "tools: {}", default="tool")


def test_limits_that_the_creator_leaves_open_are_the_templates():
    base = Limits(memory_bytes=512 * MIB, disk_bytes=400 * MIB, shm_bytes=64 * MIB, cpus=2.0)
    asked = {"max_processes": 0, "disk_bytes": 0, "max_inodes": 0}
    assert fill_limits(memory_bytes=0, cpus=0, **asked, base=base) == base
    assert fill_limits(memory_bytes=512 * MIB, cpus=2.0, **asked, base=base) == base
    less = fill_limits(memory_bytes=128 * MIB, cpus=1.0, **asked, base=base)
    assert (less.cpus, less.disk_bytes, less.shm_bytes) == (1.0, 64 * MIB, 16 * MIB)


def test_the_policy_finds_by_name_and_the_default_for_none():
    policy = Policy(
        templates={"host": Template(), "tools": Template(name="tools")}, default_template="tools"
    )
    assert policy.template("").name == "tools"
    assert policy.template("host").name == "host"
    assert policy.template("windows") is None
