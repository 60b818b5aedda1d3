-- ring, pop: parked numbers first, then new ones; what is popped is in hand or gone. The rules are at the head of
-- install.sql.

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

-- define: pop_numbers
'"{schema}"."{queue}_pop_seq"' -- when subscribed=no
numbers -- when subscribed=yes

-- define: turn_numbers
'"{schema}"."{queue}_turn_seq"' -- when subscribed=no
turns -- when subscribed=yes

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

-- define: draw_on
-- Eight times nothing came: that is no race any more, as after a crash, which skips numbers. It draws on without
-- waiting, but only up to a message that is here: what it draws is parked, and slows down the calls after it.
IF tries >= 8 AND coalesce(ready_number < next_pop, true) THEN
    SELECT min(r.message_id) INTO ready_number FROM "{schema}"."{queue}" AS r
    WHERE r.slot = ANY(ARRAY(
        SELECT (next_pop + generate_series(0, least(next_push - next_pop, ring_size, 10000) - 1)) % ring_size
    )) AND r.message_id >= next_pop AND r.message_id < next_push;
    EXIT WHEN ready_number IS NULL;
END IF;

-- define: is_void
p.subscriber = mine AND p.void -- when subscribed=yes
p.void -- when subscribed=no

-- define: is_void_or_parked
p.subscriber = mine AND p.void IN (false, true) -- when subscribed=yes
p.void IN (false, true) -- when subscribed=no

-- define: is_void_too
v.subscriber = mine AND v.void -- when subscribed=yes
v.void -- when subscribed=no

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

-- more: functions
-- script: pop and pop_many, and with in_hand complete and fail
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
    ready_number bigint;
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
        EXIT WHEN next_pop >= next_push OR tries + voids >= 1000;
        {draw_on}
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
            EXIT WHEN dropped OR look = 4 OR tries >= 8;
            PERFORM pg_sleep(0.001); -- the push's commit may be in flight
        END LOOP;
        IF dropped THEN
            DELETE FROM "{schema}"."{queue}_parked" AS p WHERE p.number = drawn AND {is_void};
            voids := voids + 1;
        ELSE
            INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
            VALUES (mine, drawn, false, clock_timestamp()) -- when subscribed=yes
            VALUES (drawn, false, clock_timestamp()) -- when subscribed=no
            ON CONFLICT DO NOTHING;
            tries := tries + 1;
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
    ready_number bigint;
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
        EXIT WHEN room <= 0 OR tries + voids >= 1000;
        {draw_on}
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
            EXIT WHEN cardinality(found_now) = room OR look = 2 OR tries >= 8;
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
