-- How use has degraded a queue's tables and indexes, and the repairs.
--
-- LIMITED reads only the pages above the leaf level, and a heap's allocation pages. A Service Broker queue is an internal
-- table with indexes of its own: measured as that, and repaired by ALTER QUEUE.

-- name: tables
-- a row for each table or broker queue of the given names (a JSON array): its size, and how much its statistics have missed
-- fragmentation: in percent, of a heap; that of an index is with the index.
DECLARE @schema nvarchar(max) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT
    CAST(COALESCE(i.object_id, o.object_id) AS bigint) AS id,
    o.name AS name,
    COALESCE(p.pages, CAST(0 AS bigint)) AS pages,
    COALESCE(p.live_rows, CAST(0 AS bigint)) AS live_rows,
    CAST(0 AS bigint) AS dead_rows,
    COALESCE(st.changed_rows, CAST(0 AS bigint)) AS changed_rows,
    CAST(NULL AS float) AS vacuumed_seconds,
    CAST(DATEDIFF_BIG(second, st.analyzed, SYSDATETIME()) AS float) AS analyzed_seconds,
    CAST(h.avg_fragmentation_in_percent AS float) AS fragmentation
FROM sys.objects AS o
INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
INNER JOIN OPENJSON(@names) AS given ON o.name = given.[value] COLLATE Latin1_General_100_BIN2
LEFT JOIN sys.internal_tables AS i ON o.object_id = i.parent_id AND i.internal_type_desc = N'QUEUE_MESSAGES'
OUTER APPLY (
    SELECT
        SUM(d.used_page_count) AS pages,
        SUM(CASE WHEN d.index_id IN (0, 1) THEN d.row_count END) AS live_rows
    FROM sys.dm_db_partition_stats AS d WHERE d.object_id = COALESCE(i.object_id, o.object_id)
) AS p
OUTER APPLY (
    SELECT
        MAX(q.modification_counter) AS changed_rows,
        MIN(q.last_updated) AS analyzed
    FROM sys.stats AS g
    CROSS APPLY sys.dm_db_stats_properties(g.object_id, g.stats_id) AS q
    -- A queue's own statistics are frozen: those of a moment when it was empty would make bad plans.
    WHERE g.object_id = o.object_id AND o.type = N'U' AND g.no_recompute = 0
) AS st
OUTER APPLY (
    SELECT f.avg_fragmentation_in_percent
    -- 0 is the index of a heap only: for any other table the function rejects it (Microsoft's manual,
    -- "sys.dm_db_index_physical_stats", Arguments).
    FROM sys.indexes AS x
    CROSS APPLY sys.dm_db_index_physical_stats(DB_ID(), x.object_id, x.index_id, NULL, N'LIMITED') AS f
    WHERE x.object_id = COALESCE(i.object_id, o.object_id) AND x.index_id = 0 AND f.alloc_unit_type_desc = N'IN_ROW_DATA'
) AS h
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND o.type IN (N'U', N'SQ')
ORDER BY o.name;

-- name: indexes
-- a row for each index of the given tables (:tables, a JSON array of their ids): its size and its fragmentation in percent
DECLARE @tables nvarchar(max) = :tables;
SELECT
    CAST(x.index_id AS bigint) AS id,
    COALESCE(x.name, N'') AS name,
    COALESCE(parent.name, o.name) AS table_name,
    CAST(f.page_count AS bigint) AS pages,
    CAST(1 AS bit) AS valid,
    -- when installed=yes
    -- Page locks that an interrupted REORGANIZE left enabled: READPAST does not skip them.
    CASE WHEN o.type = N'U' THEN x.allow_page_locks ELSE CAST(0 AS bit) END AS leftover,
    -- end
    CAST(0 AS bit) AS leftover, -- when installed=no
    CAST(0 AS bit) AS being_built,
    COALESCE(g.no_recompute, CAST(0 AS bit)) AS frozen,
    CAST(NULL AS bigint) AS entries,
    CAST(NULL AS bigint) AS entry_bytes,
    CAST(f.avg_fragmentation_in_percent AS float) AS fragmentation
FROM OPENJSON(@tables) AS given
INNER JOIN sys.objects AS o ON o.object_id = CAST(given.[value] AS int)
LEFT JOIN sys.internal_tables AS i ON o.object_id = i.object_id
LEFT JOIN sys.objects AS parent ON i.parent_id = parent.object_id
INNER JOIN sys.indexes AS x ON o.object_id = x.object_id AND x.index_id > 0
LEFT JOIN sys.stats AS g ON x.object_id = g.object_id AND x.index_id = g.stats_id
CROSS APPLY sys.dm_db_index_physical_stats(DB_ID(), x.object_id, x.index_id, NULL, N'LIMITED') AS f
WHERE f.alloc_unit_type_desc = N'IN_ROW_DATA' AND f.index_level = 0
ORDER BY table_name, name;

-- name: enable_page_locks
-- script: enables the page locks that REORGANIZE requires and the queue's indexes do not have
ALTER INDEX [{index}] ON [{schema}].[{relation}] SET (ALLOW_PAGE_LOCKS = ON);

-- name: disable_page_locks
-- script: disables page locks again
ALTER INDEX [{index}] ON [{schema}].[{relation}] SET (ALLOW_PAGE_LOCKS = OFF);

-- name: reorganize
-- script: reorganizes the leaf pages of an index, a few at a time; callers continue
ALTER INDEX [{index}] ON [{schema}].[{relation}] REORGANIZE;

-- name: rebuild
-- script: builds a new index that replaces the old one; callers continue
-- Options not given stay as they are, except frozen statistics. At its end it locks the table for a moment: it
-- waits for that behind all others, and gives up rather than block them. MAXDOP = 1: in parallel, and with page
-- locks off, it may leave an index more fragmented than before (Microsoft's manual, "Guidelines for online
-- index operations", Performance considerations).
ALTER INDEX [{index}] ON [{schema}].[{relation}] REBUILD WITH (
    MAXDOP = 1,
    STATISTICS_NORECOMPUTE = ON, -- when frozen=yes
    ONLINE = ON (WAIT_AT_LOW_PRIORITY (MAX_DURATION = 1 MINUTES, ABORT_AFTER_WAIT = SELF))
);

-- name: rebuild_table
-- script: rebuilds a heap without empty pages and forwarded rows; callers continue
ALTER TABLE [{schema}].[{relation}] REBUILD WITH (
    ONLINE = ON (WAIT_AT_LOW_PRIORITY (MAX_DURATION = 1 MINUTES, ABORT_AFTER_WAIT = SELF))
);

-- name: rebuild_queue
-- script: rebuilds a broker queue's own indexes; callers wait
-- Always an offline operation (Microsoft's manual, "ALTER QUEUE").
ALTER QUEUE [{schema}].[{relation}] REBUILD;

-- name: reorganize_queue
-- script: reorganizes the leaf pages of a broker queue's own indexes
ALTER QUEUE [{schema}].[{relation}] REORGANIZE;

-- name: analyze
-- script: updates statistics
UPDATE STATISTICS [{schema}].[{relation}];

-- name: make_check
-- script: restores a missing CHECK for new rows; callers wait for a moment
ALTER TABLE [{schema}].[{relation}] WITH NOCHECK ADD CONSTRAINT [{constraint}]
CHECK (status BETWEEN 0 AND 4); -- when check=status
CHECK (only_row = 1); -- when check=only_row

-- name: validate_check
-- script: validates that CHECK for all rows, so that it is trusted; it fails if a row violates it
ALTER TABLE [{schema}].[{relation}] WITH CHECK CHECK CONSTRAINT [{constraint}];

-- name: lock_sequence
-- script: keeps writers out of a table and draws out of its sequence; an uncommitted row is waited for
DECLARE @held int;
SELECT TOP (1) @held = 1 FROM [{relation_schema}].[{relation}] AS m WITH (TABLOCKX, HOLDLOCK);
-- when named=yes
-- It changes nothing: a draw outside an INSERT does not hold the table's lock.
ALTER SEQUENCE [{sequence_schema}].[{sequence}] INCREMENT BY 1;
-- end

-- name: set_sequence
-- one row: the last drawn id of a sequence that was set behind :highest, or left where it was if it is beyond that
DECLARE @highest bigint = :highest;
DECLARE @last bigint;
-- when named=yes
DECLARE @alter nvarchar(max);
SELECT @last = CAST(q.current_value AS bigint) FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'[{sequence_schema}].[{sequence}]');
-- RESTART WITH takes a constant and nothing else.
SET @alter = CONCAT(N'ALTER SEQUENCE [{sequence_schema}].[{sequence}] RESTART WITH ', @highest + 1);
IF @last <= @highest EXEC (@alter);
-- else
SELECT @last = CAST(i.last_value AS bigint) FROM sys.identity_columns AS i
WHERE i.object_id = OBJECT_ID(N'[{relation_schema}].[{relation}]');
IF COALESCE(@last, 0) < @highest DBCC CHECKIDENT (N'[{relation_schema}].[{relation}]', RESEED, @highest) WITH NO_INFOMSGS;
-- end
SELECT CASE WHEN COALESCE(@last, 0) < @highest THEN @highest ELSE @last END AS last_value;
