-- preset: Delayed::Job 4
-- like: preset
-- summary: One table for all queues; what is done is deleted, what failed stays where that is set.
-- advice: Delayed::Job's own table: jobs of all queues lie in it until they are done, locked ones with their worker,
--   failed ones with their error where destroy_failed_jobs is off. Adopt it to see what waits, what a killed worker
--   left locked, and what failed.
-- table: *delayed_jobs
-- columns: id priority attempts handler last_error run_at locked_at failed_at locked_by queue created_at
-- roles: id=id pushed_at=created_at due_at=run_at claimed_at=locked_at claimed_by=locked_by status=failed_at
--   error=last_error attempts=attempts payload=handler done_at=failed_at
-- verbs: release
-- no purge: Delayed::Job deletes jobs itself: rake jobs:clear deletes all of them
-- no requeue: Delayed::Job has no rule to run a failed job again: its worker never takes what has a failed_at
-- no pause: Delayed::Job 4.2 keeps no pause anywhere: Delayed::Worker.queue_attributes gives queues a priority only. Its
--   workers are stopped, or started without the queue (--queues)
-- left claims: Delayed::Job's other workers take them max_run_time (4 hours unless set) after they were locked
-- requeued: as Delayed::Job's own clear_locks! and unlock do it: due as they were, with no try counted
-- takes due: Delayed::Job's workers reserve due jobs of their queues, by priority
-- overdue: start a worker for the queue, or see what it logs
-- stays: it was not locked any more
--
-- Read from delayed_job 4.2 and delayed_job_active_record 4.1.11 (lib/delayed/backend, lib/delayed/worker.rb): ready once
-- run_at is there, else scheduled (what failed waits so for its next try); locked_at says that the worker locked_by has
-- it; failed_at that it has no tries left, where destroy_failed_jobs is off. Done is deleted. Times have no zone, and are
-- UTC unless ActiveRecord's default_timezone was set. It has no functions to call: its Ruby does it.

-- define: queue_column
m.queue

-- define: is_ready
m.failed_at IS NULL AND m.locked_at IS NULL AND m.run_at <= timezone('UTC', now()) AND {in_part}

-- define: is_scheduled
m.failed_at IS NULL AND m.locked_at IS NULL AND m.run_at > timezone('UTC', now()) AND {in_part}

-- define: is_claimed
m.failed_at IS NULL AND m.locked_at IS NOT NULL AND {in_part}

-- define: is_stuck
-- It has no heartbeat: after max_run_time (4 hours unless set) ready_to_run considers any lock dead.
m.locked_at < timezone('UTC', now()) - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) AND {is_claimed}

-- define: is_error
m.failed_at IS NOT NULL AND {in_part}

-- define: is_finished
{is_error}

-- define: finished_at
{done_at}

-- define: pushed_at
timezone('UTC', m.created_at)

-- define: due_at
timezone('UTC', m.run_at)

-- define: claimed_at
CASE WHEN m.failed_at IS NULL THEN timezone('UTC', m.locked_at) END

-- define: claimed_by
CASE WHEN m.failed_at IS NULL THEN m.locked_by END

-- define: done_at
timezone('UTC', m.failed_at)

-- define: error
CASE WHEN m.failed_at IS NOT NULL THEN coalesce(m.last_error, '') END

-- define: title
substring(m.handler FROM '!ruby/[a-z]+:([^[:space:]]+)')

-- define: is_first_pop
m.attempts = 0

-- define: is_waiting
m.failed_at IS NULL AND {in_part}

-- define: was_tried
m.attempts > 0

-- define: failing_since
timezone('UTC', m.created_at)

-- define: joined_table
-- There is no other table.
CAST(c.relname AS text)

-- name: make_ready
-- one row: how many locked jobs are unlocked as its own clear_locks! and unlock do it; the others stay
WITH unlocked AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        locked_by = NULL,
        locked_at = NULL
    WHERE {at_locations} AND m.locked_at IS NOT NULL AND m.failed_at IS NULL
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM unlocked) AS taken_out,
    (SELECT count(*) FROM unlocked) AS put_in
{under_declared_path}
