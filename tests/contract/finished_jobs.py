"""A finished job of each library that keeps it, and one that is retried and finishes again."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.contract.due_jobs import DUE_JOBS
from tests.contract.libraries import Tables

_CREATED: dict[str, Callable[[str], Tables]] = {job.preset: job.create for job in DUE_JOBS}
_UTC = "timezone('UTC', {at})"


@dataclass(frozen=True)
class FinishedJob:
    """SQL with `{at}` for the time of finishing."""

    preset: str
    adds: str
    """Adds a job that is finished."""
    again: str
    """The first job was retried, and finishes again."""
    table: str
    payload: str
    """In the lake, as an SQL expression of the table."""

    def __str__(self) -> str:
        return self.preset

    def create(self, url: str) -> Tables:
        return _CREATED[self.preset](url)

    def add(self, tables: Tables, at: str = "now()") -> None:
        tables.run(self.adds.format(at=at))


_FIRST = "WHERE id = (SELECT id FROM {table} ORDER BY id LIMIT 1)"

FINISHED_JOBS = (
    FinishedJob(
        "river",
        """INSERT INTO river_job (state, attempt, finalized_at, args)
        VALUES ('completed', 1, {at}, '{{"n": 1}}')""",
        "UPDATE river_job SET attempt = attempt + 1, finalized_at = {at} "
        + _FIRST.format(table="river_job"),
        "river_job",
        "args::text",
    ),
    FinishedJob(
        "oban",
        f"""INSERT INTO oban_jobs (worker, queue, state, attempt, args, scheduled_at, completed_at)
        VALUES ('Send', 'mail', 'completed', 1, '{{{{"n": 1}}}}', {_UTC}, {_UTC})""",
        f"UPDATE oban_jobs SET attempt = attempt + 1, completed_at = {_UTC} "
        + _FIRST.format(table="oban_jobs"),
        "oban_jobs",
        "args::text",
    ),
    FinishedJob(
        "solid-queue",
        f"INSERT INTO solid_queue_jobs (arguments, finished_at) VALUES ('{{{{}}}}', {_UTC})",
        f"UPDATE solid_queue_jobs SET finished_at = {_UTC} "
        + _FIRST.format(table="solid_queue_jobs"),
        "solid_queue_jobs",
        "arguments",
    ),
    FinishedJob(
        "pg-boss",
        """INSERT INTO job (name, state, data, completed_on, retry_count, deletion_seconds)
        VALUES ('mail', 'completed', '{{"n": 1}}', {at}, 0, 86400)""",
        "UPDATE job SET retry_count = retry_count + 1, completed_on = {at} "
        + _FIRST.format(table="job"),
        "job",
        "data::text",
    ),
    FinishedJob(
        "procrastinate",
        """WITH one AS (
            INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('mail', 'send')
            RETURNING id
        ) SELECT FROM one;
        UPDATE procrastinate_jobs SET status = 'doing', attempts = 1 WHERE status = 'todo';
        UPDATE procrastinate_jobs SET status = 'succeeded' WHERE status = 'doing';
        UPDATE procrastinate_events SET at = {at}
        WHERE job_id = (SELECT max(id) FROM procrastinate_jobs)""",
        """UPDATE procrastinate_jobs SET attempts = attempts + 1
        WHERE id = (SELECT min(id) FROM procrastinate_jobs);
        INSERT INTO procrastinate_events (job_id, type, at)
        SELECT min(id), 'succeeded', {at} FROM procrastinate_jobs""",
        "procrastinate_jobs",
        "args::text",
    ),
    FinishedJob(
        "pgmq",
        """INSERT INTO a_jobs (msg_id, read_ct, enqueued_at, archived_at, vt, message)
        SELECT coalesce(max(msg_id), 0) + 1, 1, now(), {at}, now(), '{{"n": 1}}' FROM a_jobs""",
        "",
        "a_jobs",
        "message::text",
    ),
    FinishedJob(
        "hangfire",
        """WITH one AS (
            INSERT INTO job (stateid, statename) VALUES (nextval('state_id_seq'), 'Succeeded')
            RETURNING *
        ) INSERT INTO state (id, jobid, name, createdat)
        SELECT stateid, id, statename, {at} FROM one""",
        "UPDATE state SET createdat = {at} " + _FIRST.format(table="state"),
        "job",
        "arguments::text",
    ),
    FinishedJob(
        "graphile-worker",
        """SELECT add_job('send', '{{"n": 1}}');
        UPDATE _private_jobs SET attempts = max_attempts, last_error = 'no', run_at = {at},
            updated_at = {at} WHERE attempts < max_attempts""",
        "UPDATE _private_jobs SET updated_at = {at} " + _FIRST.format(table="_private_jobs"),
        "_private_jobs",
        "payload::text",
    ),
    FinishedJob(
        "delayed-job",
        f"""INSERT INTO delayed_jobs (handler, attempts, queue, run_at, created_at, failed_at)
        VALUES ('x', 1, 'mail', now(), now(), {_UTC})""",
        f"UPDATE delayed_jobs SET attempts = attempts + 1, failed_at = {_UTC} "
        + _FIRST.format(table="delayed_jobs"),
        "delayed_jobs",
        "handler",
    ),
)
PRUNED = {
    "river": "24 hours",
    "oban": "1 day",
    "solid-queue": "1 day",
    "pg-boss": "1 day",
    "procrastinate": "1 day",
    "graphile-worker": "0 s",
}
"""How long ago a job must have finished for the library to delete it."""
