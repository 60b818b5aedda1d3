"""On what a bench ran: without that its figures say nothing."""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from console import sql
from console.engines import Database

_LIBRARIES = ("dbq-console", "psycopg", "pyodbc", "procrastinate", "pgqueuer")


@dataclass(frozen=True)
class RanOn:
    """The machine of the bench, and the server, which may be another machine."""

    machine: Mapping[str, object]
    server: Mapping[str, object]
    settings: Mapping[str, object]
    versions: Mapping[str, str]
    durable: bool | None
    """Whether a commit is on disk when it is answered; None: not known."""

    def as_json(self) -> dict[str, object]:
        """Part of `bench --json`."""
        return asdict(self)

    @property
    def lines(self) -> list[str]:
        """In words."""
        machine = self.machine
        memory = f", {machine['memory_gib']} GiB" if machine["memory_gib"] else ""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        durable = {True: "durable", False: "NOT DURABLE", None: "durable or not: ?"}[self.durable]
        return [
            f"on {machine['cores']} cores ({machine['cpu']}){memory}, {machine['system']}",
            f"{self.server['engine']} {self.server['version']}"
            f"{', embedded' if self.server['embedded'] else ''}: {durable}; {settings}",
            ", ".join(f"{name} {version}" for name, version in self.versions.items()),
        ]


@dataclass(frozen=True)
class _Setting:
    name: str
    value: str | None


@dataclass(frozen=True)
class _Durable:
    durable: bool | None


def ran_on(database: Database, *, embedded: bool) -> RanOn:
    """Ask the server, and this machine."""
    product = database.product
    statements = sql.statements(product.name, "bench")
    with database.transaction("ask the server what it is", read_only=True) as connection:
        rows = sql.fetch(connection, _Setting, statements["settings"], sql.Scope())
        (durable,) = sql.fetch(connection, _Durable, statements["durable"], sql.Scope())
    return RanOn(
        machine={
            "cores": os.cpu_count(),
            "cpu": _cpu(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.release()}",
        },
        server={
            "engine": product.title,
            "version": database.capabilities.server_version,
            "embedded": embedded,
        },
        settings={row.name: row.value for row in rows},
        versions={"Python": platform.python_version(), **_versions()},
        durable=durable.durable,
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (ValueError, OSError):
        return None


def _versions() -> dict[str, Any]:
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
