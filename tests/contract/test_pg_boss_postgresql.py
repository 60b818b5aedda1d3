"""pg-boss's own jobs: its workers make and end them, and the console shows the same."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.calls import Console
from tests.contract.libraries import adopt, counts, discovered, error_group, figures, planned
from tests.contract.packages import NodeTables, from_npm
from tests.servers import value, wait_until

_DRIVE = """
import { PgBoss } from "pg-boss";
const boss = new PgBoss({
    connectionString: process.env.URL, schema: process.env.SCHEMA, supervise: false,
        schedule: false, max: 3,
});
boss.on("error", (error) => { console.error(error); process.exit(1); });
await boss.start();
const AsyncFunction = (async () => {}).constructor;
const told = await new AsyncFunction("boss", process.env.SCRIPT)(boss);
console.log("TOLD " + JSON.stringify(told ?? null));
if (!process.env.STAYS) process.exit(0);
"""
_WORK = """
await boss.work(%s, { pollingIntervalSeconds: 0.5, batchSize: 5, perJobResults: false },
    async (jobs) => {
    for (const job of jobs) await boss.getDb().executeSql("INSERT INTO ran VALUES ($1, $2)",
        [job.id, process.pid]);
});
"""
_HANG = """
await new Promise((_) => boss.work(%s, { batchSize: 3 }, async (jobs) => {
    console.log("TOLD " + JSON.stringify(jobs.map((job) => job.id)));
    await new Promise((_) => setTimeout(_, 1e8));
}));
"""


class PgBossApp(NodeTables):
    """Its tables, and the calls of an application."""

    def do(self, script: str) -> Any:
        """Run the script with a started `boss`, which creates its tables; the value it returns."""
        with self.process(_DRIVE, SCRIPT=script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        (printed,) = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(printed.removeprefix("TOLD "))

    def leave(self, queue: str) -> list[str]:
        """A worker is killed while it runs a batch of three jobs; their ids."""
        with self.process(_DRIVE, SCRIPT=_HANG % json.dumps(queue), STAYS="yes") as process:
            jobs = _printed_value(process)
            process.send_signal(signal.SIGKILL)
        return list(jobs)

    @contextmanager
    def working(self, queue: str) -> Iterator[None]:
        """A worker runs jobs and writes each into the table `ran`."""
        with self.process(_DRIVE, SCRIPT=_WORK % json.dumps(queue), STAYS="yes") as process:
            _printed_value(process)
            yield


def _printed_value(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    out = []
    for line in process.stdout:
        if line.startswith("TOLD "):
            return json.loads(line.removeprefix("TOLD "))
        out.append(line)
    raise AssertionError("".join(out))


JOB = '"their_boss".job'
_SETUP = """
for (const name of ["mail", "report"]) await boss.createQueue(name, { retryLimit: 0,
    partition: name === "mail" });
for (let n = 0; n < 4; n++) await boss.send("mail", { n });
for (const job of await boss.fetch("mail", { batchSize: 2 })) await boss.fail("mail", job.id,
    new Error("no host " + job.data.n));
for (const job of await boss.fetch("mail", { batchSize: 1 })) await boss.complete("mail", job.id);
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
await boss.cancel("mail", await boss.send("mail", { n: 6 }));
for (let n = 0; n < 5; n++) await boss.send("report", { n });
"""


@pytest.fixture
def boss(console: Console) -> PgBossApp:
    return PgBossApp(console.url, "their_boss", from_npm("pg-boss"))


def own_counts(boss: PgBossApp, *queues: str) -> list[dict[str, int]]:
    """Its own counts for each queue."""
    stats = boss.do(
        f"return await Promise.all({json.dumps(queues)}"
        ".map(async (name) => (await boss.getQueueStats(name))[0]))"
    )
    names = {
        "ready": "readyCount",
        "scheduled": "deferredCount",
        "claimed": "activeCount",
        "errors": "failedCount",
    }
    return [{ours: stat[name] for ours, name in names.items()} for stat in stats]


@pytest.mark.long
def test_jobs_are_discovered_and_counted_and_those_of_a_killed_worker_released(
    console: Console, boss: PgBossApp
) -> None:
    boss.do(_SETUP)
    left = boss.leave("report")
    found = discovered(console, "pg-boss")
    assert int(found["version"]) >= 30
    assert (found["table"], found["queues"]) == ("job", ["mail", "report"])
    adopt(console, "pg-boss", "mail", "report")
    for name, own in zip(("mail", "report"), own_counts(boss, "mail", "report"), strict=True):
        assert figures(console, name).items() >= own.items()
    assert figures(console, "jobs") == counts(3, 1, 3, 0, 2, 1)
    number, words = error_group(console, "mail")
    assert (number, words.startswith("no host")) == (2, True)
    assert planned(console, "release", "report")["count"] == 0
    boss.run(
        """
        UPDATE job SET heartbeat_on = now() - interval '1 h', started_on = now() - interval '1 h'
        WHERE state = 'active'
        """
    )
    assert figures(console, "report")["stuck"] == 3
    boss.run("CREATE TABLE public.ran (id uuid, pid integer); GRANT ALL ON ran TO PUBLIC")
    with boss.working("report"), boss.working("report"):
        console.done("release", "report", "--unknown", "--yes")
        wait_until(lambda: figures(console, "report")["done"] == 5, "its workers ran all")
    ran = "SELECT count(*) || ' ' || count(DISTINCT id) FROM public.ran"
    assert value(console.url, ran) == "5 5"
    tried = f"SELECT string_agg(DISTINCT retry_count::text, ' ') FROM {JOB} WHERE name = 'report'"
    assert value(console.url, tried) == "0"
    assert len(left) == 3


@pytest.mark.long
def test_failed_jobs_are_retried_once_each_while_workers_run(
    console: Console, boss: PgBossApp
) -> None:
    boss.do(
        """
        await boss.createQueue("mail", { retryLimit: 0 });
        await boss.createQueue("other", { retryLimit: 0, policy: "exclusive" });
        for (let n = 0; n < 60; n++) await boss.send("mail", { n });
        for (const job of await boss.fetch("mail", { batchSize: 60 })) await boss.fail("mail",
            job.id, "no host");
        for (let n = 0; n < 3; n++) {
            await boss.send("other", { n }, { singletonKey: "one" });
            for (const job of await boss.fetch("other")) if (n < 2) await boss.fail("other",
                job.id, "no host");
        }
        """
    )
    boss.run("CREATE TABLE public.ran (id uuid, pid integer); GRANT ALL ON ran TO PUBLIC")
    adopt(console, "pg-boss")
    with boss.working("mail"), boss.working("mail"):
        done = console.done("requeue", "jobs", "--yes").text
        assert "policy lets only one job" in done
        left = f"SELECT count(*) FROM {JOB} WHERE name = 'mail' AND state <> 'completed'"
        wait_until(lambda: value(console.url, left) == 0, "its workers ran what was retried")
    assert value(console.url, "SELECT count(*) FROM ran") == 60
    assert value(console.url, "SELECT count(DISTINCT id) FROM ran") == 60
    assert figures(console, "jobs")["errors"] == 2
    console.done("release", "jobs", "--force", "--yes")
    assert figures(console, "jobs")["ready"] == 1
