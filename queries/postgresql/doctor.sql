-- What the doctor asks of any queue, besides what monitoring asks: each statement reads a bounded number of
-- rows by an index, in a transaction that does so (`careful` of server.sql), and returns keys, never a payload.
-- What a statement says of claims is for queues that keep what was popped. Of a ring with in_hand the table
-- is <queue>_in_hand.

-- name: recovering
-- one row: whether this server follows another one, which is where transactions and claims are
SELECT pg_is_in_recovery() AS recovering;

-- name: status_check
-- one row: whether a CHECK of the table rules out every status but those from 0 to 4, so that no row need be looked at
-- when design=status|split
SELECT EXISTS(
    SELECT FROM pg_constraint AS k
    WHERE
        k.conrelid = CAST('"{schema}"."{table}"' AS regclass) AND k.contype = 'c' AND k.convalidated
        AND pg_get_constraintdef(k.oid) LIKE '%status >= 0%status <= 4%'
) AS rules_out
-- end
;

-- name: halves
-- one row: of the next :most messages of a split queue from the id :newest down, how many there are, the lowest, and how many have no payload; the first ten
-- ready: those that are to be popped; stuck: claimed for :stuck_after seconds, or by one of :gone; kept: all others.
-- owners: who claimed the kept ones. OFFSET 0: one look by the key for each row.
-- when design=split
SELECT
    count(*) AS looked,
    min(w.id) AS lowest,
    count(*) FILTER (WHERE w.state = 'ready') AS ready,
    (array_agg(CAST(w.id AS text) ORDER BY w.id) FILTER (WHERE w.state = 'ready'))[1:10] AS ready_ids,
    count(*) FILTER (WHERE w.state = 'stuck') AS stuck,
    (array_agg(CAST(w.id AS text) ORDER BY w.id) FILTER (WHERE w.state = 'stuck'))[1:10] AS stuck_ids,
    count(*) FILTER (WHERE w.state = 'kept') AS kept,
    (array_agg(CAST(w.id AS text) ORDER BY w.id) FILTER (WHERE w.state = 'kept'))[1:10] AS kept_ids,
    array_agg(DISTINCT w.claimed_by) FILTER (WHERE w.state = 'kept' AND w.status = 1 AND w.claimed_by IS NOT NULL) AS owners
FROM (
    SELECT
        m.id,
        m.status,
        m.claimed_by,
        CASE
            WHEN EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = m.id OFFSET 0) THEN 'whole'
            WHEN m.status = 0 THEN 'ready'
            WHEN
                m.status = 1 AND (
                    m.claimed_at <= statement_timestamp() - make_interval(secs => CAST(:stuck_after AS double precision))
                    OR m.claimed_by = ANY(CAST(:gone AS text[]))
                )
                THEN 'stuck'
            ELSE 'kept'
        END AS state
    FROM "{schema}"."{queue}_meta" AS m
    WHERE m.id <= CAST(:newest AS bigint)
    ORDER BY m.id DESC LIMIT CAST(:most AS bigint)
) AS w
-- end
;

-- name: alone
-- one row: of the next :most payloads of a split queue from the id :newest down, how many there are, the lowest, and how many belong to no message; the first ten
-- when design=split
SELECT
    count(*) AS looked,
    min(w.id) AS lowest,
    count(*) FILTER (WHERE w.half) AS alone,
    (array_agg(CAST(w.id AS text) ORDER BY w.id) FILTER (WHERE w.half))[1:10] AS alone_ids
FROM (
    SELECT
        d.id,
        NOT EXISTS (SELECT FROM "{schema}"."{queue}_meta" AS m WHERE m.id = d.id OFFSET 0) AS half
    FROM "{schema}"."{queue}_data" AS d
    WHERE d.id <= CAST(:newest AS bigint)
    ORDER BY d.id DESC LIMIT CAST(:most AS bigint)
) AS w
-- end
;

-- name: set_aside
-- one row: how many ready or stuck rows (see halves) without a payload there are among the next :most from the id :newest down, and how many of those are in error now
-- when design=split
WITH held AS MATERIALIZED (
    SELECT m.id FROM "{schema}"."{queue}_meta" AS m
    WHERE
        -- "+ 0": found by its key. Locked and looked at once more: whoever completed or claimed it meanwhile has it.
        (
            m.status + 0 = 0
            OR m.status + 0 = 1 AND (
                m.claimed_at <= statement_timestamp() - make_interval(secs => CAST(:stuck_after AS double precision))
                OR m.claimed_by = ANY(CAST(:gone AS text[]))
            )
        )
        AND m.id = ANY(ARRAY(
            SELECT w.id FROM (
                SELECT
                    n.id,
                    n.status
                FROM "{schema}"."{queue}_meta" AS n
                WHERE n.id <= CAST(:newest AS bigint)
                ORDER BY n.id DESC LIMIT CAST(:most AS bigint)
            ) AS w
            WHERE
                w.status IN (0, 1)
                AND NOT EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = w.id OFFSET 0)
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

-- name: doubled
-- a row for each key that several rows have, of the first ten in each of :tables, whose key is gone: among the table's first million rows
-- Asked only then, and no index is left to ask: the time-out of a statement ends it.
-- when installed=yes
SELECT
    CAST(t.table_name AS text) AS table_name,
    CAST(t.key AS text) AS key,
    t.found AS found
FROM (
    -- when design=naive|ring|fifo|stack|pending|claim|status|split
    (
        SELECT
            '{table}' AS table_name,
            r.key,
            count(*) AS found
        FROM (
            SELECT
                -- when design=ring
                CAST(m.slot AS text) AS key
                -- end
                -- when design=pending
                concat(m.due_time, ' ', m.id) AS key
                -- end
                -- when design=naive|fifo|stack|claim|status|split
                CAST(m."{id}" AS text) AS key
                -- end
            FROM "{schema}"."{table}" AS m
            WHERE '{table}' = ANY(CAST(:tables AS text[]))
            LIMIT 1000000
        ) AS r
        GROUP BY r.key HAVING count(*) > 1 ORDER BY r.key LIMIT 10
    )
    -- end
    -- when design=split
    UNION ALL
    (
        SELECT
            '{queue}_data',
            r.key,
            count(*)
        FROM (
            SELECT CAST(d.id AS text) AS key FROM "{schema}"."{queue}_data" AS d
            WHERE '{queue}_data' = ANY(CAST(:tables AS text[]))
            LIMIT 1000000
        ) AS r
        GROUP BY r.key HAVING count(*) > 1 ORDER BY r.key LIMIT 10
    )
    -- end
    -- when in_hand=on
    UNION ALL
    (
        SELECT
            '{queue}_in_hand',
            r.key,
            count(*)
        FROM (
            SELECT CAST(h.id AS text) AS key FROM "{schema}"."{queue}_in_hand" AS h
            WHERE '{queue}_in_hand' = ANY(CAST(:tables AS text[]))
            LIMIT 1000000
        ) AS r
        GROUP BY r.key HAVING count(*) > 1 ORDER BY r.key LIMIT 10
    )
    -- end
    -- when design=heap
    SELECT
        '' AS table_name,
        '' AS key,
        CAST(0 AS bigint) AS found
    WHERE false
    -- end
) AS t
-- end
;

-- name: pop_plan
-- one row: the planner's way to the row that a pop takes next, as JSON; nothing is read
-- The pop's own choice but for its lock, which wants rights to write; ctid, which a lock wants too, is in no
-- index. Under the settings of `careful`, which are those of the pop's function.
-- when installed=yes
-- when design=naive|fifo|stack|pending|claim|status|split
EXPLAIN (SETTINGS, FORMAT JSON)
-- when design=naive
SELECT head.message_id, head.ctid FROM "{schema}"."{queue}" AS head
ORDER BY head.message_id LIMIT 1
-- end
-- when design=fifo
SELECT head.id, head.ctid FROM "{schema}"."{queue}" AS head
ORDER BY head.id LIMIT 1
-- end
-- when design=stack
SELECT head.id, head.ctid FROM "{schema}"."{queue}" AS head
ORDER BY head.id DESC LIMIT 1
-- end
-- when design=pending
SELECT head.due_time, head.id, head.ctid FROM "{schema}"."{queue}" AS head
WHERE head.due_time <= statement_timestamp()
ORDER BY head.due_time, head.id LIMIT 1
-- end
-- when design=claim
SELECT head.id, head.ctid FROM "{schema}"."{queue}" AS head WHERE head.processing_started_at IS NULL
ORDER BY head.created_at, head.id LIMIT 1
-- end
-- when design=status
SELECT head.id, head.ctid FROM "{schema}"."{queue}" AS head WHERE head.status = 0
ORDER BY head.queue_date_time, head.id LIMIT 1
-- end
-- when design=split
SELECT head.id, head.ctid FROM "{schema}"."{queue}_meta" AS head WHERE head.status = 0
ORDER BY head.queue_date_time, head.id LIMIT 1
-- end
-- end
-- end
;

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

-- name: popped
-- a row for each pop of the last day among the newest 10,000 rows of the archive, in the order in which they ran
-- The archive's own numbers are drawn as pops run. A message that was never due has the time "infinity".
-- when archive_at_pop=on
-- when design=naive|ring|fifo|pending
SELECT
    a.id AS id,
    a.pushed_at AS pushed_at,
    a.done_at AS popped_at,
    -- when design=pending
    least(a.due_at, timestamptz '9999-01-01 00:00+00') AS due_at
    -- end
    -- when design=naive|ring|fifo
    CAST(NULL AS timestamptz) AS due_at
    -- end
FROM (
    SELECT
        n.archive_id,
        n.id,
        n.pushed_at,
        n.done_at,
        -- when design=pending
        n.due_at,
        -- end
        n.reason
    FROM "{schema}"."{queue}_archive" AS n ORDER BY n.archive_id DESC LIMIT 10000
) AS a
WHERE a.reason = 'pop' AND a.done_at >= statement_timestamp() - interval '1 day'
ORDER BY a.archive_id
-- end
-- end
;

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
