-- claim: Pintér's queue with an atomic test-and-set, on PostgreSQL (where his first article built it).
--
-- A pop marks the oldest unclaimed row and returns it, in one statement; the row stays until complete deletes it or fail
-- records the error. The claim of a consumer that dies remains: it becomes "stuck". The caller may pass his own id and
-- times, as Pintér does: one time for a whole run. For the plans see fifo.sql.

-- define: is_ready
m."{claimed_at}" IS NULL
-- when installed=no
AND (m."{error}" IS NOT DISTINCT FROM NULL) -- when role error
-- end

-- define: is_claimed
-- DISTINCT FROM: a composite with a null in it is neither null nor not null; for any other type it is the same.
m."{claimed_at}" IS NOT NULL
AND (m."{error}" IS NOT DISTINCT FROM NULL) -- when role error

-- define: is_error
(m."{error}" IS DISTINCT FROM NULL) -- when role error

-- define: state
CASE
    WHEN (m."{error}" IS DISTINCT FROM NULL) THEN 'error' -- when role error
    WHEN m."{claimed_at}" IS NULL THEN 'ready'
    ELSE 'claimed'
END

-- define: oldest_first
m."{pushed_at}" -- when role pushed_at

-- define: pages
128

-- define: state_held
-- A row with an end is finished, whatever its other columns say.
CASE
    WHEN m."{done_at}" IS NOT NULL THEN 'error' -- when role done_at
    WHEN (m."{error}" IS DISTINCT FROM NULL) THEN 'error' -- when role error
    WHEN m."{claimed_at}" IS NULL THEN 'ready'
    ELSE 'claimed'
END

-- define: is_finished
{is_error}

-- define: push_order
m."{pushed_at}", m."{id}"

-- define: pop_order
m."{pushed_at}", m."{id}"

-- define: new_id
gen_random_uuid()

-- define: push_with
, ids => CAST(CAST(:ids AS text[]) AS uuid[])

-- define: last_pop
-- complete deletes the row, which leaves no trace.
CAST(NULL AS timestamptz)

-- define: popped
pg_stat_get_tuples_updated(CAST('"{schema}"."{table}"' AS regclass))

-- define: contradicts
l.claimed_at IS NULL -- when scan=error

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
    history jsonb, -- when keeps_history=yes
    done_at timestamptz
)
-- Dead entries of popped rows collect at the head of the pop's index: vacuum early, not at a fraction of the depth.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Ready rows in the order of the pop.
CREATE INDEX ON "{schema}"."{queue}" (created_at, id) WHERE processing_started_at IS NULL;
-- Claimed and failed rows: few, which monitoring counts without reading the others.
CREATE INDEX ON "{schema}"."{queue}" (processing_started_at) WHERE processing_started_at IS NOT NULL AND errors IS NULL;
CREATE INDEX ON "{schema}"."{queue}" (done_at) WHERE errors IS NOT NULL;

-- name: functions
-- script: push, push_many, pop, pop_many, complete, fail
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push"(
    payload "{payload_type}", id uuid DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
DECLARE
    pushed uuid;
BEGIN
    {payload_in_bounds}
    INSERT INTO "{schema}"."{queue}" AS m (id, created_at, payload)
    VALUES (coalesce(id, gen_random_uuid()), coalesce(created_at, clock_timestamp()), payload)
    RETURNING m.id INTO pushed;
    {wake_waiters}
    RETURN pushed;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push_many"(
    payloads "{payload_type}"[], ids uuid[] DEFAULT NULL, created_at timestamptz DEFAULT NULL
) RETURNS SETOF uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
DECLARE
    pushed_now timestamptz := clock_timestamp();
BEGIN
    {payloads_in_bounds}
    -- A batch given no time takes its order from times a microsecond apart.
    RETURN QUERY INSERT INTO "{schema}"."{queue}" AS m (id, created_at, payload)
        SELECT
            coalesce(ids[p.position], gen_random_uuid()),
            coalesce("{queue}_push_many".created_at, pushed_now + p.position * interval '1 microsecond'),
            p.payload
        FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position
        RETURNING m.id;
    {wake_waiters_if_found}
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"(
    consumer text DEFAULT NULL, bound boolean DEFAULT false, started_at timestamptz DEFAULT NULL
)
RETURNS TABLE (id uuid, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
DECLARE
    session text := current_setting('dbq.session', true);
BEGIN
    -- Who claims: this backend, by pid and start. Asked once a session, then kept in a setting.
    {identify_claimant}
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
DECLARE
    session text := current_setting('dbq.session', true);
BEGIN
    -- Who claims: this backend, by pid and start. Asked once a session, then kept in a setting.
    {identify_claimant}
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
BEGIN
    UPDATE "{schema}"."{queue}" AS m
    SET errors = coalesce(error, ''), done_at = clock_timestamp()
    , history = {history_with_this_error} -- when keeps_history=yes
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

-- name: state_illegal
-- script: the rows whose columns contradict their state, for the operator to judge
SELECT "{id}", processing_started_at, claimed_by, done_at, errors
FROM "{schema}"."{table}"
WHERE errors IS NOT NULL AND (processing_started_at IS NULL OR done_at IS NULL);
