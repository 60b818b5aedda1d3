-- preset: graphile-worker 0.14 and 0.15
-- like: graphile-worker
-- older: graphile-worker
-- table: jobs
-- columns: id task_id payload run_at attempts max_attempts last_error key locked_at locked_by is_available
-- beside: tasks
--
-- Read from graphile-worker 0.15 (sql/000011.sql to 000013.sql): as graphile-worker.sql, but the tables are not called private.

-- name: locked_queues
-- the ten named queues that were locked first, of those locked for :seconds: since when, by which worker, how many jobs wait
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
FROM "{schema}".job_queues AS q
WHERE q.locked_at < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
ORDER BY q.locked_at LIMIT 10;
