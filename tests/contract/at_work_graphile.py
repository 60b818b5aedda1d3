"""graphile-worker itself, as npm has it, on a Node of its own: its tables, jobs and workers."""

import signal
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

from tests.contract.foreign_process import foreign_process
from tests.servers import connect, run_in

_WORKER = """
import { run, runOnce } from "graphile-worker";
await (process.env.STAYS ? run : runOnce)({
    pollInterval: 100,
    connectionString: process.env.URL,
    schema: process.env.WORKER_SCHEMA,
    noHandleSignals: true,
    taskList: {
        send: async (payload, helpers) => {
            if (payload.fails) throw new Error(`no host ${payload.n}`);
            const ran = "INSERT INTO public.ran VALUES ($1)";
            if (payload.told) await helpers.query(ran, [payload.n]);
        },
        hang: async () => { console.log("TAKEN"); await new Promise((go) => setTimeout(go, 1e8)); },
    },
});
"""


@dataclass(frozen=True)
class GraphileAtWork:
    """Its tables in one schema, and what its application would do."""

    url: str
    place: Path
    schema: str = "Their_Worker"

    def install(self) -> None:
        """By its own migrations."""
        cli = self.place / "node_modules" / "graphile-worker" / "dist" / "cli.js"
        words = [str(cli), "--schema-only", "--schema", self.schema, "--connection", self._uri]
        subprocess.run(
            [self._node, *words], cwd=self.place, check=True, capture_output=True, timeout=120
        )

    def empty(self) -> None:
        """As it was installed: no jobs, and nothing of the console's."""
        tables = "_private_jobs, _private_job_queues, _private_tasks"
        self.run(f"TRUNCATE {tables} CASCADE; DROP SCHEMA IF EXISTS dbq CASCADE")

    def add(self, task: str, payload: str = "{}", **more: str) -> int:
        """By its own add_job; the job's id."""
        named = "".join(f", {name} => {value}" for name, value in more.items())
        call = f"SELECT id FROM \"{self.schema}\".add_job('{task}', '{payload}'{named})"
        with connect(self.url) as connection:
            (row,) = connection.execute(call.encode()).fetchall()
            return int(row[0])

    def run(self, script: str) -> None:
        """SQL, with its schema first on the path."""
        run_in(self.url, self.schema, script)

    def work(self) -> None:
        """A worker works on all that is due, and ends."""
        with self._worker() as worker:
            worker.communicate(timeout=120)
            assert worker.returncode == 0

    def leave(self) -> None:
        """A worker takes a job that hangs, and is killed."""
        with self._worker() as worker:
            assert worker.stdout is not None
            assert any("TAKEN" in line for line in worker.stdout)
            worker.send_signal(signal.SIGKILL)

    def working(self) -> AbstractContextManager["subprocess.Popen[str]"]:
        """A worker works on what comes, until it is killed at the end."""
        return self._worker(stays=True)

    def _worker(self, *, stays: bool = False) -> AbstractContextManager["subprocess.Popen[str]"]:
        words = [self._node, "--input-type=module", "--eval", _WORKER]
        more = {"URL": self._uri, "WORKER_SCHEMA": self.schema, "STAYS": "yes" if stays else ""}
        return foreign_process(words, more, self.place)

    @property
    def _node(self) -> str:
        return str(self.place / "node_modules" / "node" / "bin" / "node")

    @property
    def _uri(self) -> str:
        url = make_url(self.url).set(drivername="postgres")
        return url.render_as_string(hide_password=False)
