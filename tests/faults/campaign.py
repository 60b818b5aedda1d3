"""Traffic, operators, doctor, recorder, archive; kills and cuts; all at once, then the books.

`python -m tests.faults.campaign --minutes 30 --seed N` prints what was done and what came of it.

Clients in processes of their own push and pop, through a proxy and past it, and note before and
after each commit what they know. Operators type verbs at random. A recorder, serve-metrics and the
screens run all the time, the pipeline's archive again and again. Faults come one after another, by
a plan that the seed decides. At the end everything is healed, repaired, drained and counted: each
message that was acknowledged was popped once, or lies in one place, or was purged for good, which
the audit has counted.
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

from console.engines.embedded import EmbeddedServer
from console.pipeline.archive.files import pq
from console.pipeline.lake import DATA, Lake
from tests.faults import campaign_balance
from tests.faults.campaign_balance import DOOMED, Locations, Result
from tests.faults.campaign_calls import Call, Order, Watch
from tests.faults.campaign_traffic import TICK_SECONDS, Size, Traffic, size
from tests.faults.campaign_verbs import SLOW_SECONDS, SOON
from tests.faults.queue_client import Ledger
from tests.servers import connect

_DRAIN_SECONDS = 90.0
"""Files that may be damaged without losing a message."""
_AT_ONCE = 2


class Campaign(Traffic):
    # -- the end

    def finish(self) -> Result:
        """Restore, repair, drain, count."""
        self.conn.heal()
        while self.calls or self.archive is not None:
            self._tick(more=False)
            time.sleep(TICK_SECONDS)
        self.stops["producers"].touch()
        for service in self.services:
            tell = self.terminal.quit if service.name == "the screens" else None
            service.end(self.defects, tell)
        self.terminal.end()
        self.services.clear()
        self._mend()
        self._drain()
        self.stops["consumers"].touch()
        self._clients_end()
        self._leave_no_plan()
        return self._count()

    def _done(self, *words: str) -> Any:
        """The JSON output of a call."""
        call = self._call(Order([*words, "--json"], SLOW_SECONDS))
        self.calls.remove(call)
        out = self._waited(call)
        with suppress(ValueError):
            return json.loads(out)
        return {}

    def _waited(self, call: Call) -> bytes:
        while not call.poll(self.defects):
            time.sleep(TICK_SECONDS)
        return self._judge(call)

    def _mend(self) -> None:
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
                        self._done("doctor", name, *SOON, "--fix", "--yes", name)
                last = left
                time.sleep(2.0)

    def _ready(self, admin: psycopg.Connection) -> dict[str, int]:
        """The queues that still have messages, and how many."""
        counts = {name: campaign_balance.ready(admin, queue) for name, queue in self.queues.items()}
        return {name: count for name, count in counts.items() if count}

    def _clients_end(self) -> None:
        for process, _ in self._working:
            try:
                status = process.wait(60)
            except TimeoutError:
                self.defects.add("hangs", "a client did not end")
                process.kill()
            else:
                if status:
                    self.defects.add("clients", f"a client ended with {status}")

    def _leave_no_plan(self) -> None:
        """Finish interrupted archives: until then a row may be in two places."""
        for name in sorted(self.archived):
            call = self._driver(name)
            self._waited(call)
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
            result.notes += _left_behind(admin)
        result.counts = campaign_balance.balance(ledger, locations)
        self._look_at_files()
        result.refused = ledger.refused
        result.defects, result.descriptions = defects.counts, defects.descriptions
        return result

    def _check_figures(self, admin: psycopg.Connection) -> None:
        """Compare what status and doctor report of queues at rest."""
        for seen in self._done("status").get("queues", []):
            queue = self.queues.get(seen["queue"])
            if queue is not None and seen["ready"] != campaign_balance.ready(admin, queue):
                self.defects.add(
                    "figures", f"{seen['queue']}: status says {seen['ready']} are ready"
                )
        for one in self._done("doctor", *SOON).get("queues", []):
            if codes := [finding["code"] for finding in one["findings"]]:
                self.result.notes.append(f"doctor at the end, {one['queue']}: {codes}")

    def _look_at_files(self) -> None:
        """Search everything written: logs, states, recordings, the lake, screens."""
        self.defects.look_at(bytes(self.terminal.seen), "the screens")
        for path in sorted(self.folder.rglob("*")):
            if not path.is_file() or path.parent.name in {"clients", "worth-a-look"}:
                continue
            where = str(path.relative_to(self.folder))
            self.defects.look_at(path.read_bytes(), where)
            if path.suffix == DATA:  # compressed
                self.defects.look_at(repr(pq.read_table(path).to_pylist()).encode(), where)


def _purged(admin: psycopg.Connection) -> int:
    query = (
        "SELECT coalesce(sum(done), 0) FROM dbq.action"
        " WHERE verb = 'purge' AND queue_name = %s AND detail = 'deleted for good'"
    )
    return sum(int(done) for (done,) in admin.execute(query, [DOOMED]))


def _left_behind(admin: psycopg.Connection) -> list[str]:
    """Sessions, locks and scratch queues left behind."""
    looks = {
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
    for what, query in looks.items():
        for (count,) in admin.execute(query.encode()):
            if count:
                found.append(f"left at the end: {what}: {count}")
    return found


def campaign(server: EmbeddedServer, seed: int, how: Size) -> Result:
    """One campaign, on a database of its own. Outputs worth reading stay in a folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"campaign-{seed}-"))
    try:
        with ExitStack() as stack:
            one = Campaign(server, seed, how, folder, stack)
            with Watch(one.defects, one.metrics_url) as watch:
                one.begin()
                one.run()
                result = one.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}: look into {folder}")
        raise
    result.notes.append(f"scrapes: {dict(watch.scrapes)}")
    if result.is_well:
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
    # So that nothing of it is left, however it ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with EmbeddedServer.start() as server:
        result = campaign(server, chosen.seed, size(chosen.minutes))
    print("\n".join(result.lines()))
    sys.exit(0 if result.is_well else 1)


if __name__ == "__main__":
    main()
