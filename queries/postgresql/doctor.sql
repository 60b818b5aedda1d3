-- What the doctor asks of any queue, besides what monitoring asks: each statement reads a bounded number of
-- rows by an index, in a transaction that does so (`careful` of server.sql), and returns keys, never a payload.
-- What a statement says of claims is for queues that keep what was popped. Of a ring with in_hand the table
-- is <queue>_in_hand.

-- name: recovering
-- one row: whether this server follows another one, which is where transactions and claims are
SELECT pg_is_in_recovery() AS recovering;

-- name: claims
-- a row for each owner among the oldest 10,001 claims: how many, how many for :stuck_after seconds, the oldest ten
-- when finishes=yes
SELECT
    c.claimed_by AS claimed_by,
    count(*) AS claims,
    count(*) FILTER (WHERE c.seconds >= CAST(:stuck_after AS double precision)) AS old,
    max(c.seconds) AS oldest_seconds,
    (array_agg(c.id ORDER BY c.seconds DESC NULLS LAST))[1:10] AS ids
FROM (
    SELECT
        CAST(m."{id}" AS text) AS id,
        -- when role claimed_by
        CAST(m."{claimed_by}" AS text) AS claimed_by,
        -- end
        -- when no role claimed_by
        CAST(NULL AS text) AS claimed_by,
        -- end
        -- when role claimed_at
        CAST(EXTRACT(EPOCH FROM statement_timestamp() - m."{claimed_at}") AS double precision) AS seconds
        -- end
        -- when no role claimed_at
        CAST(NULL AS double precision) AS seconds
        -- end
    FROM "{schema}"."{table}" AS m
    -- when design=claim
    WHERE m."{claimed_at}" IS NOT NULL
    -- when role error
    AND m."{error}" IS NULL
    -- end
    -- end
    -- when design=status|split
    WHERE m."{status}" = 1
    -- end
    -- when design=ring
    WHERE m."{claimed_at}" IS NOT NULL AND m."{done_at}" IS NULL
    -- end
    -- when role claimed_at
    ORDER BY m."{claimed_at}"
    -- end
    LIMIT 10001
) AS c
GROUP BY c.claimed_by
-- end
;

-- name: illegal
-- a row for each contradiction in rows of a status or claim queue: how many there are, of at most 10,001, and the first ten
-- What a CHECK of the table rules out is not looked for; else the first and the last 10,001 rows are.
-- when design=claim|status|split
SELECT
    w.wrong AS wrong,
    count(*) AS found,
    (array_agg(w.id))[1:10] AS ids
FROM (
    -- when design=status|split
    SELECT
        'status' AS wrong,
        CAST(o.id AS text) AS id
    FROM (
        -- when installed=yes
        (SELECT m."{id}" AS id, m."{status}" AS status FROM "{schema}"."{table}" AS m ORDER BY m."{id}" LIMIT 10001)
        UNION
        (SELECT m."{id}", m."{status}" FROM "{schema}"."{table}" AS m ORDER BY m."{id}" DESC LIMIT 10001)
        -- end
        -- when installed=no
        SELECT m."{id}" AS id, m."{status}" AS status FROM "{schema}"."{table}" AS m LIMIT 10001
        -- end
    ) AS o
    WHERE
        o.status NOT BETWEEN 0 AND 4
        AND NOT EXISTS (
            SELECT FROM pg_constraint AS k
            WHERE
                k.conrelid = CAST('"{schema}"."{table}"' AS regclass) AND k.contype = 'c' AND k.convalidated
                AND pg_get_constraintdef(k.oid) LIKE '%status >= 0%status <= 4%'
        )
    -- when installed=yes
    UNION ALL
    (
        SELECT 'claimed_undated', CAST(m.id AS text) FROM "{schema}"."{table}" AS m
        WHERE m.status = 1 AND m.claimed_at IS NULL LIMIT 10001
    )
    UNION ALL
    (
        SELECT 'error_undated', CAST(m.id AS text) FROM "{schema}"."{table}" AS m
        WHERE m.status = 4 AND m.done_at IS NULL LIMIT 10001
    )
    UNION ALL
    (
        SELECT 'done_undated', CAST(m.id AS text) FROM "{schema}"."{table}" AS m
        WHERE m.status = 2 AND m.done_at IS NULL LIMIT 10001
    )
    UNION ALL
    SELECT 'done_with_error', CAST(d.id AS text) FROM (
        SELECT m.id, m.errors FROM "{schema}"."{table}" AS m
        WHERE m.status = 2 ORDER BY m.done_at DESC LIMIT 10001
    ) AS d WHERE d.errors IS NOT NULL
    -- end
    -- end
    -- when design=claim
    (
        SELECT
            'error_undated' AS wrong,
            CAST(m.id AS text) AS id
        FROM "{schema}"."{table}" AS m
        WHERE m.errors IS NOT NULL AND m.done_at IS NULL LIMIT 10001
    )
    UNION ALL
    SELECT 'error_unclaimed', CAST(r.id AS text) FROM (
        SELECT m.id, m.processing_started_at FROM "{schema}"."{table}" AS m
        WHERE m.errors IS NOT NULL ORDER BY m.done_at DESC LIMIT 10001
    ) AS r WHERE r.processing_started_at IS NULL
    -- end
) AS w
GROUP BY w.wrong
-- end
;

-- name: halves
-- a row for each kind of half message of a split queue: how many there are, of at most 10,001, and the first ten
-- ready: no payload, among the next 20,000 to be popped; kept: no payload, in another state; payload: nothing but
-- one. Of these two the first and the last 20,000 are looked at. OFFSET 0: one look by the key for each row.
-- when design=split
SELECT
    h.half AS half,
    count(*) AS found,
    (array_agg(CAST(h.id AS text) ORDER BY h.id))[1:10] AS ids
FROM (
    (
        SELECT
            'ready' AS half,
            w.id AS id
        FROM (
            SELECT m.id FROM "{schema}"."{queue}_meta" AS m
            WHERE m.status = 0 ORDER BY m.queue_date_time, m.id LIMIT 20000
        ) AS w
        WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = w.id OFFSET 0) LIMIT 10001
    )
    UNION ALL
    (
        SELECT
            'kept',
            w.id
        FROM (
            (SELECT m.id, m.status FROM "{schema}"."{queue}_meta" AS m ORDER BY m.id LIMIT 20000)
            UNION
            (SELECT m.id, m.status FROM "{schema}"."{queue}_meta" AS m ORDER BY m.id DESC LIMIT 20000)
        ) AS w
        WHERE w.status <> 0 AND NOT EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = w.id OFFSET 0) LIMIT 10001
    )
    UNION ALL
    (
        SELECT
            'payload',
            w.id
        FROM (
            (SELECT d.id FROM "{schema}"."{queue}_data" AS d ORDER BY d.id LIMIT 20000)
            UNION
            (SELECT d.id FROM "{schema}"."{queue}_data" AS d ORDER BY d.id DESC LIMIT 20000)
        ) AS w
        WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}_meta" AS m WHERE m.id = w.id OFFSET 0) LIMIT 10001
    )
) AS h
GROUP BY h.half
-- end
;

-- name: set_aside
-- one row: how many of the next ready rows of a split queue have no payload, and how many of those are in error now
-- when design=split
WITH held AS MATERIALIZED (
    SELECT m.id FROM "{schema}"."{queue}_meta" AS m
    WHERE
        m.status = 0
        AND m.id = ANY(ARRAY(
            SELECT w.id FROM (
                SELECT n.id FROM "{schema}"."{queue}_meta" AS n
                WHERE n.status = 0 ORDER BY n.queue_date_time, n.id LIMIT 20000
            ) AS w
            WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = w.id OFFSET 0) LIMIT 10001
        ))
    FOR UPDATE OF m SKIP LOCKED
),

aside AS (
    UPDATE "{schema}"."{queue}_meta" AS m
    SET status = 4, errors = CAST(:error AS text), done_at = clock_timestamp()
    FROM held AS h WHERE m.id = h.id
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM held) AS selected,
    (SELECT count(*) FROM aside) AS done
-- end
;

-- name: poison
-- a row for each state in which messages were tried :least times or more: how many of the 10,001 looked at, the most tries, the first ten
-- Looked at are the first that would be popped, the oldest claims, the newest errors.
-- when finishes=yes
-- when role attempts
SELECT
    w.state AS state,
    count(*) AS found,
    CAST(max(w.attempts) AS bigint) AS most,
    (array_agg(w.id))[1:10] AS ids
FROM (
    (
        SELECT
            'ready' AS state,
            CAST(m."{id}" AS text) AS id,
            m."{attempts}" AS attempts
        FROM "{schema}"."{table}" AS m
        -- when design=claim
        WHERE m."{claimed_at}" IS NULL
        -- end
        -- when design=status|split
        WHERE m."{status}" = 0
        -- end
        -- when design=ring
        WHERE m."{claimed_at}" IS NULL AND m."{done_at}" IS NULL ORDER BY m."{id}" + 0
        -- end
        -- when design=claim|status|split
        -- when installed=yes
        ORDER BY m."{pushed_at}", m."{id}"
        -- end
        -- end
        LIMIT 10001
    )
    UNION ALL
    (
        SELECT
            'claimed',
            CAST(m."{id}" AS text),
            m."{attempts}"
        FROM "{schema}"."{table}" AS m
        -- when design=claim
        WHERE m."{claimed_at}" IS NOT NULL
        -- when role error
        AND m."{error}" IS NULL
        -- end
        -- end
        -- when design=status|split
        WHERE m."{status}" = 1
        -- end
        -- when design=ring
        WHERE m."{claimed_at}" IS NOT NULL AND m."{done_at}" IS NULL
        -- end
        -- when installed=yes
        ORDER BY m."{claimed_at}"
        -- end
        LIMIT 10001
    )
    -- when role error
    UNION ALL
    (
        SELECT
            'error',
            CAST(m."{id}" AS text),
            m."{attempts}"
        FROM "{schema}"."{table}" AS m
        -- when design=claim
        WHERE m."{error}" IS NOT NULL
        -- end
        -- when design=status|split
        WHERE m."{status}" = 4
        -- end
        -- when design=ring
        WHERE m."{done_at}" IS NOT NULL
        -- end
        -- when installed=yes
        ORDER BY m."{done_at}" DESC
        -- end
        LIMIT 10001
    )
    -- end
) AS w
WHERE w.attempts >= CAST(:least AS integer)
GROUP BY w.state
-- end
-- end
;

-- name: indexes
-- a row for each index of the given tables: what it is on, under what condition, and whether it can be used
SELECT
    CAST(t.relname AS text) AS table_name,
    CAST(c.relname AS text) AS name,
    (
        SELECT array_agg(pg_get_indexdef(i.indexrelid, k.position, false) ORDER BY k.position)
        FROM generate_series(1, CAST(i.indnkeyatts AS integer)) AS k (position)
    ) AS columns,
    pg_get_expr(i.indpred, i.indrelid) AS condition,
    i.indisunique AS is_unique,
    i.indisvalid AND i.indisready AS valid,
    EXISTS(SELECT FROM pg_stat_progress_create_index AS p WHERE p.relid = t.oid) AS being_built
FROM pg_index AS i
INNER JOIN pg_class AS c ON i.indexrelid = c.oid
INNER JOIN pg_class AS t ON i.indrelid = t.oid
INNER JOIN pg_namespace AS n ON t.relnamespace = n.oid
WHERE n.nspname = CAST(:schema AS text) AND t.relname = ANY(CAST(:tables AS text[]));

-- name: pops
-- one row: when something was popped last, where that leaves a trace; what would be popped next; how many were, and since when that is counted
-- Of installed queues. A trace: done rows and the last one that was archived, what archive_at_pop wrote, the times of a ring's free
-- slots (of those up to 100,000). What a complete deletes leaves none, so of claims there is no last pop.
SELECT
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - t.last_pop) AS double precision) AS popped_seconds,
    t.next AS next,
    t.popped AS popped,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - greatest(
        pg_stat_get_bgwriter_stat_reset_time(),
        pg_stat_get_db_stat_reset_time((SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
    )) AS double precision) AS counted_seconds
FROM (
    SELECT
        -- when design=status|split
        greatest(
            (SELECT m.claimed_at FROM "{schema}"."{table}" AS m WHERE m.status = 1 AND m.claimed_at IS NOT NULL ORDER BY m.claimed_at DESC LIMIT 1),
            (SELECT m.done_at FROM "{schema}"."{table}" AS m WHERE m.status = 2 AND m.done_at IS NOT NULL ORDER BY m.done_at DESC LIMIT 1),
            (SELECT m.done_at FROM "{schema}"."{table}" AS m WHERE m.status = 4 AND m.done_at IS NOT NULL ORDER BY m.done_at DESC LIMIT 1),
            (SELECT a.archived_at FROM "{schema}"."{queue}_archive" AS a ORDER BY a.archive_id DESC LIMIT 1)
        ) AS last_pop,
        -- end
        -- when design=ring
        CASE
            WHEN CAST('{size}' AS bigint) <= 100000
                THEN (SELECT max(r.time) FROM "{schema}"."{queue}" AS r WHERE r.reference_count = 0)
        END AS last_pop,
        -- end
        -- when design=naive|heap|fifo|stack|pending
        -- when archive_at_pop=on
        (SELECT a.archived_at FROM "{schema}"."{queue}_archive" AS a ORDER BY a.archive_id DESC LIMIT 1) AS last_pop,
        -- end
        -- when archive_at_pop=off
        CAST(NULL AS timestamptz) AS last_pop,
        -- end
        -- end
        -- when design=claim
        CAST(NULL AS timestamptz) AS last_pop,
        -- end
        -- when design=naive|fifo
        (SELECT CAST(m."{id}" AS text) FROM "{schema}"."{table}" AS m ORDER BY m."{id}" LIMIT 1) AS next,
        -- end
        -- when design=stack
        (SELECT CAST(m."{id}" AS text) FROM "{schema}"."{table}" AS m ORDER BY m."{id}" DESC LIMIT 1) AS next,
        -- end
        -- when design=pending
        (SELECT CAST(m."{due_at}" AS text) FROM "{schema}"."{table}" AS m ORDER BY m."{due_at}" LIMIT 1) AS next,
        -- end
        -- when design=claim
        (SELECT CAST(m."{id}" AS text) FROM "{schema}"."{table}" AS m WHERE m."{claimed_at}" IS NULL ORDER BY m."{pushed_at}", m."{id}" LIMIT 1) AS next,
        -- end
        -- when design=status|split
        (SELECT CAST(m."{id}" AS text) FROM "{schema}"."{table}" AS m WHERE m."{status}" = 0 ORDER BY m."{pushed_at}", m."{id}" LIMIT 1) AS next,
        -- end
        -- when design=ring
        (SELECT CAST(s.last_value AS text) FROM "{schema}"."{pop_sequence}" AS s) AS next,
        CAST(NULL AS bigint) AS popped
        -- end
        -- when design=heap
        CAST(NULL AS text) AS next,
        -- end
        -- when design=naive|heap|fifo|stack|pending
        pg_stat_get_tuples_deleted(CAST('"{schema}"."{table}"' AS regclass)) AS popped
        -- end
        -- when design=claim|status|split
        pg_stat_get_tuples_updated(CAST('"{schema}"."{table}"' AS regclass)) AS popped
        -- end
) AS t;

-- name: bottom
-- one row: the oldest message of a stack, and how many that came later went before it, among the ids of the newest 10,001
-- when design=stack
SELECT
    CAST(b.id AS text) AS id,
    b.seconds AS seconds,
    top.overtaking AS overtaking
FROM (
    SELECT
        m.id,
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - m.pushed_at) AS double precision) AS seconds
    FROM "{schema}"."{queue}" AS m ORDER BY m.id LIMIT 1
) AS b
CROSS JOIN (
    SELECT coalesce(max(n.id) - min(n.id) + 1 - count(*), 0) AS overtaking FROM (
        SELECT m.id FROM "{schema}"."{queue}" AS m ORDER BY m.id DESC LIMIT 10001
    ) AS n
) AS top
-- end
;

-- name: errors_lately
-- one row: of the newest 10,001 error rows of the last day, how many are of the last :recent seconds; how far back they go; the first of those
-- when finishes=yes
-- when role done_at
SELECT
    count(*) FILTER (WHERE e.seconds < CAST(:recent AS double precision)) AS recent,
    count(*) AS day,
    max(e.seconds) AS span_seconds,
    (array_agg(e.id ORDER BY e.seconds DESC) FILTER (WHERE e.seconds < CAST(:recent AS double precision)))[1] AS first_id,
    (array_agg(e.error ORDER BY e.seconds DESC) FILTER (WHERE e.seconds < CAST(:recent AS double precision)))[1] AS first_error,
    max(e.seconds) FILTER (WHERE e.seconds < CAST(:recent AS double precision)) AS first_seconds
FROM (
    SELECT
        CAST(m."{id}" AS text) AS id,
        -- when role error
        left(m."{error}", 200) AS error,
        -- end
        -- when no role error
        CAST(NULL AS text) AS error,
        -- end
        CAST(EXTRACT(EPOCH FROM statement_timestamp() - m."{done_at}") AS double precision) AS seconds
    FROM "{schema}"."{table}" AS m
    WHERE
        m."{done_at}" >= statement_timestamp() - interval '1 day'
        -- when design=claim
        -- when role error
        AND m."{error}" IS NOT NULL
        -- end
        -- end
        -- when design=status|split
        AND m."{status}" = 4
        -- end
    ORDER BY m."{done_at}" DESC LIMIT 10001
) AS e
-- end
-- end
;

-- name: done_lag
-- one row: how many done rows are older than a day, of at most 10,001, and since when the oldest is done
-- when design=status|split
SELECT
    count(*) AS found,
    max(d.seconds) AS oldest_seconds
FROM (
    SELECT CAST(EXTRACT(EPOCH FROM statement_timestamp() - m.done_at) AS double precision) AS seconds
    FROM "{schema}"."{table}" AS m
    WHERE m.status = 2 AND m.done_at < statement_timestamp() - interval '1 day'
    ORDER BY m.done_at LIMIT 10001
) AS d
-- end
;
