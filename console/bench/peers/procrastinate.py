"""procrastinate as its documentation has it used: tasks that are deferred, workers that run them.

Its own asynchronous connector on a pool with one connection for each client. Set for speed where
its documentation leaves it open: the pool commits at once (else each call is BEGIN, call, COMMIT)
and does not look before each call whether a connection lives. As many workers as consumers: each
fetches jobs one by one, so a single worker with a high `concurrency` waits for its own fetches and
had a third of the speed. They poll as often as the bench's own consumers do, and do not LISTEN: a
push would wake them all. Jobs that succeeded are deleted (`delete_jobs="successful"`), as the
designs do it. A batch is one of deferring (`batch_defer_async`); there is none of fetching.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.tasks import Task
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import URL, make_url

from console.bench.peers.shared import is_lost, run_loop, until_over, url_in_schema
from console.bench.prepared import connection_string
from console.bench.shift import LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, Shift, now_us

QUEUE = "bench"
_CONNECT_SECONDS = 20.0

Take = Task[..., Any, Any]


def install(url: URL, application_name: str) -> None:
    """Its tables, in the first schema of the URL's search path."""
    conninfo = connection_string(url.render_as_string(hide_password=False), application_name)
    app = App(connector=SyncPsycopgConnector(conninfo=conninfo, min_size=1, max_size=1))
    with app.open():
        app.schema_manager.apply_schema()


def run(shift: Shift) -> None:
    """Defer jobs or run them."""
    run_loop(_produce if shift.task.produces else _consume, shift)


async def _produce(shift: Shift) -> None:
    async with _app(shift) as (_, task):
        shift.begin()
        await asyncio.gather(*(_producer(shift, number, task) for number in shift.clients))


async def _producer(shift: Shift, number: int, task: Take) -> None:
    batch = shift.task.batch
    while not shift.over():
        if not shift.may_push():
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        jobs = [{"p": payload.decode()} for payload in shift.payloads(number, batch)]
        asked = now_us()
        try:
            if batch == 1:
                await task.defer_async(**jobs[0])
            else:
                await task.batch_defer_async(*map(dict[str, Any], jobs))
        except ConnectorException as error:
            shift.failed(_words(error))
            if _lost(error):
                shift.push_in_doubt(number, batch)
                return
            continue
        shift.pushed(number, batch, batch, asked)


async def _consume(shift: Shift) -> None:
    async with _app(shift) as (app, _):
        app.job_manager = _Telling(app.connector, shift)
        shift.begin()
        workers = [
            asyncio.create_task(
                app.run_worker_async(
                    queues=[QUEUE],
                    delete_jobs="successful",
                    listen_notify=False,
                    fetch_job_polling_interval=LONGEST_PAUSE_SECONDS,
                    install_signal_handlers=False,
                )
            )
            for _ in shift.clients
        ]
        await until_over(shift, workers)
        for worker in workers:
            worker.cancel()  # it ends what it has begun
        for end in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(end, Exception):
                shift.failed(_words(end))


@asynccontextmanager
async def _app(shift: Shift) -> AsyncIterator[tuple[App, Take]]:
    url = url_in_schema(make_url(shift.task.url), str(shift.task.settings["schema"]))
    conninfo = connection_string(
        url.render_as_string(hide_password=False), shift.task.application_name
    )
    clients = shift.task.clients
    async with AsyncConnectionPool(
        conninfo, min_size=clients, max_size=clients, configure=_commit_at_once, open=False
    ) as pool:
        await pool.wait(timeout=_CONNECT_SECONDS)
        app = App(connector=PsycopgConnector())

        @app.task(queue=QUEUE, name="take")
        async def take(p: str) -> None:
            """The message was handed over in `p`; `_Telling` tells of it once all is finished."""

        async with app.open_async(pool):
            yield app, take


async def _commit_at_once(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


class _Telling(JobManager):
    """Does as its base does, and tells when a job was fetched and when it was finished."""

    def __init__(self, connector: BaseConnector, shift: Shift) -> None:
        super().__init__(connector)
        self._shift = shift
        self._clients: dict[int, int] = {}
        """Of each worker: it has one job at a time, so what it gets has an order."""
        self._taken: dict[int | None, tuple[int, int, int]] = {}

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        asked = now_us()
        job = await super().fetch_job(queues, worker_id)
        if job is None:
            self._shift.popped(self._shift.task.first, [], asked)
        else:
            client = self._clients.setdefault(
                worker_id, self._shift.task.first + len(self._clients)
            )
            self._taken[job.id] = client, asked, now_us() - asked
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:  # noqa: FBT001
        client, asked, took = self._taken.pop(job.id)
        try:
            await super().finish_job(job, status, delete_job)
        except ConnectorException as error:
            # The worker gives it up. What the server undid is counted with what is left.
            self._shift.failed(_words(error))
            if _lost(error):
                self._shift.pop_in_doubt(1)
            raise
        if status is Status.SUCCEEDED:
            self._shift.popped(client, [str(job.task_kwargs["p"]).encode()], asked, took)


def _lost(error: ConnectorException) -> bool:
    return error.__cause__ is None or is_lost(error.__cause__)


def _words(error: BaseException) -> str:
    return str(error.__cause__ or error).strip()
