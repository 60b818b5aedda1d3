-- preset: graphile-worker 0.16 and later
-- like: preset
-- summary: One table for all tasks; what failed waits for its next attempt until it has none left.
-- advice: graphile-worker's own table: jobs of all tasks lie in it until they are completed, which deletes them; one
--   that failed waits for its next attempt, and one with none left stays. Adopt it to see what waits, what is locked
--   and since when, and what failed for good.
-- table: _private_jobs
-- columns: id task_id payload run_at attempts max_attempts last_error key locked_at locked_by is_available
-- beside: _private_tasks
-- roles: id=id pushed_at=created_at due_at=run_at claimed_at=locked_at claimed_by=locked_by status=is_available
--   error=last_error attempts=attempts payload=payload done_at=updated_at
-- verbs: requeue
-- no purge: graphile-worker ends jobs by its own functions: complete_jobs deletes them, permanently_fail_jobs keeps
--   them
-- no release: graphile-worker unlocks whole workers, never one job: once a worker is surely dead, SELECT
--   {schema}.force_unlock_workers(ARRAY['its id']); it takes jobs back itself after 4 hours
-- prunes: its cleanup with DELETE_PERMAFAILED_JOBS
-- no pause: graphile-worker has no pause: its workers are stopped
-- left claims: graphile-worker's other workers take them 4 hours after they were locked
-- requeued: as graphile-worker's own function reschedule_jobs does it: due now, its attempts reset to 0, its last
--   error kept
-- takes due: graphile-worker's workers take due jobs of the tasks that they know, but none whose named queue is locked
-- overdue: start a worker that knows the task, or see what it logs
-- stays: graphile-worker's reschedule_jobs left it: it was locked
--
-- Read from its published migrations (sql/000011.sql to 000020.sql of version 0.18): a job is available while it
-- is not locked and has tries left; ready once run_at is there, else scheduled (what failed waits so for its next
-- try); locked_at says that a worker has it; what has no tries left stays as an error. What is done is deleted.
-- A job that waits for its named queue counts as ready. Row security is on and has no policy: a login that neither
-- owns the tables nor bypasses it sees no row and no error, so every figure is unknown and never 0.

-- define: in_part
-- restricts the table to one of the library's queues
m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}') -- when part=one
true -- when part=all

-- define: is_ready
m.is_available AND m.run_at <= statement_timestamp() AND {in_part}

-- define: is_scheduled
m.is_available AND m.run_at > statement_timestamp() AND {in_part}

-- define: is_claimed
m.locked_at IS NOT NULL AND {in_part}

-- define: is_error
m.locked_at IS NULL AND m.attempts >= m.max_attempts AND {in_part}

-- define: done_at
-- fail_job leaves updated_at as it is, and postpones run_at by the delay that is subtracted here.
CASE
    WHEN m.locked_at IS NULL AND m.attempts >= m.max_attempts
        THEN greatest(m.updated_at, greatest(m.run_at, '0001-01-01Z') - exp(least(m.attempts, 10)) * interval '1 second')
END

-- define: is_finished
{is_error}

-- define: finished_at
{done_at}

-- define: prunable
-- cleanup.ts
m.attempts = m.max_attempts AND m.locked_at IS NULL

-- define: error
CASE
    WHEN m.key IS NULL AND m.last_error IS NULL AND m.locked_at IS NULL AND m.attempts >= m.max_attempts
        THEN 'retired by its job key: a newer job has taken its place'
    ELSE m.last_error
END

-- define: title
(SELECT k.identifier FROM "{schema}"."{beside}" AS k WHERE k.id = m.task_id)

-- define: counted
-- where row security hides the jobs, their number is not known
CASE WHEN NOT row_security_active(CAST('"{schema}"."{table}"' AS regclass)) THEN count(*) END

-- define: is_waiting
m.is_available AND {in_part}

-- define: was_tried
m.last_error IS NOT NULL

-- define: failing_since
m.created_at

-- define: own_function
'"{schema}".reschedule_jobs(bigint[], timestamp with time zone, integer, integer, integer)'

-- define: installed_version
-- of its migrations
(SELECT CAST(max(v.id) AS text) FROM "{schema}".migrations AS v)

-- name: queues
-- the names of at most 100 tasks
SELECT t.identifier AS name FROM "{schema}"."{beside}" AS t ORDER BY t.identifier LIMIT 100;

-- define: job_queues
-- the table of the named queues
"{schema}"._private_job_queues

-- name: locked_queues
-- the ten named queues that were locked first, of those locked for :seconds: since when, by which worker, how many jobs wait
-- A worker that is killed leaves its named queue locked: none of its jobs runs until 4 hours are over.
SELECT
    CAST(q.queue_name AS text) AS name,
    CAST(q.locked_by AS text) AS locked_by,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM q.locked_at) AS double precision) AS seconds,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.job_queue_id = q.id AND {is_ready}
            LIMIT 10001
        ) AS bounded
    ) AS waiting
FROM {job_queues} AS q
WHERE q.locked_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
ORDER BY q.locked_at LIMIT 10;

-- name: hidden
-- a row for each state whose jobs this login cannot see, and why: of all of them, or none
SELECT
    s.state AS state,
    'row security hides the jobs from this login' AS problem
FROM unnest(ARRAY['ready', 'scheduled', 'claimed', 'error']) AS s (state)
WHERE row_security_active('"{schema}"."{table}"');

-- name: not_requeued
-- a row for each of the chosen that is not requeued: its id, and why
-- add_job with the job key of one that was locked or had failed gives the key to a new job, and leaves the old
-- one without a key and without tries. If it were requeued, its old payload would run in addition to the new one.
SELECT
    CAST(m.id AS text) AS id,
    'retired by their job key: a newer job has taken their place' AS why
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[])) AND m.key IS NULL AND m.last_error IS NULL AND m.attempts >= m.max_attempts;

-- name: make_ready
-- one row: how many failed jobs its own function has rescheduled for now; the others stay
-- The function of its SQL interface that WorkerUtils.rescheduleJobs calls; it leaves what is locked.
WITH chosen AS MATERIALIZED (
    SELECT array_agg(m.id) AS ids FROM "{schema}"."{table}" AS m WHERE {at_locations}
    AND NOT (m.key IS NULL AND m.last_error IS NULL AND m.attempts >= m.max_attempts)
),

rescheduled AS MATERIALIZED (
    SELECT r.id FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".reschedule_jobs(c.ids, run_at => statement_timestamp(), attempts => 0) AS r
)

SELECT
    (SELECT count(*) FROM rescheduled) AS taken_out,
    (SELECT count(s.id) FROM rescheduled AS s) AS put_in
{under_declared_path}
