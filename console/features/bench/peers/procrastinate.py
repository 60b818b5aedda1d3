"""procrastinate, used as documented: tasks that are deferred, workers that run them.

With its own asynchronous connector, on a pool with one connection per client. Configured for speed
where its documentation leaves a choice: connections autocommit (else each call is BEGIN, call,
COMMIT) and are not checked before each call. There are as many workers as consumers: each fetches
jobs one by one, so one worker with a high `concurrency` waits for its own fetches, and had a third
of the speed. They poll as often as the bench's own consumers, and do not LISTEN: a push would wake
them all. Successful jobs are deleted (`delete_jobs="successful"`), as the designs do it. Only
deferring has batches (`batch_defer_async`).
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

from console.features.bench.load_pipelined import connection_string
from console.features.bench.peers import is_lost, run_loop, until_over, url_in_schema
from console.load.worker_round import LONGEST_PAUSE_SECONDS, PAUSE_SECONDS, WorkerRound, now_us

QUEUE = "bench"
_CONNECT_SECONDS = 20.0

Take = Task[..., Any, Any]


def install(url: URL, application_name: str) -> None:
    """Its tables, in the first schema of the URL's search path."""
    conninfo = connection_string(url.render_as_string(hide_password=False), application_name)
    app = App(connector=SyncPsycopgConnector(conninfo=conninfo, min_size=1, max_size=1))
    with app.open():
        app.schema_manager.apply_schema()


def run(worker_round: WorkerRound) -> None:
    """Defer jobs or run them."""
    run_loop(_produce if worker_round.task.produces else _consume, worker_round)


async def _produce(worker_round: WorkerRound) -> None:
    async with _app(worker_round) as (_, task):
        worker_round.begin()
        await asyncio.gather(
            *(_producer(worker_round, number, task) for number in worker_round.clients)
        )


async def _producer(worker_round: WorkerRound, number: int, task: Take) -> None:
    batch = worker_round.task.batch
    while not worker_round.finished():
        if not worker_round.may_push():
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        jobs = [{"p": payload.decode()} for payload in worker_round.payloads(number, batch)]
        began = now_us()
        try:
            if batch == 1:
                await task.defer_async(**jobs[0])
            else:
                await task.batch_defer_async(*map(dict[str, Any], jobs))
        except ConnectorException as error:
            worker_round.failed(_message(error))
            if _lost(error):
                worker_round.push_in_doubt(number, batch)
                return
            continue
        worker_round.pushed(number, batch, batch, began)


async def _consume(worker_round: WorkerRound) -> None:
    async with _app(worker_round) as (app, _):
        app.job_manager = _ReportingManager(app.connector, worker_round)
        worker_round.begin()
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
            for _ in worker_round.clients
        ]
        await until_over(worker_round, workers)
        for worker in workers:
            worker.cancel()  # it finishes its current job
        for end in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(end, Exception):
                worker_round.failed(_message(end))


@asynccontextmanager
async def _app(worker_round: WorkerRound) -> AsyncIterator[tuple[App, Take]]:
    url = url_in_schema(make_url(worker_round.task.url), str(worker_round.task.settings["schema"]))
    conninfo = connection_string(
        url.render_as_string(hide_password=False), worker_round.task.application_name
    )
    clients = worker_round.task.clients
    async with AsyncConnectionPool(
        conninfo, min_size=clients, max_size=clients, configure=_commit_at_once, open=False
    ) as pool:
        await pool.wait(timeout=_CONNECT_SECONDS)
        app = App(connector=PsycopgConnector())

        @app.task(queue=QUEUE, name="take")
        async def take(p: str) -> None:
            """`_ReportingManager` reports the message once the job is finished."""

        async with app.open_async(pool):
            yield app, take


async def _commit_at_once(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.set_autocommit(True)


class _ReportingManager(JobManager):
    """Reports when a job was fetched and finished."""

    def __init__(self, connector: BaseConnector, worker_round: WorkerRound) -> None:
        super().__init__(connector)
        self._worker_round = worker_round
        self._clients: dict[int, int] = {}
        """By worker: it has one job at a time, so its messages have an order."""
        self._taken: dict[int | None, tuple[int, int, int]] = {}

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        began = now_us()
        job = await super().fetch_job(queues, worker_id)
        if job is None:
            self._worker_round.popped(self._worker_round.task.first, [], began)
        else:
            client = self._clients.setdefault(
                worker_id, self._worker_round.task.first + len(self._clients)
            )
            self._taken[job.id] = client, began, now_us() - began
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:  # noqa: FBT001
        client, began, took = self._taken.pop(job.id)
        try:
            await super().finish_job(job, status, delete_job)
        except ConnectorException as error:
            # The worker gives up the job. If it was rolled back, it counts as left.
            self._worker_round.failed(_message(error))
            if _lost(error):
                self._worker_round.pop_in_doubt(1)
            raise
        if status is Status.SUCCEEDED:
            self._worker_round.popped(client, [str(job.task_kwargs["p"]).encode()], began, took)


def _lost(error: ConnectorException) -> bool:
    return error.__cause__ is None or is_lost(error.__cause__)


def _message(error: BaseException) -> str:
    return str(error.__cause__ or error).strip()
