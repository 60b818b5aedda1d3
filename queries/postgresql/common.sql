-- What every design has, the same for all: the archive, the registration of waiting consumers, and
-- the calls of a queue's public interface as the console makes them.

-- name: archive
-- script: the table that takes purged and archived messages, and popped ones with archive_at_pop=on
CREATE TABLE "{schema}"."{queue}_archive" (
    archive_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id "{id_type}" NOT NULL,
    payload "{payload_type}" NOT NULL,
    -- when design=status|split
    title text,
    -- end
    pushed_at timestamptz,
    -- when design=pending
    due_at timestamptz,
    -- end
    claimed_at timestamptz,
    claimed_by text,
    done_at timestamptz,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    reason text NOT NULL,
    action_id bigint,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: waiting
-- script: notify=on: who waits for a message, and the functions that register a waiter
-- A registration is a hint and may be lost in a crash: a waiter looks again at least once a second.
CREATE UNLOGGED TABLE "{schema}"."{queue}_waiting" (
    pid integer PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Registers this session and returns the channel to LISTEN on. Call it, commit, LISTEN, pop once
-- more, then wait. Sessions that died registered are removed here, by the next one that waits.
CREATE FUNCTION "{schema}"."{queue}_wait"() RETURNS text
LANGUAGE plpgsql AS $dbq$
BEGIN
    DELETE FROM "{schema}"."{queue}_waiting" AS w USING (
        SELECT g.pid FROM "{schema}"."{queue}_waiting" AS g
        WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = g.pid)
        FOR UPDATE SKIP LOCKED
    ) AS gone WHERE w.pid = gone.pid;
    INSERT INTO "{schema}"."{queue}_waiting" (pid) VALUES (pg_backend_pid()) ON CONFLICT DO NOTHING;
    RETURN '{channel}';
END
$dbq$;

CREATE FUNCTION "{schema}"."{queue}_wait_end"() RETURNS void
LANGUAGE plpgsql AS $dbq$
BEGIN
    DELETE FROM "{schema}"."{queue}_waiting" AS w WHERE w.pid = pg_backend_pid();
END
$dbq$;

-- name: drop_archive
-- script: removes the archive with all that is in it
DROP TABLE "{schema}"."{queue}_archive";

-- name: drop_waiting
-- script: removes what notify=on made
DROP FUNCTION "{schema}"."{queue}_wait", "{schema}"."{queue}_wait_end";
DROP TABLE "{schema}"."{queue}_waiting";

-- name: push
-- one row: the message's id as text, null where the queue is full
SELECT CAST("{schema}"."{queue}_push"(CAST(:payload AS "{payload_type}")) AS text) AS id;

-- name: push_many
-- a row for each payload in order: its id as text, null where it was not stored
SELECT CAST(pushed.id AS text) AS id
FROM "{schema}"."{queue}_push_many"(CAST(:payloads AS "{payload_type}"[])) AS pushed (id);

-- name: pop
-- at most :n rows in the design's order: the messages taken now
SELECT
    CAST(popped.id AS text) AS id,
    -- when payload=text|json
    CAST(popped.payload AS text) AS payload,
    -- end
    -- when payload=bytes
    popped.payload AS payload,
    -- end
    popped.pushed_at AS pushed_at,
    popped.attempts AS attempts
-- when finishes=yes
FROM "{schema}"."{queue}_pop_many"(CAST(:n AS integer), consumer => CAST(:consumer AS text)) AS popped;
-- end
-- when finishes=no
FROM "{schema}"."{queue}_pop_many"(CAST(:n AS integer)) AS popped;
-- end

-- name: complete
-- one row: whether the claim was still this one and is finished now
SELECT "{schema}"."{queue}_complete"(
    CAST(CAST(:id AS text) AS "{id_type}"), CAST(:attempts AS integer)
) AS acted;

-- name: fail
-- one row: whether the claim was still this one and is an error now
SELECT "{schema}"."{queue}_fail"(
    CAST(CAST(:id AS text) AS "{id_type}"), CAST(:error AS text), CAST(:attempts AS integer)
) AS acted;

-- name: wait
-- one row: the channel on which pushes of this queue notify; this session counts as waiting now
SELECT "{schema}"."{queue}_wait"() AS channel;

-- name: listen
-- nothing: notifications of the queue come to this session from now on
LISTEN "{channel}";

-- name: wait_end
-- one row: this session no longer counts as waiting
SELECT CAST("{schema}"."{queue}_wait_end"() AS text) AS ended;

-- name: lock_all
-- script: keeps everyone out of the queue until the transaction ends (a ring's parked first, as its callers do)
-- when design=ring
LOCK TABLE "{schema}"."{queue}_parked" IN ACCESS EXCLUSIVE MODE;
-- end
LOCK TABLE "{schema}"."{table}" IN ACCESS EXCLUSIVE MODE;

-- name: contents
-- one row: exact counts of the messages that a queue holds; a scan, for verbs and never for monitoring
SELECT
    -- when design=naive|heap|fifo|stack|pending
    (SELECT count(*) FROM "{schema}"."{table}") AS live,
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- end
    -- when design=claim
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.processing_started_at IS NULL) AS live,
    (
        SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.processing_started_at IS NOT NULL AND m.errors IS NULL
    ) AS claimed,
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.errors IS NOT NULL) AS finished,
    -- end
    -- when design=status|split
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.status = 0) AS live,
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.status = 1) AS claimed,
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.status > 1) AS finished,
    -- end
    -- when design=ring
    -- when in_hand=off
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.reference_count > 0) AS live,
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- end
    -- when in_hand=on
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE m.reference_count > 0)
    + (SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS h WHERE h.claimed_at IS NULL AND h.done_at IS NULL) AS live,
    (
        SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS h WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL
    ) AS claimed,
    (SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS h WHERE h.done_at IS NOT NULL) AS finished,
    -- end
    -- end
    (SELECT count(*) FROM "{schema}"."{queue}_archive") AS archived;

-- name: archived
-- one row: how many messages the archive holds, exactly
SELECT count(*) AS archived FROM "{schema}"."{queue}_archive";
