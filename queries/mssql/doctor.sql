-- What the doctor asks of any queue, besides what monitoring asks: each statement reads a bounded number of
-- rows by an index and returns keys, never a payload. What a statement says of claims is for queues that
-- keep what was popped. Of a ring with in_hand the table is <queue>_in_hand.
-- Rows that open transactions hold are skipped (READPAST), not waited for: they are somebody's work. Where
-- a row is looked for that should be there, locked ones are looked at too (NOLOCK): a locked row is there.
-- ids: an array as JSON text, [{"id": "1"}, ...].

-- name: recovering
-- one row: whether this server follows another one, which is where transactions and claims are
SELECT CAST(CASE WHEN DATABASEPROPERTYEX(DB_NAME(), N'Updateability') = N'READ_ONLY' THEN 1 ELSE 0 END AS bit) AS recovering;

-- name: status_check
-- one row: whether a CHECK of the table rules out every status but those from 0 to 4, so that no row need be looked at
-- when design=status|split
SELECT CAST(CASE WHEN EXISTS (
    SELECT 1 FROM sys.check_constraints AS k
    WHERE k.parent_object_id = OBJECT_ID(N'[{schema}].[{table}]') AND k.is_disabled = 0 AND k.is_not_trusted = 0
    AND k.[definition] LIKE N'%status_>=(0)%status_<=(4)%'
) THEN 1 ELSE 0 END AS bit) AS rules_out
-- end
;

-- name: halves
-- one row: of the next :most messages of a split queue from the id :newest down, how many there are, the lowest, and how many have no payload; the first ten
-- ready: those that are to be popped; stuck: claimed for :stuck_after seconds, or by one of :gone; kept: all others.
-- owners: who claimed the kept ones. What looks like a half is looked at twice: by then whoever was taking both
-- away has ended, or holds the row.
-- when design=split
SET NOCOUNT ON;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @stuck_after float = :stuck_after, @gone nvarchar(max) = :gone;
DECLARE @looked TABLE (id bigint NOT NULL PRIMARY KEY);
DECLARE @halves TABLE (
    id bigint NOT NULL PRIMARY KEY,
    state nvarchar(10) COLLATE DATABASE_DEFAULT NOT NULL,
    claimed_by nvarchar(450) COLLATE Latin1_General_100_BIN2 NULL
);
INSERT INTO @looked (id)
SELECT TOP (@most) m.id FROM [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.id <= @newest
ORDER BY m.id DESC;
INSERT INTO @halves (id, state, claimed_by)
SELECT
    m.id,
    CASE
        WHEN m.status = 0 THEN N'ready'
        WHEN m.status <> 1 THEN N'kept'
        WHEN DATEDIFF_BIG(microsecond, m.claimed_at, SYSUTCDATETIME()) / 1e6 >= @stuck_after THEN N'stuck'
        WHEN EXISTS (
            SELECT 1 FROM OPENJSON(@gone) AS g
            WHERE g.[value] = CAST(m.claimed_by AS nvarchar(450)) COLLATE Latin1_General_100_BIN2
        ) THEN N'stuck'
        ELSE N'kept'
    END,
    CASE WHEN m.status = 1 THEN CAST(m.claimed_by AS nvarchar(450)) END
FROM @looked AS l
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON l.id = m.id
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = l.id)
OPTION (LOOP JOIN, FORCE ORDER);
DELETE h
FROM @halves AS h
WHERE
    NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE m.id = h.id
    )
    OR EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = h.id);
SELECT
    (SELECT COUNT_BIG(*) FROM @looked AS l) AS looked,
    (SELECT MIN(l.id) FROM @looked AS l) AS lowest,
    (SELECT COUNT_BIG(*) FROM @halves AS h WHERE h.state = N'ready') AS ready,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @halves AS h WHERE h.state = N'ready'
        ORDER BY h.id
        FOR JSON PATH
    ) AS ready_ids,
    (SELECT COUNT_BIG(*) FROM @halves AS h WHERE h.state = N'stuck') AS stuck,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @halves AS h WHERE h.state = N'stuck'
        ORDER BY h.id
        FOR JSON PATH
    ) AS stuck_ids,
    (SELECT COUNT_BIG(*) FROM @halves AS h WHERE h.state = N'kept') AS kept,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @halves AS h WHERE h.state = N'kept'
        ORDER BY h.id
        FOR JSON PATH
    ) AS kept_ids,
    (
        SELECT o.claimed_by AS claimed_by
        FROM (
            SELECT DISTINCT h.claimed_by FROM @halves AS h WHERE h.state = N'kept' AND h.claimed_by IS NOT NULL
        ) AS o
        FOR JSON PATH
    ) AS owners
-- end
;

-- name: alone
-- one row: of the next :most payloads of a split queue from the id :newest down, how many there are, the lowest, and how many belong to no message; the first ten
-- when design=split
SET NOCOUNT ON;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @looked TABLE (id bigint NOT NULL PRIMARY KEY);
DECLARE @alone TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @looked (id)
SELECT TOP (@most) d.id FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE d.id <= @newest
ORDER BY d.id DESC;
INSERT INTO @alone (id)
SELECT l.id FROM @looked AS l
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (NOLOCK) WHERE m.id = l.id)
OPTION (LOOP JOIN);
DELETE a
FROM @alone AS a
WHERE
    NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.id = a.id
    )
    OR EXISTS (SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (NOLOCK) WHERE m.id = a.id);
SELECT
    (SELECT COUNT_BIG(*) FROM @looked AS l) AS looked,
    (SELECT MIN(l.id) FROM @looked AS l) AS lowest,
    (SELECT COUNT_BIG(*) FROM @alone AS a) AS alone,
    (SELECT TOP (10) CAST(a.id AS nvarchar(20)) AS id FROM @alone AS a ORDER BY a.id FOR JSON PATH) AS alone_ids
-- end
;

-- name: set_aside
-- one row: how many ready or stuck rows (see halves) without a payload there are among the next :most from the id :newest down, and how many of those are in error now
-- when design=split
SET NOCOUNT ON;
DECLARE @error nvarchar(max) = :error;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @stuck_after float = :stuck_after, @gone nvarchar(max) = :gone;
DECLARE @selected bigint;
DECLARE @held TABLE (id bigint NOT NULL PRIMARY KEY);
-- Locked before it is looked for: nobody takes the two away together.
INSERT INTO @held (id)
SELECT m.id
FROM (
    SELECT TOP (@most) n.id FROM [{schema}].[{queue}_meta] AS n WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE n.id <= @newest
    ORDER BY n.id DESC
) AS w
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON w.id = m.id AND m.status IN (0, 1)
WHERE
    NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = w.id)
    AND (
        m.status = 0
        OR DATEDIFF_BIG(microsecond, m.claimed_at, SYSUTCDATETIME()) / 1e6 >= @stuck_after
        OR EXISTS (
            SELECT 1 FROM OPENJSON(@gone) AS g
            WHERE g.[value] = CAST(m.claimed_by AS nvarchar(450)) COLLATE Latin1_General_100_BIN2
        )
    )
OPTION (LOOP JOIN, FORCE ORDER);
SET @selected = @@ROWCOUNT;
UPDATE m
SET status = 4,
    errors = @error,
    done_at = SYSUTCDATETIME()
FROM @held AS h
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.id = h.id
WHERE m.status IN (0, 1)
AND NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = m.id)
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done
-- end
;

-- name: indexes
-- a row for each index of the given tables (:tables, a JSON array): what it is on, under what condition, and whether it can be used
-- columns: an array as JSON text, as ids. READUNCOMMITTED: never behind somebody's DDL.
DECLARE @schema nvarchar(max) = :schema;
DECLARE @tables nvarchar(max) = :tables;
SELECT
    CAST(t.name AS nvarchar(128)) AS table_name,
    CAST(i.name AS nvarchar(128)) AS name,
    (
        SELECT c.name AS name
        FROM sys.index_columns AS k WITH (READUNCOMMITTED)
        INNER JOIN sys.columns AS c WITH (READUNCOMMITTED) ON k.object_id = c.object_id AND k.column_id = c.column_id
        WHERE k.object_id = i.object_id AND k.index_id = i.index_id AND k.is_included_column = 0
        ORDER BY k.key_ordinal
        FOR JSON PATH
    ) AS columns,
    i.filter_definition AS condition,
    i.is_unique AS is_unique,
    CAST(CASE WHEN i.is_disabled = 1 THEN 0 ELSE 1 END AS bit) AS valid,
    CAST(0 AS bit) AS being_built
FROM sys.indexes AS i WITH (READUNCOMMITTED)
INNER JOIN sys.tables AS t WITH (READUNCOMMITTED) ON i.object_id = t.object_id
INNER JOIN sys.schemas AS s WITH (READUNCOMMITTED) ON t.schema_id = s.schema_id
INNER JOIN OPENJSON(@tables) AS given ON t.name = given.[value] COLLATE Latin1_General_100_BIN2
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND i.index_id > 0;

-- name: doubled
-- a row for each key that several rows have, of the first ten in each of :tables (a JSON array), whose key is gone: among the table's first million rows
-- Asked only then, and no index is left to ask: the time-out of a statement ends it.
-- when installed=yes
DECLARE @tables nvarchar(max) = :tables;
SELECT
    CAST(t.table_name AS nvarchar(128)) AS table_name,
    CAST(t.[key] AS nvarchar(450)) AS [key],
    t.found AS found
FROM (
    -- when design=naive|ring|fifo|stack|pending|claim|status|split
    SELECT
        N'{table}' AS table_name,
        k.[key],
        k.found
    FROM (
        SELECT TOP (10)
            r.[key],
            COUNT_BIG(*) AS found
        FROM (
            SELECT TOP (1000000)
                -- when design=ring
                CAST(m.slot AS nvarchar(450)) AS [key]
                -- end
                -- when design=pending
                CONCAT(CONVERT(nvarchar(27), m.due_time, 126), N' ', m.id) AS [key]
                -- end
                -- when design=naive|fifo|stack|claim|status|split
                CAST(m.[{id}] AS nvarchar(450)) AS [key]
                -- end
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{table}' COLLATE Latin1_General_100_BIN2)
        ) AS r
        GROUP BY r.[key]
        HAVING COUNT_BIG(*) > 1
        ORDER BY r.[key]
    ) AS k
    -- end
    -- when design=split
    UNION ALL
    SELECT
        N'{queue}_data',
        k.[key],
        k.found
    FROM (
        SELECT TOP (10)
            r.[key],
            COUNT_BIG(*) AS found
        FROM (
            SELECT TOP (1000000) CAST(d.id AS nvarchar(450)) AS [key]
            FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{queue}_data' COLLATE Latin1_General_100_BIN2)
        ) AS r
        GROUP BY r.[key]
        HAVING COUNT_BIG(*) > 1
        ORDER BY r.[key]
    ) AS k
    -- end
    -- when in_hand=on
    UNION ALL
    SELECT
        N'{queue}_in_hand',
        k.[key],
        k.found
    FROM (
        SELECT TOP (10)
            r.[key],
            COUNT_BIG(*) AS found
        FROM (
            SELECT TOP (1000000) CAST(h.id AS nvarchar(450)) AS [key]
            FROM [{schema}].[{queue}_in_hand] AS h WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{queue}_in_hand' COLLATE Latin1_General_100_BIN2)
        ) AS r
        GROUP BY r.[key]
        HAVING COUNT_BIG(*) > 1
        ORDER BY r.[key]
    ) AS k
    -- end
    -- when design=heap|broker
    SELECT
        N'' AS table_name,
        N'' AS [key],
        CAST(0 AS bigint) AS found
    WHERE 1 = 0
    -- end
) AS t
-- end
;

-- name: ghosts
-- a row for each table of the queue: how many rows are deleted and not cleared away yet, of which some are kept for old row versions
-- A ghost is cleared away by the server itself, unless a transaction may still read its version. Of a table of
-- 10,000 pages or more the server looks at one page in a hundred. An error without VIEW DATABASE STATE.
SELECT
    CAST(o.name AS nvarchar(128)) AS name,
    CAST(COALESCE(SUM(g.ghost_record_count + g.version_ghost_record_count), 0) AS bigint) AS dead_rows
FROM sys.objects AS o
CROSS APPLY sys.dm_db_index_physical_stats(DB_ID(), o.object_id, NULL, NULL, N'SAMPLED') AS g
WHERE o.object_id IN (OBJECT_ID(N'[{schema}].[{table}]'), OBJECT_ID(N'[{schema}].[{queue}_data]'))
AND g.alloc_unit_type_desc = N'IN_ROW_DATA' AND g.index_level = 0
GROUP BY o.name;

-- name: pops
-- one row: when something was popped last, where that leaves a trace; what would be popped next; how many were, and since when that is counted
-- Of installed queues. A trace: done rows and the last one that was archived, what archive_at_pop wrote, the times of a ring's free
-- slots (of those up to 100,000). What a complete deletes leaves none, so of claims there is no last pop. The
-- counters begin anew when the table leaves the metadata cache, and nobody tells when that was.
SET NOCOUNT ON;
DECLARE @popped bigint, @last_pop datetime2(7), @next nvarchar(450);
-- when design=naive|heap|fifo|stack|pending|claim|status|split
IF COALESCE(HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'VIEW DATABASE STATE'), 0) = 1
    OR COALESCE(HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'VIEW DATABASE PERFORMANCE STATE'), 0) = 1
    SELECT
        -- when design=naive|heap|fifo|stack|pending
        @popped = SUM(o.leaf_delete_count + o.leaf_ghost_count)
        -- end
        -- when design=claim|status|split
        @popped = SUM(o.leaf_update_count)
        -- end
    FROM sys.dm_db_index_operational_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{table}]'), NULL, NULL) AS o
    WHERE o.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND o.index_id IN (0, 1);
-- end
-- when design=status|split
SELECT @last_pop = MAX(l.popped_at)
FROM (
    SELECT MAX(m.claimed_at) AS popped_at FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE m.status = 1
    UNION ALL
    SELECT MAX(m.done_at) FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE m.status = 2
    UNION ALL
    SELECT MAX(m.done_at) FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE m.status = 4
    UNION ALL
    SELECT MAX(a.archived_at) FROM (
        SELECT TOP (1) e.archived_at FROM [{schema}].[{queue}_archive] AS e WITH (READPAST, READCOMMITTEDLOCK)
        ORDER BY e.archive_id DESC
    ) AS a
) AS l;
-- end
-- when design=ring
IF CAST(N'{size}' AS bigint) <= 100000
    SELECT @last_pop = MAX(r.time) FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.reference_count = 0;
-- end
-- when archive_at_pop=on
-- when design=naive|heap|fifo|stack|pending|broker
SELECT TOP (1) @last_pop = a.archived_at FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
ORDER BY a.archive_id DESC;
-- end
-- end
-- when design=naive|fifo
SELECT TOP (1) @next = CAST(m.[{id}] AS nvarchar(450))
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY m.[{id}];
-- end
-- when design=stack
SELECT TOP (1) @next = CAST(m.[{id}] AS nvarchar(450))
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY m.[{id}] DESC;
-- end
-- when design=pending
SELECT TOP (1) @next = CONVERT(nvarchar(30), m.[{due_at}], 126)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ORDER BY m.[{due_at}];
-- end
-- when design=claim
SELECT TOP (1) @next = CAST(m.[{id}] AS nvarchar(450))
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.[{claimed_at}] IS NULL
ORDER BY m.[{pushed_at}], m.[{id}];
-- end
-- when design=status|split
SELECT TOP (1) @next = CAST(m.[{id}] AS nvarchar(450))
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.[{status}] = 0
ORDER BY m.[{pushed_at}], m.[{id}];
-- end
-- when design=ring
SELECT @next = CAST(s.current_value AS nvarchar(450)) FROM sys.sequences AS s
WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]');
-- end
-- when design=broker
SELECT TOP (1) @next = CAST(m.queuing_order AS nvarchar(450)) FROM [{schema}].[{table}] AS m WITH (NOLOCK)
WHERE m.status = 1
ORDER BY m.priority, m.queuing_order;
-- end
SELECT
    CAST(DATEDIFF_BIG(microsecond, @last_pop, SYSUTCDATETIME()) / 1e6 AS float) AS popped_seconds,
    @next AS next,
    @popped AS popped,
    CAST(NULL AS float) AS counted_seconds;

-- name: popped
-- a row for each pop of the last day among the newest 10,000 rows of the archive, in the order in which they ran
-- The archive's own numbers are drawn as pops run.
-- when archive_at_pop=on
-- when design=naive|ring|fifo|pending
SELECT
    a.id AS id,
    a.pushed_at AS pushed_at,
    a.done_at AS popped_at,
    -- when design=pending
    a.due_at AS due_at
    -- end
    -- when design=naive|ring|fifo
    CAST(NULL AS datetime2(7)) AS due_at
    -- end
FROM (
    SELECT TOP (10000)
        n.archive_id,
        n.id,
        n.pushed_at,
        n.done_at,
        -- when design=pending
        n.due_at,
        -- end
        n.reason
    FROM [{schema}].[{queue}_archive] AS n WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ORDER BY n.archive_id DESC
) AS a
WHERE a.reason = N'pop' AND a.done_at >= DATEADD(day, -1, SYSUTCDATETIME())
ORDER BY a.archive_id
-- end
-- end
;

-- name: bottom
-- one row: the oldest message of a stack, and how many that came later went before it, among the ids of the newest 10,001
-- when design=stack
SELECT
    CAST(b.id AS nvarchar(20)) AS id,
    b.seconds AS seconds,
    newest.overtaking AS overtaking
FROM (
    SELECT TOP (1)
        m.id,
        CAST(DATEDIFF_BIG(microsecond, m.pushed_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
    FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ORDER BY m.id
) AS b
CROSS JOIN (
    -- NOLOCK: a message that is being popped has not gone before anybody yet.
    SELECT COALESCE(MAX(n.id) - MIN(n.id) + 1 - COUNT_BIG(*), 0) AS overtaking FROM (
        SELECT TOP (10001) m.id FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
        ORDER BY m.id DESC
    ) AS n
) AS newest
-- end
;

-- name: errors_lately
-- one row: of the newest 10,001 error rows of the last day, how many are of the last :recent seconds; how far back they go; the first of those
-- when finishes=yes
-- when role done_at
SET NOCOUNT ON;
DECLARE @recent float = :recent;
DECLARE @errors TABLE (id nvarchar(450) COLLATE DATABASE_DEFAULT NULL, error nvarchar(200) COLLATE DATABASE_DEFAULT NULL, seconds float NOT NULL);
INSERT INTO @errors (id, error, seconds)
SELECT TOP (10001)
    CAST(m.[{id}] AS nvarchar(450)) COLLATE DATABASE_DEFAULT,
    -- when role error
    LEFT(CAST(m.[{error}] AS nvarchar(max)), 200) COLLATE DATABASE_DEFAULT,
    -- end
    -- when no role error
    CAST(NULL AS nvarchar(200)),
    -- end
    CAST(DATEDIFF_BIG(microsecond, m.[{done_at}], SYSUTCDATETIME()) / 1e6 AS float)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.[{done_at}] >= DATEADD(day, -1, SYSUTCDATETIME())
-- when design=claim
-- when role error
AND m.[{error}] IS NOT NULL
-- end
-- end
-- when design=status|split
AND m.[{status}] = 4
-- end
ORDER BY m.[{done_at}] DESC;
SELECT
    COUNT_BIG(CASE WHEN e.seconds < @recent THEN 1 END) AS recent,
    COUNT_BIG(*) AS day,
    MAX(e.seconds) AS span_seconds,
    (SELECT TOP (1) f.id FROM @errors AS f WHERE f.seconds < @recent ORDER BY f.seconds DESC) AS first_id,
    (SELECT TOP (1) f.error FROM @errors AS f WHERE f.seconds < @recent ORDER BY f.seconds DESC) AS first_error,
    MAX(CASE WHEN e.seconds < @recent THEN e.seconds END) AS first_seconds
FROM @errors AS e
-- end
-- end
;

-- name: done_lag
-- one row: how many done rows are older than a day, of at most 10,001, and since when the oldest is done
-- when design=status|split
SELECT
    COUNT_BIG(*) AS found,
    MAX(d.seconds) AS oldest_seconds
FROM (
    SELECT TOP (10001)
        CAST(DATEDIFF_BIG(microsecond, m.done_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE m.status = 2 AND m.done_at < DATEADD(day, -1, SYSUTCDATETIME())
    ORDER BY m.done_at
) AS d
-- end
;

-- name: conversations
-- a row for each state in which the broker queue's conversations are, of either side: how many there are, of at most 10,001
-- CO, SO, SI, DI, DO, ER, CD: see sys.conversation_endpoints. One that both sides have ended (CD) is kept by the
-- engine for half an hour.
-- when design=broker
SELECT
    RTRIM(b.state) AS state,
    COUNT_BIG(*) AS found
FROM (
    SELECT TOP (10001) e.state
    FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
    WHERE s.service_queue_id IN (OBJECT_ID(N'[{schema}].[{table}]'), OBJECT_ID(N'[{schema}].[{table}_initiator]'))
) AS b
GROUP BY b.state
ORDER BY b.state
-- end
;

-- name: undelivered
-- one row: how many messages to and from the broker queue wait in sys.transmission_queue, of at most 10,001, since when, and why the oldest does
-- when design=broker
SELECT
    COUNT_BIG(*) AS found,
    CAST(DATEDIFF_BIG(millisecond, MIN(b.enqueue_time), SYSUTCDATETIME()) / 1e3 AS float) AS oldest_seconds,
    (
        SELECT TOP (1) t.transmission_status
        FROM sys.transmission_queue AS t WITH (NOLOCK)
        WHERE t.transmission_status <> N''
        AND (
            t.to_service_name IN (
                SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
            )
            OR t.from_service_name IN (
                SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
            )
        )
        ORDER BY t.enqueue_time
    ) AS status
FROM (
    SELECT TOP (10001) t.enqueue_time
    FROM sys.transmission_queue AS t WITH (NOLOCK)
    WHERE
        t.to_service_name IN (
            SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
        )
        OR t.from_service_name IN (
            SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
        )
    ORDER BY t.enqueue_time
) AS b
-- end
;

-- name: activation
-- one row: the procedure that the broker queue starts (null: none), whether it may, and what its monitor does
-- monitored: whether this login sees monitors at all (VIEW SERVER STATE). state: INACTIVE, NOTIFIED (it was
-- started, and has not received yet), RECEIVES_OCCURRING; null: there is no monitor.
-- when design=broker
SET NOCOUNT ON;
DECLARE @monitored bit = 0, @state nvarchar(32), @activated datetime;
IF COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE'), 0) = 1
    OR COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE'), 0) = 1
    SET @monitored = 1;
IF @monitored = 1
    SELECT
        @state = m.state,
        @activated = m.last_activated_time
    FROM sys.dm_broker_queue_monitors AS m
    WHERE m.database_id = DB_ID() AND m.queue_id = OBJECT_ID(N'[{schema}].[{table}]');
SELECT
    q.activation_procedure AS activated,
    q.is_activation_enabled AS enabled,
    @monitored AS monitored,
    @state AS state,
    CAST(DATEDIFF_BIG(millisecond, @activated, SYSDATETIME()) / 1e3 AS float) AS activated_seconds
FROM sys.service_queues AS q WHERE q.object_id = OBJECT_ID(N'[{schema}].[{table}]')
-- end
;
