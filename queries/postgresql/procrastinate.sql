-- preset: procrastinate 3
-- like: preset
-- summary: One table for all queues; a trigger logs each change of a job's status.
-- advice: procrastinate's own table: jobs of all its queues lie in it, and what succeeded stays unless its workers
--   delete it. Adopt it to see what waits, what a worker without a heartbeat has left behind, and what failed; both
--   can be retried as procrastinate does it.
-- table: procrastinate_jobs
-- columns: id queue_name task_name args status scheduled_at attempts worker_id
-- beside: procrastinate_events
-- roles: id=id pushed_at=at due_at=scheduled_at claimed_at=at claimed_by=worker_id status=status error=task_name
--   attempts=attempts payload=args done_at=at
-- verbs: requeue release
-- no purge: procrastinate cancels a waiting job by its own cancel_job_by_id, and deletes old ones by its builtin task
--   remove_old_jobs
-- no archive: procrastinate deletes old jobs itself: its builtin task remove_old_jobs, or delete_jobs of its workers
-- prunes: its delete_old_jobs with 24 hours: succeeded ones; their events with them
-- no pause: procrastinate has no pause: its workers are stopped, or started without the queue
-- left claims: procrastinate's workers leave them as they are: its application retries stalled jobs by a task of its
--   own, or release does
-- requeued: as procrastinate's own function procrastinate_retry_job_v2 does it: due now, one more attempt counted, the
--   event logged
-- takes due: procrastinate's workers fetch due jobs of their queues, but none whose lock a job before it has
-- overdue: start a worker for the queue; a job that is doing, or due before it, with the same lock goes first: release
--   takes one back whose worker is gone
-- stays: another waiting job has its queueing_lock, or its abort was requested
--
-- Read from the schema and the queries of procrastinate 3.10 (schema.sql, queries.sql in its package):
-- todo is ready, or scheduled while scheduled_at is not there yet; doing is claimed by worker_id, whose
-- heartbeat stands in procrastinate_workers; failed is an error; succeeded is done. Jobs that were cancelled
-- or aborted are in none of these states. A job that waits for another one's lock counts as ready, as its own
-- figures have it. The table has no times and no error texts: a trigger writes each change of the status into
-- procrastinate_events, and errors are only logged by the worker.

-- define: is_ready
m.status = 'todo' AND (m.scheduled_at IS NULL OR m.scheduled_at <= statement_timestamp()) AND {in_part}

-- define: is_scheduled
m.status = 'todo' AND m.scheduled_at > statement_timestamp() AND {in_part}

-- define: is_claimed
m.status = 'doing' AND {in_part}

-- define: is_stuck
-- As its own select_stalled_jobs_by_heartbeat says: the worker is gone, or has no recent heartbeat. One that beat
-- within 30 seconds is working, however short the threshold.
{is_claimed} AND coalesce(
    (SELECT w.last_heartbeat FROM "{schema}".procrastinate_workers AS w WHERE w.id = m.worker_id) < {silent_before}, true
)

-- define: is_error
m.status = 'failed' AND {in_part}

-- define: is_done
m.status = 'succeeded' AND {in_part}

-- define: pushed_at
(SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'deferred')

-- define: claimed_at
CASE
    WHEN m.status = 'doing'
        THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started')
END

-- define: claimed_by
CASE WHEN m.status = 'doing' THEN coalesce('worker ' || m.worker_id, 'no worker') END

-- define: done_at
CASE
    WHEN m.status NOT IN ('todo', 'doing')
        THEN (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND CAST(e.type AS text) IN ('failed', 'succeeded', 'cancelled', 'aborted'))
END

-- define: is_finished
CAST(m.status AS text) IN ('succeeded', 'failed', 'cancelled', 'aborted') AND {in_part}

-- define: finished_at
{done_at}

-- define: prunable
-- delete_old_jobs, with the states that remove_old_jobs has unless told otherwise
m.status = 'succeeded'
AND (SELECT max(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id) < statement_timestamp() - interval '1 day'

-- define: error
CASE WHEN m.status = 'failed' THEN concat('the task ', m.task_name, ' failed; why stands in its worker''s log') END

-- define: title
CAST(m.task_name AS text)

-- define: is_first_pop
-- It counts what was tried again.
m.attempts = 0

-- define: queue_column
m.queue_name

-- define: queue_index
true

-- define: claimed_from
-- Only the events show since when; at most so many are read.
(SELECT j.* FROM "{schema}"."{table}" AS j WHERE j.status = 'doing' LIMIT 10000)

-- define: is_waiting
m.status = 'todo' AND {in_part}

-- define: was_tried
m.attempts > 0

-- define: failing_since
-- A retry strategy makes a job that failed todo again, counts the attempt and keeps no error (procrastinate_retry_job_v2).
-- Its events show when it first began; where they were deleted, it is unknown and not reported.
(SELECT min(e.at) FROM "{schema}"."{beside}" AS e WHERE e.job_id = m.id AND e.type = 'started')

-- define: own_function
'"{schema}".procrastinate_retry_job_v2(bigint, timestamp with time zone, integer, character varying, character varying)'

-- define: owners_path
-- its functions name its tables without a schema
quote_ident('{schema}')

-- define: last_beat
(SELECT w.last_heartbeat FROM "{schema}".procrastinate_workers AS w WHERE concat('worker ', w.id) = requested.session)

-- define: silent_seconds
-- Each worker has a heartbeat every 10 seconds; after 30 without one the others consider it dead and remove it.
30

-- define: can_retry
-- the jobs that its own function makes todo again: of those to be aborted it makes failed ones
NOT (m.status = 'doing' AND m.abort_requested)

-- define: retry
-- its own function, as JobManager.retry_job calls it: it takes doing and failed, and counts one more attempt
"{schema}".procrastinate_retry_job_v2(c.id, statement_timestamp(), NULL, NULL, NULL)

-- name: make_ready
-- one row: how many jobs its own function has made todo again; the others stay
-- Of jobs with the same queueing_lock only one may be todo (its unique index), so the second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.queueing_lock,
        row_number() OVER (PARTITION BY m.queueing_lock ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations} AND {can_retry}
    AND (
        m.queueing_lock IS NULL
        OR NOT EXISTS (SELECT FROM "{schema}"."{table}" AS o WHERE o.queueing_lock = m.queueing_lock AND o.status = 'todo')
    )
),

retried AS MATERIALIZED (
    SELECT
        c.id,
        CAST(r.done AS text) AS done
    FROM chosen AS c
    CROSS JOIN LATERAL {retry} AS r (done)
    WHERE c.queueing_lock IS NULL OR c.turn = 1
)

SELECT
    (SELECT count(*) FROM retried) AS taken_out,
    (SELECT count(r.done) FROM retried AS r) AS put_in
{under_declared_path}
