-- ring, push: a push draws a number and fills its slot; what it cannot use becomes void. The rules are at the head of
-- install.sql.

-- define: slot_is_free
-- a push may fill slot r
r.reference_count = 0 -- when subscribed=no
(r.reference_count = 0 OR {all_have_popped}) -- when subscribed=yes

-- define: count_of_filled
r.reference_count + 1 -- when subscribed=no
1 -- when subscribed=yes

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
