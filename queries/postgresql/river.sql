-- preset: River 0.12 and later
-- like: preset
-- summary: One table for all queues; what ended stays until its JobCleaner deletes it.
-- advice: River's own table: jobs of all queues lie in it, running ones with their client, discarded ones with their
--   errors. Adopt it to see what waits, what runs and since when, and what was discarded, which can be retried as
--   River does it.
-- table: river_job
-- columns: id state attempt max_attempts attempted_at created_at finalized_at scheduled_at args attempted_by errors
--   kind queue unique_key unique_states
-- beside: river_queue
-- roles: id=id pushed_at=created_at due_at=scheduled_at claimed_at=attempted_at claimed_by=attempted_by status=state
--   error=errors attempts=attempt payload=args done_at=finalized_at
-- verbs: requeue pause
-- no purge: River deletes jobs by its own JobDelete and JobDeleteMany
-- no archive: River deletes ended jobs itself: its JobCleaner
-- no release: River takes it back itself: its JobRescuer, RescueAfter it was begun (an hour unless set), asks the
--   job's own worker in Go when it is to be tried again
-- left claims: River's JobRescuer retries or discards them once its RescueAfter is over
-- prunes: its JobCleaner: completed and cancelled ones after 24 hours, discarded ones after 7 days
-- requeued: as River's own JobRetry does it: available now, with one more try allowed
-- paused: as River's own QueuePause does it: its clients take no more of its jobs, those that listen at once, those
--   that poll at their next look; what runs goes on
-- takes due: River's JobScheduler makes due jobs available, every 5 seconds in the client that is leader
-- overdue: start a client that works on queues (others are never leader), or see what the leader logs; River's own
--   JobRetry makes one job available at once
-- stays: another job with its unique_key is there
--
-- Read from River 0.43 (riverdriver/riverpgxv5: migration/main up to 007, internal/dbsqlc/river_job.sql and
-- river_queue.sql; client.go, producer.go): available is
-- ready; scheduled and retryable are scheduled until its scheduler makes them available; running is claimed by a client;
-- discarded has no tries left; completed is done. Cancelled and pending are in no state. It has no functions to call.
-- Clients have no heartbeat: river_client was made for one, never filled, and 007 drops it.

-- define: part
m.queue = '{only}'

-- define: is_ready
-- One that JobRetry or an insert postponed a little is available but not due yet: no client takes it.
m.state = 'available' AND m.scheduled_at <= statement_timestamp() AND {in_part}

-- define: is_scheduled
(m.state IN ('scheduled', 'retryable') OR m.state = 'available' AND m.scheduled_at > statement_timestamp()) AND {in_part}

-- define: is_claimed
m.state = 'running' AND {in_part}

-- define: is_error
m.state = 'discarded' AND {in_part}

-- define: is_done
m.state = 'completed' AND {in_part}

-- define: claimed_at
CASE WHEN m.state = 'running' THEN m.attempted_at END

-- define: claimed_by
-- The last of those that had it.
CASE WHEN m.state = 'running' THEN m.attempted_by[array_upper(m.attempted_by, 1)] END

-- define: done_at
CASE WHEN m.state IN ('completed', 'discarded') THEN m.finalized_at END

-- define: is_finished
m.state IN ('completed', 'cancelled', 'discarded') AND {in_part}

-- define: finished_at
m.finalized_at

-- define: prunable
-- JobCleaner (JobDeleteBefore), with its retention periods unless set
m.finalized_at < statement_timestamp() - CASE WHEN m.state = 'discarded' THEN interval '7 days' ELSE interval '24 hours' END

-- define: error
CASE WHEN m.state = 'discarded' THEN coalesce(m.errors[array_upper(m.errors, 1)] ->> 'error', '') END

-- define: title
m.kind

-- define: is_first_pop
m.attempt = 1

-- define: pause_notification
-- the notification for its clients; a star means all queues
CAST(json_build_object('action', 'pause', 'queue', coalesce(nullif('{only}', ''), '*')) AS text)

-- define: resume_notification
CAST(json_build_object('action', 'resume', 'queue', coalesce(nullif('{only}', ''), '*')) AS text)

-- define: stager
(SELECT l.leader_id FROM "{schema}".river_leader AS l WHERE l.expires_at > statement_timestamp() ORDER BY l.name LIMIT 1)

-- define: is_waiting
m.state = 'retryable' AND {in_part}

-- define: was_tried
true

-- define: failing_since
(SELECT {time_of_text} FROM (SELECT m.errors[1] ->> 'at' AS text) AS t)

-- define: installed_version
-- of its migrations
(SELECT CAST(max(v.version) AS text) FROM "{schema}".river_migration AS v WHERE v.line = 'main')

-- name: queues
-- the names of at most 100 queues
SELECT q.name AS name FROM "{schema}"."{beside}" AS q ORDER BY q.name LIMIT 100;

-- name: make_ready
-- one row: how many discarded jobs are available again by its own JobRetry; the others stay
-- Of jobs with the same unique_key only one may be in one of its unique_states (river_job_unique_idx): a second one
-- would undo the batch.
WITH chosen AS MATERIALIZED (
    SELECT
        m.id,
        m.unique_key,
        row_number() OVER (PARTITION BY m.unique_key ORDER BY m.id) AS turn
    FROM "{schema}"."{table}" AS m
    WHERE {at_locations} AND m.state = 'discarded'
    AND (
        m.unique_key IS NULL
        OR NOT EXISTS (
            SELECT FROM "{schema}"."{table}" AS o
            WHERE o.unique_key = m.unique_key AND o.unique_states IS NOT NULL AND o.id <> m.id
            AND "{schema}".river_job_state_in_bitmask(o.unique_states, o.state)
        )
    )
),

retried AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        state = 'available',
        max_attempts = CASE WHEN m.attempt = m.max_attempts THEN m.max_attempts + 1 ELSE m.max_attempts END,
        finalized_at = NULL,
        scheduled_at = now()
    FROM chosen AS c
    WHERE m.id = c.id AND m.state = 'discarded' AND (c.unique_key IS NULL OR c.turn = 1)
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM retried) AS taken_out,
    (SELECT count(*) FROM retried) AS put_in
{under_declared_path}

-- name: may_pause
-- one row: why its queue cannot be paused, or resumed; null: it can
-- As QueuePause says: a queue that no client has worked on yet has no row.
SELECT
    CASE
        WHEN NOT EXISTS (SELECT FROM "{schema}"."{beside}" AS q WHERE '{only}' IN ('', q.name))
            THEN 'River knows no such queue: none of its clients has worked on it'
    END AS problem;

-- name: paused
-- since when each of its paused queues has been paused, by whomever; none if no queue is paused
SELECT q.paused_at AS since FROM "{schema}"."{beside}" AS q
WHERE '{only}' IN ('', q.name) AND q.paused_at IS NOT NULL;

-- name: pause
-- one row: how many queues are paused by its own QueuePause, all of them where the queue is the entire table
WITH paused AS (
    UPDATE "{schema}"."{beside}" AS q
    SET
        paused_at = coalesce(q.paused_at, now()),
        updated_at = CASE WHEN q.paused_at IS NULL THEN now() ELSE q.updated_at END
    WHERE '{only}' IN ('', q.name)
    RETURNING q.name
)

SELECT (
    SELECT count(p.name)
    FROM paused AS p
    CROSS JOIN (SELECT CAST(pg_notify(concat('{schema}', '.river_control'), {pause_notification}) AS text) AS one) AS notified
    WHERE notified.one IS NOT NULL
) AS queues
{under_declared_path}

-- name: resume
-- one row: how many queues its own QueueResume resumes
WITH resumed AS (
    UPDATE "{schema}"."{beside}" AS q
    SET
        paused_at = NULL,
        updated_at = CASE WHEN q.paused_at IS NOT NULL THEN now() ELSE q.updated_at END
    WHERE '{only}' IN ('', q.name)
    RETURNING q.name
)

SELECT (
    SELECT count(r.name)
    FROM resumed AS r
    CROSS JOIN (SELECT CAST(pg_notify(concat('{schema}', '.river_control'), {resume_notification}) AS text) AS one) AS notified
    WHERE notified.one IS NOT NULL
) AS queues
{under_declared_path}
