-- What the console asks of the server itself, whatever queues it holds.

-- name: capabilities
-- one row: which server and login this is, and what it may do
SELECT
    current_setting('server_version') AS server_version,
    CAST(current_setting('server_version_num') AS integer) AS version_number,
    current_database() AS database,
    current_user AS database_user,
    (pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on') AS read_only,
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_all_sessions,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    (current_setting('track_counts') = 'on' AND NOT pg_is_in_recovery()) AS counts_rows,
    pg_encoding_to_char(encoding) AS encoding
FROM pg_database
WHERE datname = current_database();

-- name: careful
-- one row: the settings of this transaction from now on, and what the server is
-- Plans read by an index wherever there is one, whatever statistics say: a look bounds its rows by LIMIT;
-- without statistics, or with those of an empty queue, a planner expects to find them soon and reads the
-- whole table where there are none. The counters live from a start, a crash or a reset to the next one.
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
    ) AS life,
    NOT pg_is_in_recovery() AS sees_writers;

-- name: holders
-- a row for each table that an open transaction has written in, or is about to: whose it is, and since when
SELECT
    CAST(n.nspname AS text) AS schema,
    CAST(c.relname AS text) AS relation,
    coalesce(CAST(l.pid AS text), format('prepared transaction %L', p.gid)) AS session,
    CAST(coalesce(a.usename, p.owner) AS text) AS user_name,
    a.application_name AS application_name,
    a.state AS state,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)) AS double precision) AS transaction_seconds
FROM pg_locks AS l
INNER JOIN pg_class AS c ON l.relation = c.oid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
LEFT JOIN pg_stat_activity AS a ON l.pid = a.pid
-- A prepared transaction has no session any more, but it keeps a lock on its own number.
LEFT JOIN pg_locks AS own
    ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON own.transactionid = p.transaction
WHERE
    l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND c.relkind IN ('r', 'p')
    AND l.pid IS DISTINCT FROM pg_backend_pid();

-- name: owners
-- a row for each session asked about, as claimed_by tells it: gone, alive, or unknown
SELECT
    w.session AS session,
    CASE
        WHEN w.pid IS NULL OR pg_is_in_recovery() THEN 'unknown' -- not ours; or a primary's, looked for on its standby
        WHEN a.pid IS NULL THEN 'gone'
        WHEN a.backend_start IS NULL THEN 'unknown' -- hidden for lack of pg_read_all_stats
        WHEN format('pid=%s start=%s', a.pid, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) = w.session THEN 'alive'
        ELSE 'gone' -- another one has its pid now
    END AS owner
FROM (
    SELECT
        asked.session,
        CAST(substring(asked.session FROM '^pid=([0-9]{1,9}) start=') AS integer) AS pid
    FROM unnest(CAST(:sessions AS text[])) AS asked (session)
) AS w
LEFT JOIN pg_stat_activity AS a ON w.pid = a.pid;

-- name: login_can
-- one row: what this login could do beyond looking, to any of the queues that are asked about and to the server
-- :schemas, :tables and :queues are arrays of one length. A function runs with its caller's rights: EXECUTE, which
-- PUBLIC has unless somebody took it away, does nothing without those of the table.
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
                AND p.proname IN (asked.queue || '_push', asked.queue || '_pop')
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
FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]), CAST(:queues AS text[])) AS asked (schema, relation, queue)
LEFT JOIN pg_namespace AS n ON asked.schema = n.nspname
LEFT JOIN pg_class AS c ON asked.relation = c.relname AND n.oid = c.relnamespace;
