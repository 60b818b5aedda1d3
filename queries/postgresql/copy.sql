-- A copy of the finished jobs of a library: `finished_rows` and `prune` of preset.sql read and delete them.

-- name: timeline
-- one row: the timeline of the server: another one after a promotion or a restore, when what was copied is compared again
SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS timeline;

-- name: oldest_transaction
-- one row: when the oldest transaction began that may still write here; null where that is not to be seen
-- A job that one finishes is there only once it commits, with a time since its beginning.
SELECT
    CASE
        WHEN count(*) FILTER (WHERE a.backend_start IS NULL OR a.state = 'disabled') = 0
            THEN least(statement_timestamp(), min(a.xact_start))
    END AS began_at
FROM pg_stat_activity AS a
WHERE a.datid = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
AND a.pid <> pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker';

-- name: prepared_transactions
-- one row: how many prepared transactions there are here: when one began is not recorded
-- Asked after `oldest_transaction`: what was running then, and is prepared meanwhile, is in one of them.
SELECT count(*) AS transactions FROM pg_prepared_xacts AS p WHERE p.database = current_database();
