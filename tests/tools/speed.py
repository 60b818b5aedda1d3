"""Measures all speeds, next to their targets and other programs' speeds, in one table.

    python -m tests.tools.speed [ROW ...] [--write]
    python -m tests.tools.speed start status screens --seconds 5 --queues 20     a trial of a minute
    python -m tests.tools.speed sample --rows 200000; ... archive rollup --rows 200000
    python -m tests.tools.speed large doctor --rows 1000000

Parts can be measured alone with `tests.tui.speed`, `tests.tools.cost`, `tests.pipeline.speed`. If
other programs are running, elapsed time means little, so CPU time is compared with the target.
`--write` puts the table into `tests/bench/README.md`.
"""

import argparse
import compileall
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from psycopg.sql import SQL, Identifier, Literal

import console
from console.actions.install import install
from console.catalog import installed_queue
from console.designs import design, designs_on
from console.engines import Timeouts, open_database
from console.features.demo.embedded import EmbeddedServer
from console.features.presets import discovery
from tests.cli.calls import COMMAND
from tests.contract.stand_in import HANGFIRE, RIVER, SOLID_QUEUE, StandIn
from tests.servers import connect, fresh_database
from tests.tools import hour, large, memory
from tests.tui import speed as screens
from tests.tui.fleet import measure_fleet

if TYPE_CHECKING:
    import psycopg

README = Path(__file__).parents[1] / "bench" / "README.md"
BEGIN, END = "<!-- tests.tools.speed writes from here -->", "<!-- to here -->"
TIMES = 5
_FEWEST_SAMPLES = 200_000
"""With fewer, a week's samples are so far apart that they count as gaps."""
_BUSY = 1.0
"""Processors used by others above which elapsed times mean little."""


@dataclass(frozen=True)
class Measured:
    """One line of the table. `others`: what it is compared with, as text."""

    what: str
    value: float
    unit: str
    aim: float | None = None
    cpu: float | None = None
    """Its CPU time in the same unit, if `value` is a time."""
    at_least: bool = False
    others: str = ""
    values: tuple[float, ...] = ()
    """Those of several runs: `value` is their median."""
    busy: bool = field(default_factory=lambda: other_load() > _BUSY)

    @property
    def verdict(self) -> str:
        if self.aim is None:
            return ""
        by_cpu = self.busy and self.cpu is not None
        judged = self.cpu if by_cpu and self.cpu is not None else self.value
        met = judged >= self.aim if self.at_least else judged <= self.aim
        return ("met" if met else "missed") + (", by its CPU" if by_cpu else "")

    @property
    def cells(self) -> tuple[str, ...]:
        cpu = "" if self.cpu is None else f" (CPU {number(self.cpu)})"
        aim = "" if self.aim is None else f"{number(self.aim)} {self.unit}"
        value = f"{number(self.value)} {self.unit}{cpu}"
        if self.values:
            value += f", {number(min(self.values))} to {number(max(self.values))}"
        return self.what, aim, value, self.others, self.verdict


def median(runs: Sequence[Measured]) -> Measured:
    """The median of one line in several runs; `others` is that of the last."""
    values = tuple(measured.value for measured in runs)
    cpu = (
        statistics.median(measured.cpu for measured in runs if measured.cpu is not None)
        if runs[0].cpu
        else None
    )
    busy = any(measured.busy for measured in runs)
    return replace(runs[-1], value=statistics.median(values), cpu=cpu, values=values, busy=busy)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def other_load() -> float:
    """How many other processes are running, by the load of the last minute."""
    return os.getloadavg()[0] - 1


def output_of(*words: str) -> str:
    """The output of another measurement, which is also shown as it comes."""
    with subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(f"  {line}", end="", file=sys.stderr, flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed")
    return "".join(lines)


# Commands that start, print and end.


def cpu_of(*command: str) -> float:
    """The median CPU of some calls, after one to fill caches."""
    took = []
    for _ in range(TIMES + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(sum(after[:2]) - sum(before[:2]))
    return statistics.median(took[1:])


def start(_: argparse.Namespace) -> Iterator[Measured]:
    for words in (("--help",), ("--version",), ("completion", "bash")):
        yield beside_psql(words, words, 3.0)


def beside_psql(named: Sequence[str], words: Sequence[str], aim: float) -> Measured:
    """In starts of `psql --help`, which tell how fast the machine is; in seconds without it."""
    cpu, psql = cpu_of(*COMMAND, *words), shutil.which("psql")
    what = f"`{' '.join(named)}`, CPU"
    if psql is None:
        return Measured(what, cpu, "s")
    start_of_psql = cpu_of(psql, "--help")
    others = f"{number(cpu)} and {number(start_of_psql)} s"
    return Measured(f"{what} / `psql --help`", cpu / start_of_psql, "", aim, others=others)


@contextmanager
def with_queues(*names: str) -> Iterator[str]:
    """The URL of a database with a queue of each design named."""
    with EmbeddedServer.start() as server, fresh_database(server.url) as url:
        with closing(open_database(url, timeouts=Timeouts(statement_seconds=600.0))) as database:
            for name in names:
                of = design(name)
                given = {"size": "100000"} if name == "ring" else {}
                install(
                    database,
                    installed_queue("public", name, of, of.complete_options(given, "postgresql")),
                )
        yield url


def status(_: argparse.Namespace) -> Iterator[Measured]:
    with with_queues("fifo", "ring", "status") as url:
        yield beside_psql(["status"], ["status", "--url", url], 12.3)


def first(_: argparse.Namespace) -> Iterator[Measured]:
    """From the start to a database's first figures."""
    names = ("naive", "ring", "heap", "fifo", "stack", "pending", "claim", "status", "split")
    with with_queues(*names) as url:
        took = []
        for _again in range(TIMES):
            began = time.perf_counter()
            console = screens.spawned([*COMMAND, "--url", url])
            console.expect("public.")
            took.append((time.perf_counter() - began, screens.cpu_seconds(console.pid)))
            screens.quit_console(console)
    seconds, cpu = (statistics.median(one) for one in zip(*took[1:], strict=True))
    yield Measured("first figures of nine queues", seconds, "s", 1.0, cpu)


# The screens.


def on_screens(arguments: argparse.Namespace) -> Iterator[Measured]:
    for queues in arguments.queues:
        speed = screens.measure(queues, arguments.seconds)
        print(f"  {speed.line}", file=sys.stderr, flush=True)
        of, ms = f"{queues} queues", 1000.0
        key, opening, once = speed.key_p95, speed.opening, speed.opened[0]
        key_aim = 30.0 if queues <= 20 else 50.0
        idle_aim = 2.0 if queues <= 20 else 6.0
        yield Measured(
            f"key to paint p95, {of}", key.seconds * ms, "ms", key_aim, key.cpu_seconds * ms
        )
        yield Measured(
            f"opening a queue, {of}", opening.seconds * ms, "ms", 60.0, opening.cpu_seconds * ms
        )
        yield Measured(f"the first one, {of}", once.seconds * ms, "ms", None, once.cpu_seconds * ms)
        yield Measured(f"idle, all figures change, {of}", speed.idle_share * 100, "%", idle_aim)
        yield Measured(f"idle, none changes, {of}", speed.still_share * 100, "%", idle_aim)
        yield Measured(f"idle on a queue's screen, {of}", speed.queue_share * 100, "%", idle_aim)
        yield Measured(
            f"memory, {of}",
            speed.memory_mb,
            "MB",
            75.0 if queues <= 20 else None,
            others=f"{number(speed.memory_end_mb)} MB after queues were opened",
        )


def on_fleet(arguments: argparse.Namespace) -> Iterator[Measured]:
    hosts, queues = arguments.fleet
    for figure in measure_fleet(hosts, queues, arguments.seconds):
        print(f"  {figure.line}", file=sys.stderr, flush=True)
        what = f"fleet of {hosts} x {queues}: {figure.what}"
        yield Measured(what, figure.value, figure.unit, figure.aim, figure.cpu)


def with_pg_activity(arguments: argparse.Namespace) -> Iterator[Measured]:
    """On the demo, with traffic."""
    program = arguments.pg_activity or shutil.which("pg_activity")
    if program is None:
        print("  pg_activity is not installed: --pg-activity PROGRAM", file=sys.stderr)
        return
    words = ("--beside-pg-activity", program, "--seconds", str(arguments.seconds))
    text = output_of("tests.tui.speed", *words)
    found = dict(re.findall(r"^(\S+) +([\d.]+)% +\d+ MB", text, re.M))
    memory = dict(re.findall(r"^(\S+) +[\d.]+% +(\d+) MB", text, re.M))
    name, other = "dbq-console", "pg_activity"
    for what, unit, aim, of in (("CPU", "%", 2.0, found), ("memory", "MB", 75.0, memory)):
        yield Measured(
            f"demo, {what}", float(of[name]), unit, aim, others=f"{other} {of[other]} {unit}"
        )


# The database.


def samples(arguments: argparse.Namespace) -> Iterator[Measured]:
    designs = [word for one in arguments.design for word in ("--design", one)]
    text = output_of("tests.tools.cost", "--rows", "10000", "--rows", str(arguments.rows), *designs)
    found: dict[str, list[tuple[int, float]]] = {}
    for name, pages, at_last in re.findall(r"^([a-z]+) .* (\d+) +([\d.]+)$", text, re.M):
        found.setdefault(name, []).append((int(pages), float(at_last)))
    for name, ((few_pages, few), (many_pages, many)) in found.items():
        others = f"{many} and {few} ms, {many_pages} and {few_pages} pages"
        what = f"sample at {arguments.rows:,} / at 10,000, {name}"
        yield Measured(what, many / few, "", 1.5, others=others)


def popping(arguments: argparse.Namespace) -> Iterator[Measured]:
    """The server session's CPU per message, popped in batches of 100."""
    count = min(arguments.rows, 90_000)
    with with_queues("fifo", "ring") as url, connect(url) as connection:
        took = {name: pop_all(connection, name, count) for name in ("fifo", "ring")}
    per = {name: seconds / count * 1e6 for name, seconds in took.items()}
    others = f"fifo {number(per['fifo'])} µs"
    yield Measured("`pop_many(100)` of a ring, CPU a message", per["ring"], "µs", others=others)
    yield Measured("the same / fifo's", per["ring"] / per["fifo"], "")


def pop_all(connection: "psycopg.Connection", name: str, count: int) -> float:
    push, pop = Identifier(f"{name}_push_many"), Identifier(f"{name}_pop_many")
    for _ in range(count // 1000):
        connection.execute(
            SQL("SELECT count(*) FROM {}(array_fill(repeat('x', 300), ARRAY[1000]))").format(push)
        )
    (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
    before = screens.thread_cpu_seconds(pid)
    got = 0
    while got < count // 1000 * 1000:
        rows = connection.execute(SQL("SELECT id FROM {}(100)").format(pop), prepare=True)
        got += len(rows.fetchall())
    return screens.thread_cpu_seconds(pid) - before


def discovering(_: argparse.Namespace) -> Iterator[Measured]:
    """Discover three libraries' tables in a database of many tables."""
    table = (
        "CREATE TABLE app_%s_%s (id bigserial PRIMARY KEY, name text, status text, payload jsonb, "
        "queue text, attempts integer, created_at timestamptz)"
    )
    with EmbeddedServer.start() as server, fresh_database(server.url) as url:
        with connect(url) as connection:
            for part in range(10):
                loop = "FOR n IN 1..500 LOOP EXECUTE format({}, {}, n); END LOOP"
                body = SQL(loop).format(Literal(table), Literal(part)).as_string(connection)
                connection.execute(f"DO $$ BEGIN {body}; END $$".encode())
        StandIn(url, "theirs").create(RIVER + SOLID_QUEUE + HANGFIRE)
        took = []
        with closing(open_database(url)) as database:
            with database.transaction("look", read_only=True) as session:
                pid = session.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            for _again in range(TIMES + 1):
                began = time.perf_counter()
                before = time.process_time() + screens.thread_cpu_seconds(pid)
                assert len(discovery.discover(database)) == 3
                cpu = time.process_time() + screens.thread_cpu_seconds(pid) - before
                took.append((time.perf_counter() - began, cpu))
    ms, cpu = (statistics.median(one) * 1000 for one in zip(*took[1:], strict=True))
    yield Measured("`discover` among 5,000 tables", ms, "ms", 100.0, cpu)


# The pipeline.


def archiving(arguments: argparse.Namespace) -> Iterator[Measured]:
    rows = min(arguments.rows, 2_000_000)
    text = output_of("tests.pipeline.speed", "--rows", str(rows)).partition("without Spark")[0]
    line = re.compile(r"^(.*?) +([\d.]+) s +(?:([\d,]+) rows/s)?", re.M)
    found = {what.strip(): (float(s), rate) for what, s, rate in line.findall(text)}
    rates = {what: float(rate.replace(",", "")) for what, (_, rate) in found.items() if rate}
    plain_rate, export = rates["ADBC + pyarrow to Parquet"], rates["archive: export"]
    others = f"{export:,.0f} and {plain_rate:,.0f} rows/s"
    what = "archive: export with checksums / plain ADBC + pyarrow"
    yield Measured(what, export / plain_rate, "", 0.9, at_least=True, others=others)
    full_size = rows == 2_000_000
    seconds, spark = found["archive: all of it"][0], found["start of Spark"][0]
    yield Measured(f"archive of {rows:,} rows", seconds, "s", 25.0 if full_size else None)
    spark += found["first tasks of Spark"][0]
    yield Measured("until Spark works", spark, "s", 8.0)


def on_cluster(arguments: argparse.Namespace) -> Iterator[Measured]:
    """The same rows with `local[2]`, then with two workers of one core each."""
    rows = min(arguments.rows, 2_000_000)
    text = output_of("tests.pipeline.speed", "--rows", str(rows), "--cluster")
    findall = re.findall(r"^(\S+): (.+?) +([\d.]+) s", text, re.M)
    took = {(where, phase): float(seconds) for where, phase, seconds in findall}
    for phase, what in (("all of it", f"archive of {rows:,} rows"), ("start", "until Spark works")):
        local, cluster = took["local[2]", phase], took["spark", phase]
        yield Measured(f"{what}, on a cluster", cluster, "s", others=f"`local[2]` {local} s")


def rolling(arguments: argparse.Namespace) -> Iterator[Measured]:
    count = min(max(arguments.rows, _FEWEST_SAMPLES), 2_000_000)
    lines = output_of("tests.pipeline.speed", "rollup", str(count)).splitlines()
    found = {one["run"]: one for one in map(json.loads, lines)}["first"]
    if not found["read"]:
        raise SystemExit("no sample was rolled up")
    aim = 120.0 if count == 2_000_000 else None
    what = f"rollup of {found['samples']:,} samples"
    others = f"{found['samples_per_second']:,} samples/s"
    yield Measured(what, found["seconds"], "s", aim, others=others)


def on_many(arguments: argparse.Namespace) -> Iterator[Measured]:
    """Each verb on so many messages, beside one plain statement that does the same."""
    for of in large.compare(min(arguments.rows, 1_000_000)):
        per_second, plain_rate = of.rows / of.run.seconds, of.rows / of.plain.seconds
        others = (
            f"{per_second:,.0f} and {plain_rate:,.0f} rows/s; by CPU {number(of.cpu_ratio)}; plan "
            f"{number(of.plan.seconds)} s"
        )
        yield Measured(
            f"{of.verb} of {of.rows:,} / one plain statement",
            of.ratio,
            "",
            0.5,
            of.cpu_ratio,
            at_least=True,
            others=others,
        )
        yield Measured(f"{of.verb}: the client's share", of.client_share * 100, "%", 10.0)


def on_doctor(arguments: argparse.Namespace) -> Iterator[Measured]:
    databases, queues = arguments.fleet
    spent = large.doctor_of_fleet(databases, queues)
    both = spent.client + spent.server
    others = f"a queue: client {number(spent.client / databases / queues * 1000)} ms, server "
    others += f"{number(spent.server / databases / queues * 1000)} ms"
    # Of two processors, as the aim is.
    what = f"`doctor` of {databases} x {queues} queues"
    yield Measured(what, spent.seconds, "s", 60.0, both / 2, others=others)


def on_memory(arguments: argparse.Namespace) -> Iterator[Measured]:
    """The most memory of each verb, on many messages and on large ones."""
    for peak in memory.peaks(arguments.rows, arguments.design):
        print(f"  {peak}", file=sys.stderr, flush=True)
        others = f"{number(peak.seconds)} s; exit status {peak.status}"
        what = f"memory of {peak.call}, {peak.messages}"
        yield Measured(what, peak.megabytes, "MB", 200.0, others=others)


def on_hour(arguments: argparse.Namespace) -> Iterator[Measured]:
    """An hour of traffic, or `--seconds`, on each design."""
    designs = arguments.design or list(designs_on("postgresql"))
    for of in hour.hours(designs, arguments.seconds, arguments.together):
        (began, ended), (size, grown) = of.rates, of.table_bytes
        beside = f" beside {len(designs) - 1} others" if arguments.together else ""
        what = f"{of.design}, {arguments.seconds:,.0f} s of traffic{beside}:"
        others = f"{began:,.0f} and {ended:,.0f} messages/s"
        yield Measured(
            f"{what} rate at the end / at the beginning",
            ended / began,
            "",
            0.95,
            at_least=True,
            others=others,
        )
        others = f"{size / 1e6:.1f} and {grown / 1e6:.1f} MB"
        yield Measured(f"{what} its tables, the same", grown / size, "", others=others)
        if arguments.together and of.design != designs[-1]:
            continue  # the programs watch all of them
        for program, (then, now) in of.memory.items():
            others = f"{then:.1f} and {now:.1f} MB"
            yield Measured(
                f"{what} memory of {program}, the same", now / then, "", 1.05, others=others
            )


ROWS: dict[str, Callable[[argparse.Namespace], Iterator[Measured]]] = {
    "start": start,
    "status": status,
    "first": first,
    "screens": on_screens,
    "fleet": on_fleet,
    "pg_activity": with_pg_activity,
    "sample": samples,
    "pop": popping,
    "discover": discovering,
    "archive": archiving,
    "cluster": on_cluster,
    "rollup": rolling,
    "large": on_many,
    "doctor": on_doctor,
    "memory": on_memory,
    "hour": on_hour,
}


def machine() -> str:
    """The time, the machine, and the other programs that used its CPU."""
    mine = {os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))}
    others = [
        f"{process.info['name']} {process.info['cpu_percent']:.0f} %"
        for process in psutil.process_iter(["pid", "name", "cpu_percent"])
        if process.info["pid"] not in mine and (process.info["cpu_percent"] or 0.0) > 10.0
    ]
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {psutil.cpu_count()} processors"
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    comparison = "; beside it " + ", ".join(others[:8]) if others else ""
    return f"{at}, load {load}{comparison}"


def write(run: str, rows: Sequence[str]) -> None:
    """Put the rows of a run into the table: instead of those with the same name, or at its end."""
    text = README.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    table, _, tail = rest.partition(END)
    said, *others = (line for line in table.splitlines() if line)
    by_name = {line.split(" | ")[0]: line for line in (*others, *rows)}
    lines = [BEGIN, f"{said} {run}", "", *by_name.values(), END]
    README.write_text(head + "\n".join(lines) + tail, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("row", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; else all")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measure on a screen")
    parser.add_argument("--queues", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--fleet", type=int, nargs=2, default=(60, 20), metavar=("HOSTS", "QUEUES"))
    parser.add_argument("--runs", type=int, default=1, help="of each row: medians and range")
    parser.add_argument("--rows", type=int, default=10_000_000, help="at most so many messages")
    parser.add_argument(
        "--design", action="append", default=[], help="for sample, hour, memory; else all"
    )
    parser.add_argument("--together", action="store_true", help="for hour: all designs at once")
    parser.add_argument("--pg-activity", metavar="PROGRAM")
    parser.add_argument("--write", action="store_true", help=f"into {README.name} of the bench")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.row if name not in ROWS]:
        parser.error(f"no such row: {', '.join(unknown)}")
    # As pip does: an environment may forbid it, and each start would compile what has changed.
    compileall.compile_dir(str(Path(console.__file__).parent), quiet=1)
    psutil.cpu_percent()
    machine()  # the first measurement of others has nothing to compare with
    lines = ["| | aim | measured | beside it | |", "| --- | --- | --- | --- | --- |"]
    for name in arguments.row or ROWS:
        runs = [list(ROWS[name](arguments)) for _ in range(arguments.runs)]
        for several in zip(*runs, strict=True):
            one = median(several) if arguments.runs > 1 else several[0]
            lines.append(f"| {' | '.join(one.cells)} |")
            print(lines[-1], flush=True)
    sizes = f"--rows {arguments.rows} --seconds {arguments.seconds:g} --runs {arguments.runs}"
    words = " ".join(["python -m tests.tools.speed", *arguments.row, sizes])
    run = f"`{words}`: {machine()}."
    print(run)
    if arguments.write:
        write(run, lines[2:])


if __name__ == "__main__":
    main()
