-- What monitoring reads, the same for all designs. What ready, claimed, error, done, key and order mean is defined in each
-- design's own file (`-- define:`), always for the row m of its table; the usual definitions are here. Without a
-- definition (is_claimed) a design has no such state, and its figure is null. A design that differs has a statement of the
-- same name in its own file.

-- define: key
-- the key from which a scan continues, and the id as text
m."{id}" -- when role id
m.ctid -- when no role id

-- define: id
CAST(m."{id}" AS text) -- when role id
CAST(NULL AS text) -- when no role id

-- define: key_time
m."{since}"

-- define: pushed_at
m."{pushed_at}" -- when role pushed_at

-- define: due_at
m."{due_at}" -- when role due_at

-- define: claimed_at
m."{claimed_at}" -- when role claimed_at

-- define: claimed_by
m."{claimed_by}" -- when role claimed_by

-- define: attempts
m."{attempts}" -- when role attempts

-- define: done_at
m."{done_at}" -- when role done_at

-- define: error
m."{error}" -- when role error

-- define: payload
m."{payload}"

-- define: own_id
m."{id}"

-- define: joined_payload
-- the payload, in a statement that joins the payload table
m."{payload}"

-- define: keys
-- the columns of the key of its table
m."{id}"

-- define: push_order
m."{id}"

-- define: is_live
-- not popped yet, whether due or not
{is_ready}

-- define: is_unfinished
true

-- define: last_pop
-- when something was popped last, where that leaves a trace
-- when archive_at_pop=on
(SELECT a.archived_at FROM "{schema}"."{queue}_archive" AS a ORDER BY a.archive_id DESC LIMIT 1)
-- end
CAST(NULL AS timestamptz) -- when archive_at_pop=off

-- define: next_pop
-- the message to be popped next
-- when defined pop_order
(SELECT CAST(m."{id}" AS text) FROM "{schema}"."{table}" AS m WHERE {is_ready} ORDER BY {pop_order} LIMIT 1)
-- end
CAST(NULL AS text) -- when not defined pop_order

-- define: popped
-- the number of pops
pg_stat_get_tuples_deleted(CAST('"{schema}"."{table}"' AS regclass))

-- define: is_stuck
-- when role claimed_at
{is_claimed} AND m."{claimed_at}" < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
-- end

-- define: ready_since
-- since when it could be popped
-- when defined pushed_at
greatest({pushed_at}, {due_at}) -- when defined due_at
{pushed_at} -- when not defined due_at
-- end

-- define: is_first_pop
-- no row shows how long it waited for a later pop
m."{attempts}" <= 1 -- when role attempts
true -- when no role attempts

-- define: waiting_seconds
-- when role claimed_at
-- when defined ready_since
CASE WHEN {is_first_pop} THEN CAST(EXTRACT(EPOCH FROM {claimed_at}) - EXTRACT(EPOCH FROM {ready_since}) AS double precision) END
-- end
-- end

-- define: popped_times
-- its waiting time, and how long ago that ended
-- when defined waiting_seconds
{waiting_seconds} AS waiting_seconds,
CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM {claimed_at}) AS double precision) AS popped_seconds_ago,
-- else
CAST(NULL AS double precision) AS waiting_seconds,
CAST(NULL AS double precision) AS popped_seconds_ago,
-- end

-- define: done_times
-- its processing time, and how long ago that ended
-- when role claimed_at
CAST(EXTRACT(EPOCH FROM {done_at}) - EXTRACT(EPOCH FROM {claimed_at}) AS double precision) AS processing_seconds,
CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM {done_at}) AS double precision) AS ended_seconds_ago
-- else
CAST(NULL AS double precision) AS processing_seconds,
CAST(NULL AS double precision) AS ended_seconds_ago
-- end

-- define: counters
-- the server's counters of the table; for a part of a table there are none
{counters_of_table} -- when part=all
-- when part=one
{counters_of_table} -- when not defined in_part
-- when defined in_part
SELECT
    CAST(NULL AS bigint) AS rows_estimated,
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted
-- end
-- end

-- define: counters_of_table
-- A partitioned table has no counters itself; its partitions have.
SELECT
    CAST(sum(pg_stat_get_live_tuples(p.oid)) AS bigint) AS rows_estimated,
    CAST(sum(pg_stat_get_tuples_inserted(p.oid)) AS bigint) AS inserted,
    CAST(sum(pg_stat_get_tuples_updated(p.oid)) AS bigint) AS updated,
    CAST(sum(pg_stat_get_tuples_deleted(p.oid)) AS bigint) AS deleted
FROM ({parts}) AS p

-- define: parts
-- the tables with its rows: its partitions, or itself and those that inherit from it
SELECT CAST('"{schema}"."{table}"' AS regclass) AS oid -- when installed=yes
-- when installed=no
WITH RECURSIVE heirs (oid) AS (
    SELECT CAST(CAST('"{schema}"."{table}"' AS regclass) AS oid)
    UNION
    SELECT i.inhrelid FROM heirs AS h INNER JOIN pg_inherits AS i ON h.oid = i.inhparent AND NOT i.inhdetachpending
)

SELECT h.oid FROM heirs AS h INNER JOIN pg_class AS c ON h.oid = c.oid AND c.relkind <> 'p'
-- end

-- define: counted
-- a bounded count; null where this login does not see the rows
count(*)

-- define: claimed_from
"{schema}"."{table}"

-- define: oldest_claims
{claimed_at}

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready message, the table's counters
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_ready}
            LIMIT CAST('{ready_limit}' AS bigint)
        ) AS bounded
    ) AS ready,
    -- when defined is_scheduled
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_scheduled}
            LIMIT CAST('{scheduled_limit}' AS bigint)
        ) AS bounded
    ) AS scheduled,
    -- end
    CAST(NULL AS bigint) AS scheduled, -- when not defined is_scheduled
    -- when defined is_claimed
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_claimed}
            LIMIT CAST('{claimed_limit}' AS bigint)
        ) AS bounded
    ) AS claimed,
    -- end
    CAST(NULL AS bigint) AS claimed, -- when not defined is_claimed
    -- when defined is_stuck
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_stuck}
            LIMIT CAST('{stuck_limit}' AS bigint)
        ) AS bounded
    ) AS stuck,
    -- end
    CAST(NULL AS bigint) AS stuck, -- when not defined is_stuck
    -- when defined is_error
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_error}
            LIMIT CAST('{errors_limit}' AS bigint)
        ) AS bounded
    ) AS errors,
    -- end
    CAST(NULL AS bigint) AS errors, -- when not defined is_error
    -- when defined is_done
    (
        SELECT {counted} FROM (
            SELECT FROM "{schema}"."{table}" AS m
            WHERE {is_done}
            LIMIT CAST('{done_limit}' AS bigint)
        ) AS bounded
    ) AS done,
    -- end
    CAST(NULL AS bigint) AS done, -- when not defined is_done
    -- when defined oldest_first
    (
        SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM min(o.since)) AS double precision)
        FROM (
            SELECT {ready_since} AS since
            FROM "{schema}"."{table}" AS m
            -- One that could always be popped has no age, and hides none.
            WHERE {is_ready} AND {ready_since} IS DISTINCT FROM '-infinity'
            ORDER BY {oldest_first} LIMIT CAST('{age_seconds_limit}' AS bigint) -- when not defined due_at
            -- The first in this order may have become due last.
            ORDER BY {oldest_first} LIMIT 1000 * CAST('{age_seconds_limit}' AS bigint) -- when defined due_at
        ) AS o
    ) AS age_seconds,
    -- end
    -- Without an order only a scan could find the oldest message.
    CAST(NULL AS double precision) AS age_seconds, -- when not defined oldest_first
    t.rows_estimated,
    t.inserted,
    t.updated,
    t.deleted,
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
FROM (
    {counters}
) AS t

-- name: messages
-- the messages of one state or all (scan), unordered, each with its key, for `chunk` of common.sql
SELECT
    {key_time} AS key_time, -- when sorted=time_up|time_down|undated_up|undated_down
    {id} AS id,
    {state} AS state,
    {pushed_at} AS pushed_at, -- when defined pushed_at
    {due_at} AS due_at, -- when defined due_at
    {claimed_at} AS claimed_at, -- when defined claimed_at
    {claimed_by} AS claimed_by, -- when defined claimed_by
    {attempts} AS attempts, -- when defined attempts
    {done_at} AS done_at, -- when defined done_at
    {error} AS error, -- when defined error
    {title} AS title, -- when defined title
    {payload} AS payload, -- when with_payload=yes
    m.ctid AS location, -- when installed=yes
    {key} AS key_id
FROM "{schema}"."{table}" AS m
-- when start=same_time
-- By the key, whatever their states: an index of times has those of one time in no order, and each chunk would read them
-- all. Where few of the next rows have that time, the caller reads that index.
WHERE {key} > :after_id
AND {key} <= :until_id -- when until=yes
ORDER BY {key} LIMIT 10 * :read_limit
-- else
WHERE {is_ready} -- when scan=ready
-- when scan=scheduled
-- when sorted=time_up
WHERE {is_scheduled} -- when start=beginning
-- The index would begin at the present and not at the key, and a reschedule would read again all that it has moved there.
WHERE ({is_scheduled}) IS TRUE -- when not start=beginning
-- else
WHERE {is_scheduled}
-- end
-- end
WHERE {is_claimed} -- when scan=claimed
WHERE {is_error} -- when scan=error
WHERE {is_done} -- when scan=done
-- when scan=any
WHERE {in_part} -- when defined in_part
-- end
-- end

-- define: overdue_since
-- since when a message that is_overdue should have been popped, or made ready
{due_at} -- when defined due_at
CAST(NULL AS timestamptz) -- when not defined due_at

-- name: overdue
-- one row: how many messages should have been popped, or made ready, for :seconds (of the first 10,001); the first of them
SELECT
    {counted} AS messages,
    count(*) FILTER (WHERE NOT d.is_ready) AS not_made_ready,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM min(d.since)) AS double precision) AS oldest_seconds,
    (array_agg(d.id ORDER BY d.since, d.id))[1] AS id
FROM (
    SELECT
        {id} AS id,
        {is_ready} AS is_ready,
        {overdue_since} AS since
    FROM "{schema}"."{table}" AS m
    WHERE {is_overdue}
    AND {overdue_since} < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
    LIMIT 10001
) AS d

-- name: history
-- a row for each error and release in the message's history, newest first; as text, because anybody may have written it
SELECT
    a.kept ->> 'at' AS at,
    a.kept ->> 'by' AS claimed_by,
    a.kept ->> 'attempt' AS attempts,
    a.kept ->> 'error' AS error
FROM "{schema}"."{table}" AS m
CROSS JOIN LATERAL jsonb_array_elements(CASE WHEN jsonb_typeof(m.history) = 'array' THEN m.history END) WITH ORDINALITY AS a (kept, position)
WHERE m.id = CAST(:id AS "{id_type}")
AND {is_mine_in_hand} -- when defined is_mine_in_hand
ORDER BY a.position

-- name: claims
-- the ten oldest claims: time and owner
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    {id} AS id,
    -- when defined claimed_at
    CAST(greatest(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM {claimed_at}), 0) AS double precision) AS claimed_seconds,
    -- end
    CAST(NULL AS double precision) AS claimed_seconds, -- when not defined claimed_at
    CAST({claimed_by} AS text) AS claimed_by, -- when defined claimed_by
    CAST(NULL AS text) AS claimed_by, -- when not defined claimed_by
    {held_attempts} AS attempts -- when defined attempts
    CAST(NULL AS integer) AS attempts -- when not defined attempts
FROM {claimed_from} AS m
WHERE {is_claimed}
ORDER BY {oldest_claims} -- when defined claimed_at
LIMIT 10

-- name: times
-- the latest 100 claims, and the latest 100 done and 100 failed messages of the last 5 minutes: waiting and processing times
-- Each by the index of its state. An adopted table may have none: then any 100 claims.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    l.id,
    l.waiting_seconds,
    l.popped_seconds_ago,
    l.processing_seconds,
    l.ended_seconds_ago
FROM (
    (
        SELECT
            {id} AS id,
            {popped_times}
            CAST(NULL AS double precision) AS processing_seconds,
            CAST(NULL AS double precision) AS ended_seconds_ago
        FROM "{schema}"."{table}" AS m
        WHERE {is_claimed}
        -- when installed=yes
        AND {claimed_at} > statement_timestamp() - interval '5 minutes'
        ORDER BY {claimed_at} DESC
        -- end
        LIMIT 100
    )
    -- when installed=yes
    -- when defined is_error
    UNION ALL
    (
        SELECT
            {id} AS id,
            {popped_times}
            {done_times}
        FROM "{schema}"."{table}" AS m
        WHERE {is_error} AND {done_at} > statement_timestamp() - interval '5 minutes'
        ORDER BY {done_at} DESC LIMIT 100
    )
    -- end
    -- when defined is_done
    UNION ALL
    (
        SELECT
            {id} AS id,
            {popped_times}
            {done_times}
        FROM "{schema}"."{table}" AS m
        WHERE {is_done} AND {done_at} > statement_timestamp() - interval '5 minutes'
        ORDER BY {done_at} DESC LIMIT 100
    )
    -- end
    -- end
) AS l

-- name: consumers
-- a row for each consumer name among the newest 1,000 claims and the newest 1,000 done and failed messages of a minute
-- popped_at: its last pop that left a trace; recent: its pops of the last minute that are still there; recent_seconds:
-- their total duration so far; rows_read: the number of claims read, of all names.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    popped.claimed_by AS claimed_by,
    count(*) FILTER (WHERE popped.claimed) AS claims,
    max(popped.at) AS popped_at,
    count(*) FILTER (WHERE popped.seconds < 60) AS recent,
    coalesce(sum(popped.seconds) FILTER (WHERE popped.seconds < 60), 0) AS recent_seconds,
    CAST(sum(count(*) FILTER (WHERE popped.claimed)) OVER () AS bigint) AS rows_read
FROM (
    (
        SELECT
            true AS claimed,
            CAST({claimed_by} AS text) AS claimed_by, -- when defined claimed_by
            CAST(NULL AS text) AS claimed_by, -- when not defined claimed_by
            CAST({claimed_at} AS timestamptz) AS at -- when defined claimed_at
            CAST(NULL AS timestamptz) AS at -- when not defined claimed_at
        FROM "{schema}"."{table}" AS m
        WHERE {is_claimed}
        -- An adopted table may have no index in this order.
        ORDER BY {claimed_at} DESC -- when installed=yes
        LIMIT 1000
    )
    -- when installed=yes
    -- when defined is_done
    UNION ALL
    (
        SELECT
            false,
            m."{claimed_by}",
            m."{claimed_at}"
        FROM "{schema}"."{table}" AS m
        WHERE {is_done} AND m."{done_at}" > statement_timestamp() - interval '60 seconds'
        ORDER BY m."{done_at}" DESC LIMIT 1000
    )
    -- end
    -- when defined is_error
    UNION ALL
    (
        SELECT
            false,
            m."{claimed_by}",
            m."{claimed_at}"
        FROM "{schema}"."{table}" AS m
        WHERE {is_error} AND m."{done_at}" > statement_timestamp() - interval '60 seconds'
        ORDER BY m."{done_at}" DESC LIMIT 1000
    )
    -- end
    -- end
) AS found
CROSS JOIN LATERAL (
    SELECT
        found.claimed,
        found.claimed_by,
        found.at,
        CAST(greatest(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM found.at), 0) AS double precision) AS seconds
) AS popped
GROUP BY popped.claimed_by

-- define: pages_to_sample
-- no pages where ids suffice
-- when defined first_ready_id
{pages} -- when over=scheduled|claimed|errors|done
-- end
{pages} -- when not defined first_ready_id

-- name: estimate
-- one row: estimated rows of each state that was not counted to its end (over), independent of vacuum and analyze
-- From pages: a number of pages spread evenly over the table, or all of it. Vacuum's estimate would not do: it assumes
-- that skipped pages are as full as the average.
-- From ids (first_ready_id), where they rise with the order and vacuum skips the full pages, or where ready rows are few
-- among done ones: backwards from the last id, the last 255 ids and then positions each a fifth further back, 32 rows in
-- each give the density. Powers are double precision; numeric ones took half of the statement's time.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(NULL AS double precision) AS ready, -- when not over=ready
    -- when over=ready
    -- when defined first_ready_id
    (
        SELECT
            sum(
                CASE
                    WHEN dense.rows_read < 32 THEN dense.ready
                    ELSE dense.ready * CAST(span.until_id - span.from_id AS double precision) / (dense.last_id - span.from_id + 1)
                END
            ) AS ready
        FROM (
            SELECT
                (
                    {first_ready_id}
                ) AS first_id,
                (SELECT h."{id}" FROM "{schema}"."{table}" AS h ORDER BY h."{id}" DESC LIMIT 1) AS last_id
            LIMIT 1 -- so that each end is looked up once
        ) AS ends
        CROSS JOIN LATERAL (
            SELECT
                greatest(ends.last_id + 2 - CAST(power(CAST(2 AS double precision), i / 4.0) AS bigint), ends.first_id) AS from_id,
                ends.last_id + 2 - CASE WHEN i > 32 THEN CAST(power(CAST(2 AS double precision), (i - 1) / 4.0) AS bigint) ELSE 1 END AS until_id
            FROM generate_series(32, greatest(32, CAST(ceil(log(2, ends.last_id - ends.first_id + 2) * 4) AS integer))) AS i
        ) AS span
        CROSS JOIN LATERAL (
            SELECT
                count(*) AS rows_read,
                count(*) FILTER (WHERE n.ready) AS ready,
                max(n.id) AS last_id
            FROM (
                SELECT
                    m."{id}" AS id,
                    {is_ready} AS ready
                FROM "{schema}"."{table}" AS m
                WHERE m."{id}" >= span.from_id AND m."{id}" < span.until_id
                ORDER BY m."{id}" LIMIT 32
            ) AS n
        ) AS dense
    ) AS ready,
    -- else
    CAST(sum(found.ready) * nullif(max(t.total), 0) / count(*) AS double precision) AS ready,
    -- end
    -- end
    -- when over=scheduled
    CAST(sum(found.scheduled) * nullif(max(t.total), 0) / count(*) AS double precision) AS scheduled,
    -- end
    CAST(NULL AS double precision) AS scheduled, -- when not over=scheduled
    CAST(sum(found.claimed) * nullif(max(t.total), 0) / count(*) AS double precision) AS claimed, -- when over=claimed
    CAST(NULL AS double precision) AS claimed, -- when not over=claimed
    CAST(sum(found.errors) * nullif(max(t.total), 0) / count(*) AS double precision) AS errors, -- when over=errors
    CAST(NULL AS double precision) AS errors, -- when not over=errors
    CAST(sum(found.done) * nullif(max(t.total), 0) / count(*) AS double precision) AS done -- when over=done
    CAST(NULL AS double precision) AS done -- when not over=done
-- when defined pages_to_sample
FROM (
    -- The pages of all partitions in sequence; or those of the table.
    SELECT
        s.oid,
        s.pages,
        CAST(sum(s.pages) OVER (ORDER BY s.oid) AS bigint) - s.pages AS before,
        CAST(sum(s.pages) OVER () AS bigint) AS total
    FROM (
        SELECT
            p.oid,
            pg_relation_size(p.oid) / CAST(current_setting('block_size') AS bigint) AS pages
        FROM ({parts}) AS p
    ) AS s
) AS t
CROSS JOIN LATERAL (
    SELECT DISTINCT (2 * i + 1) * t.total / (2 * {pages_to_sample}) - t.before AS page FROM generate_series(0, {pages_to_sample} - 1) AS i
    WHERE (2 * i + 1) * t.total / (2 * {pages_to_sample}) >= t.before AND (2 * i + 1) * t.total / (2 * {pages_to_sample}) < t.before + t.pages
) AS sampled
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE {is_scheduled}) AS scheduled, -- when over=scheduled
        count(*) FILTER (WHERE {is_claimed}) AS claimed, -- when over=claimed
        count(*) FILTER (WHERE {is_error}) AS errors, -- when over=errors
        count(*) FILTER (WHERE {is_done}) AS done, -- when over=done
        count(*) FILTER (WHERE {is_ready}) AS ready
    FROM "{schema}"."{table}" AS m
    WHERE m.tableoid = t.oid AND m.ctid >= CAST(format('(%s,0)', sampled.page) AS tid) AND m.ctid < CAST(format('(%s,0)', sampled.page + 1) AS tid)
) AS found
-- end
