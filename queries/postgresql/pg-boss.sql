-- preset: pg-boss 12.19 and later
-- like: preset
-- summary: One table for all queues; what is done or cancelled stays until it is deleted.
-- advice: pg-boss's own table: jobs of all queues lie in it, active ones with the time when they were fetched, failed
--   ones with their error. Adopt it to see what waits, what a killed worker left and what failed; both can be made
--   ready as pg-boss does it.
-- table: job
-- columns: id name data state retry_limit retry_count start_after created_on started_on completed_on output policy
--   singleton_key heartbeat_on blocked
-- beside: queue
-- roles: id=id pushed_at=created_on due_at=start_after claimed_at=started_on status=state error=output
--   attempts=retry_count payload=data done_at=completed_on upserted=upsert_by_key
-- verbs: requeue release
-- no purge: pg-boss deletes jobs by its own deleteQueuedJobs, deleteStoredJobs, deleteAllJobs
-- no archive: pg-boss deletes finished jobs itself, deleteAfterSeconds after they ended
-- prunes: its maintenance: each job deleteAfterSeconds after it ended
-- no pause: pg-boss keeps no pause: its workers in JavaScript go by offWork and stop
-- left claims: pg-boss's supervisor fails them itself: once a job's heartbeatSeconds are over, else its
--   expireInSeconds (15 minutes unless set); what has tries left is retried
-- requeued: as pg-boss's own retry and restore do it: what failed with one more try allowed, what was active with no
--   try counted
-- takes due: pg-boss's workers fetch due jobs of the queues that they work on, as far as the queue's policy lets them
-- overdue: start a process that works on the queue (boss.work), or see its errors
-- stays: its queue's policy lets only one job of its singletonKey wait
--
-- Read from pg-boss 12.38 (dist/plans.js in its package): created and retry are ready, or scheduled while start_after
-- is not there yet or a job of its flow blocks them; active is claimed, by whom is not recorded; failed has no tries
-- left; completed is done. Cancelled is in no state. It has no functions to call: its JavaScript does it.
-- Of a partitioned installation `job` has a partition for each queue that requested one, and one for the others.

-- define: part
m.name = '{only}'

-- define: is_ready
-- As its own getQueueStats counts readyCount.
m.state < 'active' AND NOT m.blocked AND m.start_after <= statement_timestamp() AND {in_part}

-- define: is_scheduled
-- Its deferredCount and its blockedCount.
m.state < 'active' AND (m.blocked OR m.start_after > statement_timestamp()) AND {in_part}

-- define: is_claimed
m.state = 'active' AND {in_part}

-- define: is_stuck
-- fetchNextJob sets heartbeat_on, touchJobs renews it where the queue has heartbeats.
coalesce(m.heartbeat_on, m.started_on) < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
AND {is_claimed}

-- define: is_error
m.state = 'failed' AND {in_part}

-- define: is_done
m.state = 'completed' AND {in_part}

-- define: claimed_at
CASE WHEN m.state = 'active' THEN m.started_on END

-- define: is_finished
m.state > 'active' AND {in_part}

-- define: finished_at
m.completed_on

-- define: prunable
-- deletion of src/plans.js, with each job's own deleteAfterSeconds; 0: never
m.deletion_seconds > 0 AND m.completed_on + make_interval(secs => m.deletion_seconds) < statement_timestamp()

-- define: error
CASE
    WHEN m.state = 'failed'
        THEN coalesce(m.output ->> 'message', m.output -> 'value' ->> 'message', CAST(m.output AS text), '')
END

-- define: title
m.name

-- define: is_first_pop
m.retry_count = 0

-- define: oldest_first
-- Its index on created_on is one of each queue (job_i15).
m.created_on -- when part=one

-- define: is_overdue
-- not one that a job of its flow blocks
{is_ready} AND m.start_after > least(m.created_on, '9999-12-31') + interval '1 second'

-- define: is_waiting
m.state = 'retry' AND {in_part}

-- define: was_tried
true

-- define: failing_since
m.created_on

-- define: installed_version
-- of its schema, which its migrations count
(SELECT CAST(max(v.version) AS text) FROM "{schema}".version AS v)

-- name: queues
-- the names of at most 100 queues
SELECT q.name AS name FROM "{schema}"."{beside}" AS q ORDER BY q.name LIMIT 100;

-- name: make_ready
-- one row: how many jobs its own rules make ready again; the others stay
-- Failed ones by retryJobs (boss.retry), active ones by restoreJobs (boss.restore). Of jobs with the same key a queue's
-- policy lets only one be created (short), in each state (stately) or unfinished (exclusive): its unique indexes
-- job_i1, job_i3 and job_i6, by which a second one would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.name,
        m.policy,
        row_number() OVER (PARTITION BY m.name, m.policy, m.singleton_key, m.state ORDER BY m.created_on, m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations} AND m.state IN ('active', 'failed')
    AND NOT EXISTS (
        SELECT FROM "{schema}"."{table}" AS o
        WHERE o.name = m.name AND coalesce(o.singleton_key, '') = coalesce(m.singleton_key, '') AND o.policy = m.policy AND o.id <> m.id
        AND CASE m.policy
            WHEN 'short' THEN m.state = 'active' AND o.state = 'created'
            WHEN 'stately' THEN o.state = CASE WHEN m.state = 'active' THEN CAST('created' AS "{schema}".job_state) ELSE 'retry' END
            WHEN 'exclusive' THEN m.state = 'failed' AND o.state <= 'active'
            ELSE false
        END
    )
),

moved AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        state = CASE WHEN m.state = 'failed' THEN CAST('retry' AS "{schema}".job_state) ELSE 'created' END,
        retry_limit = m.retry_limit + CASE WHEN m.state = 'failed' THEN 1 ELSE 0 END,
        completed_on = NULL,
        start_after = CASE WHEN m.state = 'failed' THEN greatest(m.start_after, now()) ELSE m.start_after END,
        started_on = CASE WHEN m.state = 'failed' THEN m.started_on END,
        upsert_by_key = CASE WHEN m.state = 'failed' THEN m.upsert_by_key END, -- when role upserted
        heartbeat_on = CASE WHEN m.state = 'failed' THEN m.heartbeat_on END
    FROM chosen AS c
    WHERE m.name = c.name AND m.id = c.id AND m.state IN ('active', 'failed')
    AND (c.turn = 1 OR c.policy IS NULL OR c.policy NOT IN ('short', 'stately', 'exclusive'))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM moved) AS taken_out,
    (SELECT count(*) FROM moved) AS put_in
{under_declared_path}
