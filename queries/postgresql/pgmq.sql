-- pgmq on PostgreSQL: the table q_NAME that it keeps for each queue, looked at, and acted on by its own functions.
--
-- Read from the published sources of pgmq 1 (pgmq.sql of its extension): a message is visible, and so ready, once
-- its vt is over; pgmq.read and pgmq.set_vt put vt into the future. One whose vt is in the future and that was
-- read is claimed; one that was never read was sent with a delay, and is scheduled. Nothing tells who read it,
-- and nothing fails: what is not deleted or archived in time is visible again. Its clock is clock_timestamp().

-- name: find
-- the queues of pgmq that this login may read: a table each
SELECT
    n.nspname AS schema,
    c.relname AS "table",
    CAST(NULL AS text) AS beside,
    CAST(substr(c.relname, 3) AS text) AS queue
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE n.nspname = 'pgmq' AND starts_with(c.relname, 'q_') AND c.relkind IN ('r', 'p') AND NOT c.relispartition
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
AND (
    SELECT count(*) FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attname IN ('msg_id', 'read_ct', 'enqueued_at', 'vt', 'message')
) = 5
ORDER BY c.relname;

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest visible message, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.vt <= statement_timestamp()
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.vt > statement_timestamp() AND m.read_ct = 0
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) AS scheduled,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.vt > statement_timestamp() AND m.read_ct > 0
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    -- when role claimed_at
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m.vt > statement_timestamp() AND m.read_ct > 0
            AND m.last_read_at < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    -- end
    -- when no role claimed_at
    CAST(NULL AS bigint) AS stuck,
    -- end
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head.enqueued_at) AS double precision)
        FROM "{schema}"."{table}" AS head WHERE head.vt <= statement_timestamp()
        ORDER BY head.msg_id LIMIT CAST('{age_seconds_limit}' AS bigint)
    ) AS age_seconds,
    pg_stat_get_live_tuples(t.oid) AS rows_estimated,
    pg_stat_get_tuples_inserted(t.oid) AS inserted,
    pg_stat_get_tuples_updated(t.oid) AS updated,
    pg_stat_get_tuples_deleted(t.oid) AS deleted,
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
FROM (SELECT CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid) AS oid) AS t

-- name: messages
-- the messages of one state, or all (walk), without order, each with its key, for `looked` of common.sql
SELECT
    m.msg_id AS key_id,
    CAST(m.msg_id AS text) AS id,
    CASE
        WHEN m.vt <= statement_timestamp() THEN 'ready'
        WHEN m.read_ct = 0 THEN 'scheduled'
        ELSE 'claimed'
    END AS state,
    m.enqueued_at AS pushed_at,
    m.vt AS due_at,
    -- when role claimed_at
    m.last_read_at AS claimed_at,
    -- end
    m.read_ct AS attempts,
    CAST(NULL AS text) AS title,
    m.message AS payload
FROM "{schema}"."{table}" AS m
-- when walk=ready
WHERE m.vt <= statement_timestamp()
-- end
-- when walk=scheduled
WHERE m.vt > statement_timestamp() AND m.read_ct = 0
-- end
-- when walk=claimed
WHERE m.vt > statement_timestamp() AND m.read_ct > 0
-- end

-- name: claims
-- the ten claims that were read first: since when; by whom nothing tells
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(m.msg_id AS text) AS id,
    -- when role claimed_at
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp() - m.last_read_at, interval '0')) AS double precision) AS claimed_seconds,
    -- end
    -- when no role claimed_at
    CAST(NULL AS double precision) AS claimed_seconds,
    -- end
    CAST(NULL AS text) AS claimed_by,
    CAST(m.read_ct AS integer) AS attempts
FROM "{schema}"."{table}" AS m
WHERE m.vt > statement_timestamp() AND m.read_ct > 0
-- when role claimed_at
ORDER BY m.last_read_at
-- end
LIMIT 10

-- name: estimate
-- one row: about how many rows there are of each state, by 64 pages of the table
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(sum(found.ready) * nullif(max(t.pages), 0) / count(*) AS double precision) AS ready,
    CAST(sum(found.scheduled) * nullif(max(t.pages), 0) / count(*) AS double precision) AS scheduled,
    CAST(sum(found.claimed) * nullif(max(t.pages), 0) / count(*) AS double precision) AS claimed,
    CAST(NULL AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{table}"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 128 AS page FROM generate_series(0, 63) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE m.vt <= statement_timestamp()) AS ready,
        count(*) FILTER (WHERE m.vt > statement_timestamp() AND m.read_ct = 0) AS scheduled,
        count(*) FILTER (WHERE m.vt > statement_timestamp() AND m.read_ct > 0) AS claimed
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
) AS found

-- name: rule
-- one row: why its own function to end a time-out cannot be called; null: it can
SELECT
    CASE
        WHEN to_regprocedure('"{schema}".set_vt(text, bigint, integer)') IS NULL
            THEN 'this version of pgmq has no function pgmq.set_vt(text, bigint, integer)'
    END AS problem;

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
SELECT
    CAST(m.ctid AS text) AS place,
    CAST(m.msg_id AS text) AS id,
    CASE
        WHEN m.vt <= statement_timestamp() THEN 'ready'
        WHEN m.read_ct = 0 THEN 'scheduled'
        ELSE 'claimed'
    END AS state,
    CAST(m.read_ct AS bigint) AS attempts
FROM "{schema}"."{table}" AS m
WHERE m.msg_id = ANY(CAST(:keys AS bigint[]))
FOR UPDATE OF m SKIP LOCKED;

-- name: make_ready
-- one row: how many messages its own function has made visible; their reads stay counted
WITH chosen AS MATERIALIZED (
    SELECT m.msg_id FROM "{schema}"."{table}" AS m WHERE m.ctid = ANY(CAST(:places AS tid[]))
),

shown AS MATERIALIZED (
    SELECT v.msg_id FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".set_vt(CAST('{only}' AS text), c.msg_id, 0) AS v
)

SELECT
    (SELECT count(*) FROM shown) AS taken_out,
    (SELECT count(s.msg_id) FROM shown AS s) AS put_in;
