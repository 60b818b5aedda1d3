-- naive: Kejser's naive queue on PostgreSQL: a sequence, a unique index, delete the first in order.
--
-- No row is skipped: all consumers wait for the one that holds the head, so a transaction left open
-- stops the queue. It is here to be measured against, and because such queues exist.
-- Plans are made to last: see fifo.sql.

-- name: tables
-- script: the queue's table
CREATE SEQUENCE "{schema}"."{queue}_seq" AS bigint;

CREATE TABLE "{schema}"."{queue}" (
    message_id bigint NOT NULL UNIQUE,
    time timestamptz NOT NULL,
    message "{payload_type}" NOT NULL
)
-- A queue's dead rows lie at its head, where every pop begins: vacuum early, not at a share of the depth.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- name: functions
-- script: push, push_many, pop, pop_many
CREATE FUNCTION "{schema}"."{queue}_push"(payload "{payload_type}") RETURNS bigint
LANGUAGE plpgsql AS $dbq$
DECLARE
    pushed bigint;
BEGIN
    -- when limited=yes
    -- when payload=text|bytes
    IF octet_length(payload) > '{max_bytes}' THEN
    -- end
    -- when payload=json
    IF octet_length(CAST(payload AS text)) > '{max_bytes}' THEN
    -- end
        RAISE EXCEPTION 'the payload is over the limit of % bytes', '{max_bytes}'
            USING ERRCODE = 'DBQ02', HINT = 'Send it in parts, or install a queue with a larger max_bytes.';
    END IF;
    -- end
    INSERT INTO "{schema}"."{queue}" (message_id, time, message)
    VALUES (nextval('"{schema}"."{queue}_seq"'), clock_timestamp(), payload)
    RETURNING message_id INTO pushed;
    -- when notify=on
    IF EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    -- end
    RETURN pushed;
END
$dbq$;

CREATE FUNCTION "{schema}"."{queue}_push_many"(payloads "{payload_type}"[]) RETURNS SETOF bigint
LANGUAGE plpgsql AS $dbq$
BEGIN
    -- when limited=yes
    -- when payload=text|bytes
    IF EXISTS (SELECT FROM unnest(payloads) AS p (payload) WHERE octet_length(p.payload) > '{max_bytes}') THEN
    -- end
    -- when payload=json
    IF EXISTS (SELECT FROM unnest(payloads) AS p (payload) WHERE octet_length(CAST(p.payload AS text)) > '{max_bytes}') THEN
    -- end
        RAISE EXCEPTION 'a payload is over the limit of % bytes', '{max_bytes}'
            USING ERRCODE = 'DBQ02', HINT = 'Send it in parts, or install a queue with a larger max_bytes.';
    END IF;
    -- end
    RETURN QUERY INSERT INTO "{schema}"."{queue}" (message_id, time, message)
        SELECT nextval('"{schema}"."{queue}_seq"'), clock_timestamp(), sorted.payload
        -- Sorted first, numbered then: numbers follow the order of the payloads.
        FROM (SELECT p.payload FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position) AS sorted
        RETURNING message_id;
    -- when notify=on
    IF FOUND AND EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    -- end
END
$dbq$;

CREATE FUNCTION "{schema}"."{queue}_pop"()
RETURNS TABLE (id bigint, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
BEGIN
    -- A pop that waited saw the rows of before its wait: found nothing, it looks once more.
    FOR look IN 1..2 LOOP
        RETURN QUERY WITH popped AS (
            DELETE FROM "{schema}"."{queue}" AS m
            WHERE m.message_id = (
                SELECT head.message_id FROM "{schema}"."{queue}" AS head
                ORDER BY head.message_id LIMIT 1 FOR UPDATE
            )
            RETURNING m.message_id, m.message, m.time
        -- when archive_at_pop=on
        ), archived AS (
            INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
            SELECT p.message_id, p.message, p.time, clock_timestamp(), 'done', 1, 'pop' FROM popped AS p
        -- end
        ) SELECT p.message_id, p.message, p.time, 1 FROM popped AS p;
        EXIT WHEN FOUND;
    END LOOP;
END
$dbq$;

CREATE FUNCTION "{schema}"."{queue}_pop_many"(n integer)
RETURNS TABLE (id bigint, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
BEGIN
    -- A pop that waited saw the rows of before its wait: found nothing, it looks once more.
    FOR look IN 1..2 LOOP
        RETURN QUERY WITH popped AS (
            DELETE FROM "{schema}"."{queue}" AS m
            -- An array, so that the choice is made once: a join may run it again and take more than n.
            WHERE m.message_id = ANY(ARRAY(
                SELECT head.message_id FROM "{schema}"."{queue}" AS head
                ORDER BY head.message_id LIMIT greatest(n, 0) FOR UPDATE
            ))
            RETURNING m.message_id, m.message, m.time
        -- when archive_at_pop=on
        ), archived AS (
            INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
            SELECT p.message_id, p.message, p.time, clock_timestamp(), 'done', 1, 'pop' FROM popped AS p ORDER BY p.message_id
        -- end
        ) SELECT p.message_id, p.message, p.time, 1 FROM popped AS p ORDER BY p.message_id;
        EXIT WHEN FOUND;
    END LOOP;
END
$dbq$;

-- name: drop
-- script: removes the queue's table and functions
DROP FUNCTION
    "{schema}"."{queue}_push", "{schema}"."{queue}_push_many", "{schema}"."{queue}_pop", "{schema}"."{queue}_pop_many";
DROP TABLE "{schema}"."{queue}";
DROP SEQUENCE "{schema}"."{queue}_seq";

-- name: status
-- one row: counts of at most 10,001, the age of the oldest message, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (SELECT count(*) FROM (SELECT FROM "{schema}"."{queue}" LIMIT 10001) AS bounded) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head."{pushed_at}") AS double precision)
        FROM "{schema}"."{queue}" AS head ORDER BY head."{id}" LIMIT 1
    ) AS age_seconds,
    -- end
    -- when no role pushed_at
    CAST(NULL AS double precision) AS age_seconds,
    -- end
    pg_stat_get_live_tuples(t.oid) AS rows_estimated,
    pg_stat_get_tuples_inserted(t.oid) AS inserted,
    pg_stat_get_tuples_updated(t.oid) AS updated,
    pg_stat_get_tuples_deleted(t.oid) AS deleted,
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
FROM (SELECT CAST(CAST('"{schema}"."{queue}"' AS regclass) AS oid) AS oid) AS t
