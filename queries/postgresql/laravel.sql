-- preset: Laravel 8 and later
-- like: preset
-- summary: One table for all queues; what ended is deleted, what failed goes into another table.
-- advice: Laravel's own table: jobs of all queues lie in it until they end, reserved ones with the time when they
--   were taken. Adopt it to see what waits and what a killed worker left, which can be released as Laravel does it;
--   what failed lies in failed_jobs.
-- columns: id queue payload attempts reserved_at available_at created_at
-- roles: id=id pushed_at=created_at due_at=available_at claimed_at=reserved_at status=reserved_at attempts=attempts
--   payload=payload
-- verbs: release
-- no purge: Laravel deletes jobs itself: php artisan queue:clear
-- no requeue: Laravel keeps what failed in failed_jobs, and only its PHP can read such a job: php artisan queue:retry
--   ID
-- no pause: Laravel keeps a pause in the application's cache, in no row here: its own queue:pause
-- left claims: Laravel's workers take them retry_after (90 seconds unless set) after they were reserved
-- requeued: as Laravel's own deleteAndRelease does it: available now under a new id, their attempts stay counted
-- takes due: Laravel's workers pop available jobs of their queues
-- errors: Laravel keeps what failed in failed_jobs, a table of its own, of which nothing is counted here
-- overdue: start a worker for the queue (php artisan queue:work), or see what it logs
-- stays: it was not reserved any more
--
-- Read from Laravel 13.4 (Illuminate/Queue: DatabaseQueue.php, Console/stubs/jobs.stub): available_at is there: ready,
-- else scheduled (what failed waits so for its next try); reserved_at says that a worker has it, and nothing tells which.
-- Its times are seconds since 1970. What ended is deleted; what has no tries left goes into failed_jobs, a table of its
-- own, of which nothing is counted here. It has no functions to call: its PHP does it.

-- define: queue_column
m.queue

-- define: queue_index
true

-- define: moment
EXTRACT(EPOCH FROM statement_timestamp())

-- define: is_ready
-- As its own pendingSize counts.
m.reserved_at IS NULL AND m.available_at <= {moment} AND {in_part}

-- define: is_scheduled
-- Its delayedSize.
m.reserved_at IS NULL AND m.available_at > {moment} AND {in_part}

-- define: is_claimed
-- Its reservedSize.
m.reserved_at IS NOT NULL AND {in_part}

-- define: is_stuck
-- It has no heartbeat: after retry_after (90 seconds unless set) isReservedButExpired considers it abandoned.
m.reserved_at < {moment} - CAST('{stuck_after_seconds}' AS double precision) AND {in_part}

-- define: pushed_at
CASE WHEN m.created_at BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(m.created_at) END

-- define: due_at
CASE WHEN m.available_at BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(m.available_at) END

-- define: claimed_at
CASE WHEN m.reserved_at BETWEEN -210866803200 AND 9224318015999 THEN to_timestamp(m.reserved_at) END

-- define: title
replace(substring(m.payload FROM '"displayName":"([^"]+)"'), E'\\\\', E'\\')

-- define: is_first_pop
m.attempts = 1

-- define: ready_since
greatest({pushed_at}, {due_at})

-- define: is_waiting
m.reserved_at IS NULL AND {in_part}

-- define: was_tried
m.attempts > 0

-- define: failing_since
{pushed_at}

-- define: joined_table
-- There is no other table.
CAST(c.relname AS text)

-- define: writes_into
-- It puts back what was released as a new job.
'"{schema}"."{table}"'

-- name: make_ready
-- one row: how many reserved jobs its own deleteAndRelease has put back, each with a new id; the others stay
WITH taken AS (
    DELETE FROM "{schema}"."{table}" AS m WHERE {at_locations} AND m.reserved_at IS NOT NULL
    RETURNING m.queue, m.payload, m.attempts
),

released AS (
    INSERT INTO "{schema}"."{table}" (queue, payload, attempts, reserved_at, available_at, created_at)
    SELECT
        t.queue,
        t.payload,
        t.attempts,
        NULL,
        floor({moment}),
        floor({moment})
    FROM taken AS t
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM taken) AS taken_out,
    (SELECT count(*) FROM released) AS put_in
{under_declared_path}
