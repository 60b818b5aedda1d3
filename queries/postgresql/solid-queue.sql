-- preset: Solid Queue 1
-- like: preset
-- summary: One table of jobs, and one of executions for each state but done.
-- advice: Solid Queue's own tables: jobs of all queues, and which are ready, scheduled, blocked, claimed by which
--   process, failed. Adopt it to see what waits, what a dead process left and what failed; both can be made ready as
--   Solid Queue does it.
-- table: solid_queue_jobs
-- columns: id queue_name class_name arguments priority scheduled_at finished_at concurrency_key created_at
-- beside: solid_queue_failed_executions
-- roles: id=id pushed_at=created_at due_at=scheduled_at claimed_at=created_at claimed_by=job_id status=finished_at
--   error=error payload=arguments done_at=finished_at
-- verbs: requeue release pause
-- no purge: Solid Queue deletes jobs by its own SolidQueue::Queue#clear and discard
-- no archive: Solid Queue deletes finished jobs itself: SolidQueue::Job.clear_finished_in_batches
-- left claims: Solid Queue's supervisors fail them once their process had no heartbeat for process_alive_threshold (5
--   minutes unless set)
-- prunes: its SolidQueue::Job.clear_finished_in_batches: finished ones after a day
-- requeued: as Solid Queue's own FailedExecution#retry (its executions counted anew) and ClaimedExecution#release do
--   it
-- paused: as Solid Queue's own Queue#pause does it: its workers take no more of its jobs from their next look on; what
--   runs goes on
-- takes due: Solid Queue's Dispatcher makes scheduled jobs ready, every polling_interval (1 second unless set), and
--   blocked ones, every concurrency_maintenance_interval (10 minutes unless set)
-- overdue: start a dispatcher, or see what it logs; once, by hand: SolidQueue::ScheduledExecution.dispatch_next_batch(500),
--   and for blocked jobs SolidQueue::BlockedExecution.unblock(500)
-- stays: it was neither failed nor claimed any more, or has a concurrency_key
--
-- Read from Solid Queue 1.5 (app/models/solid_queue/*.rb, the generator's db/queue_schema.rb): each job has one row in
-- solid_queue_jobs and, until it is finished, one among the executions: ready is ready; scheduled, and blocked by its
-- concurrency_key, are scheduled; claimed by a process, whose heartbeat is in solid_queue_processes; failed is an
-- error. One with finished_at is done. Times have no zone, and are UTC. It has no functions to call: its Ruby does it.

-- define: queue_column
m.queue_name

-- define: queue_index
true

-- define: is_ready
-- One state per job, as its own Job#status has it: finished, else the first execution that there is: ready, claimed, failed.
EXISTS (SELECT FROM "{schema}".solid_queue_ready_executions AS r WHERE r.job_id = m.id) AND m.finished_at IS NULL AND {in_part}

-- define: is_not_ready
m.finished_at IS NULL AND NOT EXISTS (SELECT FROM "{schema}".solid_queue_ready_executions AS o WHERE o.job_id = m.id)

-- define: is_not_claimed
{is_not_ready} AND NOT EXISTS (SELECT FROM "{schema}".solid_queue_claimed_executions AS t WHERE t.job_id = m.id)

-- define: is_scheduled
(
    EXISTS (SELECT FROM "{schema}".solid_queue_scheduled_executions AS s WHERE s.job_id = m.id)
    OR EXISTS (SELECT FROM "{schema}".solid_queue_blocked_executions AS b WHERE b.job_id = m.id)
) AND {is_not_claimed}
AND NOT EXISTS (SELECT FROM "{schema}"."{beside}" AS f WHERE f.job_id = m.id) AND {in_part}

-- define: is_claimed
EXISTS (SELECT FROM "{schema}".solid_queue_claimed_executions AS c WHERE c.job_id = m.id) AND {is_not_ready} AND {in_part}

-- define: is_stuck
-- As its own orphaned and prunable say: the process is gone, or had no heartbeat for process_alive_threshold.
EXISTS (
    SELECT FROM "{schema}".solid_queue_claimed_executions AS c
    LEFT JOIN "{schema}".solid_queue_processes AS p ON c.process_id = p.id
    WHERE c.job_id = m.id AND coalesce(timezone('UTC', p.last_heartbeat_at) < {silent_before}, true)
) AND {is_not_ready} AND {in_part}

-- define: is_error
EXISTS (SELECT FROM "{schema}"."{beside}" AS f WHERE f.job_id = m.id) AND {is_not_claimed} AND {in_part}

-- define: is_done
m.finished_at IS NOT NULL AND {in_part}

-- define: other_state
'without an execution'

-- define: pushed_at
timezone('UTC', m.created_at)

-- define: due_at
-- of a ready job, when it was made ready last: scheduled_at stays as it is when a failed one is retried
timezone('UTC', coalesce((SELECT r.created_at FROM "{schema}".solid_queue_ready_executions AS r WHERE r.job_id = m.id), m.scheduled_at))

-- define: is_first_pop
-- What is retried is updated, and keeps no time of its own.
m.updated_at = m.created_at

-- define: claimed_at
timezone('UTC', (SELECT c.created_at FROM "{schema}".solid_queue_claimed_executions AS c WHERE c.job_id = m.id))

-- define: claimed_by
(SELECT coalesce('process ' || c.process_id, 'no process') FROM "{schema}".solid_queue_claimed_executions AS c WHERE c.job_id = m.id)

-- define: done_at
timezone('UTC', coalesce(m.finished_at, (SELECT f.created_at FROM "{schema}"."{beside}" AS f WHERE f.job_id = m.id)))

-- define: finished_at
timezone('UTC', m.finished_at)

-- define: prunable
-- clear_finished_in_batches (clearable), with clear_finished_jobs_after unless set
m.finished_at < timezone('UTC', statement_timestamp()) - interval '1 day'

-- define: error
(
    SELECT
        coalesce(nullif(concat_ws(
            ': ',
            CAST(substring(e.text FROM concat('"exception_class"\s*:\s*(', {json_string}, ')')) AS json) #>> '{}',
            CAST(substring(e.text FROM concat('"message"\s*:\s*(', {json_string}, ')')) AS json) #>> '{}'
        ), ''), e.text, '')
    FROM (
        SELECT regexp_replace(left(CAST(f.error AS text), 100000), {escapes}, '\1\\\\', 'g') AS text
        FROM "{schema}"."{beside}" AS f WHERE f.job_id = m.id
    ) AS e
)

-- define: title
m.class_name

-- define: overdue_since
-- Blocked jobs are looked at once in a concurrency_maintenance_interval.
timezone('UTC', coalesce(
    (SELECT least(b.expires_at, '9999-12-31') + interval '10 minutes' FROM "{schema}".solid_queue_blocked_executions AS b WHERE b.job_id = m.id),
    (SELECT s.scheduled_at FROM "{schema}".solid_queue_scheduled_executions AS s WHERE s.job_id = m.id),
    (SELECT r.created_at FROM "{schema}".solid_queue_ready_executions AS r WHERE r.job_id = m.id)
))

-- define: is_overdue
-- As its own dispatch_next_batch, and as unblock: expired, and its semaphore is gone, open or expired too.
(
    EXISTS (
        SELECT FROM "{schema}".solid_queue_scheduled_executions AS s
        WHERE s.job_id = m.id AND s.scheduled_at <= timezone('UTC', now())
    )
    OR EXISTS (
        SELECT FROM "{schema}".solid_queue_blocked_executions AS b
        LEFT JOIN "{schema}".solid_queue_semaphores AS p ON b.concurrency_key = p.key
        WHERE b.job_id = m.id AND b.expires_at < timezone('UTC', now())
        AND (p.key IS NULL OR p.value > 0 OR p.expires_at < timezone('UTC', now()))
    )
    OR {is_ready} AND {due_at} > least({pushed_at}, '9999-12-31Z') + interval '1 second'
) AND m.finished_at IS NULL AND {in_part}

-- define: stager
(
    SELECT string_agg('process ' || p.id, ', ' ORDER BY p.id) FROM "{schema}".solid_queue_processes AS p
    WHERE p.kind = 'Dispatcher' AND timezone('UTC', p.last_heartbeat_at) >= statement_timestamp() - interval '5 minutes'
)

-- define: last_beat
(SELECT timezone('UTC', p.last_heartbeat_at) FROM "{schema}".solid_queue_processes AS p WHERE concat('process ', p.id) = requested.session)

-- define: silent_seconds
-- Its heartbeat is every minute; after process_alive_threshold (5 minutes unless set) its supervisor prunes it.
300

-- define: counted_anew
-- its arguments as they are written, but for its two counters
-- Escapes of the type json are set aside: it has them, but does not read \u0000. Not where the character that replaces
-- them is in use.
(
    SELECT replace(
        concat('{', string_agg(concat(
            to_json(a.key), ':',
            CASE a.key WHEN 'executions' THEN '0' WHEN 'exception_executions' THEN '{}' ELSE CAST(a.value AS text) END
        ), ',' ORDER BY a.position), '}'),
        s.aside, '\u'
    )
    FROM (SELECT CASE WHEN strpos(m.arguments, chr(127)) = 0 THEN concat(chr(127), 'u') ELSE '\u' END AS aside) AS s
    CROSS JOIN LATERAL json_each(
        CAST(regexp_replace(m.arguments, '(?<!\\)((?:\\\\)*)\\u', concat('\1', replace(s.aside, '\', '\\')), 'g') AS json)
    ) WITH ORDINALITY AS a (key, value, position)
    GROUP BY s.aside
)

-- define: writes_into
'"{schema}".solid_queue_ready_executions'

-- name: not_requeued
-- a row for each of the chosen that is not requeued: its id, and why
-- Job#dispatch asks the semaphore of its concurrency_key, whose limit only the job's class in Ruby knows.
SELECT
    CAST(m.id AS text) AS id,
    'they have a concurrency_key, whose limit only Ruby knows: SolidQueue::FailedExecution.find_by(job_id: ID).retry' AS why
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[])) AND m.concurrency_key IS NOT NULL;

-- name: make_ready
-- one row: how many jobs, failed or claimed, have a ready execution again; the others stay
-- Failed ones by FailedExecution#retry, claimed ones by ClaimedExecution#release, which needs no semaphore: the job still
-- holds its own. Only what nobody else has removed meanwhile is removed.
WITH released AS (
    DELETE FROM "{schema}".solid_queue_claimed_executions AS e USING "{schema}"."{table}" AS m
    WHERE e.job_id = m.id AND {at_locations}
    RETURNING e.job_id
),

retried AS (
    DELETE FROM "{schema}"."{beside}" AS e USING "{schema}"."{table}" AS m
    WHERE e.job_id = m.id AND {at_locations} AND m.concurrency_key IS NULL
    RETURNING e.job_id
),

freed AS (SELECT r.job_id FROM released AS r UNION ALL SELECT t.job_id FROM retried AS t),

reset AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        arguments = CASE
            WHEN m.arguments ~ '"(executions"\s*:\s*[1-9]|exception_executions"\s*:\s*{\s*")' THEN {counted_anew}
            ELSE m.arguments
        END,
        updated_at = timezone('UTC', now())
    FROM retried AS r
    WHERE m.id = r.job_id
),

readied AS (
    INSERT INTO "{schema}".solid_queue_ready_executions (job_id, queue_name, priority, created_at)
    SELECT m.id, m.queue_name, m.priority, timezone('UTC', now())
    FROM "{schema}"."{table}" AS m INNER JOIN freed AS f ON m.id = f.job_id
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM freed) AS taken_out,
    (SELECT count(*) FROM readied) AS put_in
{under_declared_path}

-- name: may_pause
-- one row: why its queue cannot be paused, or resumed; null: it can
SELECT
    CAST(NULL AS text) AS problem; -- when part=one
    'Solid Queue pauses one queue, not all at once: adopt that one with --queue' AS problem; -- when part=all

-- name: paused
-- since when it has been paused, by whomever; none if it is not paused
SELECT p.created_at AS since FROM "{schema}".solid_queue_pauses AS p WHERE p.queue_name = '{only}';

-- name: pause
-- one row: how many queues are paused by its own Queue#pause
WITH paused AS (
    INSERT INTO "{schema}".solid_queue_pauses AS p (queue_name, created_at)
    VALUES ('{only}', timezone('UTC', now()))
    ON CONFLICT (queue_name) DO NOTHING
    RETURNING p.queue_name
)

SELECT (SELECT count(p.queue_name) FROM paused AS p) AS queues
{under_declared_path}

-- name: resume
-- one row: how many queues its own Queue#resume resumes
WITH resumed AS (
    DELETE FROM "{schema}".solid_queue_pauses AS p WHERE p.queue_name = '{only}'
    RETURNING p.queue_name
)

SELECT (SELECT count(r.queue_name) FROM resumed AS r) AS queues
{under_declared_path}
