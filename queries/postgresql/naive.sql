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
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push"(payload "{payload_type}") RETURNS bigint
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

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push_many"(payloads "{payload_type}"[]) RETURNS SETOF bigint
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

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"()
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

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(n integer)
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
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}" LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head."{pushed_at}") AS double precision)
        FROM "{schema}"."{queue}" AS head
        ORDER BY head."{id}" LIMIT CAST('{age_seconds_limit}' AS bigint)
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

-- name: messages
-- the messages without order, each with its key, for `looked` of common.sql
SELECT
    m."{id}" AS key_id,
    CAST(m."{id}" AS text) AS id,
    'ready' AS state,
    -- when role pushed_at
    m."{pushed_at}" AS pushed_at,
    -- end
    m."{payload}" AS payload
FROM "{schema}"."{table}" AS m

-- name: estimate
-- one row: about how many rows there are of each state, whatever vacuum and analyze last thought
-- See fifo.sql.
-- when installed=yes
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    sum(
        CASE
            WHEN found.looked_at < 32 THEN found.looked_at
            ELSE found.looked_at * CAST(place.until_id - place.from_id AS double precision) / (found.last_id - place.from_id + 1)
        END
    ) AS ready,
    CAST(NULL AS double precision) AS scheduled,
    CAST(NULL AS double precision) AS claimed,
    CAST(NULL AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT
        (SELECT h."{id}" FROM "{schema}"."{queue}" AS h ORDER BY h."{id}" LIMIT 1) AS first_id,
        (SELECT h."{id}" FROM "{schema}"."{queue}" AS h ORDER BY h."{id}" DESC LIMIT 1) AS last_id
    LIMIT 1 -- so that each end is looked up once
) AS ends
CROSS JOIN LATERAL (
    SELECT
        greatest(ends.last_id + 2 - CAST(power(CAST(2 AS double precision), i / 4.0) AS bigint), ends.first_id) AS from_id,
        ends.last_id + 2 - CAST(power(CAST(2 AS double precision), (i - 1) / 4.0) AS bigint) AS until_id
    FROM generate_series(1, CAST(ceil(log(2, ends.last_id - ends.first_id + 2) * 4) AS integer)) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) AS looked_at,
        max(m."{id}") AS last_id
    FROM (
        SELECT n."{id}" FROM "{schema}"."{queue}" AS n
        WHERE n."{id}" >= place.from_id AND n."{id}" < place.until_id
        ORDER BY n."{id}" LIMIT 32
    ) AS m
) AS found
-- end
-- when installed=no
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(sum(found.ready) * nullif(max(t.pages), 0) / count(*) AS double precision) AS ready,
    CAST(NULL AS double precision) AS scheduled,
    CAST(NULL AS double precision) AS claimed,
    CAST(NULL AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{queue}"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 512 AS page FROM generate_series(0, 255) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) AS ready
    FROM "{schema}"."{queue}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
) AS found
-- end
