"""pg-boss itself, as npm has it, on a Node of its own: its tables, jobs and workers."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from tests.contract.foreign_process import foreign_process
from tests.servers import run_in

_DRIVE = """
import { PgBoss } from "pg-boss";
const boss = new PgBoss({
    connectionString: process.env.URL, schema: process.env.BOSS_SCHEMA, supervise: false,
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


@dataclass(frozen=True)
class PgBossAtWork:
    """Its tables in one schema, and what its application would do."""

    url: str
    place: Path
    schema: str = "their_boss"

    def do(self, script: str) -> Any:
        """What the script returns; `boss` is started, which makes its tables."""
        with self.process(script) as process:
            out, _ = process.communicate(timeout=120)
            assert process.returncode == 0, out
        (told,) = [line for line in out.splitlines() if line.startswith("TOLD ")]
        return json.loads(told.removeprefix("TOLD "))

    def leave(self, queue: str) -> list[str]:
        """A worker is killed in the midst of a batch of three; the ids of its jobs."""
        with self.process(_HANG % json.dumps(queue), stays=True) as process:
            told = _told(process)
            process.send_signal(signal.SIGKILL)
        return list(told)

    @contextmanager
    def working(self, queue: str) -> Iterator[None]:
        """A worker is at it; what it runs it writes into the table `ran`."""
        with self.process(_WORK % json.dumps(queue), stays=True) as process:
            _told(process)
            yield

    def process(
        self, script: str, *, stays: bool = False
    ) -> AbstractContextManager["subprocess.Popen[str]"]:
        surroundings = {
            "URL": make_url(self.url).set(drivername="postgres").render_as_string(False),
            "BOSS_SCHEMA": self.schema,
            "SCRIPT": script,
            "STAYS": "yes" if stays else "",
        }
        node = self.place / "node_modules" / "node" / "bin" / "node"
        words = [str(node), "--input-type=module", "--eval", _DRIVE]
        return foreign_process(words, surroundings, self.place)

    def run(self, script: str) -> None:
        run_in(self.url, self.schema, script)


def _told(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    out = []
    for line in process.stdout:
        if line.startswith("TOLD "):
            return json.loads(line.removeprefix("TOLD "))
        out.append(line)
    raise AssertionError("".join(out))
