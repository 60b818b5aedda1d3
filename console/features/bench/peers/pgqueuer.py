"""pgqueuer, used as documented: jobs that are enqueued, managers that run them.

On asyncpg, which its documentation measures as 1.7 times as fast as psycopg, in its own event loop.
Each client has a connection of its own; each consumer is a manager, as in its own benchmark. A
manager takes up to 100 jobs at once (`batch_size`, by default 10), even where the bench pushes
single messages, and deletes finished jobs in batches: its documentation advises more for short
jobs, and of 10, 25, 50 and 100 it was the fastest. Tables are `durable` (its default), with the
autovacuum settings that it recommends.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

import asyncpg
from pgqueuer import AsyncpgDriver, Job, JobId, PgQueuer, Queries
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, make_url

from console.features.bench.load_pipelined import connection_string
from console.features.bench.peers import is_lost, run_loop, until_over, url_in_schema
from console.load.worker_round import PAUSE_SECONDS, WorkerRound, now_us

ENTRYPOINT = "bench"
SMALLEST_BATCH = 100
_KNOWN = {
    *("host", "port", "user", "password", "dbname", "passfile", "target_session_attrs"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "options", "application_name"),
}
"""libpq's parameters that asyncpg knows, or passes to the server."""


def install(url: URL, application_name: str) -> None:
    """Its tables, in the first schema of the URL's search path."""
    asyncio.run(_install(url, application_name))


async def _install(url: URL, application_name: str) -> None:
    connection = await _connect(url, application_name)
    try:
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.optimize_autovacuum()
    finally:
        await connection.close()


def run(worker_round: WorkerRound) -> None:
    """Enqueue jobs or run them."""
    run_loop(_produce if worker_round.task.produces else _consume, worker_round)


async def _produce(worker_round: WorkerRound) -> None:
    connections = await _connections(worker_round)
    worker_round.begin()
    await asyncio.gather(
        *(
            _producer(worker_round, number, Queries(AsyncpgDriver(connection)))
            for number, connection in zip(worker_round.clients, connections, strict=True)
        )
    )
    await _close(connections)


async def _producer(worker_round: WorkerRound, number: int, queries: Queries) -> None:
    batch = worker_round.task.batch
    while not worker_round.finished():
        if not worker_round.may_push():
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        payloads: list[bytes | None] = [*worker_round.payloads(number, batch)]
        began = now_us()
        try:
            if batch == 1:
                await queries.enqueue(ENTRYPOINT, payloads[0])
            else:
                await queries.enqueue([ENTRYPOINT] * batch, payloads, [0] * batch)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            worker_round.failed(str(error))
            if is_lost(error):
                worker_round.push_in_doubt(number, batch)
                return
            continue
        worker_round.pushed(number, batch, batch, began)


async def _consume(worker_round: WorkerRound) -> None:
    connections = await _connections(worker_round)
    managers = [
        _manager(worker_round, number, AsyncpgDriver(connection))
        for number, connection in zip(worker_round.clients, connections, strict=True)
    ]
    worker_round.begin()
    batch_size = max(SMALLEST_BATCH, worker_round.task.batch)
    workers = [asyncio.create_task(manager.run(batch_size=batch_size)) for manager in managers]
    await until_over(worker_round, workers)
    for manager in managers:
        manager.shutdown.set()  # they finish their jobs
    for end in await asyncio.gather(*workers, return_exceptions=True):
        if isinstance(end, Exception):
            worker_round.failed(str(end))
    await _close(connections)


def _manager(worker_round: WorkerRound, number: int, driver: AsyncpgDriver) -> PgQueuer:
    manager = PgQueuer(
        driver, queries=_ReportingQueries(driver, worker_round=worker_round, client=number)
    )

    @manager.entrypoint(ENTRYPOINT)
    async def take(job: Job) -> None:
        """`_ReportingQueries` reports the message once the job is finished."""

    return manager


@dataclass
class _ReportingQueries(Queries):
    """Reports when jobs were fetched and finished."""

    worker_round: WorkerRound = field(kw_only=True)
    client: int = field(kw_only=True)
    taken: dict[JobId, tuple[int, int]] = field(default_factory=dict, init=False)
    in_doubt: set[JobId] = field(default_factory=set, init=False)

    async def dequeue(self, *given: Any, **named: Any) -> list[Job]:
        began = now_us()
        jobs = await super().dequeue(*given, **named)
        took = now_us() - began
        if not jobs:
            self.worker_round.popped(self.client, [], began)
        for job in jobs:
            self.taken[job.id] = began, took
        return jobs

    async def log_jobs(self, job_status: Any) -> None:
        try:
            await super().log_jobs(job_status)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            # The manager retries; each job is in doubt only once.
            new = {job.id for job, *_ in job_status} - self.in_doubt
            if is_lost(error) and new:
                self.in_doubt |= new
                self.worker_round.pop_in_doubt(len(new))
            raise
        finished = [job for job, status, _ in job_status if status == "successful"]
        for (began, took), jobs in groupby(finished, lambda job: self.taken.pop(job.id)):
            payloads = [job.payload or b"" for job in jobs]
            self.worker_round.popped(self.client, payloads, began, took)


async def _connections(worker_round: WorkerRound) -> list[asyncpg.Connection]:
    url = url_in_schema(make_url(worker_round.task.url), str(worker_round.task.settings["schema"]))
    return [await _connect(url, worker_round.task.application_name) for _ in worker_round.clients]


async def _connect(url: URL, application_name: str) -> asyncpg.Connection:
    parameters = conninfo_to_dict(
        connection_string(url.render_as_string(hide_password=False), application_name)
    )
    known = {name: str(value) for name, value in parameters.items() if name in _KNOWN}
    return await asyncpg.connect(f"postgresql://?{urlencode(known)}")


async def _close(connections: list[asyncpg.Connection]) -> None:
    for connection in connections:
        await connection.close()
