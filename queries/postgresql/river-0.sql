-- preset: River before 0.12
-- like: river
-- older: river
-- columns: id state attempt max_attempts attempted_at created_at finalized_at scheduled_at args attempted_by errors kind
--   queue
-- beside: river_migration
--
-- Read from River's migrations before 006: as river.sql, but some of what its JobRetry and QueuePause rely on (unique_states,
-- river_queue) may be missing.

-- name: queues
-- the names of at most 100 queues, among 100,000 jobs
SELECT DISTINCT j.queue AS name FROM (SELECT t.queue FROM "{schema}"."{table}" AS t LIMIT 100000) AS j ORDER BY name LIMIT 100;
