-- ring, monitor: the samples, and the messages as lists and verbs read them. No statement here writes.

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

-- name: status
-- one row: the two next numbers, the ready messages (null: too many to count), the age of the oldest
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

-- name: extent
-- one row: the first (null on a copy: not known) and the last number still to be popped, and the number of slots
-- A standby shows sequences up to 32 ahead: there it begins before what the primary has popped, which has no references.
SELECT
    CASE WHEN NOT {is_copy} THEN greatest(0, (
        SELECT s.last_value + CAST(s.is_called AS integer) FROM "{schema}"."{pop_sequence}" AS s -- when of=one
        {next_pop_of_all} -- when of=all
    ) - CASE WHEN pg_is_in_recovery() THEN 33 ELSE 0 END) END AS first,
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
    m.ctid AS location,
    CAST(NULL AS bigint) AS slot,
    CAST(NULL AS bigint) AS number,
    m.payload AS payload
FROM "{schema}"."{queue}_in_hand" AS m
-- when start=same_time
WHERE m.id > :after_id
AND m.id <= :until_id -- when until=yes
-- end
-- when not start=same_time
WHERE true -- when scan=any
WHERE {is_ready_again} -- when scan=in_hand
WHERE {is_claimed} -- when scan=claimed
WHERE {is_error} -- when scan=error
-- end
AND {is_mine_in_hand} -- when defined is_mine_in_hand
ORDER BY m.id LIMIT 10 * :read_limit -- when start=same_time

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
