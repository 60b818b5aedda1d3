-- What the doctor reads of any queue, besides what monitoring reads: each statement reads a bounded number of
-- rows by an index, as `transaction_settings` of server.sql makes it, and returns keys, never a payload.
-- Statements about claims are for queues that keep popped messages. Of a ring with in_hand the table is
-- <queue>_in_hand.

-- name: recovering
-- one row: whether this server is a replica: transactions and claims are on its primary
SELECT {is_replica} AS recovering;

-- name: indexes
-- a row for each index of the given tables: its columns, its filter, and whether it is valid
SELECT
    CAST(t.relname AS text) AS table_name,
    CAST(c.relname AS text) AS name,
    (
        SELECT array_agg(pg_get_indexdef(i.indexrelid, k.position, false) ORDER BY k.position)
        FROM generate_series(1, CAST(i.indnkeyatts AS integer)) AS k (position)
    ) AS columns,
    pg_get_expr(i.indpred, i.indrelid) AS condition,
    i.indisunique AS is_unique,
    i.indisvalid AND i.indisready AS valid,
    {being_built} AS being_built
FROM pg_index AS i
INNER JOIN pg_class AS c ON i.indexrelid = c.oid
INNER JOIN pg_class AS t ON i.indrelid = t.oid
INNER JOIN pg_namespace AS n ON t.relnamespace = n.oid
CROSS JOIN {sessions_anew} AS anew
WHERE n.nspname = CAST(:schema AS text) AND t.relname = ANY(CAST(:tables AS text[]));

-- name: checks
-- a row for each CHECK of the given tables that the server enforces, in the server's notation
SELECT
    CAST(t.relname AS text) AS table_name,
    pg_get_constraintdef(k.oid) AS condition
FROM pg_constraint AS k
INNER JOIN pg_class AS t ON k.conrelid = t.oid
INNER JOIN pg_namespace AS n ON t.relnamespace = n.oid
WHERE k.contype = 'c' AND n.nspname = CAST(:schema AS text) AND t.relname = ANY(CAST(:tables AS text[]));

-- name: sequences
-- a row for each whole-number column, of :tables and of the catalog, whose ids are drawn from a sequence: where both are, its last possible id, and what this login may read
-- With :library the tables of a library, too: those whose names begin as the main table's, or that are joined to it by a
-- foreign key. A sequence is a column's own, or in its default; or the functions of the design draw from it.
SELECT
    CAST(n.nspname AS text) AS relation_schema,
    CAST(t.relname AS text) AS relation,
    CAST(a.attname AS text) AS id_column,
    CAST(ns.nspname AS text) AS sequence_schema,
    CAST(s.relname AS text) AS sequence,
    CAST(pg_get_userbyid(s.relowner) AS text) AS sequence_owner,
    least(
        q.seqmax, CASE a.atttypid WHEN CAST('int2' AS regtype) THEN 32767 WHEN CAST('int4' AS regtype) THEN 2147483647 ELSE q.seqmax END
    ) AS most,
    q.seqincrement AS increment,
    EXISTS(
        SELECT FROM pg_index AS i
        INNER JOIN pg_class AS ic ON i.indexrelid = ic.oid
        INNER JOIN pg_am AS am ON ic.relam = am.oid
        WHERE i.indrelid = t.oid AND i.indkey[0] = a.attnum AND i.indpred IS NULL AND i.indisvalid AND am.amname = 'btree'
    ) AS indexed,
    has_schema_privilege(ns.oid, 'USAGE') AND has_sequence_privilege(s.oid, 'SELECT') AS readable,
    has_schema_privilege(n.oid, 'USAGE') AND has_column_privilege(t.oid, a.attnum, 'SELECT')
    AND NOT row_security_active(t.oid) AS shows_ids
FROM (
    SELECT
        d.refobjid AS relation,
        d.refobjsubid AS attnum,
        d.objid AS sequence
    FROM pg_depend AS d
    WHERE d.classid = CAST('pg_class' AS regclass) AND d.refclassid = d.classid AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
    UNION
    SELECT
        f.adrelid,
        f.adnum,
        d.refobjid
    FROM pg_attrdef AS f
    INNER JOIN pg_depend AS d ON d.classid = CAST('pg_attrdef' AS regclass) AND f.oid = d.objid
    WHERE d.refclassid = CAST('pg_class' AS regclass) AND d.refobjsubid = 0
    -- when defined id_sequence
    -- when installed=yes
    UNION
    SELECT
        b.attrelid,
        b.attnum,
        to_regclass({id_sequence})
    FROM pg_attribute AS b
    WHERE b.attrelid = to_regclass('"{schema}"."{table}"') AND b.attname = '{id}'
    -- end
    -- end
) AS drawn
INNER JOIN pg_class AS t ON drawn.relation = t.oid
INNER JOIN pg_namespace AS n ON t.relnamespace = n.oid
INNER JOIN pg_attribute AS a ON t.oid = a.attrelid AND drawn.attnum = a.attnum
INNER JOIN pg_class AS s ON drawn.sequence = s.oid AND s.relkind = 'S'
INNER JOIN pg_namespace AS ns ON s.relnamespace = ns.oid
INNER JOIN pg_sequence AS q ON s.oid = q.seqrelid
WHERE t.relkind IN ('r', 'p') AND NOT t.relispartition
AND a.atttypid IN (CAST('int2' AS regtype), CAST('int4' AS regtype), CAST('int8' AS regtype))
AND NOT q.seqcycle AND q.seqincrement > 0
AND (
    n.nspname = 'dbq'
    OR (
        n.nspname = CAST(:schema AS text)
        AND (
            t.relname = ANY(CAST(:tables AS text[]))
            -- when installed=no
            OR (
                CAST(:library AS boolean)
                AND (
                    starts_with(t.relname, substring('{table}' FROM '^_*[^_]+') || '_')
                    OR EXISTS (
                        SELECT FROM pg_constraint AS k
                        WHERE k.contype = 'f' AND t.oid IN (k.conrelid, k.confrelid)
                        AND to_regclass('"{schema}"."{table}"') IN (k.conrelid, k.confrelid)
                    )
                )
            )
            -- end
        )
    )
)
ORDER BY n.nspname, t.relname, a.attname;

-- name: sequence_state
-- one row: the last value of a sequence, whether it has been drawn, and the highest id beyond it, as far as :reach of them
-- The statement's snapshot is older than what it reads of the sequence, so an id beyond it was not drawn from it, whatever
-- is in flight. Without an index the ids of 10,000 rows are read; with full=yes all.
SELECT
    s.last_value AS last_value,
    s.is_called AS is_called,
    -- when ids=shown
    (
        SELECT CAST(max(m.id) AS bigint)
        -- when indexed=yes
        FROM (SELECT r."{id_column}" AS id FROM "{relation_schema}"."{relation}" AS r) AS m
        -- else
        FROM (
            SELECT r."{id_column}" AS id FROM "{relation_schema}"."{relation}" AS r
            LIMIT 10000 -- when full=no
        ) AS m
        -- end
        WHERE m.id > s.last_value - CAST(NOT s.is_called AS integer)
        AND m.id <= least(s.last_value, 9223372036854775807 - CAST('{reach}' AS bigint)) + CAST('{reach}' AS bigint)
    ) AS highest
    -- else
    CAST(NULL AS bigint) AS highest
    -- end
FROM "{sequence_schema}"."{sequence}" AS s;

-- name: duplicate_keys
-- a row for each duplicate key, of the first ten in each of :tables, whose key constraint is missing: among the table's first million rows
-- Run only in that case, without an index; the statement time-out ends it.
-- when installed=yes
SELECT
    CAST(t.table_name AS text) AS table_name,
    CAST(t.key AS text) AS key,
    t.found AS found
FROM (
    SELECT
        r.table_name,
        r.key,
        count(*) AS found,
        row_number() OVER (PARTITION BY r.table_name ORDER BY r.key) AS position
    FROM (
        -- when defined keys
        (
            SELECT
                '{table}' AS table_name,
                concat_ws(' ', {keys}) AS key
            FROM "{schema}"."{table}" AS m WHERE '{table}' = ANY(CAST(:tables AS text[])) LIMIT 1000000
        )
        -- else
        SELECT
            '' AS table_name,
            '' AS key
        WHERE false
        -- end
        -- when defined beside
        UNION ALL
        (
            SELECT
                '{queue}_data',
                CAST(d.id AS text)
            FROM {beside} AS d WHERE '{queue}_data' = ANY(CAST(:tables AS text[])) LIMIT 1000000
        )
        -- end
        -- each partition
        UNION ALL
        (
            SELECT
                '{queue}_content_{partition}',
                CAST(k.content_id AS text)
            FROM "{schema}"."{queue}_content_{partition}" AS k
            WHERE '{queue}_content_{partition}' = ANY(CAST(:tables AS text[])) LIMIT 1000000
        )
        -- end
        -- when in_hand=on
        UNION ALL
        (
            SELECT
                '{queue}_in_hand',
                CAST(h.id AS text) -- when subscribed=no
                concat_ws(' ', h.subscriber, h.id) -- when subscribed=yes
            FROM "{schema}"."{queue}_in_hand" AS h WHERE '{queue}_in_hand' = ANY(CAST(:tables AS text[])) LIMIT 1000000
        )
        -- end
    ) AS r
    GROUP BY r.table_name, r.key
    HAVING count(*) > 1
) AS t
WHERE t.position <= 10
ORDER BY t.table_name, t.key
-- end
;

-- name: pop_plan
-- one row: the planner's plan for finding the next row to pop, as JSON; nothing is read
-- The pop's own query without its lock, which needs the right to write, and without ctid, which is in no index. Under the
-- settings of `transaction_settings`, which are those of the pop function.
-- when installed=yes
-- when defined pop_order
EXPLAIN (SETTINGS, FORMAT JSON)
SELECT {keys}, m.ctid FROM "{schema}"."{table}" AS m
WHERE {is_ready}
ORDER BY {pop_order} LIMIT 1
-- end
-- end
;

-- name: forget_sessions
-- one row: the sessions are read anew; a transaction shows those of its first reading, as if none had begun since
SELECT pg_stat_clear_snapshot() AS forgotten;

-- name: pops
-- one row: the server's clock; the last pop, where it leaves a trace; the message to be popped next; the number of pops, and since when they are counted
-- For installed queues. Traces: done rows and the last archived one, what archive_at_pop wrote, the times of a ring's free
-- slots (up to 100,000 slots). A row that complete deletes leaves none, so `claim` has no last pop.
SELECT
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision) AS moment,
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM t.last_pop) AS double precision) AS popped_seconds,
    t.next AS next,
    t.popped AS popped,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - greatest(
        pg_stat_get_bgwriter_stat_reset_time(),
        pg_stat_get_db_stat_reset_time((SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
    )) AS double precision) AS counted_seconds
FROM (
    SELECT
        {last_pop} AS last_pop,
        {next_pop} AS next,
        {popped} AS popped
) AS t;

-- name: popped
-- a row for each pop of the last day among the newest 10,000 archived rows, in the order in which they ran
-- The archive's own numbers are drawn as pops run. A message that was never due has the time "infinity".
-- when archive_at_pop=on
-- when defined due_when_popped
SELECT
    a.id AS id,
    a.pushed_at AS pushed_at,
    a.done_at AS popped_at,
    {due_when_popped} AS due_at
FROM (
    SELECT
        n.archive_id,
        n.id,
        n.pushed_at,
        n.done_at,
        n.due_at, -- when role due_at
        n.reason
    FROM "{schema}"."{queue}_archive" AS n ORDER BY n.archive_id DESC LIMIT 10000
) AS a
WHERE a.reason = 'pop' AND a.done_at >= statement_timestamp() - interval '1 day'
ORDER BY a.archive_id
-- end
-- end
;

-- name: recent_errors
-- one row: the errors of the last :recent seconds among the newest 10,001: how many, how far back, the first; and the same for the newest 10,001 of the day before
-- when finishes=yes
-- when role done_at
WITH lately AS (
    SELECT
        CAST(m."{id}" AS text) AS id,
        left(CAST(m."{error}" AS text), 200) AS error, -- when role error
        CAST(NULL AS text) AS error, -- when no role error
        CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM m."{done_at}") AS double precision) AS seconds
    FROM "{schema}"."{table}" AS m
    WHERE
        m."{done_at}" > statement_timestamp() - make_interval(secs => CAST(:recent AS double precision))
        AND {is_error} -- when defined is_error
    ORDER BY m."{done_at}" DESC LIMIT 10001
)

SELECT
    count(e.seconds) AS recent,
    max(e.seconds) AS recent_seconds,
    (array_agg(e.id ORDER BY e.seconds DESC))[1] AS first_id,
    (array_agg(e.error ORDER BY e.seconds DESC))[1] AS first_error,
    max(before.found) AS before,
    max(before.seconds) - CAST(:recent AS double precision) AS before_seconds
FROM (
    SELECT
        count(*) AS found,
        max(b.seconds) AS seconds
    FROM (
        SELECT CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM m."{done_at}") AS double precision) AS seconds
        FROM "{schema}"."{table}" AS m
        WHERE
            m."{done_at}" <= statement_timestamp() - make_interval(secs => CAST(:recent AS double precision))
            AND m."{done_at}" > statement_timestamp() - interval '1 day'
            AND {is_error} -- when defined is_error
        ORDER BY m."{done_at}" DESC LIMIT 10001
    ) AS b
) AS before
LEFT JOIN lately AS e ON true
-- end
-- end
;

-- define: examined_time
{pushed_at} -- when time=pushed_at
{due_at} -- when time=due_at
{claimed_at} -- when time=claimed_at
{done_at} -- when time=done_at

-- define: examined_state
-- rows of a state, which may have an index of its own
true -- when scan=any
{is_ready} -- when scan=ready
{is_scheduled} -- when scan=scheduled
{is_claimed} -- when scan=claimed
{is_error} -- when scan=error
{is_done} -- when scan=done

-- define: examined_table
"{schema}"."{table}" -- when bounded=no
(SELECT * FROM "{schema}"."{table}" LIMIT 10000) -- when bounded=yes

-- define: examined_id
{id}

-- define: has_message
true

-- define: far_rows
-- messages with a time outside the years 1 to 9999, at most 10,001 on either side: two ranges of an index
(
    SELECT
        {examined_id} AS id,
        {examined_time} AS far
    FROM {examined_table} AS m
    WHERE
        {examined_time} > '9999-12-31 23:59:59.999999Z'
        AND {examined_state}
        AND {has_message}
        AND {in_part} -- when defined in_part
    LIMIT 10001
)
UNION ALL
(
    SELECT
        {examined_id},
        {examined_time}
    FROM {examined_table} AS m
    WHERE
        {examined_time} < '0001-01-01 00:00:00Z'
        AND {examined_state}
        AND {has_message}
        AND {in_part} -- when defined in_part
    LIMIT 10001
)

-- name: far_times
-- at most 20 messages with a time (time=pushed_at|due_at|claimed_at|done_at) outside the years 1 to 9999, the latest first, with the number of all
SELECT
    f.id AS id,
    CAST(f.far AS text) AS far,
    count(*) OVER () AS found
FROM (
    {far_rows}
) AS f
ORDER BY f.far DESC LIMIT 20;

-- name: far_times_plan
-- one row: the planner's plan for that, as JSON; nothing is read
EXPLAIN (FORMAT JSON)
{far_rows};
