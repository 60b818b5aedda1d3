-- preset: graphile-worker 0.14 and 0.15
-- like: graphile-worker
-- older: graphile-worker
-- table: jobs
-- columns: id task_id payload run_at attempts max_attempts last_error key locked_at locked_by is_available
-- beside: tasks
--
-- Read from graphile-worker 0.15 (sql/000011.sql to 000013.sql): as graphile-worker.sql, but the tables are not called private.

-- define: job_queues
"{schema}".job_queues
