-- Sessions, locks and waits of the queues, observed from outside: these statements read the server's
-- own views and its catalog, never a queue, so nothing that a queue's sessions do can block them.
-- They do not show a session that has used a queue and holds none of its locks any more. Between two
-- transactions a session holds none.

-- name: objects
-- a row for each object of the queues that sessions lock: tables with their indexes, sequences, advisory locks
WITH given AS MATERIALIZED (
    SELECT
        g.schema,
        g.queue,
        c.oid,
        c.relname,
        c.relkind,
        c.reltoastrelid
    FROM unnest(CAST(:schemas AS text[]), CAST(:queues AS text[]), CAST(:names AS text[])) AS g (schema, queue, name)
    INNER JOIN pg_namespace AS n ON g.schema = n.nspname
    INNER JOIN pg_class AS c ON n.oid = c.relnamespace AND g.name = c.relname
)

SELECT
    g.schema AS schema,
    g.queue AS queue,
    CAST(g.relname AS text) AS name,
    CASE WHEN g.relkind = 'S' THEN 'sequence' WHEN g.relkind IN ('i', 'I') THEN 'index' ELSE 'table' END AS kind,
    CAST(g.oid AS bigint) AS id
FROM given AS g
UNION
-- Large values are in a TOAST table with an index of its own.
SELECT
    g.schema,
    g.queue,
    CAST(g.relname AS text),
    'index',
    CAST(i.indexrelid AS bigint)
FROM given AS g
CROSS JOIN unnest(ARRAY[g.oid, g.reltoastrelid]) AS t (oid)
INNER JOIN pg_index AS i ON t.oid = i.indrelid
UNION
SELECT
    g.schema,
    g.queue,
    CAST(g.relname AS text),
    'index',
    CAST(g.reltoastrelid AS bigint)
FROM given AS g
WHERE g.reltoastrelid <> 0
UNION
-- The sequence behind an identity column.
SELECT
    g.schema,
    g.queue,
    CAST(s.relname AS text),
    'sequence',
    CAST(s.oid AS bigint)
FROM given AS g
INNER JOIN pg_depend AS d
    ON g.oid = d.refobjid AND d.refclassid = CAST('pg_class' AS regclass) AND d.classid = CAST('pg_class' AS regclass)
INNER JOIN pg_class AS s ON d.objid = s.oid AND s.relkind = 'S'
UNION
-- order=strict: see fifo.sql, which takes these two.
SELECT
    g.schema,
    g.queue,
    l.verb,
    'advisory',
    hashtextextended(
        format('dbq %s "%s"."%s"', l.verb, replace(g.schema, '"', '""'), replace(g.queue, '"', '""')), 0
    )
FROM unnest(CAST(:schemas AS text[]), CAST(:queues AS text[])) AS g (schema, queue)
CROSS JOIN unnest(ARRAY['push', 'pop']) AS l (verb);

-- name: sessions
-- a row for each session or prepared transaction that locks something of the queues, waits for a lock, blocks one that does, or works in this database
-- The server's views are read one after the other, not at one moment: what begins or ends between
-- two reads shows up in only one. blocked_by: [session id or name of a prepared transaction, ...];
-- locks: [[id of the object, kind of lock, mode, granted], ...]. Two waits are not in the server's
-- words: ClientRead inside a transaction is idle, and an active session without a wait is running.
-- held_at_...: how long it has held the rows that it locked, if any; see `holders` of server.sql.
WITH wanted AS MATERIALIZED (
    SELECT
        false AS advisory,
        CAST(w.id AS bigint) AS id
    FROM unnest(CAST(:relations AS text[])) AS w (id)
    UNION
    SELECT
        true,
        CAST(w.id AS bigint)
    FROM unnest(CAST(:advisory_locks AS text[])) AS w (id)
),

here AS MATERIALIZED (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),

locks AS MATERIALIZED (
    SELECT
        l.pid,
        l.virtualtransaction,
        l.locktype,
        l.database,
        l.relation,
        l.transactionid,
        l.mode,
        l.granted,
        l.waitstart,
        -- The locked object, as one value, to find other locks on it.
        CAST((
            l.locktype, l.database, l.relation, l.page, l.tuple, l.virtualxid, l.transactionid, l.classid, l.objid, l.objsubid
        ) AS text) AS what,
        l.locktype = 'advisory' AS advisory,
        CASE
            -- The lock on one bigint; one on two integers has objsubid = 2.
            WHEN l.locktype <> 'advisory' THEN CAST(l.relation AS bigint)
            WHEN l.objsubid = 1 THEN (CAST(l.classid AS bigint) << 32) | CAST(l.objid AS bigint)
        END AS id
    FROM pg_locks AS l
    WHERE l.pid IS DISTINCT FROM pg_backend_pid()
),

-- A prepared transaction has no session any more, but it keeps a lock on its own number, and until
-- a restart its virtual number is the one of the session that prepared it.
prepared AS MATERIALIZED (
    SELECT
        p.gid,
        p.owner,
        p.database,
        p.prepared,
        l.virtualtransaction
    FROM pg_prepared_xacts AS p
    LEFT JOIN locks AS l ON p.transaction = l.transactionid AND l.locktype = 'transactionid' AND l.pid IS NULL
),

-- A transaction that has locked a row, in any table, has a transaction id.
writing AS MATERIALIZED (
    SELECT DISTINCT l.pid
    FROM locks AS l
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid IS NOT NULL
),

touching AS MATERIALIZED (
    SELECT
        l.pid,
        CASE WHEN l.pid IS NULL THEN l.virtualtransaction END AS prepared_as,
        json_agg(DISTINCT jsonb_build_array(l.id, l.locktype, l.mode, l.granted)) AS locks
    FROM locks AS l
    INNER JOIN here AS h ON l.database = h.oid
    INNER JOIN wanted AS w ON l.advisory = w.advisory AND l.id = w.id
    GROUP BY l.pid, prepared_as
),

-- A session waits for one lock at a time. Only waiting ones are queried for their blockers, because
-- the server freezes its lock tables for a moment to answer.
waiting AS MATERIALIZED (
    SELECT
        l.pid,
        l.locktype,
        l.mode,
        l.what,
        CAST(c.relname AS text) AS relation,
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - l.waitstart) AS double precision) AS wait_seconds,
        pg_blocking_pids(l.pid) AS blockers
    FROM locks AS l
    LEFT JOIN here AS h ON l.database = h.oid
    LEFT JOIN pg_class AS c ON h.oid IS NOT NULL AND l.relation = c.oid
    WHERE NOT l.granted
),

-- Of many that wait for the same, each is also behind all that came before it. Who has the lock is
-- what counts; only where nobody has it (it is kept free for the first in the row) do those count.
-- Among blockers 0 stands for a prepared transaction: the one that has a lock on the same thing.
holding AS MATERIALIZED (
    SELECT
        w.pid,
        l.pid AS blocker,
        p.gid
    FROM waiting AS w
    INNER JOIN locks AS l ON w.what = l.what AND l.granted AND coalesce(l.pid, 0) = ANY(w.blockers)
    LEFT JOIN prepared AS p ON l.pid IS NULL AND l.virtualtransaction = p.virtualtransaction
),

edges AS MATERIALIZED (
    SELECT
        h.pid,
        h.blocker,
        h.gid
    FROM holding AS h
    UNION
    SELECT
        w.pid,
        b.pid AS blocker,
        NULL
    FROM waiting AS w
    CROSS JOIN unnest(w.blockers) AS b (pid)
    WHERE b.pid <> 0 AND NOT EXISTS (SELECT FROM holding AS h WHERE h.pid = w.pid)
),

blocked AS MATERIALIZED (
    SELECT
        e.pid,
        json_agg(coalesce(to_json(e.gid), to_json(e.blocker))) AS blocked_by
    FROM edges AS e
    GROUP BY e.pid
),

activity AS MATERIALIZED (SELECT a.* FROM pg_stat_activity AS a WHERE a.pid <> pg_backend_pid()),

chosen AS MATERIALIZED (
    SELECT
        c.pid,
        bool_or(c.concerned) AS concerned
    FROM (
        SELECT
            t.pid,
            true AS concerned
        FROM touching AS t
        UNION ALL
        SELECT
            w.pid,
            true
        FROM waiting AS w
        UNION ALL
        SELECT
            e.blocker,
            true
        FROM edges AS e
        UNION ALL
        SELECT
            a.pid,
            false
        FROM activity AS a
        WHERE a.datname = current_database() AND nullif(a.state, 'disabled') <> 'idle'
    ) AS c
    WHERE c.pid IS NOT NULL
    GROUP BY c.pid
)

SELECT
    c.pid AS session_id,
    CAST(NULL AS text) AS prepared_transaction,
    a.backend_type AS kind,
    CAST(a.datname AS text) AS database,
    CAST(a.usename AS text) AS user_name,
    a.application_name AS application_name,
    host(a.client_addr) AS client_address,
    -- disabled: track_activities is off for it, so its state is unknown.
    nullif(a.state, 'disabled') AS state,
    CASE
        WHEN w.pid IS NOT NULL THEN 'Lock'
        WHEN a.state LIKE 'idle in transaction%' THEN 'Client'
        WHEN a.wait_event_type IS NOT NULL THEN a.wait_event_type
        WHEN a.state IN ('active', 'fastpath function call') THEN 'CPU'
    END AS wait_kind,
    CASE
        WHEN w.pid IS NOT NULL THEN w.locktype
        WHEN a.state LIKE 'idle in transaction%' THEN 'idle in transaction'
        WHEN a.wait_event_type IS NOT NULL THEN a.wait_event
        WHEN a.state IN ('active', 'fastpath function call') THEN 'running'
    END AS wait,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS double precision) AS transaction_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.query_start) AS double precision) AS statement_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS double precision) AS state_seconds,
    w.locktype AS awaited_lock,
    w.mode AS awaited_mode,
    w.relation AS awaited_object,
    w.wait_seconds AS wait_seconds,
    CASE WHEN c.concerned THEN left(a.query, 1000) END AS query,
    b.blocked_by AS blocked_by,
    t.locks AS locks,
    g.pid IS NOT NULL AS has_locked_rows,
    CAST(
        CASE WHEN a.state LIKE 'idle in transaction%' THEN EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) END
        AS double precision
    ) AS held_at_least_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS double precision) AS held_at_most_seconds
FROM chosen AS c
LEFT JOIN writing AS g ON c.pid = g.pid
LEFT JOIN activity AS a ON c.pid = a.pid
LEFT JOIN waiting AS w ON c.pid = w.pid
LEFT JOIN blocked AS b ON c.pid = b.pid
LEFT JOIN touching AS t ON c.pid = t.pid
UNION ALL
SELECT
    NULL,
    p.gid,
    'prepared transaction',
    CAST(p.database AS text),
    CAST(p.owner AS text),
    NULL,
    NULL,
    'prepared',
    'Client',
    'prepared transaction',
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - p.prepared) AS double precision),
    NULL,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - p.prepared) AS double precision),
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    t.locks,
    true,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - p.prepared) AS double precision),
    NULL
FROM prepared AS p
LEFT JOIN touching AS t ON p.virtualtransaction = t.prepared_as
WHERE t.prepared_as IS NOT NULL OR p.gid IN (SELECT e.gid FROM edges AS e WHERE e.gid IS NOT NULL);

-- name: clients
-- a row for each client's session in this database that locks rows of :relations, is one of :sessions, or whose last statement has one of :names in it; at most 1,000
-- session: as claimed_by names it. query: the last statement, where it has such a name; statement_seconds: how
-- long ago it began. relations: [id of a table or sequence, ...].
WITH here AS MATERIALIZED (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),

writing AS MATERIALIZED (
    SELECT
        l.pid,
        json_agg(DISTINCT CAST(l.relation AS bigint)) AS relations
    FROM pg_locks AS l
    INNER JOIN here AS h ON l.database = h.oid
    WHERE
        l.locktype = 'relation' AND l.granted AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
        AND CAST(CAST(l.relation AS bigint) AS text) = ANY(CAST(:relations AS text[]))
    GROUP BY l.pid
),

client AS MATERIALIZED (
    SELECT
        a.pid,
        format('pid=%s start=%s', a.pid, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) AS session,
        a.usename,
        a.application_name,
        a.client_addr,
        a.backend_start,
        a.query_start,
        left(a.query, 1000) AS query
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.backend_type IS NOT DISTINCT FROM 'client backend' AND a.pid <> pg_backend_pid()
)

SELECT
    c.pid AS session_id,
    CASE WHEN c.backend_start IS NOT NULL THEN c.session END AS session,
    CAST(c.usename AS text) AS user_name,
    nullif(c.application_name, '') AS application_name,
    CASE WHEN c.backend_start IS NOT NULL THEN coalesce(host(c.client_addr), 'local') END AS host,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - c.backend_start) AS double precision) AS connected_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - c.query_start) AS double precision) AS statement_seconds,
    CASE WHEN n.named THEN c.query END AS query,
    w.relations AS relations
FROM client AS c
LEFT JOIN writing AS w ON c.pid = w.pid
CROSS JOIN LATERAL (
    SELECT count(*) > 0 AS named
    FROM unnest(CAST(:names AS text[])) AS a (word)
    WHERE strpos(lower(c.query), a.word) > 0
) AS n
WHERE w.pid IS NOT NULL OR n.named OR c.session = ANY(CAST(:sessions AS text[]))
LIMIT 1000;

-- name: horizon
-- at most 5 rows, oldest first: what keeps dead rows of this database from vacuum, whatever queue they are in
-- seconds: of its transaction; a replication slot has none. At READ COMMITTED a session releases its
-- snapshot between statements, but not its transaction number.
SELECT
    o.kind AS kind,
    o.name AS name,
    o.session_id AS session_id,
    CAST(o.transactions AS bigint) AS transactions,
    CAST(o.seconds AS double precision) AS seconds
FROM (
    SELECT
        coalesce(a.backend_type, 'session') AS kind,
        coalesce(CAST(a.usename AS text), '') AS name,
        a.pid AS session_id,
        greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions,
        EXTRACT(EPOCH FROM clock_timestamp() - a.xact_start) AS seconds
    FROM pg_stat_activity AS a
    -- A walsender without a database passes on what a standby's queries need.
    WHERE (a.datname = current_database() OR a.datname IS NULL) AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT
        'replication slot',
        CAST(r.slot_name AS text),
        r.active_pid,
        age(r.xmin),
        NULL
    FROM pg_replication_slots AS r
    UNION ALL
    SELECT
        'prepared transaction',
        p.gid,
        NULL,
        age(p.transaction),
        EXTRACT(EPOCH FROM clock_timestamp() - p.prepared)
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
) AS o
WHERE o.transactions IS NOT NULL
ORDER BY o.transactions DESC, o.seconds DESC NULLS LAST
LIMIT 5;

-- name: dead_rows
-- a row for each table of the given relations: the server's estimate of its dead rows
SELECT
    CAST(c.oid AS bigint) AS id,
    pg_stat_get_dead_tuples(c.oid) AS dead_rows
FROM unnest(CAST(:relations AS text[])) AS w (id)
INNER JOIN pg_class AS c ON CAST(w.id AS oid) = c.oid
WHERE c.relkind IN ('r', 'm');
