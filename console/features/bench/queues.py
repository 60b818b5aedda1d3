"""The designs as candidates: scratch queues, and their public functions as prepared calls.

And the floor: updates of single rows by key. A push and a pop are at least two durable updates, so
half its rate is the most that a queue of single messages could reach. pgbench with the same
statement shows how much of a figure is due to the load generator."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import FILLFACTOR, Queue, installed_queue, object_names
from console.designs import Design, design
from console.designs.model import NO_SUBSCRIBERS
from console.engines import Database, Product
from console.errors import ConsoleError, UsageError
from console.features.bench.candidate import PREFIX, Candidate, Reader, ScratchQueue, scratch_schema
from console.load.call_log import filler

if TYPE_CHECKING:
    from sqlalchemy import URL, TextClause


InstallScratch = Callable[[Database, Queue], AbstractContextManager[None]]
"""Installs a queue while the context is open."""

LIBPQ = "console.features.bench.load_pipelined"
_DRIVERS = {"libpq": LIBPQ}
_ANY_DRIVER = "console.load.load_blocking"


def candidate(
    spec: str, product: Product, batch: int, more_options: Mapping[str, str] | None = None
) -> Candidate:
    """From `ring` or `fifo:order=strict:notify=on`. UsageError."""
    of, options = design_and_options(spec, product)
    name, options = of.name, {**(more_options or {}), **options}
    complete = of.complete_options(options, product.name)
    if complete.get("subscribers", NO_SUBSCRIBERS) != NO_SUBSCRIBERS:
        raise UsageError(
            "A ring with subscribers is measured beside a ring for each of them.",
            next_step="Give their number: bench --subscribers N",
        )
    if complete["payload"] != "text":
        raise UsageError("The bench pushes text.", next_step="Leave payload=text.")
    return Candidate(
        name=" ".join([name, *(f"{key}={value}" for key, value in options.items())]),
        design=name,
        batch=batch,
        driver=driver(product, "run_queue"),
        order=of.order_with(complete),
        options=options,
    )


def design_and_options(spec: str, product: Product) -> tuple[Design, dict[str, str]]:
    """From `ring` or `fifo:order=strict:notify=on`. UsageError."""
    name, *rest = spec.split(":")
    of, options = design(name, product.name), {}
    for option in rest:
        key, equals, value = option.partition("=")
        if not equals:
            raise UsageError(
                f"{option!r} is not an option.", next_step="Example: fifo:order=strict"
            )
        options[key] = value
    return of, options


def driver(product: Product, what: str) -> str:
    """The fastest for the engine."""
    return f"{_DRIVERS.get(product.protocol, _ANY_DRIVER)}:{what}"


class DesignQueues:
    """Installs the designs' queues."""

    def __init__(
        self, database: Database, schema: str, token: str, install_scratch: InstallScratch
    ) -> None:
        self._database = database
        self._schema = schema
        self._token = token
        self.install_scratch = install_scratch

    def queue(self, candidate: Candidate, payload: int) -> Queue:
        """The queue of a round. UsageError where it cannot hold such payloads."""
        of: Design = design(candidate.design, self._database.product.name)
        options = dict(candidate.options)
        limit = of.option_with("max_bytes", options)
        if limit.default != "unlimited" and "max_bytes" not in options:
            # Slots are as wide as the largest payload.
            options["max_bytes"] = limit.check(str(payload))
        complete = of.complete_options(options, self._database.product.name)
        name = f"{PREFIX}{self._token}_{of.name}"
        return installed_queue(self._schema, name, of, complete)

    @contextmanager
    def scratch(self, candidate: Candidate, payload: int) -> Iterator[ScratchQueue]:
        queue = self.queue(candidate, payload)
        with self.install_scratch(self._database, queue):
            names = object_names.of(self._database.product, queue)
            reader = reader_of(self._database, queue, candidate.driver)
            yield ScratchQueue(queue.schema, names, [reader], reader.settings)


def reader_of(database: Database, queue: Queue, driver: str) -> Reader:
    product, scope = database.product, queue.scope(database.product)
    calls = [name for name in _CALLS if sql.has(product, f"bench.{name}")]
    if not queue.finishes:
        calls = [name for name in calls if not name.startswith("complete")]
    texts = {name: _call(f"bench.{name}", product, scope, driver) for name in calls}
    settings = {"calls": texts, "finishes": queue.finishes, "id_type": queue.design.id_type}
    return Reader(database, settings, scope)


_CALLS = ("push", "push_many", "pop", "pop_many", "complete", "complete_many")


def _call(name: str, product: Product, scope: sql.Scope, driver: str) -> str:
    return call_text(sql.query(name, product.dialect, scope), driver)


def call_text(rendered: TextClause, driver: str) -> str:
    """With $1 for libpq, else with SQLAlchemy's :name."""
    if driver.startswith(LIBPQ):
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415  # a verb imports what it uses

        numbered = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
        return str(rendered.compile(dialect=numbered))
    return rendered.text


def fanout_candidates(
    product: Product, readers: int, batch: int, options: Mapping[str, str], room: int
) -> list[Candidate]:
    """A ring with subscribers, and as many rings. UsageError where one could get full."""
    of = design("ring", product.name)
    names = ",".join(f"s{number}" for number in range(1, readers + 1))
    candidates = []
    for name, own_options in (
        (f"ring subscribers={readers}", {**options, "subscribers": names}),
        (f"{readers} rings", dict(options)),
    ):
        complete = of.complete_options(own_options, product.name)
        if int(complete["size"]) < 2 * room:
            raise UsageError(
                f"A ring of {complete['size']} slots is too small for --subscribers.",
                next_step=f"Give --ring-size {2 * room} or more, or less --room.",
            )
        run, order = driver(product, "run_queue"), of.order_with(complete)
        candidates.append(Candidate(name, of.name, batch, run, order, own_options, readers=readers))
    return candidates


class FanoutQueues:
    """For several readers of each message: a ring with subscribers, or a ring for each of them."""

    def __init__(self, database: Database, queues: DesignQueues) -> None:
        self._database = database
        self._queues = queues

    @contextmanager
    def scratch(self, candidate: Candidate, payload: int) -> Iterator[ScratchQueue]:
        queue = self._queues.queue(candidate, payload)
        rings = [queue] if queue.subscribers else [_numbered(queue, n) for n in _numbers(candidate)]
        with ExitStack() as stack:
            for ring in rings:
                stack.enter_context(self._queues.install_scratch(self._database, ring))
            product, driver = self._database.product, candidate.driver
            views = [view for ring in rings for view in ring.views]
            readers = [reader_of(self._database, view, driver) for view in views]
            tables = [name for ring in rings for name in object_names.of(product, ring)]
            settings = {**readers[0].settings}
            if not queue.subscribers:
                # Pushes go into all rings by one statement, in one transaction.
                each = ",".join(f"s{number}:{number}" for number in _numbers(candidate))
                scope = queue.scope(product, subscribers=each)
                settings["calls"] = {
                    name: _call(f"bench.{name}_each", product, scope, driver)
                    for name in ("push", "push_many")
                }
            yield ScratchQueue(queue.schema, tables, readers, settings)


def _numbers(candidate: Candidate) -> range:
    return range(1, candidate.readers + 1)


def _numbered(ring: Queue, number: int) -> Queue:
    return installed_queue(ring.schema, f"{ring.name}_{number}", ring.design, ring.options)


FLOOR = "floor"
ROWS = 10_000
"""Like a ring's slots."""
_TABLE = "rows"
_RATE = re.compile(r"^tps = ([0-9.]+) \(without initial connection time\)", re.MULTILINE)
_GRACE_SECONDS = 30.0


def floor_candidate(product: Product) -> Candidate:
    return Candidate(FLOOR, FLOOR, batch=1, driver=driver(product, "run_updates"), carries=False)


class FloorTable:
    """Creates the floor's table."""

    def __init__(self, database: Database, token: str, producers: int, consumers: int) -> None:
        self._database = database
        self._token = token
        self._producers = producers
        self._clients = producers + consumers

    @contextmanager
    def scratch(self, candidate: Candidate, payload: int) -> Iterator[ScratchQueue]:
        schema = f"{PREFIX}{self._token}_{candidate.design}"
        values = {"schema": schema, "width": str(payload), "rows": str(ROWS)}
        scope = sql.Scope({**values, "fillfactor": FILLFACTOR})
        with scratch_schema(self._database, schema):
            with self._database.transaction("make the floor's rows") as connection:
                sql.run(connection, "bench.make_rows", scope)
            call = _call("bench.update_row", self._database.product, scope, candidate.driver)
            settings = {
                "calls": {"update_row": call},
                "producers": self._producers,
                "clients": self._clients,
                "rows": ROWS,
            }
            yield ScratchQueue(
                schema, [_TABLE], [Reader(self._database, settings, scope)], settings
            )


def pgbench_updates_per_second(
    program: Path, url: URL, rows: ScratchQueue, payload: int, seconds: float
) -> float:
    """Of pgbench, with the same statement, clients and rows."""
    settings: Any = rows.settings
    call, clients = settings["calls"]["update_row"], settings["clients"]
    statement = call.replace("$1", ":message").replace("$2", ":slot")
    script = (
        "\\set turn :turn + 1\n"
        f"\\set slot (:client_id + :turn * {clients}) % {ROWS}\n"
        f"{_without_comment(statement)};\n"
    )
    login = url.translate_connect_args(username="user", database="dbname")
    login |= {name: url.query[name] for name in ("host", "port") if name in url.query}
    options = {"-h": login.get("host"), "-p": login.get("port"), "-U": login.get("user")}
    given = [part for name, value in options.items() if value for part in (name, str(value))]
    with tempfile.TemporaryDirectory(prefix="dbq-bench-") as folder:
        file = Path(folder) / "update.sql"
        file.write_text(script, encoding="utf-8")
        command = [str(program), "-n", "-M", "prepared", "-f", str(file)]
        # Only whole seconds, at least one.
        command += ["-T", str(ceil(seconds)), "-c", str(clients), "-j", "2", "-D", "turn=0"]
        command += ["-D", f"message={'0' * 38}{filler(payload).decode()}", *given]
        password = {"PGPASSWORD": str(login["password"])} if login.get("password") else {}
        try:
            done = subprocess.run(
                [*command, str(login.get("dbname", ""))],
                env={**os.environ, **password, "PGOPTIONS": "-c synchronous_commit=on"},
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + _GRACE_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConsoleError("pgbench could not be run.", why=str(error)) from error
    match = _RATE.search(done.stdout)
    if match is None:
        raise ConsoleError("pgbench reported no rate.", why=done.stderr.strip())
    return float(match[1])


def _without_comment(statement: str) -> str:
    """A colon in the comment would be a variable to pgbench."""
    return re.sub(r"/\*.*?\*/", "", statement).strip().rstrip(";")
