-- preset: pgqueuer before 0.20
-- like: preset
-- older: pgqueuer
-- summary: One table for all entrypoints; a job that was worked on is deleted and counted.
-- advice: The table of an old pgqueuer: jobs of all entrypoints lie in it, picked ones with a heartbeat; what is done is
--   deleted and counted in its statistics. Adopt it to see what waits and what is picked and since when.
-- columns: id priority created updated status entrypoint payload
-- roles: id=id pushed_at=created due_at=execute_after claimed_at=updated claimed_by=queue_manager_id status=status
--   payload=payload heartbeat=heartbeat
-- no purge: pgqueuer deletes jobs itself
-- no release: pgqueuer takes it back itself: its dequeue picks what has had no heartbeat for long enough
-- no requeue: pgqueuer of this version deletes what failed, and counts it only
-- no pause: pgqueuer has no pause: its managers are stopped, or started without the entrypoint
-- left claims: pgqueuer's other managers take them once their heartbeat is old
-- takes due: pgqueuer's managers pick due jobs, each those of its own entrypoints
-- overdue: start a manager that has the entrypoint, or see what it logs
--
-- Read from pgqueuer 0.8, 0.12 and 0.15 (queries.py in its package): queued is ready, or scheduled where there is an execute_after
-- that is not there yet; picked is claimed, by its queue_manager_id in some versions. There is no log of jobs.

-- define: queue_column
m.entrypoint

-- define: is_ready
m.status = 'queued' AND {in_part}
AND m.execute_after < statement_timestamp() -- when role due_at

-- define: is_scheduled
-- when role due_at
m.status = 'queued' AND m.execute_after >= statement_timestamp() AND {in_part}
-- end
false -- when no role due_at

-- define: is_overdue
{is_ready} AND m.execute_after > least(m.created, '9999-12-31') + interval '1 second' -- when role due_at
false -- when no role due_at

-- define: is_claimed
m.status = 'picked' AND {in_part}

-- define: is_stuck
m.heartbeat -- when role heartbeat
m.updated -- when no role heartbeat
< statement_timestamp() - make_interval(secs => greatest(30, CAST('{stuck_after_seconds}' AS double precision))) AND {is_claimed}

-- define: claimed_at
CASE WHEN m.status = 'picked' THEN m.updated END

-- define: claimed_by
CASE WHEN m.status = 'picked' THEN CAST(m.queue_manager_id AS text) END -- when role claimed_by

-- define: title
m.entrypoint

-- define: joined_table
-- There is no other table that is read.
CAST(c.relname AS text)
