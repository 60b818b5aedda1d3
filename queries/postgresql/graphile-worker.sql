-- graphile-worker on PostgreSQL: its own table _private_jobs, looked at, and acted on by its own functions.
--
-- Read from its published migrations (sql/000011.sql to 000020.sql of version 0.18): a job is available while it
-- is not locked and has tries left; ready once run_at is there, else scheduled (what failed waits so for its next
-- try); locked_at says that a worker has it; what has no tries left stays as an error. What is done is deleted.
-- A job that waits for its named queue counts as ready. Row security is on and has no policy: who does not own
-- the tables, nor passes it by, sees no row and no error, so every figure is unknown to him and never 0.

-- define: in_part
-- which of the queues that the library keeps in the table
-- when part=one
m.task_id = (SELECT k.id FROM "{schema}"."{beside}" AS k WHERE k.identifier = '{only}')
-- end
-- when part=all
true
-- end

-- define: is_ready
m.is_available AND m.run_at <= statement_timestamp() AND {in_part}

-- define: is_scheduled
m.is_available AND m.run_at > statement_timestamp() AND {in_part}

-- define: is_claimed
m.locked_at IS NOT NULL AND {in_part}

-- define: is_stuck
-- It has no heartbeat: after 4 hours it takes any lock for dead.
m.locked_at < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) AND {in_part}

-- define: is_error
m.locked_at IS NULL AND m.attempts >= m.max_attempts AND {in_part}

-- define: state
CASE
    WHEN m.locked_at IS NOT NULL THEN 'claimed'
    WHEN m.attempts >= m.max_attempts THEN 'error'
    WHEN m.run_at > statement_timestamp() THEN 'scheduled'
    ELSE 'ready'
END

-- define: is_seen
-- where row security hides the jobs, their number is not known
NOT row_security_active(CAST('"{schema}"."{table}"' AS regclass))

-- define: pushed_at
m.created_at

-- define: due_at
m.run_at

-- define: claimed_at
m.locked_at

-- define: claimed_by
m.locked_by

-- define: attempts
m.attempts

-- define: done_at
-- fail_job leaves updated_at as it is, and puts run_at off from then by what it takes off here.
CASE
    WHEN m.locked_at IS NULL AND m.attempts >= m.max_attempts
        THEN greatest(m.updated_at, m.run_at - exp(least(m.attempts, 10)) * interval '1 second')
END

-- define: error
CASE
    WHEN m.key IS NULL AND m.last_error IS NULL AND m.locked_at IS NULL AND m.attempts >= m.max_attempts
        THEN 'retired by its job key: a newer job has taken its place'
    ELSE m.last_error
END

-- define: title
(SELECT k.identifier FROM "{schema}"."{beside}" AS k WHERE k.id = m.task_id)

-- define: chosen_rows
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]))
AND {in_part}

-- define: state_held
{state}

-- define: oldest_first
m.id

-- define: pages
64

-- name: find
-- the tables of graphile-worker that this login may read, in any schema
SELECT
    n.nspname AS schema,
    c.relname AS "table",
    CAST('_private_tasks' AS text) AS beside,
    CAST(NULL AS text) AS queue
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE c.relname = '_private_jobs' AND c.relkind IN ('r', 'p')
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
AND (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname IN ('id', 'task_id', 'payload', 'run_at', 'attempts', 'max_attempts', 'last_error', 'key', 'locked_at', 'locked_by', 'is_available')
) = 11
AND EXISTS (SELECT FROM pg_class AS t WHERE t.relnamespace = c.relnamespace AND t.relname = '_private_tasks')
ORDER BY n.nspname;

-- name: queues
-- the names of at most 100 tasks
SELECT t.identifier AS name FROM "{schema}"."{beside}" AS t ORDER BY t.identifier LIMIT 100;

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready job, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CASE WHEN {is_seen} THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_ready}
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) END AS ready,
    CASE WHEN {is_seen} THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_scheduled}
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) END AS scheduled,
    CASE WHEN {is_seen} THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_claimed}
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) END AS claimed,
    CASE WHEN {is_seen} THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_stuck}
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) END AS stuck,
    CASE WHEN {is_seen} THEN (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_error}
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) END AS errors,
    CAST(NULL AS bigint) AS done,
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - {pushed_at}) AS double precision)
        FROM "{schema}"."{table}" AS m
        WHERE {is_ready}
        ORDER BY {oldest_first} LIMIT CAST('{age_seconds_limit}' AS bigint)
    ) AS age_seconds,
    t.rows_estimated,
    t.inserted,
    t.updated,
    t.deleted,
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
FROM (
    {counters}
) AS t

-- name: locked_queues
-- the ten named queues that were locked first, of those locked for :seconds: since when, by which worker, how many jobs wait
-- A worker that is killed leaves its named queue locked: none of its jobs runs until 4 hours are over.
SELECT
    CAST(q.queue_name AS text) AS name,
    CAST(q.locked_by AS text) AS locked_by,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - q.locked_at) AS double precision) AS seconds,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.job_queue_id = q.id AND {is_ready}
            LIMIT 10001
        ) AS bounded
    ) AS waiting
FROM "{schema}"._private_job_queues AS q
WHERE q.locked_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
ORDER BY q.locked_at LIMIT 10;

-- name: retrying
-- one row: of the first 100,000 jobs that have tries left, how many have failed and are older than :seconds, and the oldest of them
SELECT
    count(*) AS jobs,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - min(j.created_at)) AS double precision) AS oldest_seconds,
    CAST(max(j.attempts) AS integer) AS attempts,
    CAST((array_agg(j.id ORDER BY j.created_at, j.id))[1] AS text) AS id
FROM (
    SELECT
        m.id,
        m.created_at,
        m.attempts,
        m.last_error
    FROM "{schema}"."{table}" AS m
    WHERE m.is_available
    AND {in_part}
    LIMIT 100000
) AS j
WHERE j.last_error IS NOT NULL AND j.created_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision));

-- name: hidden
-- a row for each state whose jobs this login cannot see, and why: of all of them, or none
SELECT
    s.state AS state,
    'row security hides the jobs from this login' AS problem
FROM unnest(ARRAY['ready', 'scheduled', 'claimed', 'error']) AS s (state)
WHERE row_security_active('"{schema}"."{table}"');

-- name: kept_back
-- a row for each of the chosen that is not requeued: its id, and why
-- add_job with the job key of one that was locked or had failed gives the key to a new job, and leaves the old
-- one without a key and without tries. Run once more, its old payload would run beside the new one.
SELECT
    CAST(m.id AS text) AS id,
    'retired by their job key: a newer job has taken their place' AS why
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[])) AND m.key IS NULL AND m.last_error IS NULL AND m.attempts >= m.max_attempts;

-- name: rule
-- one row: why its own function to reschedule jobs cannot be called; null: it can
SELECT
    CASE
        WHEN
            to_regprocedure('"{schema}".reschedule_jobs(bigint[], timestamp with time zone, integer, integer, integer)') IS NULL
            THEN 'this version of graphile-worker has no function reschedule_jobs'
    END AS problem;

-- name: make_ready
-- one row: how many failed jobs its own function has rescheduled for now; the others stay
-- The function of its SQL interface that WorkerUtils.rescheduleJobs calls; it leaves what is locked.
WITH chosen AS MATERIALIZED (
    SELECT array_agg(m.id) AS ids FROM "{schema}"."{table}" AS m WHERE {at_places}
    AND NOT (m.key IS NULL AND m.last_error IS NULL AND m.attempts >= m.max_attempts)
),

rescheduled AS MATERIALIZED (
    SELECT r.id FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".reschedule_jobs(c.ids, run_at => statement_timestamp(), attempts => 0) AS r
)

SELECT
    (SELECT count(*) FROM rescheduled) AS taken_out,
    (SELECT count(s.id) FROM rescheduled AS s) AS put_in;
