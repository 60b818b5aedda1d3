-- Ending a session or a prepared (distributed) transaction, identified exactly, so that no other one is hit.

-- name: identity
-- one row: since when the session is connected and in its transaction, and whether it is this one; none: disconnected
SELECT
    CAST(a.backend_start AS text) AS started,
    CAST(a.xact_start AS text) AS transaction_started,
    format('pid=%s start=%s', a.pid, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) AS session,
    a.pid = pg_backend_pid() AS own
FROM pg_stat_activity AS a WHERE CAST(a.pid AS text) = CAST(:session AS text);

-- name: prepared_identity
-- one row: when the transaction was prepared, and its number; none: it is finished
SELECT
    CAST(p.prepared AS text) AS started,
    CAST(p.transaction AS text) AS transaction_started,
    p.gid AS session,
    false AS own
FROM pg_prepared_xacts AS p WHERE p.gid = CAST(:session AS text) AND p.database = current_database();

-- name: end_session
-- one row: whether it ended within :seconds; none: it is not the same session any more, so it was not ended
SELECT pg_terminate_backend(a.pid, CAST(CAST(:seconds AS double precision) * 1000 AS bigint)) AS ended
FROM pg_stat_activity AS a
WHERE CAST(a.pid AS text) = CAST(:session AS text)
AND CAST(a.backend_start AS text) = CAST(:started AS text)
AND CAST(a.xact_start AS text) IS NOT DISTINCT FROM CAST(:transaction_started AS text);

-- name: end_prepared
-- script: rolls back a prepared transaction, outside a transaction
ROLLBACK PREPARED '{session}';
