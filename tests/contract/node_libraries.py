"""graphile-worker and pg-boss, each run by a Node process."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from tests.contract.libraries import LibraryApp, once
from tests.contract.packages import NodeTables, from_npm

_WORKER = """
import { run, runOnce } from "graphile-worker";
const ran = (helpers) =>
    helpers.query("INSERT INTO public.ran VALUES ($1)", [helpers.job.id]);
const { NUMBER, STAYS } = process.env;
await (NUMBER || STAYS ? run : runOnce)({
    pollInterval: 100,
    connectionString: process.env.URL,
    schema: process.env.SCHEMA,
    noHandleSignals: true,
    concurrency: Number(NUMBER ?? 1),
    taskList: {
        send: async (payload, helpers) => {
            if (STAYS) return ran(helpers);
            if (payload.fails) throw new Error(`no host ${payload.n}`);
        },
        hang: async (_, helpers) => {
            if (STAYS) return ran(helpers);
            console.log(`TAKEN ${helpers.job.id}`);
            await new Promise((go) => setTimeout(go, 1e8));
        },
    },
});
"""
"""While it STAYS no job fails or hangs."""


class GraphileApp(NodeTables, LibraryApp):
    """Its tables, and the calls of an application."""

    preset: ClassVar[str] = "graphile-worker"
    keeps: ClassVar[str] = 'SELECT "Their_Worker".force_unlock_workers'
    stays: ClassVar[str] = "retired by their job key: a newer job has taken their place"
    stays_in_plan: ClassVar[bool] = True
    waits: ClassVar[str] = "SELECT id FROM _private_jobs WHERE is_available"

    def install(self) -> None:
        """Run its own migrations."""
        cli = self.folder / "node_modules" / "graphile-worker" / "dist" / "cli.js"
        words = [str(cli), "--schema-only", "--schema", self.schema, "--connection", self.uri]
        subprocess.run([self.node, *words], check=True, capture_output=True, timeout=120)

    def add_job(self, task: str, payload: str = "{}", **more: str) -> int:
        """Add a job with its add_job; the id."""
        named = "".join(f", {name} => {value}" for name, value in more.items())
        ((job,),) = self.rows(f"SELECT id FROM add_job('{task}', '{payload}'{named})")
        return int(job)

    def work(self) -> None:
        """Run a worker until all due jobs are done."""
        with self.process(_WORKER) as worker:
            worker.communicate(timeout=120)
            assert worker.returncode == 0

    def add(self, number: int) -> list[int]:
        return [self.add_job("hang") for _ in range(number)]

    def fail(self, number: int) -> list[int]:
        jobs = [self.add_job("send", '{"fails": true}', max_attempts="1") for _ in range(number)]
        self.work()
        return jobs

    def replaced(self) -> tuple[int, int]:
        """Retired by its key while a worker runs it."""
        key = "'article'"
        job = self.add_job("hang", '{"price": 1}', job_key=key)
        self.leave(1)
        self.silence()
        newer = self.add_job("hang", '{"price": 2}', job_key=key, run_at="now() + interval '1 h'")
        self.recover()
        return job, newer

    def leave(self, number: int) -> list[int]:
        with self.process(_WORKER, NUMBER=str(number)) as worker:
            assert worker.stdout is not None
            taken: list[int] = []
            for line in worker.stdout:
                taken += [int(line.split()[1])] if line.startswith("TAKEN") else []
                if len(taken) == number:
                    break
            worker.send_signal(signal.SIGKILL)
        return taken

    def silence(self) -> None:
        past = "SET locked_at = now() - interval '1 h' WHERE locked_at IS NOT NULL"
        self.run(f"UPDATE _private_job_queues {past}; UPDATE _private_jobs {past}")

    def recover(self) -> None:
        dead = "locked_at < now() - interval '30 min'"
        self.run(
            f"SELECT force_unlock_workers(array_agg(locked_by)) FROM _private_jobs WHERE {dead}"
        )

    def working(self) -> AbstractContextManager["subprocess.Popen[str]"]:
        return self.process(_WORKER, STAYS="yes")


@once
def graphile_worker(url: str) -> GraphileApp:
    app = GraphileApp(url, "Their_Worker", from_npm("graphile-worker"))
    app.install()
    return app


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
await boss.work("mail", { pollingIntervalSeconds: 0.5, batchSize: 5, perJobResults: false },
    async (jobs) => {
    for (const job of jobs) await boss.getDb().executeSql("INSERT INTO public.ran VALUES ($1)",
        [job.id]);
});
"""
_HANG = """
await new Promise((_) => boss.work("mail", { batchSize: %d }, async (jobs) => {
    console.log("TOLD " + JSON.stringify(jobs.map((job) => job.id)));
    await new Promise((_) => setTimeout(_, 1e8));
}));
"""
_ADD = """
const ids = []; for (let n = 0; n < %d; n++) ids.push(await boss.send("mail", { n })); return ids;
"""
_FAIL = f"""
{_ADD.replace("return ids;", "")}
for (const job of await boss.fetch("mail", {{ batchSize: %d }}))
    await boss.fail("mail", job.id, "no host");
return ids;
"""
_REPLACED = """
await boss.createQueue("other", { retryLimit: 0, policy: "exclusive" });
const failed = await boss.send("other", { n: 1 }, { singletonKey: "one" });
for (const job of await boss.fetch("other")) await boss.fail("other", job.id, "no host");
return [failed, await boss.send("other", { n: 2 }, { singletonKey: "one" })];
"""


class PgBossApp(NodeTables, LibraryApp):
    """Its tables, and the calls of an application."""

    preset: ClassVar[str] = "pg-boss"
    release: ClassVar[Sequence[str]] = ("--unknown",)
    stays: ClassVar[str] = "its queue's policy lets only one job of its singletonKey wait"
    waits: ClassVar[str] = "SELECT id FROM job WHERE state IN ('created', 'retry')"

    def do(self, script: str) -> Any:
        """Run the script with a started `boss`, which creates its tables; the value it returns."""
        with self.process(_DRIVE, SCRIPT=script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        (printed,) = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(printed.removeprefix("TOLD "))

    def add(self, number: int) -> list[str]:
        return list(self.do(_ADD % number))

    def fail(self, number: int) -> list[str]:
        return list(self.do(_FAIL % (number, number)))

    def replaced(self) -> tuple[str, str]:
        failed, newer = self.do(_REPLACED)
        return failed, newer

    def leave(self, number: int) -> list[str]:
        script = _HANG % number
        with self.process(_DRIVE, SCRIPT=script, STAYS="yes") as process:
            jobs = _printed_value(process)
            process.send_signal(signal.SIGKILL)
        return list(jobs)

    def silence(self) -> None:
        self.run(
            """
            UPDATE job SET heartbeat_on = now() - interval '1 h',
                started_on = now() - interval '1 h' WHERE state = 'active'
            """
        )

    @contextmanager
    def working(self) -> Iterator[None]:
        with self.process(_DRIVE, SCRIPT=_WORK, STAYS="yes") as process:
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


@once
def pg_boss(url: str) -> PgBossApp:
    """With the queue `mail`."""
    app = PgBossApp(url, "their_boss", from_npm("pg-boss"))
    app.do('await boss.createQueue("mail", { retryLimit: 0 })')
    return app


BOSS_9 = """
import PgBoss from "pg-boss";
const boss = new PgBoss({ connectionString: process.env.URL, schema: process.env.SCHEMA,
    noSupervisor: true, noScheduling: true });
await boss.start();
for (let n = 0; n < 4; n++) await boss.send("mail", { n }, { retryLimit: 0 });
const [failed, done] = await boss.fetch("mail", 2);
await boss.fail(failed.id, new Error("no host 7")); await boss.complete(done.id);
await boss.fetch("mail", 1);
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
process.exit(0);
"""
BOSS_10_OPEN = """
const loaded = await import("pg-boss"); const PgBoss = loaded.PgBoss ?? loaded.default;
const boss = new PgBoss({ connectionString: process.env.URL, schema: process.env.SCHEMA,
    supervise: false, schedule: false });
await boss.start();
"""
BOSS_10 = (
    BOSS_10_OPEN
    + """
await boss.createQueue("mail", { name: "mail", retryLimit: 0 });
for (let n = 0; n < 4; n++) await boss.send("mail", { n }, { retryLimit: 0 });
const [failed, done] = await boss.fetch("mail", { batchSize: 2 });
await boss.fail("mail", failed.id, new Error("no host 7")); await boss.complete("mail", done.id);
await boss.fetch("mail", { batchSize: 1 });
await boss.send("mail", { n: 5 }, { startAfter: 3600 });
process.exit(0);
"""
)


def run_node(boss: NodeTables, script: str) -> None:
    with boss.process(script) as process:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0, out
