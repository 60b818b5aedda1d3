-- ring, repair: the doctor's proofs of lost numbers, orphans, holes and inconsistent slots, and what mends each.

-- define: valid_number
-- the number to keep for an inconsistent slot r (configuration c); null: a new one is needed
coalesce(r.message_id, r.first_id) -- when subscribed=no
-- when subscribed=yes
CASE
    WHEN r.message_id % c.size = r.slot AND r.message_id >= c.base THEN r.message_id
    WHEN r.first_id % c.size = r.slot AND r.first_id >= c.base THEN r.first_id
END
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
    {is_replica} AS recovering,
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

-- name: lock_ring
-- script: locks the ring exclusively until the end of the transaction, as relay does
SET LOCAL lock_timeout = '200ms';
LOCK TABLE "{schema}"."{queue}_parked" IN ACCESS EXCLUSIVE MODE;
SET LOCAL lock_timeout = '10ms';

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
