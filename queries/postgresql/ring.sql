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

-- define: claims_table
"{schema}"."{queue}_in_hand"

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

-- define: content
-- content=apart: the message of slot m, by its first_id
-- when content=apart
CASE m.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT k.content FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = m.first_id)
-- end
END
-- end

-- define: has_content
-- true or null. Not EXISTS, whose plan, made while the table was short, would scan it.
-- when content=apart
CASE m.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT true FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = m.first_id)
-- end
END
-- end

-- define: slot_has_content
-- the same for a slot r, in functions
-- when content=apart
CASE r.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT true FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = r.first_id)
-- end
END
-- end

-- define: payload
m."{payload}" -- when content=slot
{content} -- when content=apart

-- define: joined_payload
m."{payload}" -- when content=slot
-- when content=apart
{content} -- when storage=slots
m."{payload}" -- when storage=in_hand
-- end

-- define: contents_without_slot
-- when content=apart
SELECT k.content_id
FROM (
    SELECT CAST(NULL AS bigint) AS content_id WHERE false
    -- each partition
    UNION ALL
    SELECT c.content_id FROM "{schema}"."{queue}_content_{partition}" AS c
    -- end
) AS k
WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}" AS m WHERE m.first_id = k.content_id)
-- end

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

-- define: take_content
-- in pop: reads the content of the slot locked at `place`; without content the slot is left alone
-- when content=apart
CASE id % '{partitions}'
-- each partition
    WHEN {partition} THEN
        -- when subscribed=no
        DELETE FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = id RETURNING k.content INTO payload;
        -- else
        SELECT k.content INTO payload FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = id;
        -- end
-- end
    ELSE payload := NULL; -- there is no such slot
END CASE;
IF payload IS NULL THEN
    place := NULL;
END IF;
-- end

-- define: next_pop_of_all
-- the lowest next pop number, over all subscribers
(SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq" AS s) -- when subscribed=no
-- when subscribed=yes
least(
-- each subscriber
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq_{subscriber_number}" AS s),
-- end
    NULL
)
-- end

-- define: read_next_numbers
-- in pop: one statement per subscriber. A single statement for all would, once planned for one of them, be replanned
-- at every call.
-- when subscribed=no
SELECT
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq" AS s),
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
    c.size
INTO next_pop, next_push, ring_size FROM "{schema}"."{queue}_config" AS c;
-- else
CASE mine -- see subscriber_known
-- each subscriber
    WHEN {subscriber_number} THEN
        SELECT
            (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq_{subscriber_number}" AS s),
            (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
            c.size
        INTO next_pop, next_push, ring_size FROM "{schema}"."{queue}_config" AS c;
-- end
END CASE;
-- end

-- define: visible_ring
-- the slots as one subscriber sees them, or all together: a message that is not owed any more makes no slot full
"{schema}"."{queue}" -- when subscribed=no
-- when subscribed=yes
(
    SELECT
        k.slot,
        CASE WHEN o.owed THEN k.message_id END AS message_id,
        CASE WHEN o.owed THEN k.first_id END AS first_id,
        CASE WHEN o.owed THEN k.message END AS message, -- when content=slot
        CASE WHEN o.owed OR k.reference_count = 0 THEN k.time ELSE o.popped_at END AS time,
        CASE WHEN o.owed OR k.reference_count NOT IN (0, 1) THEN k.reference_count ELSE 0 END AS reference_count
    FROM "{schema}"."{queue}" AS k CROSS JOIN LATERAL (
        SELECT
            coalesce(bool_or(p.message_id < k.message_id), k.reference_count > 0) AS owed,
            max(p.time) AS popped_at
        FROM "{schema}"."{queue}_popped" AS p
        WHERE
            p.slot = k.slot
            AND p.subscriber = CAST('{subscriber_number}' AS smallint) -- when of=one
    ) AS o
)
-- end

-- define: visible_table
"{schema}"."{table}" -- when subscribed=no
{visible_ring} -- when subscribed=yes

-- define: visible_parked
"{schema}"."{queue}_parked" -- when subscribed=no
-- when subscribed=yes
-- when of=one
(
    SELECT
        k.number,
        k.void,
        k.parked_at,
        k.ctid,
        k.xmax
    FROM "{schema}"."{queue}_parked" AS k WHERE k.subscriber = CAST('{subscriber_number}' AS smallint)
)
-- else
(
    SELECT
        k.number,
        k.void,
        min(k.parked_at) AS parked_at
    FROM "{schema}"."{queue}_parked" AS k
    GROUP BY k.number, k.void
)
-- end
-- end

-- define: visible_next_pop
(SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq" AS s) -- when subscribed=no
-- when subscribed=yes
(SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{pop_sequence}" AS s) -- when of=one
{next_pop_of_all} -- when of=all
-- end

-- define: rows_of_slots
"{schema}"."{queue}" -- when subscribed=no
-- when subscribed=yes
"{schema}"."{queue}" -- when of=all
-- when of=one
(SELECT p.slot FROM "{schema}"."{queue}_popped" AS p WHERE p.subscriber = CAST('{subscriber_number}' AS smallint))
-- end
-- end

-- define: pop_sequence_held
-- sets the same owner again: no change, but an exclusive lock (see relay)
DO $dbq$
BEGIN
    EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', CAST('"{schema}"."{queue}_pop_seq_{subscriber_number}"' AS regclass), (
        SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c
        WHERE c.oid = CAST('"{schema}"."{queue}_pop_seq_{subscriber_number}"' AS regclass)
    ));
END
$dbq$;

-- define: all_pop_sequences
-- from the table: the function's own list may be older
-- when subscribed=yes
ARRAY(
    SELECT to_regclass(concat(quote_ident('{schema}'), '.', quote_ident('{queue}_pop_seq_' || s.number)))
    FROM "{schema}"."{queue}_subscribers" AS s ORDER BY s.number
)
-- end

-- define: pop_numbers
'"{schema}"."{queue}_pop_seq"' -- when subscribed=no
numbers -- when subscribed=yes

-- define: turn_numbers
'"{schema}"."{queue}_turn_seq"' -- when subscribed=no
turns -- when subscribed=yes

-- define: subscriber_variables
-- pop's variables for its subscriber
-- when subscribed=yes
mine smallint;
numbers regclass;
turns regclass;
-- end

-- define: find_subscriber
-- when subscribed=yes
CASE subscriber
-- each subscriber
    WHEN '{subscriber}' THEN
        mine := {subscriber_number};
        numbers := CAST('"{schema}"."{queue}_pop_seq_{subscriber_number}"' AS regclass);
        turns := CAST('"{schema}"."{queue}_turn_seq_{subscriber_number}"' AS regclass);
-- end
    ELSE
        RAISE EXCEPTION 'the ring has no subscriber %', coalesce(quote_ident(subscriber), 'NULL') USING ERRCODE = 'DBQ02',
            HINT = 'Its subscribers: ' || (SELECT string_agg(s.subscriber, ', ' ORDER BY s.number)
                FROM "{schema}"."{queue}_subscribers" AS s) || '.';
END CASE;
-- end

-- define: is_parked
-- a row p of parked belongs to this pop
p.subscriber = mine AND NOT p.void -- when subscribed=yes
NOT p.void -- when subscribed=no

-- define: parked_by_turns
-- the lowest, and those whose turn it is: see the head of this file
on_page := CAST(current_setting('block_size') AS bigint) / 1024;
stretches := pg_relation_size('"{schema}"."{queue}_parked"') / 1024;
WHILE all_turns < stretches LOOP
    all_turns := all_turns * 2;
END LOOP;
stretch := nextval({turn_numbers}) * 31 % all_turns % stretches;
parked := parked[1:24] || ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
    WHERE {is_parked}
    AND p.ctid >= CAST(format('(%s,%s)', stretch / on_page, stretch % on_page * 40 + 1) AS tid)
    AND p.ctid < CAST(format('(%s,0)', stretch / on_page + 4) AS tid) LIMIT 40);

-- define: is_void
p.subscriber = mine AND p.void -- when subscribed=yes
p.void -- when subscribed=no

-- define: is_void_or_parked
p.subscriber = mine AND p.void IN (false, true) -- when subscribed=yes
p.void IN (false, true) -- when subscribed=no

-- define: is_void_too
v.subscriber = mine AND v.void -- when subscribed=yes
v.void -- when subscribed=no

-- define: read_committed_only
IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'a ring works at READ COMMITTED only'
        USING ERRCODE = 'DBQ02', DETAIL = 'This transaction is at ' || current_setting('transaction_isolation') || '.',
        HINT = 'Call it outside that transaction, or begin it at READ COMMITTED.';
END IF;

-- define: parked_columns
(subscriber, number, void, parked_at) -- when subscribed=yes
(number, void, parked_at) -- when subscribed=no

-- define: park_numbers
-- parks the numbers in `found`, void or not; returns how many there were and how many are parked now
repaired AS (
    INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
    SELECT
        CAST('{subscriber_number}' AS smallint), -- when subscribed=yes
        f.number,
        f.void,
        clock_timestamp()
    FROM found AS f ORDER BY f.number
    ON CONFLICT DO NOTHING
    RETURNING number
)

SELECT
    (SELECT count(*) FROM found) AS selected,
    (SELECT count(*) FROM repaired) AS done

-- define: slot_is_free
-- a push may fill slot r
r.reference_count = 0 -- when subscribed=no
(r.reference_count = 0 OR {all_have_popped}) -- when subscribed=yes

-- define: all_have_popped
-- for a slot r with a message
NOT EXISTS (SELECT FROM "{schema}"."{queue}_popped" AS p WHERE p.slot = r.slot AND p.message_id < r.message_id)

-- define: count_of_filled
r.reference_count + 1 -- when subscribed=no
1 -- when subscribed=yes

-- define: popped_content
-- the message of slot g, which all have popped
-- when subscribed=yes
-- when archive_at_pop=on
-- when content=apart
CASE g.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT k.content FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = g.first_id)
-- end
END
-- end
g.message -- when content=slot
-- end
-- end

-- define: discard_popped
-- archives the messages in the slots at `reused` (locked, popped by all) and deletes their content
-- when subscribed=yes
-- when archive_at_pop=on
INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
SELECT g.first_id, g.payload, g.time, g.done_at, 'done', 1, 'pop'
FROM (
    SELECT g.message_id, g.first_id, g.time, {popped_content} AS payload,
        (SELECT max(p.time) FROM "{schema}"."{queue}_popped" AS p WHERE p.slot = g.slot) AS done_at
    FROM "{schema}"."{queue}" AS g WHERE g.ctid = ANY(reused) AND g.reference_count > 0
) AS g WHERE g.payload IS NOT NULL ORDER BY g.message_id;
-- end
-- each partition
DELETE FROM "{schema}"."{queue}_content_{partition}" AS k
WHERE k.content_id = ANY(ARRAY(
    SELECT g.first_id FROM "{schema}"."{queue}" AS g
    WHERE g.ctid = ANY(reused) AND g.reference_count > 0 AND g.first_id % '{partitions}' = {partition}
));
-- end
-- end

-- define: sweep_limit
-- where a sweep stops: a parked number may still get its message
-- when subscribed=yes
least({next_pop_of_all}, (
    SELECT min((
        SELECT p.number FROM "{schema}"."{queue}_parked" AS p
        WHERE p.subscriber = s.number AND NOT p.void ORDER BY p.number LIMIT 1
    )) FROM "{schema}"."{queue}_subscribers" AS s
))
-- end

-- define: keeps_popped
-- "yes" if a message that all have popped has to be archived or its content deleted, else nothing
-- when subscribed=yes
yes -- when content=apart
-- when content=slot
yes -- when archive_at_pop=on
-- end
-- end

-- define: sweep_when_idle
PERFORM "{schema}"."{queue}_sweep"(); -- when defined keeps_popped

-- define: lock_slot
-- in pop: locks the slot of the drawn number and reads its message; `place` is its ctid
-- when subscribed=no
SELECT r.ctid, r.first_id, r.message, r.time, 1 INTO place, id, payload, pushed_at, attempts -- when content=slot
SELECT r.ctid, r.first_id, NULL, r.time, 1 INTO place, id, payload, pushed_at, attempts -- when content=apart
FROM "{schema}"."{queue}" AS r
WHERE r.slot = drawn % ring_size AND r.message_id = drawn FOR UPDATE SKIP LOCKED;
-- else
-- when content=slot
-- Locks and pops in one statement. A row that changed between snapshot and lock is locked but not written, and is
-- looked up again.
UPDATE "{schema}"."{queue}_popped" AS p SET message_id = drawn, time = clock_timestamp()
FROM (
    SELECT o.ctid AS place, r.first_id, r.message, r.time
    FROM "{schema}"."{queue}_popped" AS o INNER JOIN "{schema}"."{queue}" AS r ON r.slot = o.slot AND r.message_id = drawn
    WHERE o.slot = drawn % ring_size AND o.subscriber = mine AND o.message_id < drawn FOR UPDATE OF o SKIP LOCKED
) AS m WHERE p.ctid = m.place
RETURNING m.first_id, m.message, m.time, 1 INTO id, payload, pushed_at, attempts;
-- else
SELECT p.ctid, r.first_id, NULL, r.time, 1 INTO place, id, payload, pushed_at, attempts
FROM "{schema}"."{queue}_popped" AS p INNER JOIN "{schema}"."{queue}" AS r ON r.slot = p.slot AND r.message_id = drawn
WHERE p.slot = drawn % ring_size AND p.subscriber = mine AND p.message_id < drawn FOR UPDATE OF p SKIP LOCKED;
-- end
-- end

-- define: pop_slot
-- in pop: pops the message at `place`
-- when subscribed=no
UPDATE "{schema}"."{queue}" AS r
SET {empty_slot},
    reference_count = r.reference_count - 1
WHERE r.ctid = place;
-- else
-- when content=apart
UPDATE "{schema}"."{queue}_popped" AS p SET message_id = drawn, time = clock_timestamp() WHERE p.ctid = place;
-- end
-- end

-- define: slots_read
-- in pop_many: the slots that have a message of these numbers
-- when subscribed=no
SELECT array_agg(m.number), array_agg(m.place) INTO found_now, here
FROM (
    SELECT r.message_id AS number, r.ctid AS place FROM "{schema}"."{queue}" AS r
-- else
SELECT array_agg(m.number), array_agg(m.place), array_agg(m.row_of_mine) INTO found_now, here, mine_here
FROM (
    SELECT r.message_id AS number, r.ctid AS place, p.ctid AS row_of_mine
    FROM "{schema}"."{queue}_popped" AS p INNER JOIN "{schema}"."{queue}" AS r ON r.slot = p.slot AND r.message_id > p.message_id
-- end

-- define: slots_locked
-- when subscribed=no
    FOR UPDATE SKIP LOCKED
) AS m;
-- else
    AND p.slot = ANY(slots) AND p.subscriber = mine FOR UPDATE OF p SKIP LOCKED
) AS m;
-- end

-- define: collect_popped_rows
rows_of_mine := rows_of_mine || mine_here; -- when subscribed=yes

-- define: keys
m."{slot}"

-- define: slot
m."{slot}"

-- define: push_order
m.message_id -- when storage=slots
m.id -- when storage=in_hand

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
        CROSS JOIN unnest(CAST(:keys AS bigint[])) AS chosen (number)
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
CROSS JOIN unnest(CAST(:keys AS bigint[])) AS chosen (number)
INNER JOIN "{schema}"."{queue}" AS m ON chosen.number % c.size = m.slot AND chosen.number = m.message_id
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

-- define: last_pop
CASE
    WHEN CAST('{size}' AS bigint) <= 100000
        THEN (SELECT max(r.time) FROM "{schema}"."{queue}" AS r WHERE r.reference_count = 0) -- when subscribed=no
        -- when subscribed=yes
        THEN (SELECT max(p.time) FROM "{schema}"."{queue}_popped" AS p WHERE p.message_id >= (
            SELECT min(w.since_number) FROM "{schema}"."{queue}_subscribers" AS w WHERE w.number = p.subscriber
        )
        AND p.subscriber = CAST('{subscriber_number}' AS smallint) -- when of=one
        )
        -- end
END

-- define: valid_number
-- the number to keep for an inconsistent slot r (configuration c); null: a new one is needed
coalesce(r.message_id, r.first_id) -- when subscribed=no
-- when subscribed=yes
CASE
    WHEN r.message_id % c.size = r.slot AND r.message_id >= c.base THEN r.message_id
    WHEN r.first_id % c.size = r.slot AND r.first_id >= c.base THEN r.first_id
END
-- end

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

-- when subscribed=yes
CREATE TABLE "{schema}"."{queue}_subscribers" (
    subscriber text PRIMARY KEY,
    number smallint NOT NULL UNIQUE,
    since_number bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON COLUMN "{schema}"."{queue}_subscribers".number IS 'what its sequences are called by; never used again';
COMMENT ON COLUMN "{schema}"."{queue}_config".subscribers IS 'the highest number that a subscriber has had';

-- What each subscriber has popped. slot comes first, because a push checks all subscribers of a slot; it is an integer
-- to keep these many rows narrow.
CREATE TABLE "{schema}"."{queue}_popped" (
    slot integer NOT NULL,
    subscriber smallint NOT NULL,
    message_id bigint NOT NULL,
    time timestamptz NOT NULL,
    PRIMARY KEY (slot, subscriber)
);

COMMENT ON COLUMN "{schema}"."{queue}_popped".message_id IS 'the last number that the subscriber popped of the slot';

-- end
-- when defined keeps_popped
-- Below this number no slot has a message that all have popped.
CREATE TABLE "{schema}"."{queue}_swept" (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    number bigint NOT NULL
);

INSERT INTO "{schema}"."{queue}_swept" (number) VALUES (1);

-- end
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
-- each subscriber
-- Subscriber {subscriber}: its sequences, and what it counts as popped of each slot at its start.
CREATE SEQUENCE IF NOT EXISTS "{schema}"."{queue}_pop_seq_{subscriber_number}" AS bigint START WITH 1 CACHE 1;
CREATE SEQUENCE IF NOT EXISTS "{schema}"."{queue}_turn_seq_{subscriber_number}" AS bigint START WITH 1 CACHE 1;

WITH made AS (
    INSERT INTO "{schema}"."{queue}_subscribers" (subscriber, number, since_number)
    VALUES ('{subscriber}', {subscriber_number}, CAST('{since}' AS bigint)) ON CONFLICT DO NOTHING
    RETURNING since_number
)

SELECT setval('"{schema}"."{queue}_pop_seq_{subscriber_number}"', m.since_number, false) FROM made AS m;

UPDATE "{schema}"."{queue}_config" SET subscribers = greatest(subscribers, {subscriber_number});

DO $dbq$
DECLARE
    made regclass;
    other pg_class;
    granted record;
BEGIN
    IF CAST(current_setting('server_version_num') AS integer) >= 150000 THEN
        ALTER SEQUENCE "{schema}"."{queue}_turn_seq_{subscriber_number}" SET UNLOGGED;
    END IF;
    -- Whoever owns the sequences of those that are there, or may draw from them, is to do so with these.
    SELECT c.* INTO other FROM "{schema}"."{queue}_subscribers" AS s INNER JOIN pg_class AS c
        ON c.oid = to_regclass(concat(quote_ident('{schema}'), '.', quote_ident('{queue}_pop_seq_' || s.number)))
    WHERE s.number <> {subscriber_number} ORDER BY s.number LIMIT 1;
    FOREACH made IN ARRAY CAST(ARRAY[
        '"{schema}"."{queue}_pop_seq_{subscriber_number}"', '"{schema}"."{queue}_turn_seq_{subscriber_number}"'
    ] AS regclass[]) LOOP
        IF (SELECT c.relowner FROM pg_class AS c WHERE c.oid = made) <> other.relowner THEN
            EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', made, pg_get_userbyid(other.relowner));
        END IF;
        FOR granted IN
            SELECT a.privilege_type AS right, a.grantee FROM aclexplode(other.relacl) AS a WHERE a.grantee <> other.relowner
        LOOP
            EXECUTE format('GRANT %s ON SEQUENCE %s TO %s', granted.right, made,
                CASE WHEN granted.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(granted.grantee)) END);
        END LOOP;
    END LOOP;
END
$dbq$;

-- end
-- when subscribed=yes
-- Inserted slot by slot with half of each page free. If the table kept that low fillfactor, every pop would find its
-- page too full and prune it, one WAL record each time. A batch writes only one subscriber's rows of a page, so a page
-- is pruned in time when less than a third is left.
ALTER TABLE "{schema}"."{queue}_popped" SET (fillfactor = '{fillfactor}');

INSERT INTO "{schema}"."{queue}_popped" (slot, subscriber, message_id, time)
SELECT
    r.slot,
    s.number,
    s.since_number - 1,
    clock_timestamp()
FROM "{schema}"."{queue}" AS r CROSS JOIN "{schema}"."{queue}_subscribers" AS s
WHERE s.number IN (
    -- each subscriber
    {subscriber_number},
    -- end
    0
)
ORDER BY r.slot, s.number
ON CONFLICT DO NOTHING;

ALTER TABLE "{schema}"."{queue}_popped" SET (fillfactor = 70);

-- end
-- name: functions
-- script: push, push_many, pop, pop_many, relay, and with in_hand complete and fail
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push"(payload "{payload_type}") RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $dbq$
DECLARE
    next_push bigint;
    next_pop bigint;
    ring_size bigint;
    drawn bigint;
    place tid;
    met smallint[]; -- when subscribed=yes
    reused tid[]; -- when defined keeps_popped
BEGIN
    {read_committed_only}
    IF payload IS NULL THEN
        RAISE EXCEPTION 'a message needs a payload' USING ERRCODE = 'DBQ02';
    END IF;
    {payload_in_bounds}
    PERFORM FROM "{schema}"."{queue}_parked" LIMIT 0;
    FOR try IN 1..8 LOOP
        SELECT
            (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
            {next_pop_of_all},
            c.size
        INTO next_push, next_pop, ring_size FROM "{schema}"."{queue}_config" AS c;
        IF next_push - next_pop >= ring_size THEN
            RETURN NULL;
        END IF;
        drawn := nextval('"{schema}"."{queue}_push_seq"');
        SELECT r.ctid INTO place FROM "{schema}"."{queue}" AS r
        WHERE r.slot = drawn % ring_size AND {slot_is_free} FOR UPDATE SKIP LOCKED;
        -- when defined keeps_popped
        reused := ARRAY[place];
        {discard_popped}
        -- end
        UPDATE "{schema}"."{queue}" AS r
        SET message_id = drawn, first_id = drawn, time = clock_timestamp(), message = payload, -- when content=slot
        SET message_id = drawn, first_id = drawn, time = clock_timestamp(), -- when content=apart
            reference_count = {count_of_filled}
        WHERE r.ctid = place;
        IF FOUND THEN
            -- when content=apart
            CASE drawn % '{partitions}'
            -- each partition
                WHEN {partition} THEN
                    INSERT INTO "{schema}"."{queue}_content_{partition}" (content_id, content) VALUES (drawn, payload);
            -- end
            END CASE;
            -- end
            {wake_waiters}
            RETURN drawn;
        END IF;
        -- The slot is not free (a race at full, an orphan in it): this number carries nothing.
        -- when subscribed=no
        PERFORM FROM "{schema}"."{queue}_parked" AS p
        WHERE p.number = drawn AND NOT p.void FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = drawn AND NOT p.void;
        ELSE
            INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
            VALUES (drawn, true, clock_timestamp()) ON CONFLICT DO NOTHING;
        END IF;
        -- else
        met := ARRAY(SELECT p.subscriber FROM "{schema}"."{queue}_parked" AS p
            WHERE p.subscriber IN (SELECT s.number FROM "{schema}"."{queue}_subscribers" AS s)
            AND p.number = drawn AND NOT p.void FOR UPDATE OF p SKIP LOCKED);
        DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.subscriber = ANY(met) AND p.number = drawn AND NOT p.void;
        INSERT INTO "{schema}"."{queue}_parked" (subscriber, number, void, parked_at)
        SELECT s.number, drawn, true, clock_timestamp() FROM "{schema}"."{queue}_subscribers" AS s
        WHERE s.number <> ALL(met) ORDER BY s.number ON CONFLICT DO NOTHING;
        -- end
    END LOOP;
    RETURN NULL;
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_push_many"(payloads "{payload_type}"[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $dbq$
DECLARE
    wanted integer := coalesce(cardinality(payloads), 0);
    room bigint;
    written bigint;
    next_push bigint;
    next_pop bigint;
    ring_size bigint;
    drawn bigint[];
    slots bigint[];
    filled bigint[];
    places tid[];
    unused bigint[];
    met bigint[]; -- when subscribed=no
    reused tid[]; -- when defined keeps_popped
BEGIN
    {read_committed_only}
    IF array_position(payloads, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'a message needs a payload' USING ERRCODE = 'DBQ02';
    END IF;
    -- when limited=yes
    -- when payload=text|bytes
    IF EXISTS (SELECT FROM (SELECT octet_length(unnest(payloads)) AS bytes) AS p WHERE p.bytes > '{max_bytes}') THEN
    -- end
    -- when payload=json
    IF EXISTS (SELECT FROM (SELECT octet_length(CAST(unnest(payloads) AS text)) AS bytes) AS p WHERE p.bytes > '{max_bytes}') THEN
    -- end
        RAISE EXCEPTION 'a payload is over the limit of % bytes', '{max_bytes}'
            USING ERRCODE = 'DBQ02', HINT = 'Send it in parts, or install a queue with a larger max_bytes.';
    END IF;
    -- end
    PERFORM FROM "{schema}"."{queue}_parked" LIMIT 0;
    SELECT
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
        {next_pop_of_all},
        c.size
    INTO next_push, next_pop, ring_size FROM "{schema}"."{queue}_config" AS c;
    -- Where poppers wait ahead the gap is negative, but more than size numbers never find a slot.
    room := least(wanted, ring_size, ring_size - (next_push - next_pop));
    IF room > 0 THEN
        drawn := ARRAY(SELECT nextval('"{schema}"."{queue}_push_seq"') FROM (SELECT generate_series(1, room)) AS g);
        slots := ARRAY(SELECT unnest(drawn) % ring_size);
        -- Two looks, each with a fresh snapshot; what the first one locked is locked in the second.
        -- A slot's number is the lowest from our first one on that leads there, if that is ours: where
        -- others drew a whole lap between ours, two of ours may lead to one slot, and the lower has it.
        FOR look IN 1..2 LOOP
            SELECT array_agg(f.number ORDER BY f.number), array_agg(f.place ORDER BY f.number) INTO filled, places
            FROM (
                SELECT drawn[1] + (r.slot - drawn[1] % ring_size + ring_size) % ring_size AS number, r.ctid AS place
                FROM "{schema}"."{queue}" AS r
                WHERE r.slot = ANY(slots) AND {slot_is_free} FOR UPDATE SKIP LOCKED
            ) AS f WHERE drawn[room] - drawn[1] < room OR f.number = ANY(drawn); -- mostly nobody drew between ours
            EXIT WHEN cardinality(filled) = room;
        END LOOP;
        -- when defined keeps_popped
        reused := places;
        {discard_popped}
        -- end
        -- The first payload goes to the lowest number that has a slot, and so on.
        UPDATE "{schema}"."{queue}" AS r
        -- when content=slot
        SET message_id = w.number, first_id = w.number, time = clock_timestamp(), message = w.payload,
        -- end
        SET message_id = w.number, first_id = w.number, time = clock_timestamp(), -- when content=apart
            reference_count = {count_of_filled}
        -- when content=slot
        FROM (SELECT unnest(filled) AS number, unnest(places) AS place, unnest(payloads) AS payload) AS w
        -- end
        FROM (SELECT unnest(filled) AS number, unnest(places) AS place) AS w -- when content=apart
        WHERE r.ctid = w.place;
        GET DIAGNOSTICS written = ROW_COUNT;
        ASSERT written = coalesce(cardinality(filled), 0), 'a locked slot was not where it was locked';
        -- each partition
        INSERT INTO "{schema}"."{queue}_content_{partition}" (content_id, content)
        SELECT w.number, w.payload
        FROM (SELECT unnest(filled) AS number, unnest(payloads) AS payload) AS w
        WHERE w.number % '{partitions}' = {partition};
        -- end
        IF written < room THEN
            unused := ARRAY(SELECT unnest(drawn) EXCEPT SELECT unnest(filled));
            -- when subscribed=no
            met := ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
                WHERE p.number = ANY(unused) AND NOT p.void FOR UPDATE SKIP LOCKED);
            DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = ANY(met) AND NOT p.void;
            INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
            SELECT n.number, true, clock_timestamp()
            FROM (SELECT unnest(unused) EXCEPT SELECT unnest(met)) AS n (number)
            ORDER BY n.number ON CONFLICT DO NOTHING;
            -- else
            -- One statement: the row that it locks is where it was seen, for rows of parked are never updated.
            WITH met AS MATERIALIZED (
                SELECT p.ctid AS place, p.subscriber, p.number FROM "{schema}"."{queue}_parked" AS p
                WHERE p.subscriber IN (SELECT s.number FROM "{schema}"."{queue}_subscribers" AS s)
                AND p.number = ANY(unused) AND NOT p.void FOR UPDATE OF p SKIP LOCKED
            ), finished AS (
                DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.ctid = ANY(ARRAY(SELECT m.place FROM met AS m))
            )
            INSERT INTO "{schema}"."{queue}_parked" (subscriber, number, void, parked_at)
            SELECT s.number, n.number, true, clock_timestamp()
            FROM "{schema}"."{queue}_subscribers" AS s CROSS JOIN unnest(unused) AS n (number)
            WHERE (s.number, n.number) NOT IN (SELECT m.subscriber, m.number FROM met AS m)
            ORDER BY s.number, n.number ON CONFLICT DO NOTHING;
            -- end
        END IF;
        -- when notify=on
        IF filled IS NOT NULL AND EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
            PERFORM pg_notify('{channel}', '');
        END IF;
        -- end
    END IF;
    RETURN QUERY SELECT filled[g.position] FROM (SELECT generate_series(1, wanted) AS position) AS g;
END
$dbq$;

-- when defined keeps_popped
-- Archives the messages that all have popped and deletes their content: at most `most` numbers a call, in order, up to
-- the first that is still owed. One sweep at a time; nobody waits. Returns how many slots it freed.
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_sweep"(most integer DEFAULT 100) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $dbq$
DECLARE
    next_pop bigint;
    next_push bigint;
    ring_size bigint;
    owed bigint;
    slots bigint[];
    reused tid[];
BEGIN
    {read_committed_only}
    PERFORM FROM "{schema}"."{queue}_parked" LIMIT 0;
    SELECT
        {sweep_limit},
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
        c.size
    INTO next_pop, next_push, ring_size FROM "{schema}"."{queue}_config" AS c;
    SELECT greatest(w.number, next_push - ring_size) INTO owed FROM "{schema}"."{queue}_swept" AS w
    WHERE w.number < next_pop FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    next_pop := least(next_pop, owed + most);
    slots := ARRAY(SELECT generate_series(owed, next_pop - 1) % ring_size);
    -- A slot that a push passed over has an older message, and is met with the number that it was for.
    reused := ARRAY(SELECT r.ctid FROM "{schema}"."{queue}" AS r
        WHERE r.slot = ANY(slots) AND r.message_id < next_pop AND {all_have_popped}
        FOR UPDATE SKIP LOCKED);
    {discard_popped}
    UPDATE "{schema}"."{queue}" AS r
    SET {empty_slot}, reference_count = 0
    WHERE r.ctid = ANY(reused);
    SELECT min(r.message_id) INTO owed FROM "{schema}"."{queue}" AS r
    WHERE r.slot = ANY(slots) AND r.message_id < next_pop;
    UPDATE "{schema}"."{queue}_swept" AS w SET number = coalesce(owed, next_pop)
    WHERE w.number <> coalesce(owed, next_pop);
    RETURN cardinality(reused);
END
$dbq$;

-- end
-- when subscribed=yes
-- when in_hand=on
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"(subscriber text, consumer text DEFAULT NULL, bound boolean DEFAULT false)
-- end
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"(subscriber text) -- when in_hand=off
-- else
-- when in_hand=on
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"(consumer text DEFAULT NULL, bound boolean DEFAULT false)
-- end
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop"() -- when in_hand=off
-- end
RETURNS TABLE (id bigint, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $dbq$
-- when in_hand=on
BEGIN
    -- One path for claims: what is in hand and ready again goes before the ring.
    RETURN QUERY SELECT m.id, m.payload, m.pushed_at, m.attempts
    FROM "{schema}"."{queue}_pop_many"(1, consumer, bound) AS m; -- when subscribed=no
    FROM "{schema}"."{queue}_pop_many"(1, subscriber, consumer, bound) AS m; -- when subscribed=yes
END
-- else
DECLARE
    parked bigint[];
    on_page bigint;
    stretch bigint;
    stretches bigint;
    all_turns bigint := 1;
    place tid;
    held integer;
    next_push bigint;
    next_pop bigint;
    ring_size bigint;
    drawn bigint;
    dropped boolean;
    tries integer := 0;
    voids integer := 0;
    {subscriber_variables}
BEGIN
    {read_committed_only}
    {find_subscriber}
    -- Mostly there is none. To learn that by the array below made the whole call 1.03 times as dear.
    PERFORM FROM "{schema}"."{queue}_parked" AS p WHERE {is_parked} LIMIT 1;
    IF FOUND THEN
        parked := ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
            WHERE {is_parked} ORDER BY p.number LIMIT 65);
        IF cardinality(parked) > 64 THEN
            {parked_by_turns}
        END IF;
        SELECT c.size INTO ring_size FROM "{schema}"."{queue}_config" AS c;
        -- Those that have their message now, looked up slot by slot (OFFSET 0: in no other way).
        FOREACH drawn IN ARRAY ARRAY(
            SELECT w.number FROM unnest(parked) AS w (number) CROSS JOIN LATERAL (
                SELECT FROM "{schema}"."{queue}" AS r
                WHERE r.slot = w.number % ring_size AND r.message_id = w.number OFFSET 0
            ) AS here ORDER BY w.number
        ) LOOP
            PERFORM FROM "{schema}"."{queue}_parked" AS p
            WHERE p.number = drawn AND {is_parked} FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;
            {lock_slot}
            {take_content}
            {pop_slot}
            IF FOUND THEN
                DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = drawn AND {is_parked};
                -- when defined keeps_popped
                -- A sweep may have passed it by, when its push was in flight.
                UPDATE "{schema}"."{queue}_swept" AS w SET number = drawn WHERE w.ctid = (
                    SELECT s.ctid FROM "{schema}"."{queue}_swept" AS s WHERE s.number > drawn FOR UPDATE SKIP LOCKED
                );
                -- end
                -- when subscribed=no
                -- when archive_at_pop=on
                INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
                VALUES (id, payload, pushed_at, clock_timestamp(), 'done', 1, 'pop');
                -- end
                -- end
                RETURN NEXT;
                RETURN;
            END IF;
        END LOOP;
        -- None: finish the numbers that are void too.
        FOREACH drawn IN ARRAY ARRAY(
            SELECT v.number FROM "{schema}"."{queue}_parked" AS v WHERE v.number = ANY(parked) AND {is_void_too}
        ) LOOP
            PERFORM FROM "{schema}"."{queue}_parked" AS p
            WHERE p.number = drawn AND {is_void_or_parked} FOR UPDATE SKIP LOCKED;
            GET DIAGNOSTICS held = ROW_COUNT;
            IF held = 2 THEN
                DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = drawn AND {is_void_or_parked};
            END IF;
        END LOOP;
    END IF;

    LOOP
        {read_next_numbers}
        EXIT WHEN next_pop >= next_push;
        drawn := nextval({pop_numbers});
        dropped := false;
        FOR look IN 1..4 LOOP
            {lock_slot}
            {take_content}
            {pop_slot}
            IF FOUND THEN
                -- when subscribed=no
                -- when archive_at_pop=on
                INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
                VALUES (id, payload, pushed_at, clock_timestamp(), 'done', 1, 'pop');
                -- end
                -- end
                RETURN NEXT;
                RETURN;
            END IF;
            PERFORM FROM "{schema}"."{queue}_parked" AS p
            WHERE p.number = drawn AND {is_void} FOR UPDATE SKIP LOCKED;
            dropped := FOUND;
            EXIT WHEN dropped OR look = 4;
            PERFORM pg_sleep(0.001); -- the push's commit may be in flight
        END LOOP;
        IF dropped THEN
            DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = drawn AND {is_void};
            voids := voids + 1;
            EXIT WHEN voids >= 1000;
        ELSE
            INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
            VALUES (mine, drawn, false, clock_timestamp()) -- when subscribed=yes
            VALUES (drawn, false, clock_timestamp()) -- when subscribed=no
            ON CONFLICT DO NOTHING;
            tries := tries + 1;
            EXIT WHEN tries >= 8;
        END IF;
    END LOOP;
    {sweep_when_idle}
END
-- end
$dbq$;

-- when subscribed=yes
-- when in_hand=on
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(
    n integer, subscriber text, consumer text DEFAULT NULL, bound boolean DEFAULT false
)
-- end
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(n integer, subscriber text) -- when in_hand=off
-- else
-- when in_hand=on
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(
    n integer, consumer text DEFAULT NULL, bound boolean DEFAULT false
)
-- end
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_pop_many"(n integer) -- when in_hand=off
-- end
RETURNS TABLE (id bigint, payload "{payload_type}", pushed_at timestamptz, attempts integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $dbq$ -- when subscribed=no
-- when subscribed=yes
-- Slots and what was popped of them are joined by a hash: each looked up by the other made it twice as dear.
SET enable_seqscan = off SET enable_nestloop = off SET jit = off SET plan_cache_mode = force_generic_plan AS $dbq$
-- end
DECLARE
    parked bigint[];
    on_page bigint;
    stretch bigint;
    stretches bigint;
    all_turns bigint := 1;
    next_push bigint;
    next_pop bigint;
    ring_size bigint;
    room bigint;
    ready bigint;
    waiting bigint;
    held integer;
    places tid[] := '{}'; -- of all that is locked for this call
    drawn bigint[];
    slots bigint[];
    found_now bigint[];
    here tid[];
    -- when subscribed=yes
    mine_here tid[];
    rows_of_mine tid[] := '{}'; -- of popped, those of the places
    -- end
    missing bigint[];
    known bigint[];
    parked_now bigint;
    wanted bigint := greatest(n, 0);
    tries integer := 0;
    voids integer := 0;
    {subscriber_variables}
    -- when in_hand=on
    claimed bigint;
    session text := current_setting('dbq.session', true);
    -- end
BEGIN
    {read_committed_only}
    {find_subscriber}
    parked := ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
        WHERE {is_parked} ORDER BY p.number LIMIT 65);
    -- when in_hand=on

    -- Who claims: this backend, by pid and start. Asked once a session, then kept in a setting.
    {identify_claimant}

    RETURN QUERY WITH claimed AS (
        UPDATE "{schema}"."{queue}_in_hand" AS h
        SET claimed_at = clock_timestamp(), claimed_by = session, attempts = h.attempts + 1
        WHERE h.id = ANY(ARRAY(
            SELECT w.id FROM "{schema}"."{queue}_in_hand" AS w
            WHERE w.claimed_at IS NULL AND w.done_at IS NULL
            AND w.subscriber = mine -- when subscribed=yes
            ORDER BY w.id + 0 LIMIT wanted FOR UPDATE SKIP LOCKED
        ))
        AND h.subscriber = mine -- when subscribed=yes
        RETURNING h.id, h.payload, h.pushed_at, h.attempts
    ) SELECT c.id, c.payload, c.pushed_at, c.attempts FROM claimed AS c ORDER BY c.id;
    GET DIAGNOSTICS claimed = ROW_COUNT;
    wanted := wanted - claimed;
    -- end

    IF cardinality(parked) > 0 AND wanted > 0 THEN
        IF cardinality(parked) > 64 THEN
            {parked_by_turns}
        END IF;
        SELECT c.size INTO ring_size FROM "{schema}"."{queue}_config" AS c;
        -- All at once: one by one 64 of them cost 1.6 times as much, and behind pushes of batches up to
        -- every fifth message comes by a parked number.
        found_now := ARRAY(
            SELECT w.number FROM unnest(parked) AS w (number) CROSS JOIN LATERAL (
                SELECT FROM "{schema}"."{queue}" AS r
                WHERE r.slot = w.number % ring_size AND r.message_id = w.number OFFSET 0 -- when content=slot
                -- when content=apart
                WHERE r.slot = w.number % ring_size AND r.message_id = w.number AND {slot_has_content} OFFSET 0
                -- end
            ) AS here
        );
        IF cardinality(found_now) > 0 THEN
            known := ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
                WHERE p.number = ANY(found_now) AND {is_parked} ORDER BY p.number LIMIT wanted FOR UPDATE SKIP LOCKED);
            slots := ARRAY(SELECT unnest(known) % ring_size);
            {slots_read}
                WHERE r.slot = ANY(slots) AND r.message_id = ANY(known) AND r.slot = r.message_id % ring_size
            {slots_locked}
            DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = ANY(found_now) AND {is_parked};
            -- when defined keeps_popped
            -- A sweep may have passed them by, when their pushes were in flight.
            SELECT min(f.number) INTO waiting FROM unnest(found_now) AS f (number);
            UPDATE "{schema}"."{queue}_swept" AS w SET number = waiting WHERE w.ctid = (
                SELECT s.ctid FROM "{schema}"."{queue}_swept" AS s WHERE s.number > waiting FOR UPDATE SKIP LOCKED
            );
            -- end
            places := places || here;
            {collect_popped_rows}
        END IF;
        IF cardinality(places) = 0 THEN
            FOREACH waiting IN ARRAY ARRAY(
                SELECT v.number FROM "{schema}"."{queue}_parked" AS v WHERE v.number = ANY(parked) AND {is_void_too}
            ) LOOP
                PERFORM FROM "{schema}"."{queue}_parked" AS p
                WHERE p.number = waiting AND {is_void_or_parked} FOR UPDATE SKIP LOCKED;
                GET DIAGNOSTICS held = ROW_COUNT;
                IF held = 2 THEN
                    DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = waiting AND {is_void_or_parked};
                END IF;
            END LOOP;
        END IF;
    END IF;

    LOOP
        {read_next_numbers}
        room := least(wanted - cardinality(places), next_push - next_pop);
        EXIT WHEN room <= 0;
        -- Near the end of the queue most numbers are those of pushes that are not committed yet. Drawn now
        -- each would be parked, and behind as many parked ones the next calls find nothing either: 16 and
        -- 16 in batches of 100 fell from 47,000 messages/s to 3,000 in ten seconds. So no more are drawn
        -- than up to the last one whose message is here; one where none is, so that no hole stops a call.
        IF room > 1 AND next_push - next_pop < 32 * room THEN
            FOR look IN 1..2 LOOP
                slots := ARRAY(SELECT (next_pop + generate_series(0, room - 1)) % ring_size);
                SELECT max(r.message_id) - next_pop + 1 INTO ready FROM "{schema}"."{queue}" AS r
                WHERE r.slot = ANY(slots) AND r.message_id >= next_pop AND r.message_id < next_pop + room;
                EXIT WHEN ready IS NOT NULL OR look = 2 OR tries + voids > 0;
                PERFORM pg_sleep(0.001); -- a push's commit may be in flight
            END LOOP;
            -- None is: what is known to be void, or has messages behind it, is drawn all at once.
            IF ready IS NULL THEN
                PERFORM FROM "{schema}"."{queue}_parked" AS p
                WHERE {is_void} AND p.number >= next_pop AND p.number < next_pop + room LIMIT 1;
                IF FOUND THEN
                    ready := room;
                ELSIF next_push - next_pop > room THEN
                    slots := ARRAY(SELECT (next_pop + generate_series(room, next_push - next_pop - 1)) % ring_size);
                    PERFORM FROM "{schema}"."{queue}" AS r
                    WHERE r.slot = ANY(slots) AND r.message_id >= next_pop + room LIMIT 1;
                    ready := CASE WHEN FOUND THEN room END;
                END IF;
            END IF;
            room := coalesce(ready, 1);
        END IF;
        drawn := ARRAY(SELECT nextval({pop_numbers}) FROM (SELECT generate_series(1, room)) AS g);
        slots := ARRAY(SELECT unnest(drawn) % ring_size);
        -- Two looks, each with a fresh snapshot; what the first one locked is locked in the second.
        FOR look IN 1..2 LOOP
            {slots_read}
                WHERE r.slot = ANY(slots) AND r.message_id = ANY(drawn) AND r.slot = r.message_id % ring_size
                AND {slot_has_content} -- when content=apart
            {slots_locked}
            EXIT WHEN cardinality(found_now) = room OR look = 2;
            PERFORM pg_sleep(0.001); -- a push's commit may be in flight
        END LOOP;
        places := places || here;
        {collect_popped_rows}
        EXIT WHEN cardinality(found_now) = room;
        missing := ARRAY(SELECT unnest(drawn) EXCEPT SELECT unnest(found_now));
        known := ARRAY(SELECT p.number FROM "{schema}"."{queue}_parked" AS p
            WHERE p.number = ANY(missing) AND {is_void} FOR UPDATE SKIP LOCKED);
        DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = ANY(known) AND {is_void};
        INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
        SELECT mine, m.number, false, clock_timestamp() -- when subscribed=yes
        SELECT m.number, false, clock_timestamp() -- when subscribed=no
        FROM (SELECT unnest(missing) EXCEPT SELECT unnest(known)) AS m (number)
        ORDER BY m.number ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS parked_now = ROW_COUNT;
        EXIT WHEN cardinality(places) > 0;
        tries := tries + CAST(parked_now > 0 AS integer);
        voids := voids + cardinality(missing) - parked_now;
        EXIT WHEN tries >= 8 OR voids >= 1000;
    END LOOP;

    -- when subscribed=no
    IF cardinality(places) > 0 THEN
        -- when content=slot
        RETURN QUERY WITH taken AS MATERIALIZED (
            SELECT r.message_id, r.first_id, r.message, r.time FROM "{schema}"."{queue}" AS r
            WHERE r.ctid = ANY(places)
        -- else
        RETURN QUERY WITH slots AS MATERIALIZED (
            SELECT r.message_id, r.first_id, r.time FROM "{schema}"."{queue}" AS r
            WHERE r.ctid = ANY(places)
        -- each partition
        ), content_{partition} AS (
            DELETE FROM "{schema}"."{queue}_content_{partition}" AS k
            WHERE k.content_id = ANY(ARRAY(SELECT s.first_id FROM slots AS s WHERE s.first_id % '{partitions}' = {partition}))
            RETURNING k.content_id, k.content
        -- end
        ), taken AS MATERIALIZED (
            SELECT s.message_id, s.first_id, k.content AS message, s.time
            FROM slots AS s INNER JOIN (
                SELECT NULL AS content_id, NULL AS content WHERE false
                -- each partition
                UNION ALL SELECT c.content_id, c.content FROM content_{partition} AS c
                -- end
            ) AS k ON k.content_id = s.first_id
        -- end
        -- when archive_at_pop=on
        ), archived AS (
            INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, done_at, state, attempts, reason)
            SELECT t.first_id, t.message, t.time, clock_timestamp(), 'done', 1, 'pop'
            FROM taken AS t ORDER BY t.message_id
        -- end
        -- when in_hand=on
        ), in_hand AS (
            INSERT INTO "{schema}"."{queue}_in_hand" (id, payload, pushed_at, attempts, claimed_at, claimed_by)
            SELECT t.first_id, t.message, t.time, 1, clock_timestamp(), session FROM taken AS t
        -- end
        ), emptied AS (
            UPDATE "{schema}"."{queue}" AS r
            SET {empty_slot},
                reference_count = r.reference_count - 1
            WHERE r.ctid = ANY(places)
        )
        SELECT t.first_id, t.message, t.time, 1 FROM taken AS t ORDER BY t.message_id;
    END IF;
    -- else
    IF cardinality(places) > 0 THEN
        RETURN QUERY WITH taken AS MATERIALIZED (
            SELECT m.slot, m.message_id, m.first_id, {payload} AS message, m.time FROM "{schema}"."{queue}" AS m
            WHERE m.ctid = ANY(places) -- where they were: whoever holds what is owed of a slot holds the slot
        -- when in_hand=on
        ), in_hand AS (
            INSERT INTO "{schema}"."{queue}_in_hand" (subscriber, id, payload, pushed_at, attempts, claimed_at, claimed_by)
            SELECT mine, t.first_id, t.message, t.time, 1, clock_timestamp(), session FROM taken AS t
        -- end
        ), popped AS (
            UPDATE "{schema}"."{queue}_popped" AS p SET message_id = t.message_id, time = clock_timestamp()
            FROM taken AS t WHERE p.slot = t.slot AND p.ctid = ANY(rows_of_mine)
        )
        SELECT t.first_id, t.message, t.time, 1 FROM taken AS t ORDER BY t.message_id;
    -- when defined keeps_popped
    ELSE
        {sweep_when_idle}
    -- end
    END IF;
    -- end
END
$dbq$;

-- when in_hand=on
-- complete and fail wait for the row's lock (the one exception): what they answer must be true.
-- when subscribed=no
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_complete"(id bigint, attempts integer DEFAULT NULL) RETURNS boolean
-- else
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_complete"(subscriber text, id bigint, attempts integer DEFAULT NULL) RETURNS boolean
-- end
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
-- when subscribed=yes
DECLARE
    {subscriber_variables}
-- end
BEGIN
    {read_committed_only}
    {find_subscriber}
    DELETE FROM "{schema}"."{queue}_in_hand" AS h
    -- num_nulls: the row is found by its key, never by an index that only holds claims.
    WHERE h.id = "{queue}_complete".id AND num_nulls(h.claimed_at) = 0 AND num_nulls(h.done_at) = 1
    AND h.subscriber = mine -- when subscribed=yes
    AND ("{queue}_complete".attempts IS NULL OR h.attempts = "{queue}_complete".attempts);
    RETURN FOUND;
END
$dbq$;

-- when subscribed=no
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_fail"(id bigint, error text, attempts integer DEFAULT NULL) RETURNS boolean
-- else
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_fail"(
    subscriber text, id bigint, error text, attempts integer DEFAULT NULL
) RETURNS boolean
-- end
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $dbq$
-- when subscribed=yes
DECLARE
    {subscriber_variables}
-- end
BEGIN
    {read_committed_only}
    {find_subscriber}
    UPDATE "{schema}"."{queue}_in_hand" AS h
    SET errors = coalesce(error, ''), done_at = clock_timestamp()
    , history = {history_with_this_error} -- when keeps_history=yes
    -- num_nulls: the row is found by its key, never by an index that only holds claims.
    WHERE h.id = "{queue}_fail".id AND num_nulls(h.claimed_at) = 0 AND num_nulls(h.done_at) = 1
    AND h.subscriber = mine -- when subscribed=yes
    AND ("{queue}_fail".attempts IS NULL OR h.attempts = "{queue}_fail".attempts);
    RETURN FOUND;
END
$dbq$;
-- end

-- Relay: one transaction; a crash in it leaves the ring as it was. It waits at most 200 ms, and only
-- for parked; every later lock comes within 10 ms or the whole call fails with lock_not_available and
-- has changed nothing. 10 ms, not none: a caller's commit gives its locks back one after the other,
-- and the one on parked may be the first. And no more: after ROLLBACK TO SAVEPOINT a caller still
-- holds a sequence that it drew from but no longer parked, for which it may wait behind this relay.
-- DELETE, INSERT and UPDATE, never TRUNCATE: a dump with an older snapshot must still see the messages.
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_relay"(new_size bigint DEFAULT NULL)
RETURNS TABLE (size_before bigint, size_after bigint, live bigint, base bigint, next_push bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $dbq$
DECLARE
    sequence regclass;
    old_size bigint;
    wanted bigint;
    new_base bigint;
    live_now bigint;
    -- when subscribed=yes
    first_owed bigint;
    mine smallint;
    pops regclass;
    -- end
    reused tid[]; -- when defined keeps_popped
BEGIN
    {read_committed_only}
    LOCK TABLE "{schema}"."{queue}_parked" IN ACCESS EXCLUSIVE MODE;
    PERFORM set_config('lock_timeout', '10ms', true);
    -- Changes nothing but takes the sequence exclusively: a reader of last_value waits here instead
    -- of meeting a file that the restart below replaces.
    -- when subscribed=no
    FOREACH sequence IN ARRAY CAST(ARRAY['"{schema}"."{queue}_push_seq"', '"{schema}"."{queue}_pop_seq"'] AS regclass[]) LOOP
    -- else
    FOREACH sequence IN ARRAY CAST('"{schema}"."{queue}_push_seq"' AS regclass) || {all_pop_sequences} LOOP
    -- end
        EXECUTE format('ALTER SEQUENCE %s OWNER TO %I', sequence,
            (SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c WHERE c.oid = sequence));
    END LOOP;
    LOCK TABLE "{schema}"."{queue}" IN ACCESS EXCLUSIVE MODE;
    LOCK TABLE "{schema}"."{queue}_config" IN ACCESS EXCLUSIVE MODE;

    SELECT c.size INTO old_size FROM "{schema}"."{queue}_config" AS c;
    wanted := coalesce(new_size, old_size);
    -- when subscribed=yes
    LOCK TABLE "{schema}"."{queue}_popped", "{schema}"."{queue}_subscribers" IN ACCESS EXCLUSIVE MODE;
    -- What all have popped is no message any more.
    -- when defined keeps_popped
    reused := ARRAY(SELECT r.ctid FROM "{schema}"."{queue}" AS r WHERE r.reference_count > 0 AND {all_have_popped});
    {discard_popped}
    -- end
    UPDATE "{schema}"."{queue}" AS r
    SET {empty_slot}, reference_count = 0
    WHERE r.reference_count > 0 AND {all_have_popped};
    -- end
    SELECT count(*) INTO live_now FROM "{schema}"."{queue}" AS r WHERE r.reference_count > 0;
    IF wanted < 1 THEN
        RAISE EXCEPTION 'a ring has at least one slot' USING ERRCODE = 'DBQ02';
    END IF;
    IF live_now > wanted THEN
        RAISE EXCEPTION 'the ring holds % live messages, % more than % slots take', live_now, live_now - wanted, wanted
            USING ERRCODE = 'DBQ04', HINT = format('Drain %s messages first, or choose at least %s slots.', live_now - wanted, live_now);
    END IF;
    -- when subscribed=no
    SELECT greatest(
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s),
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_pop_seq" AS s)
    ) INTO new_base;
    -- else
    SELECT s.last_value + CAST(s.is_called AS integer) INTO new_base FROM "{schema}"."{queue}_push_seq" AS s;
    FOREACH pops IN ARRAY {all_pop_sequences} LOOP
        EXECUTE format('SELECT greatest($1, s.last_value + CAST(s.is_called AS integer)) FROM %s AS s', pops)
        INTO new_base USING new_base;
    END LOOP;
    -- end

    -- when subscribed=yes
    -- The rows of new slots are laid as the first ones were.
    ALTER TABLE "{schema}"."{queue}_popped" SET (fillfactor = '{fillfactor}');
    -- end
    INSERT INTO "{schema}"."{queue}" (slot, time, message, reference_count) -- when content=slot
    INSERT INTO "{schema}"."{queue}" (slot, time, reference_count) -- when content=apart
    SELECT
        added.slot,
        now(),
        {prefilled}
        0
    FROM generate_series(old_size, wanted - 1) AS added (slot);

    -- when subscribed=yes
    INSERT INTO "{schema}"."{queue}_popped" (slot, message_id, time, subscriber)
    SELECT added.slot, new_base - 1, clock_timestamp(), s.number
    FROM generate_series(old_size, wanted - 1) AS added (slot) CROSS JOIN "{schema}"."{queue}_subscribers" AS s
    ORDER BY added.slot, s.number;

    -- What a subscriber has popped already, of the messages that another one still owes, stays popped.
    WITH live AS MATERIALIZED (
        SELECT r.slot, r.message_id, new_base + row_number() OVER (ORDER BY r.message_id) - 1 AS number
        FROM "{schema}"."{queue}" AS r WHERE r.reference_count > 0
    ), done AS MATERIALIZED (
        SELECT p.subscriber, l.number FROM live AS l
        INNER JOIN "{schema}"."{queue}_popped" AS p ON p.slot = l.slot AND p.message_id >= l.message_id
    )
    UPDATE "{schema}"."{queue}_popped" AS p
    SET message_id = coalesce(laid.number, new_base - 1)
    FROM "{schema}"."{queue}_popped" AS old
    LEFT JOIN done AS laid ON laid.subscriber = old.subscriber AND laid.number % wanted = old.slot
    WHERE p.slot = old.slot AND p.subscriber = old.subscriber;

    -- end
    -- One statement and so one snapshot: every message is read from its old slot and written to its new.
    WITH live AS MATERIALIZED (
        SELECT r.first_id, r.time, r.message, r.reference_count, -- when content=slot
        SELECT r.first_id, r.time, r.reference_count, -- when content=apart
            new_base + row_number() OVER (ORDER BY r.message_id) - 1 AS number
        FROM "{schema}"."{queue}" AS r WHERE r.reference_count > 0
    )
    UPDATE "{schema}"."{queue}" AS r
    SET message_id = laid.number, first_id = laid.first_id, time = coalesce(laid.time, r.time),
        message = laid.message, reference_count = coalesce(laid.reference_count, 0) -- when content=slot
        reference_count = coalesce(laid.reference_count, 0) -- when content=apart
    FROM "{schema}"."{queue}" AS old LEFT JOIN live AS laid ON laid.number % wanted = old.slot
    -- when content=slot
    WHERE r.slot = old.slot AND (r.reference_count > 0 OR r.message IS NOT NULL OR laid.number IS NOT NULL);
    -- end
    WHERE r.slot = old.slot AND (r.reference_count > 0 OR laid.number IS NOT NULL); -- when content=apart

    DELETE FROM "{schema}"."{queue}" AS r WHERE r.slot >= wanted OR r.slot < 0;
    DELETE FROM "{schema}"."{queue}_popped" AS p WHERE p.slot >= wanted OR p.slot < 0; -- when subscribed=yes
    DELETE FROM "{schema}"."{queue}_parked";
    UPDATE "{schema}"."{queue}_config" AS c SET size = wanted, base = new_base;
    -- Changes nothing, but makes sessions plan anew: for a ring of a few pages they read them all, and
    -- would read all of a large one too.
    ALTER TABLE "{schema}"."{queue}" SET (fillfactor = '{fillfactor}');
    ALTER TABLE "{schema}"."{queue}_popped" SET (fillfactor = 70); -- when subscribed=yes
    EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', CAST('"{schema}"."{queue}_push_seq"' AS regclass), new_base + live_now);
    -- when subscribed=no
    EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s', CAST('"{schema}"."{queue}_pop_seq"' AS regclass), new_base);
    -- end
    UPDATE "{schema}"."{queue}_swept" AS w SET number = new_base; -- when defined keeps_popped
    -- when subscribed=yes
    -- Each goes on at the first message that it owes; those behind it that it has popped are void to it.
    FOR mine IN SELECT s.number FROM "{schema}"."{queue}_subscribers" AS s LOOP
        SELECT coalesce(min(r.message_id), new_base + live_now) INTO first_owed
        FROM "{schema}"."{queue}" AS r INNER JOIN "{schema}"."{queue}_popped" AS p ON p.slot = r.slot AND p.subscriber = mine
        WHERE r.message_id > p.message_id;
        INSERT INTO "{schema}"."{queue}_parked" (subscriber, number, void, parked_at)
        SELECT mine, r.message_id, true, clock_timestamp()
        FROM "{schema}"."{queue}" AS r INNER JOIN "{schema}"."{queue}_popped" AS p ON p.slot = r.slot AND p.subscriber = mine
        WHERE r.message_id > first_owed AND r.message_id <= p.message_id;
        EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s',
            to_regclass(concat(quote_ident('{schema}'), '.', quote_ident('{queue}_pop_seq_' || mine))), first_owed);
    END LOOP;
    -- end
    RETURN QUERY SELECT old_size, wanted, live_now, new_base, new_base + live_now;
END
$dbq$;

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

-- name: status
-- one row: the two next numbers, the ready messages (null: too many to count), the age of the oldest
-- Ready are the messages in the slots of the next pop numbers, and those of parked numbers.
-- Ready are the messages in the slots of the next pop numbers, and those of parked numbers. A standby shows sequences up
-- to 32 ahead: there the next numbers are not known.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CASE WHEN p.gap <= 10000 AND late.parked <= 10000 THEN (
        SELECT count(*) FROM "{schema}"."{queue}" AS m
        WHERE m."{slot}" >= p.head AND m."{slot}" < least(p.head + p.slots_to_read, p.size)
        AND m."{reference_count}" > 0 AND m."{id}" >= p.next_pop
    ) + (
        SELECT count(*) FROM "{schema}"."{queue}" AS m
        WHERE m."{slot}" < p.head + p.slots_to_read - p.size
        AND m."{reference_count}" > 0 AND m."{id}" >= p.next_pop
    )
    -- when in_hand=on
    + (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}_in_hand" AS m
            WHERE {is_ready_again}
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    )
    -- end
    + late.found END AS ready,
    CAST(NULL AS bigint) AS scheduled,
    -- when in_hand=on
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}_in_hand" AS m
            WHERE {is_claimed}
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}_in_hand" AS m
            WHERE {is_claimed} AND m.claimed_at < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}_in_hand" AS m WHERE {is_error}
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) AS errors,
    -- else
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    -- end
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    -- The oldest of the next 64 slots: a hole at the head does not hide the message behind it.
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM least(
        -- when in_hand=on
        (
            SELECT m.pushed_at FROM "{schema}"."{queue}_in_hand" AS m
            WHERE {is_ready_again}
            ORDER BY m.id + 0 LIMIT CAST('{age_seconds_limit}' AS bigint)
        ),
        -- end
        late.oldest,
        (
            SELECT min(m."{pushed_at}")
            FROM "{schema}"."{queue}" AS m
            WHERE m."{slot}" = ANY(ARRAY(
                SELECT n % p.size
                FROM generate_series(
                    p.next_pop, least(p.next_pop + 64 * CAST('{age_seconds_limit}' AS bigint), p.next_push) - 1
                ) AS n
            )) AND m."{reference_count}" > 0 AND m."{id}" >= p.next_pop
        )
    )) AS double precision) AS age_seconds,
    -- end
    CAST(NULL AS double precision) AS age_seconds, -- when no role pushed_at
    pg_stat_get_live_tuples(CAST('"{schema}"."{queue}_in_hand"' AS regclass)) AS rows_estimated, -- when in_hand=on
    CAST(NULL AS bigint) AS rows_estimated, -- when in_hand=off
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    p.next_push AS next_push,
    p.next_pop AS next_pop,
    p.base AS base,
    p.size AS capacity
FROM (
    SELECT
        n.next_push,
        n.next_pop,
        n.size,
        n.base,
        n.next_pop % n.size AS head,
        n.next_push - n.next_pop AS gap,
        greatest(least(n.next_push - n.next_pop, n.size, CAST('{ready_limit}' AS bigint)), 0) AS slots_to_read
    FROM (
        SELECT
            CASE WHEN NOT pg_is_in_recovery() THEN (
                SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{push_sequence}" AS s
            ) END AS next_push,
            -- when of=one
            CASE WHEN NOT pg_is_in_recovery() THEN (
                SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{pop_sequence}" AS s
            ) END AS next_pop,
            -- end
            CASE WHEN NOT pg_is_in_recovery() THEN {next_pop_of_all} END AS next_pop, -- when of=all
            -- when installed=yes
            c.size AS size,
            c.base AS base
        FROM "{schema}"."{queue}_config" AS c
        -- end
        -- when installed=no
            CAST('{size}' AS bigint) AS size,
            CAST(NULL AS bigint) AS base
        -- end
        OFFSET 0 -- so that each number is read once
    ) AS n
    OFFSET 0
) AS p
CROSS JOIN LATERAL (
    -- when installed=yes
    SELECT
        count(*) AS parked,
        count(w.pushed_at) AS found,
        min(w.pushed_at) AS oldest
    FROM (
        SELECT (
            SELECT m."{pushed_at}" FROM "{schema}"."{queue}" AS m
            WHERE m."{slot}" = l.number % p.size AND m."{id}" = l.number AND m."{reference_count}" > 0
        ) AS pushed_at
        FROM {visible_parked} AS l
        WHERE NOT l.void AND l.number < p.next_pop
        LIMIT least(10001, (CAST('{ready_limit}' AS bigint) + CAST('{age_seconds_limit}' AS bigint)) * 10001)
    ) AS w
    -- else
    SELECT
        0 AS parked,
        0 AS found,
        CAST(NULL AS timestamptz) AS oldest
    -- end
) AS late

-- name: subscriber_status
-- a row for each subscriber: the two next numbers, its ready messages (null: too many to count), its parked pops, its oldest age
-- Counts as much as `status` does for all of them together. popped is not read: a subscriber has not popped the messages
-- of its next numbers and of its parked ones.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    p.subscriber AS subscriber,
    p.number AS number,
    p.next_push AS next_push,
    p.next_pop AS next_pop,
    CASE WHEN p.gap <= p.counted AND late.parked <= 10000 THEN (
        SELECT count(*) FROM "{schema}"."{queue}" AS m
        WHERE m.slot >= p.head AND m.slot < least(p.head + p.gap, p.size)
        AND m.reference_count > 0 AND m.message_id >= p.next_pop
    ) + (
        SELECT count(*) FROM "{schema}"."{queue}" AS m
        WHERE m.slot < p.head + p.gap - p.size
        AND m.reference_count > 0 AND m.message_id >= p.next_pop
    )
    -- when in_hand=on
    + (
        SELECT count(*) FROM (
            SELECT FROM "{schema}"."{queue}_in_hand" AS m
            WHERE m.subscriber = p.number AND {is_ready_again}
            LIMIT 10001
        ) AS bounded
    )
    -- end
    + late.found END AS ready,
    CASE WHEN p.next_pop IS NOT NULL THEN late.parked END AS parked,
    CAST(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM least(
        -- when in_hand=on
        (
            SELECT m.pushed_at FROM "{schema}"."{queue}_in_hand" AS m
            WHERE m.subscriber = p.number AND {is_ready_again}
            ORDER BY m.id + 0 LIMIT 1
        ),
        -- end
        late.oldest,
        (
            SELECT min(m.time)
            FROM "{schema}"."{queue}" AS m
            WHERE m.slot = ANY(ARRAY(
                SELECT n % p.size FROM generate_series(p.next_pop, least(p.next_pop + 64, p.next_push) - 1) AS n
            )) AND m.reference_count > 0 AND m.message_id >= p.next_pop
        )
    )) AS double precision) AS age_seconds
FROM (
    SELECT
        n.subscriber,
        n.number,
        n.next_push,
        n.next_pop,
        n.size,
        n.next_pop % n.size AS head,
        greatest(n.next_push - n.next_pop, 0) AS gap,
        10000 / count(*) OVER () AS counted
    FROM (
        SELECT
            s.subscriber,
            s.number,
            c.size,
            CASE WHEN NOT pg_is_in_recovery() THEN (
                SELECT q.last_value + CAST(q.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS q
            ) END AS next_push,
            CASE WHEN NOT pg_is_in_recovery() THEN CASE s.number
                -- each subscriber
                WHEN {subscriber_number} THEN (
                    SELECT q.last_value + CAST(q.is_called AS integer)
                    FROM "{schema}"."{queue}_pop_seq_{subscriber_number}" AS q
                )
                -- end
            END END AS next_pop
        FROM "{schema}"."{queue}_config" AS c CROSS JOIN "{schema}"."{queue}_subscribers" AS s
        OFFSET 0 -- so that each number is read once
    ) AS n
    OFFSET 0
) AS p
CROSS JOIN LATERAL (
    SELECT
        count(*) AS parked,
        count(w.pushed_at) AS found,
        min(w.pushed_at) AS oldest
    FROM (
        SELECT (
            SELECT m.time FROM "{schema}"."{queue}" AS m
            WHERE m.slot = l.number % p.size AND m.message_id = l.number AND m.reference_count > 0
        ) AS pushed_at
        FROM "{schema}"."{queue}_parked" AS l
        WHERE l.subscriber = p.number AND NOT l.void AND l.number < p.next_pop
        LIMIT 10001
    ) AS w
) AS late;

-- name: unswept
-- one row: how many numbers all subscribers have drawn that no sweep has reached yet
-- when defined keeps_popped
SELECT greatest({sweep_limit} - greatest(w.number, (
    SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s
) - c.size), 0) AS numbers
FROM "{schema}"."{queue}_swept" AS w CROSS JOIN "{schema}"."{queue}_config" AS c
-- end
SELECT CAST(0 AS bigint) AS numbers -- when not defined keeps_popped

-- name: sweep
-- script: sweeps up to the first message still owed, a batch of numbers a transaction
-- when defined keeps_popped
DO $dbq$
DECLARE
    swept bigint := -1;
BEGIN
    WHILE swept < (SELECT w.number FROM "{schema}"."{queue}_swept" AS w) LOOP
        SELECT w.number INTO swept FROM "{schema}"."{queue}_swept" AS w;
        PERFORM "{schema}"."{queue}_sweep"(1000);
        COMMIT;
    END LOOP;
END
$dbq$;
-- end

-- name: target_state
-- one row: how many messages are ready, how many more fit, and how many after a relay
SELECT
    greatest(r.next_push - r.next_pop, 0) AS ready,
    greatest(least(r.size, r.size - (r.next_push - r.next_pop)), 0) AS room,
    -- A push counts the numbers of purged messages until pops have passed them.
    (
        SELECT count(*) FROM (
            SELECT FROM {visible_parked} AS p WHERE p.void AND p.number >= r.next_pop LIMIT 10001
        ) AS bounded
    ) AS voids
FROM (
    SELECT
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s) AS next_push,
        {visible_next_pop} AS next_pop,
        c.size
    FROM "{schema}"."{queue}_config" AS c
) AS r;

-- name: contents
-- one row: exact counts of the queue's messages, by a scan; for verbs, never for monitoring
SELECT
    -- when in_hand=off
    (SELECT count(*) FROM {visible_table} AS m WHERE m.reference_count > 0) AS live, -- when content=slot
    -- when content=apart
    -- Contents without a slot are messages too.
    (SELECT count(*) FROM {visible_table} AS m WHERE m.reference_count > 0)
    + (SELECT count(*) FROM ({contents_without_slot}) AS k) AS live,
    -- end
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- else
    (SELECT count(*) FROM {visible_table} AS m WHERE m.reference_count > 0)
    + (SELECT count(*) FROM ({contents_without_slot}) AS k) -- when content=apart
    + (SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS m WHERE {is_ready_again}) AS live,
    (
        SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS m WHERE {is_claimed}
    ) AS claimed,
    (SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS m WHERE {is_error}) AS finished,
    -- end
    (SELECT count(*) FROM "{schema}"."{queue}_archive") AS archived;

-- name: consumers_at_work
-- one row: whether an open transaction holds a row of the subscriber, or it has a claim younger than :stuck_after seconds
SELECT count(*) > 0 AS at_work
FROM (
    SELECT p.slot
    FROM "{schema}"."{queue}_popped" AS p
    WHERE p.subscriber = CAST('{subscriber_number}' AS smallint) AND p.xmax IN (
        SELECT l.transactionid FROM pg_locks AS l WHERE l.locktype = 'transactionid' AND l.granted
    )
    -- when in_hand=on
    UNION ALL
    SELECT m.id
    FROM "{schema}"."{queue}_in_hand" AS m
    WHERE
        m.subscriber = CAST('{subscriber_number}' AS smallint) AND {is_claimed}
        AND m.claimed_at > clock_timestamp() - make_interval(secs => CAST(:stuck_after AS double precision))
    -- end
) AS held;

-- name: estimate
-- one row: about how many messages in hand are claimed and in error
-- From pages: see heap.sql.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(NULL AS double precision) AS ready,
    CAST(NULL AS double precision) AS scheduled,
    CAST(sum(found.claimed) * nullif(max(t.pages), 0) / count(*) AS double precision) AS claimed,
    CAST(sum(found.errors) * nullif(max(t.pages), 0) / count(*) AS double precision) AS errors,
    CAST(NULL AS double precision) AS done
FROM (
    SELECT pg_relation_size(CAST('"{schema}"."{queue}_in_hand"' AS regclass)) / CAST(current_setting('block_size') AS bigint) AS pages
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.pages / 512 AS page FROM generate_series(0, 255) AS i
) AS sampled
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE {is_claimed}) AS claimed,
        count(*) FILTER (WHERE {is_error}) AS errors
    FROM "{schema}"."{queue}_in_hand" AS m
    WHERE m.ctid >= CAST(format('(%s,0)', sampled.page) AS tid) AND m.ctid < CAST(format('(%s,0)', sampled.page + 1) AS tid)
) AS found

-- name: base
-- one row: the lowest valid number; it changes with every relay
SELECT c.base AS base FROM "{schema}"."{queue}_config" AS c;

-- name: park_again
-- one row: how many messages whose pop this session rolled back are parked again
-- Their numbers are consumed and nobody else drew them, so only a parked number brings them back.
WITH parked AS (
    INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
    SELECT
        CAST('{subscriber_number}' AS smallint), -- when subscribed=yes
        r.message_id,
        false,
        clock_timestamp()
    FROM {visible_ring} AS r
    INNER JOIN "{schema}"."{queue}_config" AS c ON c.base = :base
    WHERE r.first_id = ANY(CAST(:ids AS bigint[])) AND r.reference_count > 0
    ON CONFLICT DO NOTHING
    RETURNING number
)

SELECT count(*) AS given_back FROM parked;

-- name: relay
-- one row: sizes before and after, live messages, the new base and the next push number
SELECT
    r.size_before AS size_before,
    r.size_after AS size_after,
    r.live AS live,
    r.base AS base,
    r.next_push AS next_push
FROM "{schema}"."{queue}_relay"(CAST(:new_size AS bigint)) AS r;

-- name: measure
-- one row: size, live messages, the two next numbers and what is parked; a scan of the ring
SELECT
    c.size AS size,
    c.base AS base,
    (SELECT count(*) FROM {visible_ring} AS m WHERE m.reference_count > 0) AS live,
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s) AS next_push,
    {visible_next_pop} AS next_pop,
    (SELECT count(*) FROM {visible_parked} AS p WHERE NOT p.void) AS parked,
    (SELECT count(*) FROM {visible_parked} AS p WHERE p.void) AS voids
FROM "{schema}"."{queue}_config" AS c;

-- name: blockers
-- the transactions, dumps and prepared transactions that a relay would wait for, oldest first
SELECT DISTINCT
    l.pid AS pid,
    a.usename AS user_name,
    a.application_name AS application_name,
    CAST(a.client_addr AS text) AS client_address,
    a.state AS state,
    -- One time for all locks of a transaction, so that DISTINCT shows it once.
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp(), a.xact_start) - a.xact_start) AS double precision) AS transaction_seconds,
    p.gid AS prepared_transaction
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON l.pid = a.pid
-- A prepared transaction has no session any more, but it keeps a lock on its own number, and until
-- a restart its virtual number is the one of the session that prepared it.
LEFT JOIN pg_locks AS own
    ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON own.transactionid = p.transaction
WHERE
    l.locktype = 'relation' AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation IN (
        CAST(CAST('"{schema}"."{queue}_parked"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{queue}"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{queue}_config"' AS regclass) AS oid),
        -- when subscribed=yes
        -- each subscriber
        CAST(CAST('"{schema}"."{queue}_pop_seq_{subscriber_number}"' AS regclass) AS oid),
        -- end
        CAST(CAST('"{schema}"."{queue}_popped"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{queue}_subscribers"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{queue}_push_seq"' AS regclass) AS oid)
        -- else
        CAST(CAST('"{schema}"."{queue}_push_seq"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{queue}_pop_seq"' AS regclass) AS oid)
        -- end
    )
    AND l.pid IS DISTINCT FROM pg_backend_pid()
ORDER BY transaction_seconds DESC NULLS FIRST;

-- name: extent
-- one row: the first and the last number still to be popped, and the number of slots
SELECT
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{pop_sequence}" AS s) AS first, -- when of=one
    {next_pop_of_all} AS first, -- when of=all
    (SELECT s.last_value + CAST(s.is_called AS integer) - 1 FROM "{schema}"."{push_sequence}" AS s) AS last,
    -- when installed=yes
    c.size AS slots
FROM "{schema}"."{queue}_config" AS c;
-- end
    CAST('{size}' AS bigint) AS slots; -- when installed=no

-- name: messages
-- the messages numbered :first to :last, keyed by number, for `chunk` of common.sql
-- They are in the slots :first_slot to :last_slot, one range of the key, within one lap; locked slots are skipped.
SELECT
    m."{id}" AS key_id,
    CAST(m.first_id AS text) AS id, -- when installed=yes
    CAST(m."{id}" AS text) AS id, -- when installed=no
    CASE WHEN m."{reference_count}" > 0 THEN 'ready' END AS state,
    m."{pushed_at}" AS pushed_at, -- when role pushed_at
    m."{slot}" AS slot,
    m."{id}" AS number,
    {payload} AS payload
FROM {visible_table} AS m
WHERE
    m."{slot}" BETWEEN CAST(:first_slot AS bigint) AND CAST(:last_slot AS bigint)
    AND m."{id}" BETWEEN CAST(:first AS bigint) AND CAST(:last AS bigint)

-- name: parked_messages
-- the parked numbers, each with its message if that has arrived, for `chunk` of common.sql
SELECT
    p.number AS key_id,
    CAST(m.first_id AS text) AS id,
    CASE WHEN m.reference_count > 0 THEN 'ready' END AS state,
    m.time AS pushed_at,
    m.slot AS slot,
    p.number AS number,
    m.message AS payload -- when content=slot
    {content} AS payload -- when content=apart
FROM {visible_parked} AS p
CROSS JOIN "{schema}"."{queue}_config" AS c
LEFT JOIN LATERAL (
    SELECT
        r.slot,
        r.first_id,
        r.time,
        r.message, -- when content=slot
        r.reference_count
    FROM {visible_ring} AS r
    WHERE r.slot = p.number % c.size AND r.message_id = p.number
    OFFSET 0 -- looked up slot by slot, and in no other way
) AS m ON true
WHERE NOT p.void
-- when of=all
-- A number parked for another subscriber, which the scan of undrawn numbers does not include.
AND p.number < {visible_next_pop}
-- end

-- name: in_hand_messages
-- in_hand=on: the messages popped and not finished, or ready again (scan), for `chunk` of common.sql
SELECT
    m.id + 0 AS key_id, -- when scan=in_hand
    m.id AS key_id, -- when scan=any
    -- when scan=claimed
    m.claimed_at AS key_time,
    m.id AS key_id,
    -- end
    -- when scan=error
    m.done_at AS key_time,
    m.id AS key_id,
    -- end
    CAST(m.id AS text) AS id,
    {state_in_hand} AS state,
    m.pushed_at AS pushed_at,
    m.claimed_at AS claimed_at,
    m.claimed_by AS claimed_by,
    m.attempts AS attempts,
    m.done_at AS done_at,
    m.errors AS error,
    CAST(NULL AS bigint) AS slot,
    CAST(NULL AS bigint) AS number,
    m.payload AS payload
FROM "{schema}"."{queue}_in_hand" AS m
WHERE {is_ready_again} -- when scan=in_hand
WHERE {is_claimed} -- when scan=claimed
WHERE {is_error} -- when scan=error
-- when defined is_mine_in_hand
WHERE {is_mine_in_hand} -- when scan=any
AND {is_mine_in_hand} -- when scan=in_hand|claimed|error
-- end

-- name: next_numbers
-- one row: the two next numbers exactly, for proofs
-- pg_sequence_last_value never reads in the middle of a nextval; a plain read may see up to 32 too much. It is null
-- before the first number, and takes nextval's lock: run it in a transaction of its own.
SELECT
    (
        SELECT coalesce(pg_sequence_last_value(CAST('"{schema}"."{queue}_push_seq"' AS regclass)) + 1, s.last_value)
        FROM "{schema}"."{queue}_push_seq" AS s
    ) AS next_push,
    (
        SELECT coalesce(pg_sequence_last_value(CAST('"{schema}"."{pop_sequence}"' AS regclass)) + 1, s.last_value)
        FROM "{schema}"."{pop_sequence}" AS s
    ) AS next_pop;

-- name: drawing_transactions
-- a row for each open or prepared transaction that has drawn from a sequence: whose it is
-- nextval's lock lasts to the end of its transaction, even over a rollback to a savepoint, and a commit is visible before
-- its locks are released. So numbers drawn before this query and not by these transactions have arrived or never will.
SELECT DISTINCT
    CASE WHEN l.relation = CAST(CAST('"{schema}"."{queue}_push_seq"' AS regclass) AS oid) THEN 'push' ELSE 'pop' END AS side,
    l.virtualtransaction AS holder,
    l.pid AS pid,
    CAST(coalesce(a.usename, p.owner) AS text) AS user_name,
    a.application_name AS application_name,
    CAST(a.client_addr AS text) AS client_address,
    a.state AS state,
    CAST(EXTRACT(EPOCH FROM greatest(statement_timestamp(), a.xact_start) - a.xact_start) AS double precision) AS transaction_seconds,
    p.gid AS prepared_transaction
FROM pg_locks AS l
LEFT JOIN pg_stat_activity AS a ON l.pid = a.pid
LEFT JOIN pg_locks AS own
    ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND own.pid IS NULL AND own.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts AS p ON own.transactionid = p.transaction
WHERE
    l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation IN (
        CAST(CAST('"{schema}"."{queue}_push_seq"' AS regclass) AS oid),
        CAST(CAST('"{schema}"."{pop_sequence}"' AS regclass) AS oid)
    )
ORDER BY transaction_seconds DESC NULLS FIRST;

-- name: disable_jit
-- one row: no JIT until the end of the transaction; statements that read a ring once do not pay for it
SELECT set_config('jit', 'off', true) AS jit;

-- name: lost
-- a row for each range of lost numbers below :drawn_pop or :drawn_push, by kind, with the times around it
--   orphan       a message whose pop number is consumed and not parked
--   parked_hole  a parked pop number whose push number is consumed, without message and not void
--   hole         the same before any pop has drawn it
--   spent        a pop number that is consumed, not parked, and not pushed yet
--   void         a void number whose pop number is consumed and not parked: nobody will drop it
-- Proven once the transactions that had drawn are finished. The next numbers are read after this statement's snapshot,
-- so they can only be ahead of it. A slot's time is that of its push or, when it is free, of its pop.
WITH numbers AS MATERIALIZED (
    SELECT
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s) AS next_push,
        {visible_next_pop} AS next_pop,
        c.size,
        c.base
    FROM "{schema}"."{queue}_config" AS c
    LIMIT 1 -- there is one: the planner expects thousands
),

held AS MATERIALIZED (
    SELECT
        r.message_id AS number,
        r.slot,
        r.time
    FROM {visible_ring} AS r WHERE r.message_id IS NOT NULL
),

waiting AS MATERIALIZED (
    SELECT
        p.number,
        p.parked_at
    FROM {visible_parked} AS p WHERE NOT p.void
),

voids AS MATERIALIZED (
    SELECT
        p.number,
        p.parked_at
    FROM {visible_parked} AS p WHERE p.void
),

single AS (
    SELECT
        'orphan' AS kind,
        h.number,
        h.time AS since
    FROM held AS h CROSS JOIN numbers AS n
    WHERE
        h.number < CAST(:drawn_pop AS bigint) AND h.number >= n.base AND h.slot = h.number % n.size
        AND NOT EXISTS (SELECT FROM waiting AS w WHERE w.number = h.number)
    UNION ALL
    SELECT
        'parked_hole' AS kind,
        w.number,
        w.parked_at AS since
    FROM waiting AS w
    WHERE
        w.number < CAST(:drawn_push AS bigint)
        AND NOT EXISTS (SELECT FROM held AS h WHERE h.number = w.number)
        AND NOT EXISTS (SELECT FROM voids AS v WHERE v.number = w.number)
    UNION ALL
    SELECT
        'void' AS kind,
        v.number,
        v.parked_at AS since
    FROM voids AS v
    WHERE
        v.number < CAST(:drawn_pop AS bigint)
        AND NOT EXISTS (SELECT FROM waiting AS w WHERE w.number = v.number)
),

-- The existing numbers in order, with one before the first and one after the last; the gaps between them are missing.
present AS (
    SELECT
        'hole' AS kind,
        h.number
    FROM held AS h CROSS JOIN numbers AS n
    WHERE h.number >= greatest(n.next_pop, n.base) AND h.number < CAST(:drawn_push AS bigint)
    UNION
    SELECT
        'hole' AS kind,
        v.number
    FROM voids AS v CROSS JOIN numbers AS n
    WHERE v.number >= greatest(n.next_pop, n.base) AND v.number < CAST(:drawn_push AS bigint)
    UNION
    SELECT
        'hole' AS kind,
        greatest(n.next_pop, n.base) - 1 AS number
    FROM numbers AS n
    UNION
    SELECT
        'hole' AS kind,
        greatest(n.next_pop, n.base, CAST(:drawn_push AS bigint)) AS number
    FROM numbers AS n
    UNION
    SELECT
        'spent' AS kind,
        w.number
    FROM waiting AS w CROSS JOIN numbers AS n
    WHERE w.number >= greatest(n.next_push, n.base) AND w.number < CAST(:drawn_pop AS bigint)
    UNION
    SELECT
        'spent' AS kind,
        greatest(n.next_push, n.base) - 1 AS number
    FROM numbers AS n
    UNION
    SELECT
        'spent' AS kind,
        greatest(n.next_push, n.base, CAST(:drawn_pop AS bigint)) AS number
    FROM numbers AS n
),

runs AS (
    SELECT
        s.kind,
        min(s.number) AS first,
        max(s.number) AS last,
        min(s.since) AS since
    FROM (
        SELECT
            single.*,
            single.number - row_number() OVER (PARTITION BY single.kind ORDER BY single.number) AS run
        FROM single
    ) AS s
    GROUP BY s.kind, s.run
    UNION ALL
    SELECT
        g.kind,
        g.number + 1 AS first,
        g.following - 1 AS last,
        NULL AS since
    FROM (
        SELECT
            present.*,
            lead(present.number) OVER (PARTITION BY present.kind ORDER BY present.number) AS following
        FROM present
    ) AS g
    WHERE g.following > g.number + 1
)

SELECT
    r.kind AS kind,
    r.first AS first,
    r.last AS last,
    r.since AS since,
    CASE
        WHEN r.kind IN ('orphan', 'spent', 'void') AND before.message_id IS NULL THEN before.time
        WHEN r.kind IN ('hole', 'parked_hole') AND before.message_id = r.first - 1 THEN before.time
    END AS before_at,
    CASE
        WHEN r.kind IN ('orphan', 'spent', 'void') AND after.message_id IS NULL AND r.last + 1 < n.next_pop THEN after.time
        WHEN r.kind IN ('hole', 'parked_hole') AND (after.message_id = r.last + 1 OR after.message_id IS NULL AND r.last + 1 < n.next_pop)
            THEN after.time
    END AS after_at
FROM runs AS r
CROSS JOIN numbers AS n
LEFT JOIN {visible_ring} AS before ON before.slot = (r.first - 1) % n.size
LEFT JOIN {visible_ring} AS after ON after.slot = (r.last + 1) % n.size
ORDER BY r.kind, r.first;

-- name: stranded
-- a row for each parked number whose message has arrived and is held by nobody, and the turn at that time
-- turn is NULL for a ring of an older version and before the first turn. A number that a pop holds is locked and skipped.
SELECT
    p.number AS number,
    r.first_id AS id,
    r.time AS pushed_at,
    -- Of a time without end no age is known.
    CAST(greatest(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM r.time), 0) AS double precision) AS age_seconds,
    {visible_next_pop} AS next_pop,
    pg_sequence_last_value(to_regclass('"{schema}"."{queue}_turn_seq"')) AS turn -- when subscribed=no
    -- when subscribed=yes
    pg_sequence_last_value(to_regclass('"{schema}"."{queue}_turn_seq_{subscriber_number}"')) AS turn
    -- end
FROM {visible_parked} AS p
CROSS JOIN "{schema}"."{queue}_config" AS c
INNER JOIN {visible_ring} AS r ON p.number % c.size = r.slot AND p.number = r.message_id
WHERE
    NOT p.void AND r.reference_count > 0
    AND {slot_has_content} -- when content=apart
    -- A pop that holds it has locked its row until the end of its transaction.
    AND NOT EXISTS (
        SELECT FROM pg_locks AS l WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid = p.xmax
    )
ORDER BY r.time
LIMIT 1000;

-- name: structure
-- one row: the ring's numbers, its slots and their inconsistencies; a scan of the ring
-- With subscribers a wrong number may look popped by all: it is counted where it is.
SELECT
    (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s) AS next_push,
    {visible_next_pop} AS next_pop,
    c.size AS size,
    c.base AS base,
    t.slots AS slots,
    t.outside AS outside,
    t.live AS live,
    -- when subscribed=no
    t.misplaced AS misplaced,
    t.miscounted AS miscounted,
    t.below_base AS below_base,
    -- else
    n.misplaced AS misplaced,
    t.miscounted AS miscounted,
    n.below_base AS below_base,
    -- end
    t.highest AS highest,
    p.parked AS parked,
    p.voids AS voids,
    p.voids_ahead AS voids_ahead,
    p.highest_parked AS highest_parked,
    p.highest_void AS highest_void,
    p.parked_seconds AS parked_seconds
FROM (
    SELECT
        config.size,
        config.base,
        {visible_next_pop} AS pops
    FROM "{schema}"."{queue}_config" AS config
    LIMIT 1 -- see lost
) AS c
CROSS JOIN LATERAL (
    SELECT
        count(*) AS slots,
        count(*) FILTER (WHERE r.slot < 0 OR r.slot >= c.size) AS outside,
        count(*) FILTER (WHERE r.reference_count > 0) AS live,
        -- when subscribed=no
        count(*) FILTER (WHERE r.message_id % c.size <> r.slot) AS misplaced,
        count(*) FILTER (WHERE r.message_id < c.base) AS below_base,
        -- end
        count(*) FILTER (
            WHERE r.reference_count NOT IN (0, 1)
            OR num_nulls(r.message_id, r.first_id, r.message) <> 3 * (1 - r.reference_count) -- when content=slot
            OR num_nulls(r.message_id, r.first_id) <> 2 * (1 - r.reference_count) -- when content=apart
        ) AS miscounted,
        coalesce(max(greatest(r.message_id, r.first_id)), 0) AS highest
    FROM {visible_ring} AS r
) AS t
-- when subscribed=yes
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE r.message_id % c.size <> r.slot) AS misplaced,
        count(*) FILTER (WHERE r.message_id < c.base) AS below_base
    FROM "{schema}"."{queue}" AS r
) AS n
-- end
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE NOT l.void) AS parked,
        count(*) FILTER (WHERE l.void) AS voids,
        count(*) FILTER (WHERE l.void AND l.number >= c.pops) AS voids_ahead,
        coalesce(max(l.number) FILTER (WHERE NOT l.void), 0) AS highest_parked,
        coalesce(max(l.number) FILTER (WHERE l.void), 0) AS highest_void,
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - min(l.parked_at) FILTER (WHERE NOT l.void)) AS double precision) AS parked_seconds
    FROM {visible_parked} AS l
) AS p;

-- name: broken_slots
-- the first 20 inconsistent slots: what is wrong with each
SELECT
    b.slot AS slot,
    b.number AS number,
    b.reference_count AS reference_count,
    b.wrong AS wrong
FROM (
    SELECT
        r.slot,
        r.message_id AS number,
        r.reference_count,
        CASE
            WHEN r.slot < 0 OR r.slot >= c.size THEN 'outside the ring'
            WHEN r.message_id % c.size <> r.slot THEN 'its number belongs to another slot'
            WHEN r.message_id < c.base THEN 'its number is older than the last relay'
            WHEN r.reference_count NOT IN (0, 1) THEN 'its reference count is neither 0 nor 1'
            -- when content=slot
            WHEN r.reference_count = 0 AND num_nulls(r.message_id, r.first_id, r.message) < 3 THEN 'not empty, but counted as free'
            -- else
            WHEN r.reference_count = 0 AND num_nulls(r.message_id, r.first_id) < 2 THEN 'not empty, but counted as free'
            -- end
            WHEN r.reference_count = 1 AND num_nulls(r.message_id, r.first_id) > 0 THEN 'a message without its number'
            WHEN r.reference_count = 1 AND r.message IS NULL THEN 'a number without a message' -- when content=slot
        END AS wrong
    FROM "{schema}"."{queue}" AS r CROSS JOIN "{schema}"."{queue}_config" AS c
) AS b
WHERE b.wrong IS NOT NULL
ORDER BY b.slot
LIMIT 20;

-- name: missing_slots
-- a row for each range of slots that have no row, or no row for this subscriber
SELECT
    g.slot + 1 AS first,
    g.following - 1 AS last
FROM (
    SELECT
        s.slot,
        lead(s.slot) OVER (ORDER BY s.slot) AS following
    FROM (
        SELECT r.slot FROM {rows_of_slots} AS r CROSS JOIN "{schema}"."{queue}_config" AS c
        WHERE r.slot >= 0 AND r.slot < c.size
        UNION
        SELECT -1 AS slot
        UNION
        SELECT c.size AS slot FROM "{schema}"."{queue}_config" AS c
    ) AS s
) AS g
WHERE g.following > g.slot + 1
ORDER BY g.slot;

-- name: sequence_settings
-- two rows: each sequence's cache and increment
SELECT
    CAST(c.relname AS text) AS sequence,
    s.seqcache AS cached,
    s.seqincrement AS step,
    s.seqcycle AS cycles
FROM pg_sequence AS s
INNER JOIN pg_class AS c ON s.seqrelid = c.oid
WHERE s.seqrelid IN (
    CAST(CAST('"{schema}"."{push_sequence}"' AS regclass) AS oid),
    CAST(CAST('"{schema}"."{pop_sequence}"' AS regclass) AS oid)
)
ORDER BY c.relname;

-- name: server_start
-- one row: when the server and its checkpointer started, since when it counts, and the abnormal ends since
-- A crash resets the counters, and a crashed backend restarts the checkpointer.
SELECT
    pg_postmaster_start_time() AS server_started,
    (SELECT a.backend_start FROM pg_stat_activity AS a WHERE a.backend_type = 'checkpointer') AS checkpointer_started,
    pg_stat_get_bgwriter_stat_reset_time() AS counts_since,
    -- The control file has a new timeline only from the next checkpoint on.
    CASE
        WHEN NOT pg_is_in_recovery() THEN CAST(CAST('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8) AS bit(32)) AS integer)
    END AS timeline,
    d.xact_rollback AS rollbacks,
    d.sessions_abandoned + d.sessions_fatal + d.sessions_killed AS sessions_lost,
    pg_is_in_recovery() AS recovering,
    -- What a sequence logs ahead, and the one number whose commit was missing.
    33 AS ahead
FROM pg_stat_database AS d
WHERE d.datname = current_database();

-- name: park_orphans
-- one row: how many orphans there were below :drawn_pop (proven), and how many are parked now
-- message_id = number makes it safe to repeat, and to run twice at once.
WITH found AS MATERIALIZED (
    SELECT
        r.message_id AS number,
        false AS void
    FROM {visible_ring} AS r CROSS JOIN "{schema}"."{queue}_config" AS c
    WHERE
        r.message_id < CAST(:drawn_pop AS bigint) AND r.message_id >= c.base AND r.slot = r.message_id % c.size
        AND NOT EXISTS (SELECT FROM {visible_parked} AS p WHERE p.number = r.message_id AND NOT p.void)
),

{park_numbers};

-- name: drop_holes
-- one row: how many parked numbers below :drawn_push (proven) had no message and no void, and how many are removed
-- Rows of parked are never updated, so a locked row is where it was seen.
WITH hole AS MATERIALIZED (
    SELECT w.number
    FROM {visible_parked} AS w CROSS JOIN "{schema}"."{queue}_config" AS c
    WHERE
        NOT w.void AND w.number < CAST(:drawn_push AS bigint)
        AND NOT EXISTS (SELECT FROM {visible_parked} AS v WHERE v.number = w.number AND v.void)
        AND NOT EXISTS (SELECT FROM {visible_ring} AS r WHERE r.slot = w.number % c.size AND r.message_id = w.number)
),

locked AS MATERIALIZED (
    SELECT p.ctid AS location
    FROM "{schema}"."{queue}_parked" AS p
    WHERE p.number IN (SELECT h.number FROM hole AS h) AND NOT p.void
    AND p.subscriber = CAST('{subscriber_number}' AS smallint) -- when subscribed=yes
    FOR UPDATE SKIP LOCKED
),

repaired AS (
    DELETE FROM "{schema}"."{queue}_parked" AS p
    WHERE p.ctid = ANY(ARRAY(SELECT l.location FROM locked AS l))
    RETURNING p.number
)

SELECT
    (SELECT count(*) FROM hole) AS selected,
    (SELECT count(*) FROM repaired) AS done;

-- name: void_holes
-- one row: how many push numbers below :drawn_push (proven) have neither message nor pop, and how many are void now
WITH numbers AS MATERIALIZED (
    SELECT
        greatest({visible_next_pop}, c.base) AS start
    FROM "{schema}"."{queue}_config" AS c
    LIMIT 1 -- see lost
),

found AS MATERIALIZED (
    SELECT
        g.number,
        true AS void
    FROM numbers AS n
    CROSS JOIN LATERAL generate_series(n.start, CAST(:drawn_push AS bigint) - 1) AS g (number)
    WHERE
        NOT EXISTS (SELECT FROM {visible_ring} AS r WHERE r.message_id = g.number)
        AND NOT EXISTS (SELECT FROM {visible_parked} AS v WHERE v.number = g.number AND v.void)
),

{park_numbers};

-- name: park_spent
-- one row: how many consumed pop numbers below :drawn_pop (proven) are neither pushed nor parked, and how many are parked now
WITH numbers AS MATERIALIZED (
    SELECT
        greatest((SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s), c.base) AS start
    FROM "{schema}"."{queue}_config" AS c
    LIMIT 1 -- see lost
),

found AS MATERIALIZED (
    SELECT
        g.number,
        false AS void
    FROM numbers AS n
    CROSS JOIN LATERAL generate_series(n.start, CAST(:drawn_pop AS bigint) - 1) AS g (number)
    WHERE NOT EXISTS (SELECT FROM {visible_parked} AS w WHERE w.number = g.number AND NOT w.void)
),

{park_numbers};

-- name: drop_voids
-- one row: how many void numbers below :drawn_pop (proven) nobody will drop, and how many are removed
WITH stale AS MATERIALIZED (
    SELECT v.number
    FROM {visible_parked} AS v
    WHERE
        v.void AND v.number < CAST(:drawn_pop AS bigint)
        AND NOT EXISTS (SELECT FROM {visible_parked} AS w WHERE w.number = v.number AND NOT w.void)
),

locked AS MATERIALIZED (
    SELECT p.ctid AS location
    FROM "{schema}"."{queue}_parked" AS p
    WHERE p.number IN (SELECT s.number FROM stale AS s) AND p.void
    AND p.subscriber = CAST('{subscriber_number}' AS smallint) -- when subscribed=yes
    FOR UPDATE SKIP LOCKED
),

repaired AS (
    DELETE FROM "{schema}"."{queue}_parked" AS p
    WHERE p.ctid = ANY(ARRAY(SELECT l.location FROM locked AS l))
    RETURNING p.number
)

SELECT
    (SELECT count(*) FROM stale) AS selected,
    (SELECT count(*) FROM repaired) AS done;

-- name: content_mismatches
-- a row for each of the first 20 contents without a slot and slots without content: its id, and how many there are of its kind
-- One snapshot shows both sides of every finished transaction and neither of unfinished ones: a half missing here is
-- missing for good. Reads the ring and the contents' keys.
-- when content=apart
(
    SELECT
        'content' AS kind,
        k.content_id AS id,
        count(*) OVER () AS found
    FROM (
        {contents_without_slot}
    ) AS k
    ORDER BY k.content_id LIMIT 20
)
UNION ALL
(
    SELECT
        'slot' AS kind,
        m.first_id AS id,
        count(*) OVER () AS found
    FROM {visible_ring} AS m
    WHERE m.reference_count > 0 AND m.first_id IS NOT NULL AND {has_content} IS NULL
    ORDER BY m.message_id LIMIT 20
);
-- end

-- name: archive_contents
-- one row: how many contents without a slot there were, and how many are in the archive now
-- Proven in this statement: see content_mismatches.
-- when content=apart
WITH astray AS MATERIALIZED (
    {contents_without_slot}
),

-- each partition
content_{partition} AS (
    DELETE FROM "{schema}"."{queue}_content_{partition}" AS k USING astray AS a
    WHERE k.content_id = a.content_id
    RETURNING k.content_id, k.content
),

-- end
kept AS (
    INSERT INTO "{schema}"."{queue}_archive" (id, payload, state, attempts, error, reason, action_id)
    SELECT
        k.content_id,
        k.content,
        'error',
        0,
        'it had no slot: whether it was popped is not known',
        'content without slot',
        CAST(:action_id AS bigint)
    FROM (
        SELECT
            NULL AS content_id,
            NULL AS content
        WHERE false
        -- each partition
        UNION ALL
        SELECT
            c.content_id,
            c.content
        FROM content_{partition} AS c
        -- end
    ) AS k
    ORDER BY k.content_id
    RETURNING archive_id
)

SELECT
    (SELECT count(*) FROM astray) AS selected,
    (SELECT count(*) FROM kept) AS done;
-- end

-- name: free_slots
-- one row: how many slots had no content, and how many are free now; the pops that draw their numbers drop them
-- They are locked by slot and number: whatever else a slot holds by then is not what was seen without content.
-- when content=apart
WITH astray AS MATERIALIZED (
    SELECT
        m.slot,
        m.message_id AS number
    FROM {visible_ring} AS m
    WHERE m.reference_count > 0 AND m.first_id IS NOT NULL AND {has_content} IS NULL
),

locked AS MATERIALIZED (
    SELECT
        a.slot,
        a.number
    FROM astray AS a INNER JOIN "{schema}"."{queue}" AS r ON a.slot = r.slot AND a.number = r.message_id
    FOR UPDATE OF r SKIP LOCKED
),

void AS (
    INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
    SELECT
        p.subscriber, -- when subscribed=yes
        l.number,
        true,
        clock_timestamp()
    FROM locked AS l
    INNER JOIN "{schema}"."{queue}_popped" AS p ON l.slot = p.slot AND p.message_id < l.number -- when subscribed=yes
    ON CONFLICT DO NOTHING
),

repaired AS (
    UPDATE "{schema}"."{queue}" AS r
    SET {empty_slot}, reference_count = 0
    FROM locked AS l WHERE r.slot = l.slot AND r.message_id = l.number
    RETURNING r.slot
)

SELECT
    (SELECT count(*) FROM astray) AS selected,
    (SELECT count(*) FROM repaired) AS done;
-- end

-- name: add_slots
-- a row for each slot that had no row and has one now, still at full payload width; `empty_slots` comes next
INSERT INTO "{schema}"."{queue}" (slot, time, message, reference_count) -- when content=slot
INSERT INTO "{schema}"."{queue}" (slot, time, reference_count) -- when content=apart
SELECT
    g.slot,
    clock_timestamp(),
    {prefilled}
    0
FROM "{schema}"."{queue}_config" AS c
CROSS JOIN LATERAL generate_series(0, c.size - 1) AS g (slot)
WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}" AS r WHERE r.slot = g.slot)
ON CONFLICT DO NOTHING
RETURNING slot AS slot;

-- name: empty_slots
-- a row for each of :slots, added by this transaction: they are free now
UPDATE "{schema}"."{queue}" AS r SET message = NULL -- when content=slot
UPDATE "{schema}"."{queue}" AS r SET first_id = NULL -- when content=apart
WHERE r.slot = ANY(CAST(:slots AS bigint[])) AND r.reference_count = 0 AND r.message_id IS NULL
RETURNING r.slot AS slot;

-- name: add_popped
-- one row: how many rows of popped the subscriber lacked, and how many were added; it owes the messages in those slots
WITH missing AS MATERIALIZED (
    SELECT
        b.number,
        m.slot,
        b.since_number
    FROM "{schema}"."{queue}" AS m CROSS JOIN "{schema}"."{queue}_subscribers" AS b
    WHERE
        b.number = CAST('{subscriber_number}' AS smallint)
        AND NOT EXISTS (SELECT FROM "{schema}"."{queue}_popped" AS p WHERE p.subscriber = b.number AND p.slot = m.slot)
),

added AS (
    INSERT INTO "{schema}"."{queue}_popped" (subscriber, slot, message_id, time)
    SELECT
        s.number,
        s.slot,
        s.since_number - 1,
        clock_timestamp()
    FROM missing AS s
    ON CONFLICT DO NOTHING
    RETURNING slot
)

SELECT
    (SELECT count(*) FROM missing) AS selected,
    (SELECT count(*) FROM added) AS done;

-- name: lock_ring
-- script: locks the ring exclusively until the end of the transaction, as relay does
SET LOCAL lock_timeout = '200ms';
LOCK TABLE "{schema}"."{queue}_parked" IN ACCESS EXCLUSIVE MODE;
SET LOCAL lock_timeout = '10ms';

-- name: beginnings
-- one row: the next subscriber's number, the next push number, and the oldest message in a slot
-- Exact only under lock_ring.
SELECT
    c.subscribers + 1 AS number,
    n.next_push AS next_push,
    coalesce((
        SELECT min(m.message_id) FROM "{schema}"."{queue}" AS m
        WHERE
            m.reference_count > 0 AND m.message_id >= n.next_push - c.size
            AND {has_content} -- when content=apart
    ), n.next_push) AS oldest
FROM "{schema}"."{queue}_config" AS c
CROSS JOIN (SELECT s.last_value + CAST(s.is_called AS integer) AS next_push FROM "{schema}"."{queue}_push_seq" AS s) AS n;

-- name: void_for_subscriber
-- one row: how many numbers from the subscriber's first on have no message; they are void for it now
WITH voids AS (
    INSERT INTO "{schema}"."{queue}_parked" (subscriber, number, void, parked_at)
    SELECT
        CAST('{subscriber_number}' AS smallint),
        g.number,
        true,
        clock_timestamp()
    FROM generate_series(
        CAST(:since AS bigint),
        (SELECT s.last_value + CAST(s.is_called AS integer) - 1 FROM "{schema}"."{queue}_push_seq" AS s)
    ) AS g (number)
    WHERE NOT EXISTS (
        SELECT FROM "{schema}"."{queue}" AS m
        WHERE
            m.message_id = g.number AND m.reference_count > 0
            AND {has_content} -- when content=apart
    )
    ON CONFLICT DO NOTHING
    RETURNING number
)

SELECT count(*) AS voids FROM voids;

-- name: owed
-- one row: the messages that the subscriber still owes, those below :number, and its claims
SELECT
    count(*) AS owed,
    count(*) FILTER (WHERE m.message_id < CAST(:number AS bigint)) AS below,
    -- when in_hand=on
    (
        SELECT count(*) FROM "{schema}"."{queue}_in_hand" AS h
        WHERE h.subscriber = CAST('{subscriber_number}' AS smallint)
    ) AS in_hand
    -- end
    CAST(0 AS bigint) AS in_hand -- when in_hand=off
FROM "{schema}"."{queue}" AS m
INNER JOIN "{schema}"."{queue}_popped" AS p ON m.slot = p.slot
WHERE p.subscriber = CAST('{subscriber_number}' AS smallint) AND m.reference_count > 0 AND m.message_id > p.message_id;

-- name: number_older
-- one row: the lowest owed number whose message is younger than :seconds, else the next push number
SELECT coalesce(min(m.message_id), (
    SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s
)) AS number
FROM "{schema}"."{queue}" AS m
WHERE m.reference_count > 0 AND m.time > clock_timestamp() - make_interval(secs => CAST(:seconds AS double precision));

-- name: unsubscribe
-- script: removes the subscriber; its sequences stay, set beyond all numbers, for calls that began before
DELETE FROM "{schema}"."{queue}_subscribers" AS s WHERE s.number = CAST('{subscriber_number}' AS smallint);
DELETE FROM "{schema}"."{queue}_popped" AS p WHERE p.subscriber = CAST('{subscriber_number}' AS smallint);
DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.subscriber = CAST('{subscriber_number}' AS smallint);
-- when in_hand=on
DELETE FROM "{schema}"."{queue}_in_hand" AS h WHERE h.subscriber = CAST('{subscriber_number}' AS smallint);
-- end
{pop_sequence_held}
ALTER SEQUENCE "{schema}"."{queue}_pop_seq_{subscriber_number}" RESTART WITH 9000000000000000000;

-- name: skip
-- one row: how many messages below :number the subscriber had not popped, and how many are in the archive now
WITH skipped AS MATERIALIZED (
    SELECT
        m.message_id,
        m.first_id,
        m.time,
        {payload} AS payload
    FROM "{schema}"."{queue}" AS m
    INNER JOIN "{schema}"."{queue}_popped" AS p ON m.slot = p.slot
    WHERE
        p.subscriber = CAST('{subscriber_number}' AS smallint)
        AND m.reference_count > 0 AND m.message_id > p.message_id AND m.message_id < CAST(:number AS bigint)
),

kept AS (
    INSERT INTO "{schema}"."{queue}_archive" (id, payload, pushed_at, state, attempts, reason, action_id)
    SELECT
        s.first_id,
        s.payload,
        s.time,
        'ready',
        0,
        concat('skipped by ', '{subscriber}'),
        CAST(:action_id AS bigint)
    FROM skipped AS s
    WHERE s.payload IS NOT NULL
    ORDER BY s.message_id
    RETURNING archive_id
),

popped AS (
    UPDATE "{schema}"."{queue}_popped" AS p SET message_id = CAST(:number AS bigint) - 1, time = clock_timestamp()
    WHERE p.subscriber = CAST('{subscriber_number}' AS smallint) AND p.message_id < CAST(:number AS bigint) - 1
),

gone AS (
    DELETE FROM "{schema}"."{queue}_parked" AS p
    WHERE p.subscriber = CAST('{subscriber_number}' AS smallint) AND p.number < CAST(:number AS bigint)
)

SELECT
    (SELECT count(*) FROM skipped) AS skipped,
    (SELECT count(*) FROM kept) AS archived;

-- name: skip_numbers
-- script: sets the subscriber's next number to at least '{since}'
{pop_sequence_held}
DO $dbq$
BEGIN
    EXECUTE format('ALTER SEQUENCE %s RESTART WITH %s',
        CAST('"{schema}"."{queue}_pop_seq_{subscriber_number}"' AS regclass),
        greatest(CAST('{since}' AS bigint), (
            SELECT s.last_value + CAST(s.is_called AS integer)
            FROM "{schema}"."{queue}_pop_seq_{subscriber_number}" AS s
        )));
END
$dbq$;

-- name: uncache
-- script: both sequences get CACHE 1; numbers that sessions have cached are dropped by a relay
ALTER SEQUENCE "{schema}"."{queue}_push_seq" INCREMENT BY 1 CACHE 1 NO CYCLE;
ALTER SEQUENCE "{schema}"."{queue}_pop_seq" INCREMENT BY 1 CACHE 1 NO CYCLE; -- when subscribed=no
-- each subscriber
ALTER SEQUENCE "{schema}"."{queue}_pop_seq_{subscriber_number}" INCREMENT BY 1 CACHE 1 NO CYCLE;
-- end

-- name: raise_numbers
-- one row: the next push number, raised above every number that the ring knows
SELECT setval('"{schema}"."{queue}_push_seq"', greatest(
    (SELECT s.last_value + CAST(s.is_called AS integer) - 1 FROM "{schema}"."{queue}_push_seq" AS s),
    -- when subscribed=no
    (SELECT s.last_value + CAST(s.is_called AS integer) - 1 FROM "{schema}"."{queue}_pop_seq" AS s),
    -- end
    -- each subscriber
    (SELECT s.last_value + CAST(s.is_called AS integer) - 1 FROM "{schema}"."{queue}_pop_seq_{subscriber_number}" AS s),
    -- end
    (SELECT c.base - 1 FROM "{schema}"."{queue}_config" AS c),
    (SELECT max(greatest(r.message_id, r.first_id)) FROM "{schema}"."{queue}" AS r),
    (SELECT max(p.number) FROM "{schema}"."{queue}_parked" AS p),
    1
)) + 1 AS next_push;

-- name: repair_slots
-- one row: how many slots were inconsistent, how many of them are messages now, and how many are free
-- A payload is a message, whatever the other columns say; without one there is nothing to pop. With subscribers the
-- number says who has popped it: if neither it nor first_id belongs to this slot since the last relay, the message gets
-- a new number, and every subscriber gets it, perhaps again.
-- when content=slot
WITH broken AS MATERIALIZED (
    SELECT
        r.slot,
        {valid_number} AS number,
        r.message IS NOT NULL AS kept
    FROM "{schema}"."{queue}" AS r CROSS JOIN "{schema}"."{queue}_config" AS c
    WHERE
        r.reference_count NOT IN (0, 1)
        OR num_nulls(r.message_id, r.first_id, r.message) <> 3 * (1 - r.reference_count)
        OR r.message_id % c.size <> r.slot OR r.message_id < c.base -- when subscribed=yes
),
-- else
WITH broken AS MATERIALIZED (
    SELECT
        m.slot,
        m.number,
        coalesce({has_content}, false) AS kept
    FROM (
        SELECT
            r.slot,
            {valid_number} AS number,
            coalesce(r.first_id, r.message_id) AS first_id
        FROM "{schema}"."{queue}" AS r CROSS JOIN "{schema}"."{queue}_config" AS c
        WHERE
            r.reference_count NOT IN (0, 1)
            OR num_nulls(r.message_id, r.first_id) <> 2 * (1 - r.reference_count)
            OR r.message_id % c.size <> r.slot OR r.message_id < c.base -- when subscribed=yes
    ) AS m
),
-- end

repaired AS (
    UPDATE "{schema}"."{queue}" AS r
    SET
        message_id = CASE WHEN b.kept THEN coalesce(b.number, nextval('"{schema}"."{queue}_push_seq"')) END,
        first_id = CASE WHEN b.kept THEN coalesce(r.first_id, r.message_id, nextval('"{schema}"."{queue}_push_seq"')) END,
        reference_count = CAST(b.kept AS integer)
    FROM broken AS b
    WHERE r.slot = b.slot
    RETURNING b.kept
)

SELECT
    (SELECT count(*) FROM broken) AS selected,
    count(*) FILTER (WHERE m.kept) AS kept,
    count(*) FILTER (WHERE NOT m.kept) AS emptied
FROM repaired AS m;

-- name: slot_map
-- a row for each range of slots in the same state, in order, with the numbers they hold or are expected to get
--   ready, parked (popped before the rest), popping (a pop has its number), orphan; free, awaited (by a parked number),
--   pushing (a push has its number), hole, void; broken. Below :drawn_pop and :drawn_push the finished ones are proven.
WITH numbers AS MATERIALIZED (
    SELECT
        (SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{queue}_push_seq" AS s) AS next_push,
        {visible_next_pop} AS next_pop,
        c.size
    FROM "{schema}"."{queue}_config" AS c
    LIMIT 1 -- see lost
),

waiting AS MATERIALIZED (
    SELECT
        p.number % n.size AS slot,
        min(p.number) AS number,
        array_agg(p.number) AS numbers
    FROM {visible_parked} AS p CROSS JOIN numbers AS n
    WHERE NOT p.void
    GROUP BY p.number % n.size
),

voids AS MATERIALIZED (
    SELECT p.number FROM {visible_parked} AS p WHERE p.void
),

slots AS (
    SELECT
        r.slot,
        coalesce(r.message_id, CASE WHEN e.number < n.next_push THEN e.number END, w.number) AS number,
        CASE
            WHEN
                r.reference_count NOT IN (0, 1) OR (r.reference_count = 1) <> (r.message_id IS NOT NULL)
                OR r.message_id % n.size <> r.slot THEN 'broken'
            WHEN r.message_id >= n.next_pop THEN 'ready'
            WHEN r.message_id = ANY(w.numbers) THEN 'parked'
            WHEN r.message_id < CAST(:drawn_pop AS bigint) THEN 'orphan'
            WHEN r.message_id IS NOT NULL THEN 'popping'
            WHEN e.number < n.next_push AND v.number IS NOT NULL THEN 'void'
            WHEN e.number < n.next_push AND e.number < CAST(:drawn_push AS bigint) THEN 'hole'
            WHEN e.number < n.next_push THEN 'pushing'
            WHEN w.number < CAST(:drawn_push AS bigint) THEN 'hole'
            WHEN w.number < n.next_push THEN 'pushing'
            WHEN w.number IS NOT NULL THEN 'awaited'
            ELSE 'free'
        END AS state
    FROM {visible_ring} AS r
    CROSS JOIN numbers AS n
    -- The number that a pop of this lap will look for here.
    CROSS JOIN LATERAL (SELECT n.next_pop + ((r.slot - n.next_pop) % n.size + n.size) % n.size AS number) AS e
    LEFT JOIN waiting AS w ON r.slot = w.slot
    LEFT JOIN voids AS v ON e.number = v.number
),

marked AS (
    SELECT
        s.slot,
        s.number,
        s.state,
        lag(s.slot) OVER (ORDER BY s.slot) AS slot_before,
        lag(s.number) OVER (ORDER BY s.slot) AS number_before,
        lag(s.state) OVER (ORDER BY s.slot) AS state_before
    FROM slots AS s
),

counted AS (
    SELECT
        m.slot,
        m.number,
        m.state,
        count(*) FILTER (
            WHERE m.state IS DISTINCT FROM m.state_before
            OR m.slot <> m.slot_before + 1
            OR m.number <> m.number_before + 1
        ) OVER (ORDER BY m.slot) AS run
    FROM marked AS m
)

SELECT
    min(r.slot) AS first_slot,
    max(r.slot) AS last_slot,
    min(r.state) AS state,
    count(*) AS count,
    min(r.number) AS first_number,
    max(r.number) AS last_number
FROM counted AS r
GROUP BY r.run
ORDER BY first_slot;
