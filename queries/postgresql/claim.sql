-- claim: Pintér's queue with an atomic test-and-set, on PostgreSQL (where his first article built it).
--
-- A pop marks the oldest unclaimed row and returns it, in one statement; the row stays until complete
-- deletes it or fail writes why. A consumer that dies leaves its claim behind: that is what "stuck"
-- means here. The caller may pass his own id and times, as Pintér does: one time for a whole run.
-- Plans are made to last: see fifo.sql.

-- name: tables
-- script: the queue's table and one partial index for each state
CREATE TABLE "{schema}"."{queue}" (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    processing_started_at timestamptz,
    errors text,
    payload "{payload_type}" NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    claimed_by text,
    done_at timestamptz
)
-- Dead entries of popped rows lie at the head of the pop's index: vacuum early, not at a share of the depth.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Ready, in the order of the pop.
CREATE INDEX ON "{schema}"."{queue}" (created_at, id) WHERE processing_started_at IS NULL;
-- Claimed, and in error: few rows, which monitoring counts without a look at the others.
CREATE INDEX ON "{schema}"."{queue}" (processing_started_at) WHERE processing_started_at IS NOT NULL AND errors IS NULL;
CREATE INDEX ON "{schema}"."{queue}" (done_at) WHERE errors IS NOT NULL;

-- name: functions
-- script: push, push_many, pop, pop_many, complete, fail
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push"(
    payload "{payload_type}", id uuid DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql AS $dbq$
DECLARE
    pushed uuid;
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
    INSERT INTO "{schema}"."{queue}" AS m (id, created_at, payload)
    VALUES (coalesce(id, gen_random_uuid()), coalesce(created_at, clock_timestamp()), payload)
    RETURNING m.id INTO pushed;
    -- when notify=on
    IF EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    -- end
    RETURN pushed;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push_many"(
    payloads "{payload_type}"[], ids uuid[] DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS SETOF uuid
LANGUAGE plpgsql AS $dbq$
DECLARE
    pushed_now timestamptz := clock_timestamp();
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
    -- A batch given no time takes its order from times a microsecond apart.
    RETURN QUERY INSERT INTO "{schema}"."{queue}" AS m (id, created_at, payload)
        SELECT
            coalesce(ids[p.position], gen_random_uuid()),
            coalesce("{queue}_push_many".created_at, pushed_now + p.position * interval '1 microsecond'),
            p.payload
        FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position
        RETURNING m.id;
    -- when notify=on
    IF FOUND AND EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
        PERFORM pg_notify('{channel}', '');
    END IF;
    -- end
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"(
    consumer text DEFAULT NULL, bound boolean DEFAULT false, started_at timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
DECLARE
    session text := current_setting('dbq.session', true);
BEGIN
    -- Who claims: this backend, by pid and start. Asked once a session, then kept in a setting.
    IF coalesce(session, '') = '' THEN
        SELECT set_config('dbq.session', format('pid=%s start=%s', a.pid,
            to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), false)
        INTO session FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid();
    END IF;
    session := session || CASE WHEN bound THEN ' bound' ELSE '' END || coalesce(' consumer=' || consumer, '');
    RETURN QUERY UPDATE "{schema}"."{queue}" AS m
        SET processing_started_at = coalesce(started_at, clock_timestamp()), claimed_by = session,
            attempts = m.attempts + 1
        WHERE m.id = (
            SELECT head.id FROM "{schema}"."{queue}" AS head WHERE head.processing_started_at IS NULL
            ORDER BY head.created_at, head.id LIMIT 1 FOR UPDATE SKIP LOCKED
        )
        RETURNING m.id, m.payload, m.created_at, m.attempts;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(
    n integer, consumer text DEFAULT NULL, bound boolean DEFAULT false, started_at timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
DECLARE
    session text := current_setting('dbq.session', true);
BEGIN
    -- Who claims: this backend, by pid and start. Asked once a session, then kept in a setting.
    IF coalesce(session, '') = '' THEN
        SELECT set_config('dbq.session', format('pid=%s start=%s', a.pid,
            to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), false)
        INTO session FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid();
    END IF;
    session := session || CASE WHEN bound THEN ' bound' ELSE '' END || coalesce(' consumer=' || consumer, '');
    RETURN QUERY WITH claimed AS (
        UPDATE "{schema}"."{queue}" AS m
        SET processing_started_at = coalesce(started_at, clock_timestamp()), claimed_by = session,
            attempts = m.attempts + 1
        -- An array, so that the choice is made once: a join may run it again and take more than n.
        WHERE m.id = ANY(ARRAY(
            SELECT head.id FROM "{schema}"."{queue}" AS head WHERE head.processing_started_at IS NULL
            ORDER BY head.created_at, head.id LIMIT greatest(n, 0) FOR UPDATE SKIP LOCKED
        ))
        RETURNING m.id, m.payload, m.created_at, m.attempts
    ) SELECT c.id, c.payload, c.created_at, c.attempts FROM claimed AS c ORDER BY c.created_at, c.id;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_complete"(id uuid, attempts integer DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
BEGIN
    DELETE FROM "{schema}"."{queue}" AS m
    -- num_nulls: the row is found by its key, never by an index that only holds claims.
    WHERE m.id = "{queue}_complete".id AND num_nulls(m.processing_started_at) = 0 AND num_nulls(m.errors) = 1
    AND ("{queue}_complete".attempts IS NULL OR m.attempts = "{queue}_complete".attempts);
    RETURN FOUND;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_fail"(id uuid, error text, attempts integer DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
BEGIN
    UPDATE "{schema}"."{queue}" AS m
    SET errors = coalesce(error, ''), done_at = clock_timestamp()
    -- num_nulls: the row is found by its key, never by an index that only holds claims.
    WHERE m.id = "{queue}_fail".id AND num_nulls(m.processing_started_at) = 0 AND num_nulls(m.errors) = 1
    AND ("{queue}_fail".attempts IS NULL OR m.attempts = "{queue}_fail".attempts);
    RETURN FOUND;
END
$dbq$;

-- name: drop
-- script: removes the queue's tables and functions
DROP FUNCTION
    "{schema}"."{queue}_push", "{schema}"."{queue}_push_many", "{schema}"."{queue}_pop",
    "{schema}"."{queue}_pop_many", "{schema}"."{queue}_complete", "{schema}"."{queue}_fail";
DROP TABLE "{schema}"."{queue}";

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready message, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{claimed_at}" IS NULL
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    -- when role error
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{claimed_at}" IS NOT NULL AND m."{error}" IS NULL
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{claimed_at}" < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            AND m."{error}" IS NULL
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{error}" IS NOT NULL
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) AS errors,
    -- end
    -- when no role error
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{claimed_at}" IS NOT NULL
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE m."{claimed_at}" < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    CAST(NULL AS bigint) AS errors,
    -- end
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - head."{pushed_at}") AS double precision)
        FROM "{schema}"."{table}" AS head WHERE head."{claimed_at}" IS NULL
        ORDER BY head."{pushed_at}" LIMIT CAST('{age_seconds_limit}' AS bigint)
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
FROM (SELECT CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid) AS oid) AS t

-- name: messages
-- the messages of one state, or all (walk), without order, each with its key, for `looked` of common.sql
SELECT
    -- when sorted=time_up|time_down|undated_up|undated_down
    m."{since}" AS key_time,
    -- end
    m."{id}" AS key_id,
    CAST(m."{id}" AS text) AS id,
    CASE
        -- when role error
        WHEN m."{error}" IS NOT NULL THEN 'error'
        -- end
        WHEN m."{claimed_at}" IS NULL THEN 'ready'
        ELSE 'claimed'
    END AS state,
    -- when role pushed_at
    m."{pushed_at}" AS pushed_at,
    -- end
    m."{claimed_at}" AS claimed_at,
    -- when role claimed_by
    m."{claimed_by}" AS claimed_by,
    -- end
    -- when role attempts
    m."{attempts}" AS attempts,
    -- end
    -- when role done_at
    m."{done_at}" AS done_at,
    -- end
    -- when role error
    m."{error}" AS error,
    -- end
    m."{payload}" AS payload
FROM "{schema}"."{table}" AS m
-- when walk=ready
WHERE m."{claimed_at}" IS NULL
-- end
-- when walk=claimed
WHERE m."{claimed_at}" IS NOT NULL
-- when role error
AND m."{error}" IS NULL
-- end
-- end
-- when walk=error
WHERE m."{error}" IS NOT NULL
-- end

-- name: claims
-- the oldest ten claims: since when, and whose
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(m."{id}" AS text) AS id,
    -- when role claimed_at
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp() - m."{claimed_at}", interval '0')) AS double precision) AS claimed_seconds,
    -- end
    -- when no role claimed_at
    CAST(NULL AS double precision) AS claimed_seconds,
    -- end
    -- when role claimed_by
    CAST(m."{claimed_by}" AS text) AS claimed_by,
    -- end
    -- when no role claimed_by
    CAST(NULL AS text) AS claimed_by,
    -- end
    -- when role attempts
    CAST(m."{attempts}" AS integer) AS attempts
    -- end
    -- when no role attempts
    CAST(NULL AS integer) AS attempts
    -- end
FROM "{schema}"."{table}" AS m
WHERE m."{claimed_at}" IS NOT NULL
-- when role error
AND m."{error}" IS NULL
-- end
-- when role claimed_at
ORDER BY m."{claimed_at}"
-- end
LIMIT 10

-- name: estimate
-- one row: about how many rows there are of each state, whatever vacuum and analyze last thought
-- From pages: see heap.sql.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(sum(found.ready) * nullif(max(t.pages), 0) / count(*) AS double precision) AS ready,
    CAST(NULL AS double precision) AS scheduled,
    CAST(sum(found.claimed) * nullif(max(t.pages), 0) / count(*) AS double precision) AS claimed,
    CAST(sum(found.errors) * nullif(max(t.pages), 0) / count(*) AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{table}"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 256 AS page FROM generate_series(0, 127) AS i
) AS place
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE m."{claimed_at}" IS NULL) AS ready,
        -- when role error
        count(*) FILTER (WHERE m."{claimed_at}" IS NOT NULL AND m."{error}" IS NULL) AS claimed,
        count(*) FILTER (WHERE m."{error}" IS NOT NULL) AS errors
        -- end
        -- when no role error
        count(*) FILTER (WHERE m."{claimed_at}" IS NOT NULL) AS claimed,
        0 AS errors
        -- end
    FROM "{schema}"."{table}" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', place.page) AS tid) AND m.ctid < CAST(format('(%s,0)', place.page + 1) AS tid)
) AS found
