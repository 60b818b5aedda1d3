-- preset: graphile-worker before 0.14
-- like: preset
-- older: graphile-worker
-- summary: One table for all tasks; what failed waits for its next attempt until it has none left.
-- advice: The table of an old graphile-worker: jobs of all tasks lie in it until they are completed, which deletes them.
--   Adopt it to see what waits, what is locked and since when, and what failed for good.
-- table: jobs
-- columns: id queue_name task_identifier payload priority run_at attempts max_attempts last_error created_at updated_at
--   locked_at locked_by
-- beside: job_queues
-- roles: id=id pushed_at=created_at due_at=run_at claimed_at=locked_at claimed_by=locked_by status=task_identifier
--   error=last_error attempts=attempts payload=payload done_at=updated_at
-- no purge: graphile-worker ends jobs by its own functions: complete_jobs deletes them, permanently_fail_jobs keeps
--   them
-- no release: graphile-worker takes jobs back itself, 4 hours after they were locked
-- no requeue: graphile-worker's reschedule_jobs does it, whose rule for this version this console does not have
-- no pause: graphile-worker has no pause: its workers are stopped
-- left claims: graphile-worker's other workers take them 4 hours after they were locked
-- takes due: graphile-worker's workers take due jobs of the tasks that they know, but none whose named queue is locked
-- overdue: start a worker that knows the task, or see what it logs
--
-- Read from the published migrations of graphile-worker 0.13 (sql/000001.sql to 000010.sql): as graphile-worker.sql, in one
-- table with the task's name.

-- define: queue_column
m.task_identifier

-- define: is_ready
m.locked_at IS NULL AND m.attempts < m.max_attempts AND m.run_at <= statement_timestamp() AND {in_part}

-- define: is_scheduled
m.locked_at IS NULL AND m.attempts < m.max_attempts AND m.run_at > statement_timestamp() AND {in_part}

-- define: is_claimed
m.locked_at IS NOT NULL AND {in_part}

-- define: is_error
m.locked_at IS NULL AND m.attempts >= m.max_attempts AND {in_part}

-- define: error
CASE WHEN m.locked_at IS NULL AND m.attempts >= m.max_attempts THEN coalesce(m.last_error, '') END

-- define: title
m.task_identifier

-- define: is_waiting
m.locked_at IS NULL AND m.attempts < m.max_attempts AND {in_part}

-- define: was_tried
m.last_error IS NOT NULL

-- define: failing_since
m.created_at

-- define: counted
-- where row security hides the jobs, their number is not known
CASE WHEN NOT row_security_active(CAST('"{schema}"."{table}"' AS regclass)) THEN count(*) END

-- define: installed_version
-- of its migrations
(SELECT CAST(max(v.id) AS text) FROM "{schema}".migrations AS v)

-- name: hidden
-- a row for each state whose jobs this login cannot see, and why: of all of them, or none
SELECT
    s.state AS state,
    'row security hides the jobs from this login' AS problem
FROM unnest(ARRAY['ready', 'scheduled', 'claimed', 'error']) AS s (state)
WHERE row_security_active('"{schema}"."{table}"');
