-- ring, relay: renumbers all live messages, to resize the ring or as its last repair.

-- more: functions
-- script: relay
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

-- name: base
-- one row: the lowest valid number; it changes with every relay
SELECT c.base AS base FROM "{schema}"."{queue}_config" AS c;

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
