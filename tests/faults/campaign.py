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
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg

from console.features.demo.embedded import EmbeddedServer
from console.features.lake.archive.files import pq
from console.features.lake.lake import DATA, Lake
from tests.faults import campaign_balance
from tests.faults.campaign_balance import DOOMED, Locations, Result
from tests.faults.campaign_calls import Call, Order, Watch
from tests.faults.campaign_traffic import TICK_SECONDS, Size, Traffic, size
from tests.faults.campaign_verbs import SLOW_SECONDS, SOON
from tests.faults.harness.ledger import Ledger
from tests.servers import connect

_DRAIN_SECONDS = 90.0
"""Without progress, until draining is given up."""
_AT_ONCE = 2


class Campaign(Traffic):
    # -- the end

    def finish(self) -> Result:
        """Restore, repair, drain, count."""
        self.target.end_all_faults()
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
