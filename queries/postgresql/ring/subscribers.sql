-- ring, subscribers=a,b: what only such rings have, and what a ring looks like to one subscriber or to all (without
-- subscribers these definitions are the ring itself). The rules are at the head of install.sql.

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

-- define: all_have_popped
-- for a slot r with a message
NOT EXISTS (SELECT FROM "{schema}"."{queue}_popped" AS p WHERE p.slot = r.slot AND p.message_id < r.message_id)

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

-- more: tables
-- script: the subscribers, and what each has popped
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

-- more: added
-- script: the sequences and first rows of subscribers that are new
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

-- more: functions
-- script: sweep
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
