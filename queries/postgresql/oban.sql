-- preset: Oban 2 (Elixir) and 0.7 (Python)
-- like: preset
-- summary: One table for all queues, of Elixir or Python; what ended stays until it is pruned.
-- advice: Oban's own table, of Elixir or Python: jobs of all queues lie in it, executing ones with their node,
--   discarded ones with their errors. Adopt it to see what waits, what a dead node left and what was discarded; both
--   can be made available as Oban does it.
-- table: oban_jobs
-- columns: id state queue worker args meta errors attempt max_attempts attempted_by inserted_at scheduled_at
--   attempted_at completed_at discarded_at cancelled_at
-- roles: id=id pushed_at=inserted_at due_at=scheduled_at claimed_at=attempted_at claimed_by=attempted_by status=state
--   error=errors attempts=attempt payload=args done_at=discarded_at
-- verbs: requeue release
-- no purge: Oban deletes jobs by its own delete_job and delete_all_jobs, and its Pruner
-- no archive: Oban deletes ended jobs itself: its Pruner
-- prunes: its Pruner, with a max_age of a day
-- no pause: Oban keeps a pause in its running producers, which a notification tells: its own pause_queue
-- left claims: Oban's Lifeline makes them available again, once its rescue_after is over
-- requeued: as Oban's own retry_job and Lifeline do it: what was discarded with one more try allowed, what was
--   executing with its tries as they are (none left: discarded)
-- takes due: Oban's Stager makes due jobs available, every second: in Elixir on the node that is leader, in Python on
--   each node, for its own queues
-- overdue: start a node that stages (in Elixir not peer: false, nor stage_interval: :infinity), or see what its Stager
--   logs; Oban's own retry_job makes one job available at once
-- stays: it was neither discarded nor executing any more
--
-- Read from Oban 2.23 (lib/oban/engines/basic.ex, lib/oban/migrations/postgres) and its Python package 0.7 (oban/queries):
-- available is ready; scheduled and retryable are scheduled until its stager makes them available; executing is claimed
-- by a node and a producer of it; discarded has no tries left; completed is done. Cancelled and suspended are in no state.
-- Its times have no zone, and are UTC. Python's producers have a heartbeat in oban_producers; Elixir's have none.

-- define: queue_column
m.queue

-- define: is_ready
m.state = 'available' AND {in_part}

-- define: is_scheduled
m.state IN ('scheduled', 'retryable') AND {in_part}

-- define: is_claimed
m.state = 'executing' AND {in_part}

-- define: is_stuck
-- As its Lifeline has it, whose rescue_after is 5 minutes in Python and 60 in Elixir: there is no other sign of a job.
m.attempted_at < timezone('UTC', now()) - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) AND {is_claimed}

-- define: is_error
m.state = 'discarded' AND {in_part}

-- define: is_done
m.state = 'completed' AND {in_part}

-- define: pushed_at
timezone('UTC', m.inserted_at)

-- define: due_at
timezone('UTC', m.scheduled_at)

-- define: claimed_at
CASE WHEN m.state = 'executing' THEN timezone('UTC', m.attempted_at) END

-- define: claimed_by
CASE WHEN m.state = 'executing' THEN array_to_string(m.attempted_by, ' ') END

-- define: done_at
timezone('UTC', CASE WHEN m.state = 'discarded' THEN m.discarded_at WHEN m.state = 'completed' THEN m.completed_at END)

-- define: is_finished
m.state IN ('completed', 'cancelled', 'discarded') AND {in_part}

-- define: finished_at
timezone('UTC', CASE m.state WHEN 'completed' THEN m.completed_at WHEN 'cancelled' THEN m.cancelled_at ELSE m.discarded_at END)

-- define: prunable
-- prune_jobs of Elixir goes by scheduled_at, prune_jobs.sql of Python by the time of the state.
{finished_at} < statement_timestamp() - interval '1 day' AND m.scheduled_at < timezone('UTC', statement_timestamp()) - interval '1 day'

-- define: error
-- An array of jsonb in Elixir, one jsonb in Python.
CASE WHEN m.state = 'discarded' THEN coalesce(to_jsonb(m.errors) -> -1 ->> 'error', '') END

-- define: title
m.worker

-- define: is_first_pop
m.attempt = 1

-- define: stager
-- Elixir's leader; in Python whoever has the queue and a heartbeat
-- when beside=oban_peers
(SELECT p.node FROM "{schema}".oban_peers AS p WHERE p.expires_at > timezone('UTC', now()) ORDER BY p.name LIMIT 1)
-- end
-- when not beside=oban_peers
(
    SELECT string_agg(DISTINCT m.node, ', ') FROM "{schema}".oban_producers AS m
    WHERE m.updated_at >= timezone('UTC', now()) - interval '60 seconds' AND {in_part}
)
-- end

-- define: is_waiting
m.state = 'retryable' AND {in_part}

-- define: was_tried
true

-- define: failing_since
(SELECT {time_of_text} FROM (SELECT to_jsonb(m.errors) -> 0 ->> 'at' AS text) AS t)

-- define: joined_table
-- of Python's, of Elixir's
(
    SELECT CAST(b.relname AS text) FROM pg_class AS b
    WHERE b.relnamespace = c.relnamespace AND b.relname IN ('oban_producers', 'oban_peers')
    ORDER BY b.relname DESC LIMIT 1
)

-- define: installed_version
-- of its migrations, as Elixir keeps it in a comment on the table; Python keeps none, and other words are not its
substring(obj_description(CAST('"{schema}"."{table}"' AS regclass), 'pg_class') FROM '^[0-9]+$')

-- name: owners
-- a row for each of the producers, as claimed_by names them: gone, alive or unknown, by its heartbeat
-- Its heartbeat is every 15 seconds; after 60 without one the others remove it (oban/_refresher.py).
SELECT
    requested.session AS session,
    -- when not beside=oban_peers
    CASE
        WHEN p.uuid IS NULL THEN 'gone'
        WHEN p.updated_at >= timezone('UTC', now()) - interval '60 seconds' THEN 'alive'
        WHEN p.updated_at < timezone('UTC', now()) - make_interval(secs => greatest(60, CAST('{stuck_after_seconds}' AS double precision))) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS requested (session)
LEFT JOIN "{schema}"."{beside}" AS p ON substring(requested.session FROM '[^ ]*$') = CAST(p.uuid AS text);
-- end
-- when beside=oban_peers
    'unknown' AS owner
FROM unnest(CAST(:sessions AS text[])) AS requested (session);
-- end

-- name: make_ready
-- one row: how many jobs its own statements have moved; the others stay
-- Discarded ones as retry_many_jobs.sql and retry_all_jobs do it, executing ones as rescue_jobs.sql and rescue_jobs do,
-- which discard what has no tries left. Python's statements also write into meta, which distinguishes them here.
WITH moved AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        state = CASE WHEN m.state = 'executing' AND m.attempt >= m.max_attempts THEN CAST('discarded' AS "{schema}".oban_job_state) ELSE 'available' END,
        max_attempts = CASE WHEN m.state = 'executing' THEN m.max_attempts ELSE greatest(m.max_attempts, m.attempt + 1) END,
        scheduled_at = CASE WHEN m.state = 'executing' THEN m.scheduled_at ELSE timezone('UTC', now()) END,
        completed_at = CASE WHEN m.state = 'executing' THEN m.completed_at END,
        cancelled_at = CASE WHEN m.state = 'executing' THEN m.cancelled_at END,
        -- when beside=oban_producers
        meta = CASE
            WHEN jsonb_typeof(m.meta) <> 'object' THEN m.meta
            WHEN m.state <> 'executing' THEN jsonb_set(m.meta, ARRAY['uniq_bmp'], '[]')
            WHEN m.attempt >= m.max_attempts THEN m.meta
            ELSE m.meta || jsonb_build_object('rescued', coalesce(CAST(substring(m.meta ->> 'rescued' FROM '^[0-9]{1,9}$') AS integer), 0) + 1)
        END,
        -- end
        discarded_at = CASE
            WHEN m.state = 'executing' AND m.attempt >= m.max_attempts THEN timezone('UTC', now())
            WHEN m.state = 'executing' THEN m.discarded_at
        END
    WHERE {at_locations} AND m.state IN ('executing', 'discarded')
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM moved) AS taken_out,
    (SELECT count(*) FROM moved) AS put_in
{under_declared_path}
