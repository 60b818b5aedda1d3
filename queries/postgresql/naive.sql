-- naive: Kejser's naive queue on PostgreSQL: a sequence, a unique index, delete the first in order.
--
-- No row is skipped: all consumers wait for the one that holds the head, so an open transaction stops the queue. A push that
-- is not committed is not seen: later numbers overtake it. It is here to be compared with, and because such queues exist.
-- For the plans see fifo.sql.

-- define: is_ready
true

-- define: state
'ready'

-- define: oldest_first
m."{id}" -- when role pushed_at

-- define: first_ready_id
-- Vacuum assumes that skipped pages are as full as the average, but here those are the full ones.
SELECT m."{id}" FROM "{schema}"."{table}" AS m ORDER BY m."{id}" LIMIT 1 -- when installed=yes

-- define: pages
256 -- when installed=no

-- define: pop_order
m."{id}"

-- define: due_when_popped
CAST(NULL AS timestamptz)

-- define: id_sequence
'"{schema}"."{queue}_seq"'

-- define: grants
GRANT SELECT ON SEQUENCE "{schema}"."{queue}_seq" TO dbq_reader;
GRANT USAGE ON SEQUENCE "{schema}"."{queue}_seq" TO dbq_operator;

-- name: tables
-- script: the queue's table
CREATE SEQUENCE "{schema}"."{queue}_seq" AS bigint;

CREATE TABLE "{schema}"."{queue}" (
    message_id bigint NOT NULL UNIQUE,
    time timestamptz NOT NULL,
    message "{payload_type}" NOT NULL
)
-- A queue's dead rows collect at its head, where every pop begins: vacuum early, not at a fraction of the depth.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- name: functions
-- script: push, push_many, pop, pop_many
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push"(payload "{payload_type}") RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
DECLARE
    pushed bigint;
BEGIN
    {payload_in_bounds}
    INSERT INTO "{schema}"."{queue}" (message_id, time, message)
    VALUES (nextval('"{schema}"."{queue}_seq"'), clock_timestamp(), payload)
    RETURNING message_id INTO pushed;
    {wake_waiters}
    RETURN pushed;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push_many"(payloads "{payload_type}"[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
BEGIN
    {payloads_in_bounds}
    RETURN QUERY INSERT INTO "{schema}"."{queue}" (message_id, time, message)
        SELECT nextval('"{schema}"."{queue}_seq"'), clock_timestamp(), sorted.payload
        -- Sorted first, numbered then: numbers follow the order of the payloads.
        FROM (SELECT p.payload FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position) AS sorted
        RETURNING message_id;
    {wake_waiters_if_found}
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"()
RETURNS TABLE (id bigint, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
