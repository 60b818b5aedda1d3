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
    current_setting('track_counts') = 'on' AS counts_rows,
    pg_encoding_to_char(encoding) AS encoding
FROM pg_database
WHERE datname = current_database();

-- name: careful
-- one row: plans of this transaction read by an index wherever there is one, whatever statistics say
-- A look bounds its rows by LIMIT; without statistics, or with those of an empty queue, a planner
-- expects to find them soon and reads the whole table where there are none.
SELECT
    set_config('enable_seqscan', 'off', true) AS seqscan,
    set_config('enable_bitmapscan', 'off', true) AS bitmapscan,
    set_config('jit', 'off', true) AS jit;
