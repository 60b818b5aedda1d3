-- What monitoring reads, the same for all designs. What ready, claimed, error, done, key and order mean is defined in each
-- design's own file (`-- define:`), always for the row m of its table; the usual definitions are here. Without a
-- definition (is_claimed) a design has no such state, and its figure is null; without is_ready every row is ready. A
-- design that differs has a statement of the same name in its own file.

-- define: reading
-- READPAST: the committed state, without waiting. Rows that open transactions push or pop are not counted; NOLOCK would
-- count rows that are rolled back later, and miss or repeat rows that move. Its own locks last for one row.
WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)

-- define: key
-- the key from which a scan continues, and the id as text
m.[{id}] -- when role id
-- when no role id
-- Without an id there is no key to continue from: only the first page is shown.
N''
-- end

-- define: id
CAST(m.[{id}] AS nvarchar(450)) -- when role id
CAST(NULL AS nvarchar(450)) -- when no role id

-- define: key_time
m.[{since}]

-- define: pushed_at
m.[{pushed_at}] -- when role pushed_at

-- define: due_at
m.[{due_at}] -- when role due_at

-- define: claimed_at
m.[{claimed_at}] -- when role claimed_at

-- define: claimed_by
m.[{claimed_by}] -- when role claimed_by

-- define: attempts
m.[{attempts}] -- when role attempts

-- define: done_at
m.[{done_at}] -- when role done_at

-- define: error
m.[{error}] -- when role error

-- define: state
N'ready'

-- define: payload
m.[{payload}]

-- define: joined_payload
-- the payload, in a statement that joins the payload table
m.[{payload}]

-- define: key_text
-- the key of its table as text
CAST(m.[{id}] AS nvarchar(450))

-- define: push_order
m.[{id}]

-- define: is_live
-- not popped yet, whether due or not
{is_ready} -- when defined is_ready

-- define: is_ready_again
{is_ready}

-- define: is_stuck
-- when role claimed_at
{is_claimed}
AND {claimed_at} < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
-- end

-- define: ready_since
-- since when it could be popped; a time without an offset is UTC
-- when defined pushed_at
CASE WHEN {due_at} > {pushed_at} THEN {due_at} ELSE {pushed_at} END -- when defined due_at
{pushed_at} -- when not defined due_at
-- end

-- define: age_seconds
-- the age of the oldest ready message; with due times, the first in order may have become due last
-- when defined oldest_first
(
    SELECT CAST(DATEDIFF_BIG(microsecond, MIN(o.since), SYSUTCDATETIME()) / 1e6 AS float)
    FROM (
        SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) {ready_since} AS since -- when not defined due_at
        SELECT TOP (1000 * CAST(N'{age_seconds_limit}' AS bigint)) {ready_since} AS since -- when defined due_at
        FROM [{schema}].[{table}] AS m {reading}
        WHERE {is_ready} -- when defined is_ready
        ORDER BY {oldest_first}
    ) AS o
)
-- end

-- define: last_pop
-- when something was popped last, where that leaves a trace
-- when archive_at_pop=on
SELECT TOP (1) @last_pop = a.archived_at FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
ORDER BY a.archive_id DESC;
-- end

-- define: next_pop
-- the message to be popped next
-- when defined pop_order
SELECT TOP (1) @next = CAST(m.[{id}] AS nvarchar(450))
FROM [{schema}].[{table}] AS m {reading}
WHERE {is_ready} -- when defined is_ready
ORDER BY {pop_order};
-- end

-- define: popped
-- the number of pops
SUM(o.leaf_delete_count + o.leaf_ghost_count)

-- define: waiting_seconds
-- its waiting time until the first pop, from when it was ready; no row shows that of a later pop
-- when role claimed_at
-- when defined ready_since
-- when role attempts
CASE WHEN {attempts} <= 1 OR {attempts} IS NULL THEN CAST(DATEDIFF_BIG(microsecond, {ready_since}, {claimed_at}) / 1e6 AS float) END
-- end
CAST(DATEDIFF_BIG(microsecond, {ready_since}, {claimed_at}) / 1e6 AS float) -- when no role attempts
-- end
-- end

-- define: popped_times
-- its waiting time, and how long ago that ended
-- when defined waiting_seconds
{waiting_seconds} AS waiting_seconds,
CAST(DATEDIFF_BIG(microsecond, {claimed_at}, SYSUTCDATETIME()) / 1e6 AS float) AS popped_seconds_ago,
-- else
CAST(NULL AS float) AS waiting_seconds,
CAST(NULL AS float) AS popped_seconds_ago,
-- end

-- define: done_times
-- its processing time, and how long ago that ended
-- when role claimed_at
CAST(DATEDIFF_BIG(microsecond, {claimed_at}, {done_at}) / 1e6 AS float) AS processing_seconds,
CAST(DATEDIFF_BIG(microsecond, {done_at}, SYSUTCDATETIME()) / 1e6 AS float) AS ended_seconds_ago
-- else
CAST(NULL AS float) AS processing_seconds,
CAST(NULL AS float) AS ended_seconds_ago
-- end

-- define: row_count
-- The engine's row count of an index, read without touching the table. It includes uncommitted pushes and excludes
-- uncommitted pops.
SELECT SUM(p.row_count) AS number_of_rows
FROM sys.dm_db_partition_stats AS p
WHERE p.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND p.index_id IN (0, 1)

-- define: counters_of_table
-- For an invisible object the function would return all.
FROM sys.dm_db_index_operational_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{table}]'), NULL, NULL) AS o
WHERE o.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND o.index_id IN (0, 1)

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready message, the table's counters
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_ready} -- when defined is_ready
        ) AS bounded
    ) AS ready,
    -- when defined is_scheduled
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{scheduled_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_scheduled}
        ) AS bounded
    ) AS scheduled,
    -- end
    CAST(NULL AS bigint) AS scheduled, -- when not defined is_scheduled
    -- when defined is_claimed
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_claimed}
        ) AS bounded
    ) AS claimed,
    -- when defined is_stuck
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_stuck}
        ) AS bounded
    ) AS stuck,
    -- end
    CAST(NULL AS bigint) AS stuck, -- when not defined is_stuck
    -- else
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    -- end
    -- when defined is_error
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{errors_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_error}
        ) AS bounded
    ) AS errors,
    -- end
    CAST(NULL AS bigint) AS errors, -- when not defined is_error
    -- when defined is_done
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{done_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_done}
        ) AS bounded
    ) AS done,
    -- end
    CAST(NULL AS bigint) AS done, -- when not defined is_done
    {age_seconds} AS age_seconds, -- when defined age_seconds
    -- Without an order only a scan could find the oldest message.
    CAST(NULL AS float) AS age_seconds, -- when not defined age_seconds
    -- when counters=yes
    -- when part=all
    estimated.number_of_rows AS rows_estimated,
    counted.inserted AS inserted,
    counted.updated AS updated,
    counted.deleted AS deleted,
    -- end
    -- For a part of a table the engine counts nothing.
    -- when part=one
    CAST(NULL AS bigint) AS rows_estimated,
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    -- end
    -- else
    CAST(NULL AS bigint) AS rows_estimated,
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    -- end
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
-- when counters=yes
-- when part=all
FROM (
    {row_count}
) AS estimated
CROSS JOIN (
    SELECT
        SUM(o.leaf_insert_count) AS inserted,
        SUM(o.leaf_update_count) AS updated,
        -- A delete leaves a ghost record, unless the row is removed at once.
        SUM(o.leaf_delete_count + o.leaf_ghost_count) AS deleted
    {counters_of_table}
) AS counted
-- end
-- end

-- define: overdue_since
-- since when a message that is_overdue should have been popped, or made ready
{due_at} -- when defined due_at
CAST(NULL AS datetime2(7)) -- when not defined due_at

-- name: overdue
-- one row: how many messages should have been popped, or made ready, for :seconds (of the first 10,001); the first of them
SELECT
    COUNT_BIG(*) AS messages,
    COALESCE(SUM(CAST(d.not_made_ready AS bigint)), 0) AS not_made_ready,
    CAST(DATEDIFF_BIG(microsecond, MIN(d.since), SYSUTCDATETIME()) / 1e6 AS float) AS oldest_seconds,
    MIN(CASE WHEN d.place = 1 THEN d.id END) AS id
FROM (
    SELECT
        f.id,
        f.since,
        f.not_made_ready,
        ROW_NUMBER() OVER (ORDER BY f.since) AS place
    FROM (
        SELECT TOP (10001)
            CAST(m.[{id}] AS nvarchar(450)) AS id, -- when role id
            CAST(NULL AS nvarchar(450)) AS id, -- when no role id
            t.since AS since,
            CASE WHEN {is_ready} THEN 0 ELSE 1 END AS not_made_ready
        FROM [{schema}].[{table}] AS m {reading}
        CROSS APPLY (SELECT {overdue_since} AS since) AS t
        WHERE {is_overdue}
        AND DATEDIFF_BIG(microsecond, t.since, SYSUTCDATETIME()) / 1e6 > CAST(:seconds AS float)
    ) AS f
) AS d

-- name: messages
-- the messages of one state or all (scan), unordered, each with its key, for `chunk` of common.sql
SELECT
    {key_time} AS key_time, -- when sorted=time_up|time_down|undated_up|undated_down
    {id} AS id,
    {state} AS state,
    {pushed_at} AS pushed_at, -- when role pushed_at
    {due_at} AS due_at, -- when role due_at
    {claimed_at} AS claimed_at, -- when role claimed_at
    {claimed_by} AS claimed_by, -- when role claimed_by
    {attempts} AS attempts, -- when role attempts
    {done_at} AS done_at, -- when role done_at
    {error} AS error, -- when role error
    {title} AS title, -- when defined title
    {payload} AS payload, -- when with_payload=yes
    {key} AS key_id
FROM [{schema}].[{table}] AS m {reading}
-- when scan=ready
WHERE {is_ready} -- when defined is_ready
-- end
WHERE {is_scheduled} -- when scan=scheduled
WHERE {is_claimed} -- when scan=claimed
WHERE {is_error} -- when scan=error
WHERE {is_done} -- when scan=done

-- name: history
-- a row for each error and release in the message's history, newest first; as text, because anybody may have written it
SELECT
    JSON_VALUE(o.entry, N'$.at') AS [at],
    JSON_VALUE(o.entry, N'$.by') AS claimed_by,
    JSON_VALUE(o.entry, N'$.attempt') AS attempts,
    JSON_VALUE(o.entry, N'$.error') AS error
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
CROSS APPLY OPENJSON(CASE WHEN ISJSON(m.history) = 1 AND LEFT(LTRIM(m.history), 1) = N'[' THEN m.history ELSE N'[]' END) AS a
CROSS APPLY (SELECT CASE WHEN a.[type] = 5 THEN a.[value] ELSE N'{}' END AS entry) AS o
WHERE m.id = CAST(:id AS {id_type}) {and_mine}
ORDER BY CAST(a.[key] AS int)

-- name: claims
-- the ten oldest claims: time and owner
-- A claim that is just being finished is skipped. An adopted table's collation may differ from the others of the
-- union.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    oldest.id AS id,
    CASE WHEN oldest.claimed_seconds < 0 THEN 0e0 ELSE oldest.claimed_seconds END AS claimed_seconds,
    oldest.claimed_by AS claimed_by,
    oldest.attempts AS attempts
FROM (
    SELECT TOP (10)
        {id} COLLATE DATABASE_DEFAULT AS id,
        -- when role claimed_at
        CAST(DATEDIFF_BIG(microsecond, {claimed_at}, SYSUTCDATETIME()) / 1e6 AS float) AS claimed_seconds,
        -- end
        CAST(NULL AS float) AS claimed_seconds, -- when no role claimed_at
        CAST({claimed_by} AS nvarchar(450)) COLLATE DATABASE_DEFAULT AS claimed_by, -- when role claimed_by
        CAST(NULL AS nvarchar(450)) AS claimed_by, -- when no role claimed_by
        CAST({attempts} AS int) AS attempts -- when role attempts
        CAST(NULL AS int) AS attempts -- when no role attempts
    FROM [{schema}].[{table}] AS m {reading}
    WHERE {is_claimed}
    ORDER BY {claimed_at} -- when role claimed_at
) AS oldest

-- name: times
-- the latest 100 claims, and the latest 100 done and 100 failed messages of the last 5 minutes: waiting and processing times
-- Each by the index of its state. An adopted table may have none: then any 100 claims.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    l.id AS id,
    l.waiting_seconds AS waiting_seconds,
    l.popped_seconds_ago AS popped_seconds_ago,
    l.processing_seconds AS processing_seconds,
    l.ended_seconds_ago AS ended_seconds_ago
FROM (
    SELECT
        popped.id,
        popped.waiting_seconds,
        popped.popped_seconds_ago,
        CAST(NULL AS float) AS processing_seconds,
        CAST(NULL AS float) AS ended_seconds_ago
    FROM (
        SELECT TOP (100)
            {popped_times}
            {id} COLLATE DATABASE_DEFAULT AS id
        FROM [{schema}].[{table}] AS m {reading}
        WHERE {is_claimed}
        -- when installed=yes
        AND m.[{claimed_at}] > DATEADD(minute, -5, SYSUTCDATETIME())
        ORDER BY m.[{claimed_at}] DESC
        -- end
    ) AS popped
    -- when installed=yes
    -- when defined is_error
    UNION ALL
    SELECT
        failed.id,
        failed.waiting_seconds,
        failed.popped_seconds_ago,
        failed.processing_seconds,
        failed.ended_seconds_ago
    FROM (
        SELECT TOP (100)
            {id} COLLATE DATABASE_DEFAULT AS id,
            {popped_times}
            {done_times}
        FROM [{schema}].[{table}] AS m {reading}
        WHERE {is_error} AND m.[{done_at}] > DATEADD(minute, -5, SYSUTCDATETIME())
        ORDER BY m.[{done_at}] DESC
    ) AS failed
    -- end
    -- when defined is_done
    UNION ALL
    SELECT
        done.id,
        done.waiting_seconds,
        done.popped_seconds_ago,
        done.processing_seconds,
        done.ended_seconds_ago
    FROM (
        SELECT TOP (100)
            {id} COLLATE DATABASE_DEFAULT AS id,
            {popped_times}
            {done_times}
        FROM [{schema}].[{table}] AS m {reading}
        WHERE {is_done} AND m.[{done_at}] > DATEADD(minute, -5, SYSUTCDATETIME())
        ORDER BY m.[{done_at}] DESC
    ) AS done
    -- end
    -- end
) AS l

-- name: consumers
-- a row for each consumer name among the newest 1,000 claims and the newest 1,000 done and failed messages of a minute
-- popped_at: its last pop that left a trace; recent: its pops of the last minute that are still there; recent_seconds:
-- their total duration so far; rows_read: the number of claims read, of all names.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    popped.claimed_by AS claimed_by,
    COUNT_BIG(CASE WHEN popped.claimed = 1 THEN 1 END) AS claims,
    MAX(popped.at) AS popped_at,
    COUNT_BIG(CASE WHEN popped.seconds < 60 THEN 1 END) AS recent,
    COALESCE(SUM(CASE WHEN popped.seconds < 60 THEN popped.seconds END), 0e0) AS recent_seconds,
    SUM(COUNT_BIG(CASE WHEN popped.claimed = 1 THEN 1 END)) OVER () AS rows_read
FROM (
    SELECT
        found.claimed,
        found.claimed_by,
        found.at,
        CASE WHEN found.at > SYSUTCDATETIME() THEN 0e0 ELSE CAST(DATEDIFF_BIG(microsecond, found.at, SYSUTCDATETIME()) / 1e6 AS float) END AS seconds
    FROM (
        SELECT
            newest.claimed,
            newest.claimed_by,
            newest.at
        FROM (
            SELECT TOP (1000)
                1 AS claimed,
                CAST({claimed_by} AS nvarchar(450)) COLLATE DATABASE_DEFAULT AS claimed_by, -- when role claimed_by
                CAST(NULL AS nvarchar(450)) AS claimed_by, -- when no role claimed_by
                CAST({claimed_at} AS datetime2(7)) AS at -- when role claimed_at
                CAST(NULL AS datetime2(7)) AS at -- when no role claimed_at
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_claimed}
            -- An adopted table may have no index in this order.
            ORDER BY m.[{claimed_at}] DESC -- when installed=yes
        ) AS newest
        -- when installed=yes
        -- when defined is_done
        UNION ALL
        SELECT
            ended.claimed,
            ended.claimed_by,
            ended.at
        FROM (
            SELECT TOP (1000)
                0 AS claimed,
                CAST(m.[{claimed_by}] AS nvarchar(450)) AS claimed_by,
                CAST(m.[{claimed_at}] AS datetime2(7)) AS at
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_done} AND m.[{done_at}] > DATEADD(second, -60, SYSUTCDATETIME())
            ORDER BY m.[{done_at}] DESC
        ) AS ended
        -- end
        -- when defined is_error
        UNION ALL
        SELECT
            failed.claimed,
            failed.claimed_by,
            failed.at
        FROM (
            SELECT TOP (1000)
                0 AS claimed,
                CAST(m.[{claimed_by}] AS nvarchar(450)) AS claimed_by,
                CAST(m.[{claimed_at}] AS datetime2(7)) AS at
            FROM [{schema}].[{table}] AS m {reading}
            WHERE {is_error} AND m.[{done_at}] > DATEADD(second, -60, SYSUTCDATETIME())
            ORDER BY m.[{done_at}] DESC
        ) AS failed
        -- end
        -- end
    ) AS found
) AS popped
GROUP BY popped.claimed_by

-- name: estimate
-- one row: estimated rows of each state; nothing for a login that does not see the row counts
-- From the engine's own counts (row_count): of all rows if every row is ready; of each state's index (ready_index); else
-- all rows times the share of that state in sampled pages of the table. NOLOCK: the row count includes uncommitted rows
-- too. The row's state is computed one level below the sums, because an aggregate takes no subquery (a library's states).
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when counters=yes
-- when not defined is_ready
    CAST(estimated.number_of_rows AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    {row_count}
) AS estimated
-- end
-- when defined ready_index
    CAST(estimated.ready AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(estimated.claimed AS float) AS claimed,
    CAST(estimated.errors AS float) AS errors,
    CAST(estimated.done AS float) AS done -- when defined is_done
    CAST(NULL AS float) AS done -- when not defined is_done
FROM (
    SELECT
        SUM(CASE WHEN i.name = {ready_index} THEN p.row_count END) AS ready,
        SUM(CASE WHEN i.name = N'{queue}_claimed' THEN p.row_count END) AS claimed,
        SUM(CASE WHEN i.name = N'{queue}_done' THEN p.row_count END) AS done, -- when defined is_done
        SUM(CASE WHEN i.name = N'{queue}_error' THEN p.row_count END) AS errors
    FROM sys.indexes AS i
    INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id AND i.index_id = p.index_id
    WHERE i.object_id = OBJECT_ID(N'[{schema}].[{table}]')
) AS estimated
-- else
-- when defined is_ready
    estimated.number_of_rows * found.ready / found.looked_at AS ready,
    estimated.number_of_rows * found.scheduled / found.looked_at AS scheduled,
    estimated.number_of_rows * found.claimed / found.looked_at AS claimed,
    estimated.number_of_rows * found.errors / found.looked_at AS errors,
    estimated.number_of_rows * found.done / found.looked_at AS done
FROM (
    {row_count}
) AS estimated
CROSS JOIN (
    SELECT
        SUM(r.ready) AS ready,
        SUM(r.scheduled) AS scheduled,
        SUM(r.claimed) AS claimed,
        SUM(r.errors) AS errors,
        SUM(r.done) AS done,
        NULLIF(COUNT_BIG(*), 0) AS looked_at
    FROM (
        SELECT
            CASE WHEN {is_ready} THEN 1e0 ELSE 0e0 END AS ready,
            CASE WHEN {is_scheduled} THEN 1e0 ELSE 0e0 END AS scheduled, -- when defined is_scheduled
            CAST(NULL AS float) AS scheduled, -- when not defined is_scheduled
            CASE WHEN {is_claimed} THEN 1e0 ELSE 0e0 END AS claimed, -- when defined is_claimed
            CAST(NULL AS float) AS claimed, -- when not defined is_claimed
            CASE WHEN {is_error} THEN 1e0 ELSE 0e0 END AS errors, -- when defined is_error
            CAST(NULL AS float) AS errors, -- when not defined is_error
            CASE WHEN {is_done} THEN 1e0 ELSE 0e0 END AS done -- when defined is_done
            CAST(NULL AS float) AS done -- when not defined is_done
        FROM [{schema}].[{table}] AS m TABLESAMPLE (5000 ROWS) WITH (NOLOCK)
    ) AS r
) AS found
-- end
-- end
-- else
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end
