"""Traffic, operators, doctor, recorder, archive, kills and cuts at once; then the balance.

`python -m tests.faults.campaign --minutes 30 --seed N` prints what was done and the result.

Client processes push and pop, through a proxy and directly, and log what they know before and after
each commit. Operators run random verbs. A recorder, serve-metrics and the screens run all the time,
the pipeline's archive repeatedly. Faults follow one another by a plan made from the seed. At the
end everything is restored, repaired, drained and counted: each acknowledged message was popped
once, or is in one location, or was purged for good, as counted by the audit.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import make_url

from console.features.demo.embedded import EmbeddedServer
from console.features.lake.archive.files import pq
from console.features.lake.lake import DATA, Lake
from tests.cli.calls import COMMAND
from tests.faults import campaign_balance
from tests.faults.campaign_balance import DOOMED, FEW, QUEUES, Locations, MessageCounts, Result
from tests.faults.campaign_calls import Call, Defects, FaultTimes, Order, Service, Terminal, Watch
from tests.faults.campaign_faults import ALWAYS, FAULTS, Planned, end_all, plan
from tests.faults.campaign_verbs import SLOW_SECONDS, SOON, SPARK_SECONDS, Operators
from tests.faults.harness.clients import CONSUMER, PRODUCER, Clients
from tests.faults.harness.ledger import Ledger
from tests.faults.harness.ring import wait_for_server
from tests.pipeline.driver import PHASES
from tests.servers import connect
from tests.servers.proxy import Proxy
from tests.tools.warm import Forked

_DRAIN_SECONDS = 90.0
"""Without progress, until draining is given up."""
_AT_ONCE = 2


ROOT = Path(__file__).resolve().parents[2]
_EXPECTED_ERRORS = ["55P03", "57014", "40P01"]
"""Errors of lock time-outs, statement time-outs and deadlocks."""
_KEYS = [b"j", b"k", b"\r", b"\x1b", b"\t", b"?", b"r", b"1", b"2", b"3", b"4", b"d", b" "]
TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Size:
    """The size of a campaign."""

    seconds: float
    queues: Sequence[str]
    clients: int
    """Producers, and half of the consumers, besides those of DOOMED."""
    operators: int
    """Calls at the same time."""
    think: float
    """Seconds between the starts of two calls, at most."""
    rest: float
    """Seconds between two transactions of a client."""
    pause: float
    """Seconds between two faults, at most."""
    archive_every: float
    """Seconds between two runs of the pipeline's archive, without Spark."""
    archived: Sequence[str] = ()
    """Empty: all."""
    spark_every: float = float("inf")
    """Seconds between two runs with Spark: of archive, or of verify."""
    metrics_and_screens: bool = True
    """Metrics and screens besides the recorder."""


def size(minutes: float) -> Size:
    if minutes < 1:
        return Size(
            minutes * 60, FEW, 1, 1, 3.0, 0.05, 1.0, 4.0, FEW[1:2], metrics_and_screens=False
        )
    return Size(minutes * 60, tuple(QUEUES), 3, 2, 1.0, 0.08, 6.0, 8.0, spark_every=150.0)


_POLICY = """
[unattended]
orphans = "always"
holes = "always"
claims_gone = "bound"
repairs_per_hour = 1000
rows_per_hour = 1_000_000
"""


class Campaign:
    """Clients, services, calls and faults. All but the checks run in one thread."""

    def __init__(
        self, server: EmbeddedServer, seed: int, campaign_size: Size, folder: Path, stack: ExitStack
    ) -> None:
        self.campaign_size = campaign_size
        self.folder = folder
        self.chance = random.Random(f"campaign {seed}")
        self.url = server.create_database(f"campaign {seed} {time.monotonic_ns()}")
        self.queues = campaign_balance.installed(self.url, campaign_size.queues)
        self.proxy: Proxy = stack.enter_context(Proxy(self.url))
        self.server: EmbeddedServer = server
        self.fault_times = FaultTimes()
        secret = make_url(self.url).password or ""
        self.defects = Defects(secret.encode(), folder / "worth-a-look")
        self.result = Result(seed, MessageCounts())
        for name in ("clients", "calls", "home", "lake"):
            (folder / name).mkdir()
        self.environment = _environment(folder / "home", secret)
        configuration = folder / "home" / ".config" / "dbq-console" / "config.toml"
        configuration.parent.mkdir(parents=True)
        configuration.write_text(_POLICY)
        self.dice = random.Random(f"faults {seed}")
        """Of the faults."""
        self.faults = plan(self.dice, campaign_size.seconds, campaign_size.pause)
        self.held: list[psycopg.Connection] = []
        self.paused: list[Forked] = []
        self.operators = Operators(
            self.queues, random.Random(f"verbs {seed}"), folder / "clients" / "operator.log"
        )
        self.clients = Clients(folder / "clients", "", chance=self.chance)
        self.stops = {kind: folder / f"stop-{kind}" for kind in ("producers", "consumers")}
        self._running_clients: list[tuple[Forked, Callable[[], None]]] = []
        self.calls: list[Call] = []
        self.archive: Call | None = None
        self.archived: set[str] = set()
        self._call_at = time.monotonic()
        self._archive_at = time.monotonic() + campaign_size.archive_every
        self._spark_at = time.monotonic() + campaign_size.spark_every / 2
        self._number = 0
        self.metrics_out = folder / "metrics.out"
        self.terminal = Terminal(["--no-record"], self._console_environment())
        self.services: list[Service] = []
        stack.callback(self._end_all_processes)

    # -- processes

    def begin(self) -> None:
        for number in range(self.campaign_size.clients):
            self._client(PRODUCER, "producers", through_proxy=number % 2 == 0)
            for through_proxy in (False, True):
                self._client(CONSUMER, "consumers", through_proxy=through_proxy)
        if DOOMED in self.queues:
            self._client(PRODUCER, "producers", through_proxy=True, only=DOOMED)
            self._client(CONSUMER, "consumers", through_proxy=True, only=DOOMED)
        # Two recorders, of which one repairs what the policy of the configuration allows.
        second = self._service("record", "--recordings", str(self.folder / "second"))
        self.services = [Service("record", self._service("record")), Service("record", second)]
        if self.campaign_size.metrics_and_screens:
            self.services.append(Service("serve-metrics", self._metrics))
            self.services.append(Service("the screens", self.terminal.begin))
        self.clients.wait_for_progress(2_000)

    def _client(self, calls: list[str], kind: str, *, through_proxy: bool, only: str = "") -> None:
        """A producer or a consumer; it is replaced after a kill."""

        def begin() -> None:
            queues = [only] if only else [name for name in self.queues if name != DOOMED]
            self.clients.start(
                calls,
                *queues,
                name=only or "client",
                conninfo=_conninfo(self.proxy.url if through_proxy else self.url),
                stop=str(self.stops[kind]),
                largest_transaction=3,
                rolled_back=0.03,
                retried=0.0,
                one_queue=True,
                log_before_commit=True,
                pause_seconds=self.campaign_size.rest * (4 if only else 1),
                claiming=[name for name in queues if self.queues[name].finishes],
                kept=[name for name in queues if campaign_balance.keeps_popped(self.queues[name])],
                expected_errors=_EXPECTED_ERRORS,
            )
            self._running_clients.append((self.clients.processes[-1], begin))

        begin()

    def _console_environment(self, *, through_proxy: bool = True) -> dict[str, str]:
        return {**self.environment, "DBQ_URL": self.proxy.url if through_proxy else self.url}

    def _service(
        self, *words: str, out: Path | None = None
    ) -> Callable[[], "subprocess.Popen[bytes]"]:
        def begin() -> "subprocess.Popen[bytes]":
            log = self.folder / f"{words[0]}.log"
            with (out or log).open("wb" if out else "ab") as stdout, log.open("ab") as stderr:
                return subprocess.Popen(
                    [*COMMAND, *words],
                    env=self._console_environment(),
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )

        return begin

    def _metrics(self) -> "subprocess.Popen[bytes]":
        words = ("serve-metrics", "--listen", "127.0.0.1:0", "--interval", "2s")
        return self._service(*words, out=self.metrics_out)()

    def metrics_url(self) -> str:
        """Their current URL, if known."""
        with suppress(OSError):
            return self.metrics_out.read_text().strip()
        return ""

    # -- the campaign

    def run(self) -> None:
        """Run until the time is over, with the planned faults."""
        began = time.monotonic()
        ends = began + self.campaign_size.seconds
        for number, fault in enumerate(self.faults):
            # Those of ALWAYS come first and always run; on a slow machine the rest is skipped.
            if number < len(ALWAYS) or time.monotonic() < ends:
                self._until(began + fault.at)
                self._run_fault(fault)
        self._until(ends)

    def _run_fault(self, planned: Planned) -> None:
        fault = FAULTS[planned.name]
        self.result.faults[planned.name] += 1
        began = time.monotonic()
        if fault.breaks:
            self.fault_times.begin()
        fault.begin(self)
        self._until(began + planned.lasts)
        fault.end(self)
        if fault.breaks:
            wait_for_server(self.url)
            self.fault_times.end()

    def _until(self, moment: float) -> None:
        while True:
            self._tick()
            if time.monotonic() >= moment:
                return
            time.sleep(TICK_SECONDS)

    def _tick(self, *, more: bool = True) -> None:
        self._check_calls()
        for service in self.services:
            service.restart_if_ended(self.defects, self.fault_times)
        if not more:
            return
        now = time.monotonic()
        if len(self.calls) < self.campaign_size.operators and now >= self._call_at:
            self._call_at = now + self.chance.uniform(0, self.campaign_size.think)
            self._call(self.operators.next(), through_proxy=self.chance.random() < 0.7)
        if self.archive is None:
            self._begin_archive()
        if self.campaign_size.metrics_and_screens and self.chance.random() < 0.1:
            self.terminal.press(self.chance.choice(_KEYS))

    def _call(self, order: Order, *, through_proxy: bool = False) -> Call:
        call = Call.begin(
            order, self._outputs(), self._console_environment(through_proxy=through_proxy)
        )
        self.calls.append(call)
        return call

    def _outputs(self) -> Path:
        self._number += 1
        return self.folder / "calls" / f"{self._number}"

    def _check_calls(self) -> None:
        for call in [call for call in self.calls if call.poll(self.defects)]:
            self.calls.remove(call)
            self._check(call)
        if self.archive is not None and self.archive.poll(self.defects):
            self._check(self.archive)
            self.archive = None

    def _check(self, call: Call) -> bytes:
        out = call.check(self.defects, self.fault_times)
        ended = "killed" if call.status < 0 else f"exit {call.status}"
        self.result.operations[call.order.verb, ended] += 1
        self.operators.record(call, out)
        return out

    def _begin_archive(self) -> None:
        """Archive one queue, in a process that kills itself at some point; sometimes on Spark."""
        now = time.monotonic()
        if now < self._archive_at:
            return
        self._archive_at = now + self.campaign_size.archive_every
        name = self.chance.choice(self.campaign_size.archived or self.campaign_size.queues)
        if now >= self._spark_at:
            self._spark_at = now + self.campaign_size.spark_every
            self.archive = self._spark(name)
        else:
            phase = self.chance.choice([*PHASES.values(), ""])
            self.archive = self._driver(name, phase, self.chance.choice([5, 50, 500, 2000]))

    def _driver(self, name: str, phase: str = "", steps: int = 0) -> Call:
        """The job without Spark; with a phase it kills itself there."""
        self.archived.add(name)
        url_without_password = make_url(self.proxy.url)._replace(password=None).render_as_string()
        kill_at = [phase, str(steps)] if phase else []
        words = ["pipeline", "archive", name, str(self.folder / "lake"), *kill_at]
        order = Order(words, 120.0, may_die=bool(phase))
        program = [sys.executable, "-c", _DRIVE]
        environment = {**self.environment, "DBQ_URL": url_without_password}
        return Call.begin(order, self._outputs(), environment, program)

    def _spark(self, name: str) -> Call:
        """The shipped job, or a verification of what it wrote to the lake."""
        lake = ["--lake", str(self.folder / "lake"), "--master", "local[2]", "--json"]
        queue = self.queues[name]
        if queue.options.get("archive_at_pop") == "on" and self.chance.random() < 0.5:
            words = ["pipeline", "verify", name, *lake]
        else:
            words = ["pipeline", "archive", name, "--retention", "0s", "--yes", name, *lake]
            self.archived.add(name)
        order = Order(words, SPARK_SECONDS, may_be_wrong=words[1] == "verify")
        return Call.begin(order, self._outputs(), self._console_environment())

    # -- processes that can be killed

    def kill_client(self) -> None:
        """SIGKILL one client, which is replaced."""
        alive = [pair for pair in self._running_clients if pair[0].poll() is None]
        if alive:
            pair = self.chance.choice(alive)
            pair[0].kill()
            pair[0].wait()
            self._running_clients.remove(pair)
            pair[1]()

    def kill_operator(self) -> None:
        if self.calls:
            self.chance.choice(self.calls).kill()

    def kill_service(self) -> None:
        self.chance.choice(self.services[:3]).kill()

    def pause_client(self) -> None:
        """SIGSTOP one client."""
        alive = [process for process, _ in self._running_clients if process.poll() is None]
        for process in self.dice.sample(alive, min(1, len(alive))):
            process.send_signal(signal.SIGSTOP)
            self.paused.append(process)

    def resume_clients(self) -> None:
        while self.paused:
            self.paused.pop().send_signal(signal.SIGCONT)

    def kill_archive(self) -> None:
        if self.archive is not None:
            self.archive.kill()

    def _end_all_processes(self) -> None:
        for call in [*self.calls, *([self.archive] if self.archive else [])]:
            call.kill()
        for service in self.services:
            service.process.kill()
            service.process.wait()
        for process in self.clients.processes:
            process.kill()
            process.wait()
        end_all(self)

    # -- the end

    def finish(self) -> Result:
        """Restore, repair, drain, count."""
        end_all(self)
        while self.calls or self.archive is not None:
            self._tick(more=False)
            time.sleep(TICK_SECONDS)
        self.stops["producers"].touch()
        for service in self.services:
            stop = self.terminal.quit if service.name == "the screens" else None
            service.end(self.defects, stop)
        self.terminal.end()
        self.services.clear()
        self._repair_all()
        self._drain()
        self.stops["consumers"].touch()
        self._wait_for_clients()
        self._finish_archives()
        return self._count()

    def _json_output(self, *words: str) -> Any:
        """The JSON output of a call."""
        call = self._call(Order([*words, "--json"], SLOW_SECONDS))
        self.calls.remove(call)
        out = self._wait_for(call)
        with suppress(ValueError):
            return json.loads(out)
        return {}

    def _wait_for(self, call: Call) -> bytes:
        while not call.poll(self.defects):
            time.sleep(TICK_SECONDS)
        return self._check(call)

    def _repair_all(self) -> None:
        """Doctor and release, as an operator does afterwards; two at a time."""
        orders: list[Sequence[str]] = []
        for name, queue in self.queues.items():
            yes = ("--yes", name, "--json")
            if queue.design.name == "ring":
                orders.append(("doctor", name, *SOON, "--fix", *yes))
            if queue.finishes:
                orders.append(("release", name, "--force", "--filter", "older=0s", *yes))
        while orders or self.calls:
            if orders and len(self.calls) < _AT_ONCE:
                self._call(Order(orders.pop(), SLOW_SECONDS))
            self._tick(more=False)
            time.sleep(TICK_SECONDS)

    def _drain(self) -> None:
        """By the clients; orphans of their rollbacks are repaired by the doctor."""
        deadline, last = 0.0, dict[str, int]()
        with connect(self.url) as admin:
            while left := self._ready(admin):
                if not last or sum(left.values()) < sum(last.values()):
                    deadline = time.monotonic() + _DRAIN_SECONDS
                elif time.monotonic() > deadline:
                    self.defects.add("hangs", f"not drained: {left}")
                    return
                for name in left.keys() & last.keys():
                    if left[name] == last[name] and self.queues[name].design.name == "ring":
                        self._json_output("doctor", name, *SOON, "--fix", "--yes", name)
                last = left
                time.sleep(2.0)

    def _ready(self, admin: psycopg.Connection) -> dict[str, int]:
        """The queues that still have messages, and how many."""
        counts = {name: campaign_balance.ready(admin, queue) for name, queue in self.queues.items()}
        return {name: count for name, count in counts.items() if count}

    def _wait_for_clients(self) -> None:
        for process, _ in self._running_clients:
            try:
                status = process.wait(60)
            except TimeoutError:
                self.defects.add("hangs", "a client did not end")
                process.kill()
            else:
                if status:
                    self.defects.add("clients", f"a client ended with {status}")

    def _finish_archives(self) -> None:
        """Finish interrupted archives: until then a row may be in two places."""
        for name in sorted(self.archived):
            call = self._driver(name)
            self._wait_for(call)
            if call.status:
                self.defects.add("exits", f"the last archive of {name!r}: {call.status}")

    def _count(self) -> Result:
        result, defects = self.result, self.defects
        ledger = Ledger.read(sorted((self.folder / "clients").glob("*.log")))
        for error in ledger.errors:
            defects.add("clients", error)
        with connect(self.url) as admin:
            self._check_figures(admin)
            queues = self.queues.values()
            locations = Locations(
                Counter(text for q in queues for text in campaign_balance.in_tables(admin, q)),
                Counter(text for q in queues for text in campaign_balance.in_archive(admin, q)),
                Counter(campaign_balance.in_lake(Lake(self.folder / "lake"))),
                _purged(admin),
            )
            result.notes += _leftovers(admin)
        result.counts = campaign_balance.balance(ledger, locations)
        self._search_files()
        result.refused = ledger.refused
        result.defects, result.descriptions = defects.counts, defects.descriptions
        return result

    def _check_figures(self, admin: psycopg.Connection) -> None:
        """Compare what status and doctor report of queues at rest."""
        for status in self._json_output("status").get("queues", []):
            queue = self.queues.get(status["queue"])
            if queue is not None and status["ready"] != campaign_balance.ready(admin, queue):
                self.defects.add(
                    "figures", f"{status['queue']}: status says {status['ready']} are ready"
                )
        for diagnosis in self._json_output("doctor", *SOON).get("queues", []):
            if codes := [finding["code"] for finding in diagnosis["findings"]]:
                self.result.notes.append(f"doctor at the end, {diagnosis['queue']}: {codes}")

    def _search_files(self) -> None:
        """Search everything written: logs, states, recordings, the lake, screens."""
        self.defects.search(bytes(self.terminal.output), "the screens")
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file() or path.parent.name in {"clients", "worth-a-look"}:
                continue
            where = str(path.relative_to(self.folder))
            self.defects.search(path.read_bytes(), where)
            if path.suffix == DATA:  # compressed
                self.defects.search(repr(pq.read_table(path).to_pylist()).encode(), where)


_DRIVE = """
import sys
from console.errors import ConsoleError
from tests.pipeline import driver
driver.RANGE_ROWS, driver.BATCH = 300, 50
del sys.argv[1:3]
try:
    driver.main()
except ConsoleError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_status)
"""


def _environment(home: Path, secret: str) -> dict[str, str]:
    """With a new home; libpq's variable has the password, for URLs without it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DBQ_", "PG", "XDG_"))}
    more = {"HOME": str(home), "PGPASSWORD": secret, "DBQ_LOG_LEVEL": "debug"}
    return {**kept, **more, "PYTHONPATH": str(ROOT)}


def _conninfo(url: str) -> str:
    target = make_url(url)
    return make_conninfo(
        host=target.host,
        port=target.port,
        user=target.username,
        password=target.password,
        dbname=target.database,
        connect_timeout=10,
        options="-c lock_timeout=6s -c statement_timeout=20s",
    )


def _purged(admin: psycopg.Connection) -> int:
    query = (
        "SELECT coalesce(sum(done), 0) FROM dbq.action"
        # Behind it an action that was cut off says why.
        " WHERE verb = 'purge' AND queue_name = %s AND starts_with(detail, 'deleted for good')"
    )
    return sum(int(done) for (done,) in admin.execute(query, [DOOMED]))


def _leftovers(admin: psycopg.Connection) -> list[str]:
    """Sessions, locks and scratch queues left behind."""
    queries = {
        "sessions of the console": (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'dbq%'"
            " AND datname = current_database()"
        ),
        "advisory locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
        "open transactions": (
            "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL"
            " AND datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ),
        "actions that still say running": "SELECT count(*) FROM dbq.action WHERE ended_at IS NULL",
    }
    found = []
    for description, query in queries.items():
        for (count,) in admin.execute(query.encode()):
            if count:
                found.append(f"left at the end: {description}: {count}")
    return found


def campaign(server: EmbeddedServer, seed: int, campaign_size: Size) -> Result:
    """One campaign, on a database of its own. Outputs worth reading stay in a folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"campaign-{seed}-"))
    try:
        with ExitStack() as stack:
            case = Campaign(server, seed, campaign_size, folder, stack)
            with Watch(case.defects, case.metrics_url) as watch:
                case.begin()
                case.run()
                result = case.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}: look into {folder}")
        raise
    result.notes.append(f"scrapes: {dict(watch.scrapes)}")
    if result.passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        result.folder = str(folder)
    return result


def main() -> None:
    """Print the table; exit 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    # So that its processes are ended in any case.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with EmbeddedServer.start() as server:
        result = campaign(server, chosen.seed, size(chosen.minutes))
    print("\n".join(result.lines()))
    sys.exit(0 if result.passed else 1)


if __name__ == "__main__":
    main()
