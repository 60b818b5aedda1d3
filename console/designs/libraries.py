"""Queues that a library keeps in its own tables (`adopt --preset`), read by what it writes there.

The library goes on working on them, so nothing is done in another way than its own: each verb is
the library's own function, or exactly the statement that it runs itself. How that is known stands
with the statement in `queries/postgresql/<name>.sql`. What the library has no rule for is refused.
"""

from functools import partial

from console.designs.model import Design, Flow, Order

_OURS = "{} owns the table: only it adds and deletes rows there"
_ENDS = ("push", "pop", "purge", "archive", "restore", "smoke")


def _refused(library: str, **others: str) -> dict[str, str]:
    """Why what is not there is not there."""
    return dict.fromkeys(_ENDS, _OURS.format(library)) | others


_library = partial(
    Design,
    engines=("postgresql",),
    options=(),
    needed_roles=("id", "status", "payload"),
    order=Order.LAX,
    flow=Flow.DELETED,
    keeps_row=True,
    like="library",
)

PGQUEUER = _library(
    name="pgqueuer",
    title="queue of pgqueuer",
    source="pgqueuer",
    summary="One table for all entrypoints; a job that was worked on is deleted and logged.",
    advice=(
        "pgqueuer's own table: jobs of all entrypoints lie in it, picked ones with a heartbeat; "
        "what is done is deleted and logged. Adopt it to see what waits, what is picked by a "
        "manager whose heartbeat stopped, and what failed and is held."
    ),
    states=("ready", "scheduled", "claimed", "error"),
    verbs=("requeue", "maintain", "end-session"),
    roles={
        "id": "id",
        "pushed_at": "created",
        "due_at": "execute_after",
        "claimed_at": "updated",
        "claimed_by": "queue_manager_id",
        "status": "status",
        "error": "traceback",
        "attempts": "attempts",
        "payload": "payload",
        "done_at": "updated",
    },
    library="pgqueuer 1",
    refusals=_refused(
        "pgqueuer",
        release="pgqueuer takes it back itself: its dequeue picks what has had no heartbeat for "
        "longer than its heartbeat_timeout, and has no other rule for it",
        purge="pgqueuer deletes jobs itself, and logs each in its log table",
    ),
    left_claims="pgqueuer's other managers take them once their heartbeat_timeout is over",
    requeued="as pgqueuer's own requeue_jobs does it: due now, its attempts reset to 0, logged",
    stays="a waiting or picked job has its dedupe_key",
)

PROCRASTINATE = _library(
    name="procrastinate",
    title="queue of procrastinate",
    source="procrastinate",
    summary="One table for all queues; a trigger logs each change of a job's status.",
    advice=(
        "procrastinate's own table: jobs of all its queues lie in it, and what succeeded stays "
        "unless its workers delete it. Adopt it to see what waits, what a worker without a "
        "heartbeat has left behind, and what failed; both can be retried as procrastinate does it."
    ),
    states=("ready", "scheduled", "claimed", "error", "done"),
    verbs=("requeue", "release", "maintain", "end-session"),
    roles={
        "id": "id",
        "pushed_at": "at",
        "due_at": "scheduled_at",
        "claimed_at": "at",
        "claimed_by": "worker_id",
        "status": "status",
        "error": "task_name",
        "attempts": "attempts",
        "payload": "args",
        "done_at": "at",
    },
    flow=Flow.CLAIMED,
    library="procrastinate 3",
    refusals=_refused(
        "procrastinate",
        archive="procrastinate deletes old jobs itself: its builtin task remove_old_jobs, or "
        "delete_jobs of its workers",
        purge="procrastinate cancels a waiting job by its own cancel_job_by_id, and deletes old "
        "ones by its builtin task remove_old_jobs",
    ),
    left_claims="procrastinate's workers leave them as they are: its application retries stalled "
    "jobs by a task of its own, or release does",
    requeued="as procrastinate's own function procrastinate_retry_job_v2 does it: due now, one "
    "more attempt counted, the event logged",
    stays="another waiting job has its queueing_lock, or its abort was requested",
)

PGMQ = _library(
    name="pgmq",
    title="queue of pgmq",
    source="pgmq",
    summary="A table for each queue; what was read is invisible until its time is over.",
    advice=(
        "pgmq's own table q_NAME: a message that was read stays, invisible until its visibility "
        "time-out, and comes back by itself; what is done is deleted or goes into a_NAME. Adopt it "
        "to see what is visible, what is in flight, how often messages were read, and what was "
        "archived."
    ),
    states=("ready", "scheduled", "claimed", "done"),
    verbs=("release", "maintain", "end-session"),
    roles={
        "id": "msg_id",
        "pushed_at": "enqueued_at",
        "due_at": "vt",
        "claimed_at": "last_read_at",
        "status": "vt",
        "attempts": "read_ct",
        "payload": "message",
        "done_at": "archived_at",
    },
    library="pgmq 1",
    table_each=True,
    archives=True,
    claims_expire=True,
    refusals=_refused(
        "pgmq",
        requeue="pgmq has no failed messages: what was read and not deleted is visible again when "
        "its time-out is over (release ends that time-out now)",
        archive="pgmq archives by its own function: SELECT pgmq.archive(queue, id)",
        purge="pgmq empties a queue by its own functions: pgmq.archive, pgmq.delete, "
        "pgmq.purge_queue",
    ),
    requeued="as pgmq's own function pgmq.set_vt does it with a time-out of 0: visible now, its "
    "reads stay counted",
    stays="pgmq.set_vt found no such message",
)

GRAPHILE_WORKER = _library(
    name="graphile-worker",
    title="queue of graphile-worker",
    source="graphile-worker",
    summary="One table for all tasks; what failed waits for its next attempt until it has none "
    "left.",
    advice=(
        "graphile-worker's own table: jobs of all tasks lie in it until they are completed, which "
        "deletes them; one that failed waits for its next attempt, and one with none left stays. "
        "Adopt it to see what waits, what is locked and since when, and what failed for good."
    ),
    states=("ready", "scheduled", "claimed", "error"),
    verbs=("requeue", "maintain", "end-session"),
    roles={
        "id": "id",
        "pushed_at": "created_at",
        "due_at": "run_at",
        "claimed_at": "locked_at",
        "claimed_by": "locked_by",
        "status": "is_available",
        "error": "last_error",
        "attempts": "attempts",
        "payload": "payload",
        "done_at": "updated_at",
    },
    library="graphile-worker 0.16 and later",
    refusals=_refused(
        "graphile-worker",
        release="graphile-worker unlocks whole workers, never one job: once a worker is surely "
        "dead, SELECT {schema}.force_unlock_workers(ARRAY['its id']); it takes jobs back "
        "itself after 4 hours",
        purge="graphile-worker ends jobs by its own functions: complete_jobs deletes them, "
        "permanently_fail_jobs keeps them",
    ),
    left_claims="graphile-worker's other workers take them 4 hours after they were locked",
    requeued="as graphile-worker's own function reschedule_jobs does it: due now, its attempts "
    "reset to 0, its last error kept",
    stays="graphile-worker's reschedule_jobs left it: it was locked",
)

ALL = (PGQUEUER, PROCRASTINATE, PGMQ, GRAPHILE_WORKER)
