-- ring: Kejser's preallocated ring with two sequences ("LMAX'ed"), on PostgreSQL.
--
-- A push draws a number and fills slot number % size; a pop draws a number and empties that slot. The two sequences
-- are independent and not transactional, so a rollback, a killed caller or a server crash loses numbers. Three things
-- keep that harmless:
--
--   parked (void = false)   a pop number whose message was not there yet; it is used as soon as the message arrives
--   parked (void = true)    a push number that could not be used; the pop that draws it drops it
--   relay                   renumbers all live messages: to resize the ring, and as the last repair
--
-- Messages are ordered by the numbers they drew, not by commit: a late commit is popped late.
--
-- content=apart: a slot has its numbers but no message. The message is in one of {queue}_content_0, _1 ..., chosen by
-- first_id modulo the number of partitions; relay keeps first_id, so it moves no content. The push that fills a slot
-- inserts its content and the pop that empties it deletes it, in the same transaction, and only the holder of the
-- slot's row lock touches the content. If someone deletes a content, its slot counts as one whose message has not
-- arrived: the number is parked, no pop stops there, and the doctor reports it.
--
-- subscribers=a,b: each gets every message once. A subscriber has its own pop sequence, parked numbers and claims, and
-- for each slot a row in {queue}_popped with the last number it popped there. A pop locks and writes that row only, so
-- subscribers never wait for each other. A slot is free once all its rows have reached its number. A message that all
-- have popped stays until a push reuses the slot or an idle pop sweeps; either one archives it and deletes its content,
-- once. Which subscribers exist is read from the tables, never from the function's text, so a call that began before a
-- `subscribe` is correct. Only the pop sequences are named in the text, and a stale list does no harm: the sequence of
-- a former subscriber remains, set beyond all numbers, and "full" that is noticed late only makes numbers void.
-- Turns (below) are drawn per subscriber, so that none uses up another's turns.
--
-- Rules for every function here, and why:
--   * READ COMMITTED only. Under an older snapshot a pop never sees new slots and a relay drops what it does not see.
--     Other levels are refused before a number is consumed.
--   * The first statement reads parked and nothing else. Relay locks parked exclusively first, so a caller holds either
--     nothing or a lock that relay waits for: no number or size outlives a relay.
--   * No write waits for a row lock, so a ring never takes part in a deadlock. One statement locks rows (FOR UPDATE
--     SKIP LOCKED) and notes their ctids; the next writes to those ctids. A locked row neither moves nor changes, and
--     the second snapshot is younger than the lock. (Locking in a CTE and joining the table again would look the key up
--     twice and might find an older version than the locked one.)
--   * Plans must stay good as the table grows: see fifo.sql.
--   * push_many and pop_many read the slots of a batch by one index scan, slot = ANY(...): a join would look up each
--     slot, 1.2 times the instructions of a push_many of 100. unnest and generate_series are in SELECT rather than
--     FROM, where their rows would be materialized.
--   * Every parked number gets its turn. A call checks at most 64: if there are more, the 24 lowest, which are next in
--     order, and those in one stretch of the table. A stretch is 40 line pointers of one page, block_size / 1024
--     stretches a page (a row with its pointer takes at least 28 bytes, so stretches cover the page). Each such call
--     draws a turn from a sequence, which neither rollback nor other callers reset. Proof: rows of parked are never
--     updated, so each stays in its stretch s. Of n stretches, turn t checks 31 t modulo the lowest power of two >= n
--     (another one where that is over n). n varies, but the highest of these powers, m, is a multiple of all others and
--     31 is odd: among any m consecutive turns there is one with 31 t = s modulo m, hence modulo the power at that
--     moment. So a number is checked within m calls: fewer than 2 for each 1,024 bytes of the table, usually far fewer,
--     because a call continues for up to 4 pages where rows are sparse. Calls that are killed, or skipped by a crash,
--     do not count.
--   * next_push is read before next_pop to decide "full", and after it to decide "empty": the one read last can only
--     have grown, so neither is reported wrongly. (Once in millions of reads a sequence shows up to 32 too much, while
--     nextval writes its WAL record: "full" or "empty" then comes a moment early, or a number becomes void or parked.
--     Proofs read the next numbers by `next_numbers`.)
--
-- parts: push pop subscribers content relay repair monitor

-- define: is_mine_in_hand
-- restricts a row m of in_hand to one subscriber
-- when subscribed=yes
m.subscriber = CAST('{subscriber_number}' AS smallint) -- when of=one
-- end

-- define: is_claimed
-- for a row m of in_hand (in_hand=on)
m.claimed_at IS NOT NULL AND m.done_at IS NULL

-- define: is_error
m.done_at IS NOT NULL

-- define: is_ready_again
m.claimed_at IS NULL AND m.done_at IS NULL

-- define: state_in_hand
CASE
    WHEN {is_error} THEN 'error'
    WHEN {is_ready_again} THEN 'ready'
    ELSE 'claimed'
END

-- define: state_held
CAST('ready' AS text) -- when storage=slots
{state_in_hand} -- when storage=in_hand

-- define: own_id
m.first_id -- when storage=slots
m.id -- when storage=in_hand

-- define: id
CAST({own_id} AS text)

-- define: examined_id
{id} -- when installed=yes
CAST(m."{id}" AS text) -- when installed=no

-- define: has_message
m."{reference_count}" > 0 -- when storage=slots
true -- when storage=in_hand

-- define: empty_slot
-- the columns of an emptied slot
message_id = NULL, first_id = NULL, time = clock_timestamp(), message = NULL -- when content=slot
message_id = NULL, first_id = NULL, time = clock_timestamp() -- when content=apart

-- define: prefilled
-- what a new slot contains: a message of full width
-- when content=slot
repeat('x', CAST('{max_bytes}' AS integer)), -- when payload=text
to_jsonb(repeat('x', CAST('{max_bytes}' AS integer) - 2)), -- when payload=json
decode(repeat('00', CAST('{max_bytes}' AS integer)), 'hex'), -- when payload=bytes
-- end

-- define: read_committed_only
IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'a ring works at READ COMMITTED only'
        USING ERRCODE = 'DBQ02', DETAIL = 'This transaction is at ' || current_setting('transaction_isolation') || '.',
        HINT = 'Call it outside that transaction, or begin it at READ COMMITTED.';
END IF;

-- define: keys
m."{slot}"

-- define: slot
m."{slot}"

-- define: push_order
m.message_id -- when storage=slots
m.id -- when storage=in_hand

-- define: chosen_numbers
CAST(:keys AS bigint[]) -- when next=no
ARRAY(SELECT c.key_id FROM chosen AS c WHERE c.matches) -- when next=yes

-- define: next_chosen_rows
{chosen_rows} -- when storage=slots
-- when storage=in_hand
{rows_of_chosen}
AND {is_mine_in_hand} -- when defined is_mine_in_hand
-- end

-- define: is_as_chosen
h.number = c.key_id -- when storage=slots
h.location = c.location -- when storage=in_hand

-- define: chosen_rows
-- when storage=slots
-- when subscribed=yes
-- A message that a subscriber is popping right now stays. Whoever holds all rows that owe a slot holds the slot.
FROM (
    SELECT
        o.slot,
        o.message_id,
        count(*) AS owed
    FROM (
        SELECT
            r.slot,
            r.message_id
        FROM "{schema}"."{queue}_config" AS c
        CROSS JOIN unnest({chosen_numbers}) AS chosen (number)
        INNER JOIN "{schema}"."{queue}" AS r ON chosen.number % c.size = r.slot AND chosen.number = r.message_id
        INNER JOIN "{schema}"."{queue}_popped" AS p ON r.slot = p.slot AND r.message_id > p.message_id
        FOR UPDATE OF p SKIP LOCKED -- when lock=yes
    ) AS o
    GROUP BY o.slot, o.message_id
) AS held
INNER JOIN "{schema}"."{queue}" AS m ON held.slot = m.slot AND held.message_id = m.message_id
WHERE m.reference_count > 0 AND held.owed = (
    SELECT count(*) FROM "{schema}"."{queue}_popped" AS p WHERE p.slot = m.slot AND p.message_id < m.message_id
)
-- else
FROM "{schema}"."{queue}_config" AS c
CROSS JOIN unnest({chosen_numbers}) AS chosen (number)
CROSS JOIN LATERAL (
    SELECT
        r.ctid,
        r.tableoid,
        r.*
    FROM "{schema}"."{queue}" AS r
    WHERE r.slot = chosen.number % c.size AND r.message_id = chosen.number
    OFFSET 0 -- looked up slot by slot, and in no other way
) AS m
WHERE m.reference_count > 0
-- end
AND {has_content} -- when content=apart
-- end
-- when storage=in_hand
{rows_by_id}
AND {is_mine_in_hand} -- when defined is_mine_in_hand
-- end

-- define: remove_rows
-- A slot is emptied, never deleted; its number becomes void and is dropped by the pop that draws it.
-- when storage=slots
void AS (
    -- when subscribed=yes
    INSERT INTO "{schema}"."{queue}_parked" (subscriber, number, void, parked_at)
    SELECT
        p.subscriber,
        m.message_id,
        true,
        clock_timestamp()
    FROM "{schema}"."{table}" AS m
    INNER JOIN "{schema}"."{queue}_popped" AS p ON m.slot = p.slot AND m.message_id > p.message_id
    WHERE {at_locations}
    -- else
    INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
    SELECT
        m.message_id,
        true,
        clock_timestamp()
    FROM "{schema}"."{table}" AS m WHERE {at_locations}
    -- end
    ON CONFLICT DO NOTHING
),

-- each partition
content_{partition} AS (
    DELETE FROM "{schema}"."{queue}_content_{partition}" AS k USING "{schema}"."{table}" AS m
    WHERE {at_locations} AND k.content_id = m.first_id
),

-- end
gone AS (
    UPDATE "{schema}"."{table}" AS m
    SET {empty_slot}, reference_count = 0
    WHERE {at_locations}
    RETURNING m.slot
)
-- end
{deleted} -- when storage=in_hand

-- define: new_id
nextval('"{schema}"."{queue}_push_seq"')

-- define: void_new_ids
-- The number of a message in hand was drawn, and no slot will ever have it.
void AS (
    INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
    SELECT
        w.id,
        true,
        clock_timestamp()
    FROM wanted AS w
    ON CONFLICT DO NOTHING
),

-- define: locked_first
"{schema}"."{queue}_parked"

-- define: next_pop
(SELECT CAST(s.last_value + CAST(s.is_called AS integer) AS text) FROM "{schema}"."{pop_sequence}" AS s) -- when of=one
CAST({next_pop_of_all} AS text) -- when of=all

-- define: popped
CAST(NULL AS bigint)

-- define: due_when_popped
CAST(NULL AS timestamptz)

-- define: unfinished_payloads
SELECT {payload} AS payload FROM {visible_table} AS m WHERE m.reference_count > 0
-- when in_hand=on
UNION ALL
SELECT m.payload AS payload FROM "{schema}"."{queue}_in_hand" AS m WHERE m.done_at IS NULL
-- end

-- define: grants
GRANT SELECT ON "{schema}"."{queue}_config", "{schema}"."{queue}_parked" TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON "{schema}"."{queue}_parked" TO dbq_operator;
tables := array_cat(tables, ARRAY['"{schema}"."{queue}_config"', '"{schema}"."{queue}_parked"']);
-- Reading a sequence's value needs SELECT, drawing from it USAGE.
-- when subscribed=no
GRANT SELECT ON SEQUENCE
    "{schema}"."{queue}_push_seq", "{schema}"."{queue}_pop_seq", "{schema}"."{queue}_turn_seq" TO dbq_reader;
GRANT USAGE ON SEQUENCE
    "{schema}"."{queue}_push_seq", "{schema}"."{queue}_pop_seq", "{schema}"."{queue}_turn_seq" TO dbq_operator;
-- else
GRANT SELECT ON SEQUENCE "{schema}"."{queue}_push_seq" TO dbq_reader;
GRANT USAGE ON SEQUENCE "{schema}"."{queue}_push_seq" TO dbq_operator;
-- each subscriber
GRANT SELECT ON SEQUENCE
    "{schema}"."{queue}_pop_seq_{subscriber_number}", "{schema}"."{queue}_turn_seq_{subscriber_number}" TO dbq_reader;
GRANT USAGE ON SEQUENCE
    "{schema}"."{queue}_pop_seq_{subscriber_number}", "{schema}"."{queue}_turn_seq_{subscriber_number}" TO dbq_operator;
-- end
GRANT SELECT ON "{schema}"."{queue}_popped", "{schema}"."{queue}_subscribers" TO dbq_reader;
GRANT UPDATE ON "{schema}"."{queue}_popped" TO dbq_operator;
tables := array_cat(tables, ARRAY['"{schema}"."{queue}_popped"', '"{schema}"."{queue}_subscribers"']);
-- end
-- when defined keeps_popped
GRANT SELECT ON "{schema}"."{queue}_swept" TO dbq_reader;
GRANT UPDATE ON "{schema}"."{queue}_swept" TO dbq_operator;
tables := array_append(tables, '"{schema}"."{queue}_swept"');
REVOKE EXECUTE ON FUNCTION "{schema}"."{queue}_sweep" FROM PUBLIC;
GRANT EXECUTE ON FUNCTION "{schema}"."{queue}_sweep" TO dbq_operator;
-- end
-- Only the owner can alter the sequences and the table, as relay does.
REVOKE EXECUTE ON FUNCTION "{schema}"."{queue}_relay" FROM PUBLIC;
GRANT EXECUTE ON FUNCTION "{schema}"."{queue}_relay" TO dbq_admin;
-- each partition
GRANT SELECT ON "{schema}"."{queue}_content_{partition}" TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON "{schema}"."{queue}_content_{partition}" TO dbq_operator;
tables := array_append(tables, '"{schema}"."{queue}_content_{partition}"');
-- end
-- when in_hand=on
GRANT SELECT ON "{schema}"."{queue}_in_hand" TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON "{schema}"."{queue}_in_hand" TO dbq_operator;
tables := array_append(tables, '"{schema}"."{queue}_in_hand"');
-- end

-- define: history_with_this_error
-- as in common.sql, for a row of in_hand
jsonb_path_query_array(
    jsonb_build_array(jsonb_build_object(
        'at', clock_timestamp(), 'by', h.claimed_by, 'attempt', h.attempts, 'error', left(coalesce(error, ''), 1000)
    )) || coalesce(h.history, '[]'),
    '$[0 to $last]', jsonb_build_object('last', CAST('{history}' AS integer) - 1)
)

-- name: tables
-- script: the ring, its configuration, the parked numbers, the two sequences, the archive
CREATE TABLE "{schema}"."{queue}" (
    slot bigint PRIMARY KEY,
    message_id bigint,
    first_id bigint,
    time timestamptz NOT NULL,
    message "{payload_type}", -- when content=slot
    reference_count smallint NOT NULL
)
-- Free space beside the prefilled rows, so that updates stay on the page (HOT).
-- when content=slot
-- Rows are stored in line up to a page: a slot is one tuple, never a TOAST pointer.
WITH (fillfactor = '{fillfactor}', toast_tuple_target = 8160);

ALTER TABLE "{schema}"."{queue}" ALTER COLUMN message SET STORAGE MAIN;

-- else
WITH (fillfactor = '{fillfactor}');

-- The messages by their first number; several tables, so that pushes do not all need the same last page.
-- each partition
CREATE TABLE "{schema}"."{queue}_content_{partition}" (
    content_id bigint PRIMARY KEY,
    content "{payload_type}" NOT NULL
)
-- Dead index entries collect at the head of the key: vacuum early, not at a fraction of the depth.
WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- end
-- end
COMMENT ON COLUMN "{schema}"."{queue}".message_id IS 'the push number that is valid now; null = free';
COMMENT ON COLUMN "{schema}"."{queue}".first_id IS
'the number that push returned; pop returns it, whatever a relay did since';

CREATE TABLE "{schema}"."{queue}_config" (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    size bigint NOT NULL CHECK (size > 0),
    subscribers smallint NOT NULL, -- when subscribed=yes
    base bigint NOT NULL
);

COMMENT ON COLUMN "{schema}"."{queue}_config".base IS 'the lowest number that is still valid';

CREATE TABLE "{schema}"."{queue}_parked" (
    subscriber smallint NOT NULL, -- when subscribed=yes
    number bigint NOT NULL,
    void boolean NOT NULL,
    parked_at timestamptz NOT NULL,
    -- when subscribed=no
    PRIMARY KEY (void, number) -- so that voids, however many, do not lie between the parked numbers
    -- else
    PRIMARY KEY (void, subscriber, number) -- so that voids, however many, do not lie between the parked numbers
    -- end
);

-- CACHE 1: a larger cache is per session and would hand out numbers out of order.
CREATE SEQUENCE "{schema}"."{queue}_push_seq" AS bigint START WITH 1 CACHE 1;
-- when subscribed=no
CREATE SEQUENCE "{schema}"."{queue}_pop_seq" AS bigint START WITH 1 CACHE 1;

INSERT INTO "{schema}"."{queue}_config" (size, base) VALUES (CAST('{size}' AS bigint), 1);
-- else

INSERT INTO "{schema}"."{queue}_config" (size, subscribers, base) VALUES (CAST('{size}' AS bigint), 0, 1);
-- end

-- when content=slot
-- Prefilled at full payload width and then emptied: every page has the space its slots need, and updates are HOT from
-- the first lap on.
-- end
INSERT INTO "{schema}"."{queue}" (slot, time, message, reference_count) -- when content=slot
INSERT INTO "{schema}"."{queue}" (slot, time, reference_count) -- when content=apart
SELECT
    slots.slot,
    now(),
    {prefilled}
    0
FROM generate_series(0, CAST('{size}' AS bigint) - 1) AS slots (slot);

-- when content=slot
UPDATE "{schema}"."{queue}" SET message = NULL;

-- end
-- when in_hand=on
-- Popped and not finished: claimed (claimed_at), ready again (neither), error (done_at).
CREATE TABLE "{schema}"."{queue}_in_hand" (
    id bigint PRIMARY KEY, -- when subscribed=no
    -- when subscribed=yes
    subscriber smallint NOT NULL,
    id bigint NOT NULL,
    -- end
    payload "{payload_type}" NOT NULL,
    pushed_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    claimed_at timestamptz,
    claimed_by text,
    errors text,
    history jsonb, -- when keeps_history=yes
    done_at timestamptz -- when subscribed=no
    -- when subscribed=yes
    done_at timestamptz,
    PRIMARY KEY (subscriber, id)
    -- end
);

-- "+ 0": with a plain (id) the planner might read the key instead, and with it all claims.
-- when subscribed=no
CREATE INDEX ON "{schema}"."{queue}_in_hand" ((id + 0)) WHERE claimed_at IS NULL AND done_at IS NULL;
-- else
CREATE INDEX ON "{schema}"."{queue}_in_hand" (subscriber, (id + 0)) WHERE claimed_at IS NULL AND done_at IS NULL;
-- end
CREATE INDEX ON "{schema}"."{queue}_in_hand" (claimed_at) WHERE claimed_at IS NOT NULL AND done_at IS NULL;
CREATE INDEX ON "{schema}"."{queue}_in_hand" (done_at) WHERE done_at IS NOT NULL;

-- end

-- name: added
-- script: adds what rings of older versions lack: the sequence of turns (see parked numbers at the head of this file)
-- Unlogged from version 15 on, so that a pop that finds nothing writes no WAL (before: once in 32 such pops); after a
-- crash it restarts. It gets the rights of the pop sequence.
-- when subscribed=no
CREATE SEQUENCE IF NOT EXISTS "{schema}"."{queue}_turn_seq" AS bigint START WITH 1 CACHE 1;

DO $dbq$
DECLARE
    turns regclass := CAST('"{schema}"."{queue}_turn_seq"' AS regclass);
    pops pg_class;
    granted record;
BEGIN
    SELECT c.* INTO pops FROM pg_class AS c WHERE c.oid = CAST('"{schema}"."{queue}_pop_seq"' AS regclass);
    IF CAST(current_setting('server_version_num') AS integer) >= 150000 THEN
        EXECUTE format('ALTER SEQUENCE %s SET UNLOGGED', turns);
    END IF;
    IF (SELECT c.relowner FROM pg_class AS c WHERE c.oid = turns) <> pops.relowner THEN
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', turns, pg_get_userbyid(pops.relowner));
    END IF;
    FOR granted IN
        SELECT a.privilege_type AS right, a.grantee FROM aclexplode(pops.relacl) AS a WHERE a.grantee <> pops.relowner
    LOOP
        EXECUTE format('GRANT %s ON SEQUENCE %s TO %s', granted.right, turns,
            CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END);
    END LOOP;
END
$dbq$;
-- end

-- name: drop
-- script: removes the ring, its sequences and functions
DROP FUNCTION
    "{schema}"."{queue}_push", "{schema}"."{queue}_push_many", "{schema}"."{queue}_pop",
    "{schema}"."{queue}_pop_many", "{schema}"."{queue}_relay";
-- when in_hand=on
DROP FUNCTION "{schema}"."{queue}_complete", "{schema}"."{queue}_fail";
DROP TABLE "{schema}"."{queue}_in_hand";
-- end
-- when defined keeps_popped
DROP FUNCTION "{schema}"."{queue}_sweep";
DROP TABLE "{schema}"."{queue}_swept";
-- end
-- each partition
DROP TABLE "{schema}"."{queue}_content_{partition}";
-- end
-- when subscribed=yes
-- Former subscribers' sequences are still there.
DO $dbq$
DECLARE
    sequence text;
BEGIN
    FOR sequence IN
        SELECT concat(quote_ident('{schema}'), '.', quote_ident(concat('{queue}', kind, g.number)))
        FROM "{schema}"."{queue}_config" AS c CROSS JOIN generate_series(1, c.subscribers) AS g (number)
        CROSS JOIN unnest(ARRAY['_pop_seq_', '_turn_seq_']) AS kind
    LOOP
        EXECUTE 'DROP SEQUENCE IF EXISTS ' || sequence;
    END LOOP;
END
$dbq$;

DROP TABLE "{schema}"."{queue}_popped", "{schema}"."{queue}_subscribers";
-- end
DROP TABLE "{schema}"."{queue}_parked", "{schema}"."{queue}", "{schema}"."{queue}_config";
-- when subscribed=no
DROP SEQUENCE "{schema}"."{queue}_push_seq", "{schema}"."{queue}_pop_seq";
DROP SEQUENCE IF EXISTS "{schema}"."{queue}_turn_seq"; -- of an older version there is none
-- end
DROP SEQUENCE "{schema}"."{queue}_push_seq"; -- when subscribed=yes

-- name: wait_for_relay
-- no row: read before anything else of the ring; it waits while a relay runs
SELECT p.number AS number FROM "{schema}"."{queue}_parked" AS p LIMIT 0;
