-- The server's queue of NOTIFY, which all its databases share.

-- name: usage
-- once the queue of NOTIFY is that full (:fills), its share in use beside the oldest transactions of any database, with one row at least
-- Behind the position of a listener in a transaction nothing is removed. Who listens is not shown to others.
SELECT
    q.usage AS usage,
    a.pid AS session,
    CAST(a.usename AS text) AS "user",
    a.application_name AS application,
    CAST(a.datname AS text) AS database,
    a.state AS state,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS double precision) AS transaction_seconds
FROM (SELECT pg_notification_queue_usage() AS usage) AS q
LEFT JOIN LATERAL (
    SELECT
        s.pid,
        s.usename,
        s.application_name,
        s.datname,
        s.state,
        s.xact_start
    FROM pg_stat_activity AS s
    WHERE s.xact_start IS NOT NULL AND s.backend_type = 'client backend' AND s.pid <> pg_backend_pid()
    ORDER BY s.xact_start
    LIMIT 3
) AS a ON true
WHERE q.usage >= CAST(:fills AS double precision)
ORDER BY a.xact_start;

-- name: end
-- script: ends the session that holds the queue back, for its owner to judge
SELECT pg_terminate_backend('{session}');
