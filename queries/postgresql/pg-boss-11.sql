-- preset: pg-boss 10 to 12.18
-- like: pg-boss
-- older: pg-boss
-- columns: id name data state retry_limit retry_count start_after created_on started_on completed_on output policy
--   singleton_key
-- verbs: requeue
-- requeued: as pg-boss's own retry does it: due as they were, with one more try allowed
-- left claims: pg-boss's supervisor fails them itself, expireInSeconds (15 minutes unless set) after they began
--
-- Read from pg-boss 10.4, 11.1 (src/plans.js) and 12.18 (dist/plans.js): as pg-boss.sql, but no flow blocks a job, and
-- heartbeat_on is new in some 12.

-- define: is_ready
m.state < 'active' AND m.start_after <= statement_timestamp() AND {in_part}

-- define: is_scheduled
m.state < 'active' AND m.start_after > statement_timestamp() AND {in_part}

-- define: is_stuck
m.started_on < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) AND {is_claimed}

-- name: make_ready
-- one row: how many failed jobs its own retryJobs makes ready again; the others stay
-- Of jobs with the same key a queue's policy lets only one wait (stately: job_i3; exclusive, since 11: job_i6), and a
-- second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.name,
        m.policy,
        row_number() OVER (PARTITION BY m.name, m.policy, m.singleton_key ORDER BY m.created_on, m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations} AND m.state = 'failed'
    AND NOT EXISTS (
        SELECT FROM "{schema}"."{table}" AS o
        WHERE o.name = m.name AND coalesce(o.singleton_key, '') = coalesce(m.singleton_key, '') AND o.policy = m.policy AND o.id <> m.id
        AND (m.policy = 'stately' AND o.state = 'retry' OR m.policy = 'exclusive' AND o.state <= 'active')
    )
),

moved AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        state = 'retry',
        retry_limit = m.retry_limit + 1
    FROM chosen AS c
    WHERE m.name = c.name AND m.id = c.id AND m.state = 'failed'
    AND (c.turn = 1 OR c.policy IS NULL OR c.policy NOT IN ('stately', 'exclusive'))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM moved) AS taken_out,
    (SELECT count(*) FROM moved) AS put_in
{under_declared_path}
