-- The server itself, whatever queues it holds.

-- name: session_settings
-- one row: the process that answers, the settings that every statement relies on, and whether any database here may be a copy
-- Qualified, since the search path is one of them.
SELECT
    pg_catalog.pg_backend_pid() AS pid,
    pg_catalog.current_setting('statement_timeout') AS statement_timeout,
    pg_catalog.current_setting('lock_timeout') AS lock_timeout,
    pg_catalog.current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
    pg_catalog.current_setting('standard_conforming_strings') AS standard_conforming_strings,
    pg_catalog.current_setting('timezone') AS timezone,
    pg_catalog.current_setting('datestyle') AS datestyle,
    pg_catalog.current_setting('intervalstyle') AS intervalstyle,
    pg_catalog.current_setting('search_path') AS search_path,
    pg_catalog.current_setting('default_transaction_isolation') AS default_transaction_isolation,
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_subscription AS s WHERE s.subenabled) THEN 'yes' ELSE 'no' END AS subscribes;

-- name: task_settings
-- one row: the settings of a transaction of the pipeline's tasks, whose connection goes through a pooler
SELECT
    pg_catalog.set_config('timezone', 'UTC', true) AS timezone,
    pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true) AS search_path,
    pg_catalog.set_config('statement_timeout', '0', true) AS statement_timeout,
    pg_catalog.set_config('row_security', 'off', true) AS row_security,
    pg_catalog.set_config('enable_nestloop', 'off', true) AS enable_nestloop,
    pg_catalog.set_config('enable_hashjoin', 'off', true) AS enable_hashjoin;

-- name: capabilities
-- one row: the server, the login, and what it may do
SELECT
    current_setting('server_version') AS server_version,
    CAST(current_setting('server_version_num') AS integer) AS version_number,
    current_database() AS database,
    current_user AS database_user,
    ({is_replica} OR current_setting('default_transaction_read_only') = 'on') AS read_only,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all_sessions,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    (current_setting('track_counts') = 'on' AND NOT pg_is_in_recovery()) AS counts_rows,
    pg_encoding_to_char(encoding) AS encoding
FROM pg_database
WHERE datname = current_database();

-- name: tls_version
-- one row: the version of TLS between this session and its client; behind a pooler the pooler is that client
SELECT (
    SELECT s.version FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid()
) AS version;

-- name: limit_locks
-- one row: how long this transaction waits for a lock from now on
SELECT set_config('lock_timeout', :lock_timeout, true) AS lock_timeout;

-- name: transaction_settings
-- one row: the settings of this transaction from now on, and what the server is
-- Plans use an index wherever there is one, whatever the statistics: a sample bounds its rows by LIMIT;
-- without statistics, or with those of an empty queue, the planner expects to find them soon and reads
-- the entire table where there are none. The counters last from a start, crash or reset to the next one.
SELECT
    set_config('enable_seqscan', 'off', true) AS seqscan,
    set_config('enable_bitmapscan', 'off', true) AS bitmapscan,
    set_config('jit', 'off', true) AS jit,
    set_config('statement_timeout', :statement_timeout, true) AS statement_timeout,
    set_config('lock_timeout', :lock_timeout, true) AS lock_timeout,
    concat_ws(
        ' ', pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time(),
        pg_stat_get_db_stat_reset_time((SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())),
        pg_is_in_recovery()
    ) AS incarnation,
    NOT pg_is_in_recovery() AS sees_writers,
    clock_timestamp() AS now;

-- name: standby
-- no row on a primary; on a standby one row: whether it replays and receives, how long ago the moment was that it shows, and where it receives from; so too where a subscription makes the database a copy
-- All that was received and is replayed is not behind, however old the last commit is: an idle primary writes nothing, and
-- answers within half of wal_receiver_timeout. A standby that receives nothing, or has more to replay, shows the moment of
-- the commit that it replayed last. Details of the receiver are for pg_read_all_stats, of primary_conninfo (which has a
-- password) for pg_read_all_settings.
SELECT
    pg_get_wal_replay_pause_state() <> 'not paused' AS paused,
    w.receives AS receives,
    CAST(CASE
        WHEN NOT w.receives OR pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()
            -- The commit's time is by the primary's clock.
            THEN abs(EXTRACT(EPOCH FROM clock_timestamp() - pg_last_xact_replay_timestamp()))
        WHEN w.silent_seconds > w.silent_after_seconds THEN w.silent_seconds
        ELSE 0
    END AS double precision) AS lag_seconds,
    coalesce(w.sender, c.host || coalesce(':' || c.port, '')) AS upstream,
    clock_timestamp() AS now,
    CAST(pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '0/0') AS bigint) AS received,
    CAST(pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0') AS bigint) AS replayed,
    CAST(NULL AS text) AS subscription
FROM (
    SELECT
        coalesce(bool_or(r.pid IS NOT NULL AND coalesce(r.status, 'streaming') = 'streaming'), false) AS receives,
        max(r.sender_host || ':' || r.sender_port) AS sender,
        max(EXTRACT(EPOCH FROM clock_timestamp() - r.last_msg_receipt_time)) AS silent_seconds,
        -- 0: it never asks.
        nullif(EXTRACT(EPOCH FROM CAST(current_setting('wal_receiver_timeout') AS interval)), 0) / 2 + 5 AS silent_after_seconds
    FROM pg_stat_wal_receiver AS r
) AS w
CROSS JOIN LATERAL (
    SELECT
        coalesce(
            substring(s.conninfo FROM '\mhost\s*=\s*''?([^\s'']+)'), substring(s.conninfo FROM '^\w+://(?:[^@/]*@)?([^/?]+)')
        ) AS host,
        substring(s.conninfo FROM '\mport\s*=\s*''?(\d+)') AS port
    FROM (
        SELECT CASE
            WHEN pg_has_role(current_user, 'pg_read_all_settings', 'USAGE') THEN current_setting('primary_conninfo')
        END AS conninfo
    ) AS s
) AS c
WHERE pg_is_in_recovery()
UNION ALL
-- A subscription does not know what its publisher has not sent yet: the lag is not known.
SELECT
    false AS paused,
    (
        SELECT count(w.pid) > 0 FROM pg_stat_subscription AS w
        WHERE w.subid = writer.oid AND w.relid IS NULL
    ) AS receives,
    CAST(NULL AS double precision) AS lag_seconds,
    CAST(NULL AS text) AS upstream,
    clock_timestamp() AS now,
    CAST(NULL AS bigint) AS received,
    CAST(NULL AS bigint) AS replayed,
    CAST(writer.subname AS text) AS subscription
FROM {writing_subscriptions};

-- name: sessions_used
-- one row: how many sessions clients have, and how many others than superusers may have
-- Without pg_read_all_stats it is not known of others' sessions whether a client has them: few have none.
SELECT
    CAST((
        SELECT count(*) FROM pg_stat_activity AS a
        WHERE a.datid IS NOT NULL AND coalesce(a.backend_type, 'client backend') = 'client backend'
    ) AS integer) AS used,
    CAST(current_setting('max_connections') AS integer)
    - CAST(current_setting('superuser_reserved_connections') AS integer)
    - coalesce(CAST(current_setting('reserved_connections', true) AS integer), 0) AS most; -- since version 16

-- name: holders
-- a row for each table in which an open transaction holds rows: the holder, and the minimum and maximum time held
-- A transaction that uses a table has a lock on it; one that has locked a row has a number too. One that
-- waits for another at the same table is blocked itself: only the root of the waits is a holder. When it
-- locked a row is not recorded: after it began, and before it became idle or was prepared.
WITH locks AS MATERIALIZED (
    SELECT
        l.pid,
        l.virtualtransaction,
        l.locktype,
        l.relation,
        l.transactionid,
        l.mode,
        l.granted,
        -- The locked object, as one value, to find other locks on it.
        CAST((
            l.locktype, l.database, l.relation, l.page, l.tuple, l.virtualxid, l.transactionid, l.classid, l.objid, l.objsubid
        ) AS text) AS what
    FROM pg_locks AS l
    WHERE
        l.pid IS DISTINCT FROM pg_backend_pid()
        AND (
            l.database IS NULL OR l.database = 0
            OR l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
        )
),

writers AS MATERIALIZED (
    SELECT
        l.pid,
        l.virtualtransaction,
        l.relation,
        bool_or(l.mode NOT IN ('RowShareLock', 'RowExclusiveLock')) AS has_all_rows
    FROM locks AS l
    WHERE
        l.locktype = 'relation' AND l.granted
        AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    GROUP BY l.pid, l.virtualtransaction, l.relation
),

numbers AS MATERIALIZED (
    SELECT
        l.pid,
        l.virtualtransaction,
        l.transactionid
    FROM locks AS l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
),

waiting AS MATERIALIZED (
    SELECT
        w.pid,
        w.relation
    FROM locks AS w
    WHERE NOT w.granted
    UNION
    SELECT
        w.pid,
        o.relation
    FROM locks AS w
    INNER JOIN locks AS h ON w.what = h.what AND h.granted
    INNER JOIN writers AS o ON h.virtualtransaction = o.virtualtransaction AND h.pid IS NOT DISTINCT FROM o.pid
    WHERE NOT w.granted
)

SELECT
    CAST(n.nspname AS text) AS schema,
    CAST(c.relname AS text) AS relation,
    w.pid AS session_id,
    p.gid AS prepared_transaction,
    CAST(coalesce(a.usename, p.owner) AS text) AS user_name,
    a.application_name AS application_name,
    a.state AS state,
    -- The locks and the activity are of two moments: whose transaction is in one of them alone has no long one. Unless it is
    -- hidden: then there is no state, or it is disabled (track_activities).
    CAST(coalesce(
        EXTRACT(EPOCH FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)),
        CASE WHEN a.state <> 'disabled' OR (a.pid IS NULL AND p.gid IS NULL) THEN 0 END
    ) AS double precision) AS transaction_seconds,
    CAST(
        EXTRACT(
            EPOCH FROM clock_timestamp()
            - coalesce(p.prepared, CASE WHEN a.state LIKE 'idle in transaction%' THEN a.state_change END)
        ) AS double precision
    ) AS held_at_least_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS double precision) AS held_at_most_seconds
FROM writers AS w
INNER JOIN pg_class AS c ON w.relation = c.oid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
LEFT JOIN pg_stat_activity AS a ON w.pid = a.pid
-- A prepared transaction has no session any more, but it keeps the lock on its own number.
LEFT JOIN pg_prepared_xacts AS p
    ON
        w.pid IS NULL
        AND EXISTS (
            SELECT FROM numbers AS own
            WHERE own.pid IS NULL AND own.virtualtransaction = w.virtualtransaction AND own.transactionid = p.transaction
        )
WHERE
    c.relkind IN ('r', 'p')
    AND (w.pid IS NOT NULL OR p.gid IS NOT NULL)
    AND (
        w.has_all_rows
        OR EXISTS (
            SELECT FROM numbers AS own
            WHERE own.virtualtransaction = w.virtualtransaction AND own.pid IS NOT DISTINCT FROM w.pid
        )
    )
    AND NOT EXISTS (SELECT FROM waiting AS v WHERE v.pid = w.pid AND v.relation = w.relation);

-- name: owners
-- a row for each of the sessions (as in claimed_by): gone, alive, or unknown
SELECT
    w.session AS session,
    CASE
        WHEN w.pid IS NULL OR {is_replica} THEN 'unknown' -- not ours; or a primary's, when queried on its standby
        WHEN a.pid IS NULL THEN 'gone'
        WHEN a.backend_start IS NULL THEN 'unknown' -- hidden for lack of pg_read_all_stats
        WHEN format('pid=%s start=%s', a.pid, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) = w.session THEN 'alive'
        ELSE 'gone' -- another one has its pid now
    END AS owner
FROM (
    SELECT
        requested.session,
        CAST(substring(requested.session FROM '^pid=([0-9]{1,9}) start=') AS integer) AS pid
    FROM unnest(CAST(:sessions AS text[])) AS requested (session)
) AS w
LEFT JOIN pg_stat_activity AS a ON w.pid = a.pid;

-- name: login_rights
-- one row: what this login may do beyond reading, on any of these queues and on the server
-- :schemas, :tables and :queues are arrays of equal length. A function runs with its caller's rights: EXECUTE, which PUBLIC
-- has by default, is useless without rights on the table.
SELECT
    (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) AS superuser,
    coalesce(bool_or(pg_has_role(current_user, c.relowner, 'USAGE')), false) AS owns,
    coalesce(bool_or(has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')), false) AS writes,
    coalesce(bool_or(
        has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE')
        AND EXISTS (
            SELECT FROM pg_proc AS p
            WHERE
                p.pronamespace = c.relnamespace
                AND p.proname IN (requested.queue || '_push', requested.queue || '_pop')
                AND has_function_privilege(p.oid, 'EXECUTE')
        )
    ), false) AS calls,
    pg_has_role(current_user, 'pg_signal_backend', 'USAGE') AS ends_sessions,
    -- The server knows the privilege from version 17; before, only owners vacuum.
    coalesce(bool_or(
        CASE
            WHEN CAST(current_setting('server_version_num') AS integer) >= 170000 THEN has_table_privilege(c.oid, 'MAINTAIN')
            ELSE pg_has_role(current_user, c.relowner, 'USAGE')
        END
    ), false) AS maintains,
    has_database_privilege(current_database(), 'CREATE') AS creates
FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]), CAST(:queues AS text[])) AS requested (schema, relation, queue)
LEFT JOIN pg_namespace AS n ON requested.schema = n.nspname
LEFT JOIN pg_class AS c ON requested.relation = c.relname AND n.oid = c.relnamespace;
