"""Applications of procrastinate and pgqueuer, on these libraries' own tables and workers."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection as PipeEnd
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

import asyncpg
import psycopg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries, RetryRequested
from pgqueuer.adapters.persistence import qb
from pgqueuer.domain.models import TracebackRecord
from pgqueuer.domain.settings import DBSettings
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.types import QueueExecutionMode
from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from sqlalchemy import make_url

from tests.contract.child_processes import forking_with, killed
from tests.contract.libraries import LibraryApp, once, working

T = TypeVar("T")

STUCK_SECONDS = 300.0
"""The console's own threshold."""
_AT_ONCE = timedelta(seconds=0.1)


def conninfo(url: str) -> str:
    words = make_url(url).translate_connect_args(username="user", database="dbname")
    return psycopg.conninfo.make_conninfo(**words)


forking_with(__name__)


@dataclass(frozen=True)
class BlockedJob:
    """A job that blocks its worker until the end of `during`."""

    taken: threading.Event = field(default_factory=threading.Event)
    finish: threading.Event = field(default_factory=threading.Event)

    def run(self, _: int) -> None:
        self.taken.set()
        self.finish.wait(60)

    @contextmanager
    def during(self, work: Callable[[], object]) -> Iterator[None]:
        """Run the worker during the block, which starts once the worker has taken the job."""
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert self.taken.wait(30)
            yield
        finally:
            self.finish.set()
            thread.join(60)


def _report_and_hang(reports: PipeEnd) -> Callable[[int], None]:
    """The task of a worker that will be killed."""

    def run(job: int) -> None:
        reports.send(job)
        threading.Event().wait()

    return run


@dataclass(frozen=True)
class ProcrastinateApp(LibraryApp):
    """An application whose tables are in one schema."""

    preset: ClassVar[str] = "procrastinate"
    stays: ClassVar[str] = "another waiting job has its queueing_lock, or its abort was requested"
    waits: ClassVar[str] = "SELECT id FROM procrastinate_jobs WHERE status = 'todo'"

    def install(self) -> None:
        self.create("")
        self.drive(lambda app: app.schema_manager.apply_schema_async())

    def drive(self, drive: Callable[[App], Awaitable[T]]) -> T:
        """With an open procrastinate App."""

        async def opened() -> T:
            async with self._app().open_async() as app:
                return await drive(app)

        return asyncio.run(opened())

    def _app(self, on_report: Callable[[int], None] | None = None) -> App:
        search_path = f'-c search_path="{self.schema}"'
        app = App(
            connector=PsycopgConnector(
                conninfo=conninfo(self.url), kwargs={"options": search_path}, max_size=4
            )
        )

        @app.task(queue="mails", name="send")
        async def send(n: int, *, fails: bool = False) -> None:
            if fails:
                raise RuntimeError(f"no host {n}")

        @app.task(queue="mails", name="send_again", retry=RetryStrategy(wait=3600))
        async def send_again(n: int) -> None:
            raise RuntimeError(f"no host {n}")

        @app.task(queue="reports", name="report", pass_context=True)
        async def report(context: JobContext, n: int) -> None:
            del n
            if on_report is not None:
                assert context.job.id is not None
                await asyncio.to_thread(on_report, context.job.id)

        return app

    def defer(self, task: str, number: int = 1, *, later: bool = False, **more: Any) -> list[int]:
        """Defer `number` jobs, each with the `lock` or `queueing_lock` in `more`; their ids."""
        options: dict[str, Any] = {
            name: more.pop(name) for name in ("lock", "queueing_lock") if name in more
        }
        if later:
            options["schedule_in"] = {"hours": 1}

        async def drive(app: App) -> list[int]:
            deferrer = app.configure_task(task, **options)
            return [await deferrer.defer_async(n=n, **more) for n in range(number)]

        return self.drive(drive)

    def work(self) -> None:
        """Run a worker until all due jobs are done."""
        self.drive(lambda app: _work(app, None))

    def add(self, number: int) -> list[int]:
        return self.defer("report", number)

    def fail(self, number: int) -> list[int]:
        jobs = self.defer("send", number, fails=True)
        self.work()
        self.run("UPDATE procrastinate_jobs SET args = args - 'fails'")
        return jobs

    def replaced(self) -> tuple[int, int]:
        (job,) = self.defer("send", fails=True, queueing_lock="one")
        self.work()
        (newer,) = self.defer("send", queueing_lock="one", later=True)
        return job, newer

    def working(self) -> AbstractContextManager[object]:
        return working(self.work)

    def taken(self) -> "Counter[str]":
        return self.counter("SELECT job_id FROM procrastinate_events WHERE type = 'started'")

    def runs(self) -> "Counter[str]":
        return self.counter("SELECT job_id FROM procrastinate_events WHERE type = 'succeeded'")

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A worker is busy with one report."""
        job = BlockedJob()

        async def hold() -> None:
            await self.report(job.run)

        with job.during(lambda: asyncio.run(hold())):
            yield

    async def report(self, on_report: Callable[[int], None], number: int = 1) -> None:
        """Run a worker on all reports, `number` at a time."""
        async with self._app(on_report).open_async() as app:
            await _work(app, ["reports"], number)

    def leave(self, number: int = 1) -> list[int]:
        """A worker is killed while it runs `number` reports; their ids."""
        return killed(_report_for_ever, self, number, number=number)

    def silence(self, silent: str = "1 h") -> None:
        """Set the last heartbeat of all workers to `silent` ago."""
        self.run(f"UPDATE procrastinate_workers SET last_heartbeat = now() - interval '{silent}'")

    def queues(self) -> dict[str, dict[str, int]]:
        """Figures of each queue, by the library."""
        drive = self.drive(lambda app: app.job_manager.list_queues_async())
        return {row["name"]: {k: v for k, v in row.items() if k != "name"} for row in drive}

    def jobs(self, **words: Any) -> list[Any]:
        return list(self.drive(lambda app: app.job_manager.list_jobs_async(**words)))

    def stalled(self) -> list[int | None]:
        jobs = self.drive(
            lambda app: app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STUCK_SECONDS)
        )
        return [job.id for job in jobs]

    def events(self, job: int) -> list[str]:
        query = "SELECT type::text FROM procrastinate_events WHERE job_id = %s ORDER BY id"
        return self.column(query, [job])


@once
def procrastinate(url: str) -> ProcrastinateApp:
    """In a schema outside the search path."""
    app = ProcrastinateApp(url, "Their_Jobs")
    app.install()
    return app


def _report_for_ever(of: ProcrastinateApp, number: int, reports: PipeEnd) -> None:
    asyncio.run(of.report(_report_and_hang(reports), number))


async def _work(app: App, queues: list[str] | None, number: int = 1) -> None:
    only: dict[str, Any] = {} if queues is None else {"queues": queues}
    await app.run_worker_async(
        **only,
        concurrency=number,
        wait=False,
        install_signal_handlers=False,
        listen_notify=False,
        delete_jobs="never",
    )


async def _picked(queries: Queries, entrypoint: str) -> Job:
    (job,) = await queries.dequeue(
        1,
        {entrypoint: EntrypointExecutionParameter(concurrency_limit=0)},  # type: ignore[dict-item]
        uuid4(),  # type: ignore[arg-type]
        None,
        timedelta(hours=9),
    )
    return job


@dataclass(frozen=True)
class PgQueuerApp(LibraryApp):
    """An application whose tables have a prefix, in one schema."""

    prefix: str
    preset: ClassVar[str] = "pgqueuer"
    keeps: ClassVar[str] = "heartbeat_timeout"
    stays: ClassVar[str] = "a waiting or picked job has its dedupe_key"

    @property
    def table(self) -> str:
        return f"{self.prefix}pgqueuer"

    def drive(self, drive: Callable[[Queries], Awaitable[T]]) -> T:
        """With a new connection."""

        async def opened() -> T:
            words = make_url(self.url).translate_connect_args(username="user")
            connection = await asyncpg.connect(**words)
            try:
                return await drive(self._queries(AsyncpgDriver(connection)))
            finally:
                await connection.close()

        return asyncio.run(opened())

    def _queries(self, driver: AsyncpgDriver) -> Queries:
        settings = DBSettings(prefix=self.prefix, db_schema=self.schema)
        return Queries(
            driver,
            qbe=qb.QueryBuilderEnvironment(settings=settings),
            qbq=qb.QueryQueueBuilder(settings=settings),
            qbs=qb.QuerySchedulerBuilder(settings=settings),
        )

    def install(self) -> None:
        self.drive(lambda queries: queries.install())

    def enqueue(
        self, entrypoint: str, number: int = 1, *, later: bool = False, key: str | None = None
    ) -> list[int]:
        after = timedelta(hours=1) if later else None

        async def drive(queries: Queries) -> list[int]:
            ids = await queries.enqueue(
                [entrypoint] * number,
                [f"{entrypoint} {n}".encode() for n in range(number)],
                [0] * number,
                [after] * number,
                [key] * number,
            )
            return [int(job_id) for job_id in ids]

        return self.drive(drive)

    def work(self, *, works: bool) -> None:
        """Run a manager until all due jobs are done; failed jobs are held."""

        async def drive(queries: Queries) -> None:
            manager = PgQueuer(queries.driver, queries=queries)

            @manager.entrypoint("mail", on_failure="hold")
            async def mail(job: Job) -> None:
                if not works:
                    raise RuntimeError(f"no host for {job.id}")

            await manager.run(dequeue_timeout=_AT_ONCE, mode=QueueExecutionMode.drain)

        self.drive(drive)

    def add(self, number: int) -> list[int]:
        return self.enqueue("mail", number)

    def fail(self, number: int) -> list[int]:
        jobs = self.enqueue("mail", number)
        self.work(works=False)
        return jobs

    def replaced(self) -> tuple[int, int]:
        (job,) = self.enqueue("mail", key="one")
        self.work(works=False)
        (newer,) = self.enqueue("mail", key="one")
        return job, newer

    def waiting(self) -> "Counter[str]":
        """By its log, which has a job's last status by its last row."""
        last = f"SELECT DISTINCT ON (job_id) * FROM {self.table}_log ORDER BY job_id, id DESC"
        return self.counter(f"SELECT job_id FROM ({last}) AS last WHERE status = 'queued'")

    def working(self) -> AbstractContextManager[object]:
        return working(lambda: self.work(works=True))

    def taken(self) -> "Counter[str]":
        return self.counter(f"SELECT job_id FROM {self.table}_log WHERE status = 'picked'")

    def runs(self) -> "Counter[str]":
        return self.counter(f"SELECT job_id FROM {self.table}_log WHERE status = 'successful'")

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A manager is busy with one report."""
        job = BlockedJob()

        async def hold(queries: Queries) -> None:
            manager = PgQueuer(queries.driver, queries=queries)

            @manager.entrypoint("report")
            async def report(_: Job) -> None:
                await asyncio.to_thread(job.run, 0)

            await manager.run(dequeue_timeout=_AT_ONCE, mode=QueueExecutionMode.drain)

        with job.during(lambda: self.drive(hold)):
            yield

    def hang(self, number: int, reports: PipeEnd) -> None:
        """A manager is busy with so many mails, until it is killed."""

        async def hold(queries: Queries) -> None:
            manager = PgQueuer(queries.driver, queries=queries)

            @manager.entrypoint("mail", concurrency_limit=number)
            async def work(job: Job) -> None:
                await asyncio.to_thread(_report_and_hang(reports), int(job.id))

            await manager.run(dequeue_timeout=_AT_ONCE, batch_size=number)

        self.drive(hold)

    def retry_later(self, entrypoint: str) -> int:
        """A job raises RetryRequested, which delays it by an hour, as in a QueueManager."""

        async def drive(queries: Queries) -> int:
            job = await _picked(queries, entrypoint)
            raised = RetryRequested(delay=timedelta(hours=1), reason="no host")
            record = TracebackRecord.from_exception(exc=raised, job_id=job.id)
            await queries.retry_job(job, raised.delay, record)
            return int(job.id)

        return self.drive(drive)

    def leave(self, number: int = 1) -> list[int]:
        """A manager is killed while it runs `number` mails; their ids."""
        return killed(PgQueuerApp.hang, self, number, number=number)

    def silence(self, silent: str = "1 h") -> None:
        past = f"heartbeat = now() - interval '{silent}', updated = now() - interval '{silent}'"
        self.run(f"UPDATE {self.table} SET {past} WHERE status = 'picked'")

    def size(self, entrypoint: str | None = None) -> dict[str, int]:
        """Jobs of each status, by the library's own function."""
        statisticss = self.drive(lambda queries: queries.queue_size())
        sums: dict[str, int] = {}
        for row in statisticss:
            if entrypoint in (None, row.entrypoint):
                sums[row.status] = sums.get(row.status, 0) + row.count
        return sums

    def stalled(self) -> list[int]:
        limit = timedelta(seconds=STUCK_SECONDS)
        jobs = self.drive(lambda queries: queries.stale_jobs(limit, 100))
        return [int(job.id) for job in jobs]

    def log(self, job: int) -> list[str]:
        query = f"SELECT status::text FROM {self.table}_log WHERE job_id = %s ORDER BY id"
        return self.column(query, [job])


@once
def pgqueuer(url: str) -> PgQueuerApp:
    """With a prefix."""
    app = PgQueuerApp(url, "app", "shop_")
    app.install()
    return app
