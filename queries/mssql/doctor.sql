-- What the doctor reads of any queue, besides what monitoring reads: each statement reads a bounded number
-- of rows by an index and returns keys, never a payload. Statements about claims are for queues that keep
-- popped messages. Of a ring with in_hand the table is <queue>_in_hand.
-- Rows that open transactions hold are skipped (READPAST), not waited for: they are somebody's work. A check
-- for a row that should exist also reads locked ones (NOLOCK): a locked row exists.
-- ids: an array as JSON text, [{"id": "1"}, ...].

-- name: recovering
-- one row: whether this server is a replica: transactions and claims are on its primary
SELECT CAST(CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY' THEN 1 ELSE 0 END AS bit) AS recovering;

-- name: parameterization
-- one row: whether the database replaces the constants of all statements by parameters
-- By name: in Azure SQL Database DB_ID() is not the id of sys.databases.
SELECT CAST(COALESCE(d.is_parameterization_forced, 0) AS bit) AS forced FROM sys.databases AS d WHERE d.name = DB_NAME();

-- name: indexes
-- a row for each index of the given tables (:tables, a JSON array): what it is on, under what condition, and whether it can be used
-- columns: an array as JSON text, as ids. READUNCOMMITTED: never waits for somebody's DDL.
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

-- name: checks
-- a row for each CHECK of the given tables that the server enforces, in the server's notation
-- READUNCOMMITTED: as in `indexes`.
SELECT
    t.name AS table_name,
    k.[definition] AS condition
FROM sys.check_constraints AS k WITH (READUNCOMMITTED)
INNER JOIN sys.tables AS t WITH (READUNCOMMITTED) ON k.parent_object_id = t.object_id
INNER JOIN sys.schemas AS s WITH (READUNCOMMITTED) ON t.schema_id = s.schema_id
WHERE k.is_disabled = 0 AND s.name = :schema COLLATE Latin1_General_100_BIN2
AND EXISTS (SELECT 1 FROM OPENJSON(:tables) AS given WHERE given.[value] = t.name COLLATE Latin1_General_100_BIN2);

-- name: sequences
-- a row for each whole-number column, of :tables and of the catalog, whose ids are drawn: where it is, its sequence (none: an identity column), its last possible id, and what this login may read
-- With :library the tables of a library, too: those whose names begin as the main table's, or that are joined to it by a
-- foreign key. A sequence is in the column's default; or the functions of the design draw from it.
DECLARE @schema nvarchar(max) = :schema;
DECLARE @tables nvarchar(max) = :tables;
DECLARE @library bit = :library;
DECLARE @main int = OBJECT_ID(N'[{schema}].[{table}]');
DECLARE @prefix nvarchar(128) = LEFT(N'{table}', CHARINDEX(N'_', N'{table}' + N'_', PATINDEX(N'%[^_]%', N'{table}')));
WITH drawn AS (
    SELECT
        i.object_id,
        i.column_id,
        CAST(NULL AS int) AS sequence_id
    FROM sys.identity_columns AS i
    UNION ALL
    SELECT
        k.parent_object_id,
        k.parent_column_id,
        d.referenced_id
    FROM sys.default_constraints AS k
    INNER JOIN sys.sql_expression_dependencies AS d ON k.object_id = d.referencing_id
    -- when defined id_sequence
    -- when installed=yes
    UNION ALL
    SELECT
        b.object_id,
        b.column_id,
        OBJECT_ID({id_sequence})
    FROM sys.columns AS b
    WHERE b.object_id = @main AND b.name = N'{id}'
    -- end
    -- end
)

SELECT
    s.name AS relation_schema,
    t.name AS relation,
    c.name AS id_column,
    COALESCE(OBJECT_SCHEMA_NAME(q.object_id), N'') AS sequence_schema,
    COALESCE(q.name, N'') AS sequence,
    N'' AS sequence_owner,
    CASE WHEN most.of_type < most.of_sequence THEN most.of_type ELSE most.of_sequence END AS most,
    COALESCE(CAST(i.increment_value AS bigint), CAST(q.increment AS bigint)) AS increment,
    CAST(CASE WHEN EXISTS (
        SELECT 1 FROM sys.indexes AS x
        INNER JOIN sys.index_columns AS k ON x.object_id = k.object_id AND x.index_id = k.index_id
        WHERE x.object_id = c.object_id AND x.type IN (1, 2) AND x.is_disabled = 0 AND x.has_filter = 0
        AND k.key_ordinal = 1 AND k.column_id = c.column_id
    ) THEN 1 ELSE 0 END AS bit) AS indexed,
    CAST(1 AS bit) AS readable,
    CAST(COALESCE(HAS_PERMS_BY_NAME(QUOTENAME(s.name) + N'.' + QUOTENAME(t.name), N'OBJECT', N'SELECT'), 0) AS bit) AS shows_ids
FROM drawn AS d
INNER JOIN sys.tables AS t ON d.object_id = t.object_id
INNER JOIN sys.schemas AS s ON t.schema_id = s.schema_id
INNER JOIN sys.columns AS c ON d.object_id = c.object_id AND d.column_id = c.column_id
LEFT JOIN sys.identity_columns AS i ON d.sequence_id IS NULL AND d.object_id = i.object_id AND d.column_id = i.column_id
LEFT JOIN sys.sequences AS q ON d.sequence_id = q.object_id
CROSS APPLY (
    SELECT
        CASE c.system_type_id WHEN 52 THEN 32767 WHEN 56 THEN 2147483647 ELSE CAST(9223372036854775807 AS bigint) END AS of_type,
        COALESCE(CAST(q.maximum_value AS bigint), CAST(9223372036854775807 AS bigint)) AS of_sequence
) AS most
WHERE c.system_type_id IN (52, 56, 127) AND (i.object_id IS NOT NULL OR q.is_cycling = 0)
AND COALESCE(CAST(i.increment_value AS bigint), CAST(q.increment AS bigint)) > 0
AND (
    s.name = N'dbq'
    OR (
        s.name = @schema COLLATE Latin1_General_100_BIN2
        AND (
            EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = t.name COLLATE Latin1_General_100_BIN2)
            OR (
                @library = 1
                AND (
                    LEFT(t.name, LEN(@prefix)) = @prefix
                    OR EXISTS (
                        SELECT 1 FROM sys.foreign_keys AS f
                        WHERE t.object_id IN (f.parent_object_id, f.referenced_object_id)
                        AND @main IN (f.parent_object_id, f.referenced_object_id)
                    )
                )
            )
        )
    )
)
ORDER BY s.name, t.name, c.name;

-- name: sequence_state
-- one row: the last drawn id, whether any has been drawn, and the highest id beyond it, as far as :reach of them
-- The ids are read first, and only committed ones: one beyond what was last drawn after that was not drawn, whatever is in
-- flight. Without an index the ids of 10,000 rows are read; with full=yes all.
DECLARE @last bigint, @highest bigint;
-- when named=yes
SELECT @last = CAST(q.current_value AS bigint) FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'[{sequence_schema}].[{sequence}]');
-- else
SELECT @last = CAST(i.last_value AS bigint) FROM sys.identity_columns AS i
WHERE i.object_id = OBJECT_ID(N'[{relation_schema}].[{relation}]');
-- end
-- when ids=shown
SELECT @highest = MAX(CAST(m.id AS bigint))
FROM (
    SELECT r.[{id_column}] AS id FROM [{relation_schema}].[{relation}] AS r WITH (READCOMMITTEDLOCK) -- when indexed=yes
    -- when indexed=no
    SELECT
        TOP (10000) -- when full=no
        r.[{id_column}] AS id
    FROM [{relation_schema}].[{relation}] AS r WITH (READCOMMITTEDLOCK)
    -- end
) AS m
WHERE m.id <= COALESCE(@last, 0) + CAST('{reach}' AS bigint);
-- end
-- when named=yes
SELECT @last = CAST(q.current_value AS bigint) FROM sys.sequences AS q
WHERE q.object_id = OBJECT_ID(N'[{sequence_schema}].[{sequence}]');
-- else
SELECT @last = CAST(i.last_value AS bigint) FROM sys.identity_columns AS i
WHERE i.object_id = OBJECT_ID(N'[{relation_schema}].[{relation}]');
-- end
SELECT
    COALESCE(@last, CAST(0 AS bigint)) AS last_value,
    CAST(CASE WHEN @last IS NULL THEN 0 ELSE 1 END AS bit) AS is_called,
    CASE WHEN @highest > COALESCE(@last, 0) THEN @highest END AS highest;

-- name: duplicate_keys
-- a row for each duplicate key, of the first ten in each of :tables, whose key constraint is missing: among the table's first million rows
-- Run only in that case, without an index; the statement time-out ends it.
-- when installed=yes
DECLARE @tables nvarchar(max) = :tables;
SELECT
    CAST(t.table_name AS nvarchar(128)) AS table_name,
    CAST(t.[key] AS nvarchar(450)) AS [key],
    t.found AS found
FROM (
    SELECT
        r.table_name,
        r.[key],
        COUNT_BIG(*) AS found,
        ROW_NUMBER() OVER (PARTITION BY r.table_name ORDER BY r.[key]) AS position
    FROM (
        -- when defined key_text
        SELECT
            N'{table}' AS table_name,
            k.[key]
        FROM (
            SELECT TOP (1000000) {key_text} AS [key]
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{table}' COLLATE Latin1_General_100_BIN2)
        ) AS k
        -- else
        SELECT
            N'' AS table_name,
            N'' AS [key]
        WHERE 1 = 0
        -- end
        -- when defined beside
        UNION ALL
        SELECT
            N'{queue}_data',
            k.[key]
        FROM (
            SELECT TOP (1000000) CAST(d.id AS nvarchar(450)) AS [key]
            FROM {beside} AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{queue}_data' COLLATE Latin1_General_100_BIN2)
        ) AS k
        -- end
        -- each partition
        UNION ALL
        SELECT
            N'{queue}_content_{partition}',
            k.[key]
        FROM (
            SELECT TOP (1000000) CAST(c.content_id AS nvarchar(450)) AS [key]
            FROM [{schema}].[{queue}_content_{partition}] AS c WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{queue}_content_{partition}' COLLATE Latin1_General_100_BIN2)
        ) AS k
        -- end
        -- when in_hand=on
        UNION ALL
        SELECT
            N'{queue}_in_hand',
            k.[key]
        FROM (
            SELECT TOP (1000000) CAST(h.id AS nvarchar(450)) AS [key] -- when subscribed=no
            SELECT TOP (1000000) CONCAT(h.subscriber, N' ', h.id) AS [key] -- when subscribed=yes
            FROM [{schema}].[{queue}_in_hand] AS h WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE EXISTS (SELECT 1 FROM OPENJSON(@tables) AS given WHERE given.[value] = N'{queue}_in_hand' COLLATE Latin1_General_100_BIN2)
        ) AS k
        -- end
    ) AS r
    GROUP BY r.table_name, r.[key]
    HAVING COUNT_BIG(*) > 1
) AS t
WHERE t.position <= 10
ORDER BY t.table_name, t.[key]
-- end
;

-- name: ghosts
-- a row for each table of the queue: how many deleted rows are not cleared yet, and how many of them are kept for old row versions
-- The server clears a ghost by itself, unless a transaction may still read its version. Of a table of 10,000
-- pages or more the server samples one page in a hundred. An error without VIEW DATABASE STATE.
SELECT
    CAST(o.name AS nvarchar(128)) AS name,
    CAST(COALESCE(SUM(g.ghost_record_count + g.version_ghost_record_count), 0) AS bigint) AS dead_rows
FROM sys.objects AS o
CROSS APPLY sys.dm_db_index_physical_stats(DB_ID(), o.object_id, NULL, NULL, N'SAMPLED') AS g
WHERE o.object_id IN (OBJECT_ID(N'[{schema}].[{table}]'), OBJECT_ID(N'[{schema}].[{queue}_data]'))
AND g.alloc_unit_type_desc = N'IN_ROW_DATA' AND g.index_level = 0
GROUP BY o.name;

-- name: pops
-- one row: the server's clock; the last pop, where it leaves a trace; the message to be popped next; the number of pops, and since when they are counted
-- For installed queues. Traces: done rows and the last archived one, what archive_at_pop wrote, the times of a ring's free
-- slots (up to 100,000 slots). A row that complete deletes leaves none, so `claim` has no last pop. The counters
-- restart when the table leaves the metadata cache, and the server does not record when that was.
SET NOCOUNT ON;
DECLARE @popped bigint, @last_pop datetime2(7), @next nvarchar(450);
-- when defined popped
IF {sees_database_state} = 1
    SELECT @popped = {popped}
    {counters_of_table};
-- end
{last_pop}
{next_pop}
SELECT
    CAST(DATEDIFF_BIG(microsecond, '1970-01-01', SYSUTCDATETIME()) / 1e6 AS float) AS moment,
    CAST(DATEDIFF_BIG(microsecond, @last_pop, SYSUTCDATETIME()) / 1e6 AS float) AS popped_seconds,
    @next AS next,
    @popped AS popped,
    CAST(NULL AS float) AS counted_seconds;

-- name: popped
-- a row for each pop of the last day among the newest 10,000 archived rows, in the order in which they ran
-- The archive's own numbers are drawn as pops run.
-- when archive_at_pop=on
-- when defined due_when_popped
SELECT
    a.id AS id,
    a.pushed_at AS pushed_at,
    a.done_at AS popped_at,
    {due_when_popped} AS due_at
FROM (
    SELECT TOP (10000)
        n.archive_id,
        n.id,
        n.pushed_at,
        n.done_at,
        n.due_at, -- when role due_at
        n.reason
    FROM [{schema}].[{queue}_archive] AS n WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ORDER BY n.archive_id DESC
) AS a
WHERE a.reason = N'pop' AND a.done_at >= DATEADD(day, -1, SYSUTCDATETIME())
ORDER BY a.archive_id
-- end
-- end
;

-- name: recent_errors
-- one row: the errors of the last :recent seconds among the newest 10,001: how many, how far back, the first; and the same for the newest 10,001 of the day before
-- when finishes=yes
-- when role done_at
SET NOCOUNT ON;
DECLARE @recent float = :recent;
DECLARE @since datetime2(7) = DATEADD(millisecond, -1000 * @recent, SYSUTCDATETIME());
DECLARE @before bigint, @before_seconds float;
DECLARE @errors TABLE (id nvarchar(450) COLLATE DATABASE_DEFAULT NULL, error nvarchar(200) COLLATE DATABASE_DEFAULT NULL, seconds float NOT NULL);
INSERT INTO @errors (id, error, seconds)
SELECT TOP (10001)
    CAST(m.[{id}] AS nvarchar(450)) COLLATE DATABASE_DEFAULT,
    LEFT(CAST(m.[{error}] AS nvarchar(max)), 200) COLLATE DATABASE_DEFAULT, -- when role error
    CAST(NULL AS nvarchar(200)), -- when no role error
    CAST(DATEDIFF_BIG(microsecond, m.[{done_at}], SYSUTCDATETIME()) / 1e6 AS float)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.[{done_at}] > @since
AND {is_error} -- when defined is_error
ORDER BY m.[{done_at}] DESC;
SELECT
    @before = COUNT_BIG(*),
    @before_seconds = MAX(DATEDIFF_BIG(microsecond, b.failed_at, @since) / 1e6)
FROM (
    SELECT TOP (10001) m.[{done_at}] AS failed_at
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE m.[{done_at}] <= @since
    AND m.[{done_at}] > DATEADD(day, -1, SYSUTCDATETIME())
    AND {is_error} -- when defined is_error
    ORDER BY m.[{done_at}] DESC
) AS b;
SELECT
    COUNT_BIG(*) AS recent,
    MAX(e.seconds) AS recent_seconds,
    (SELECT TOP (1) f.id FROM @errors AS f ORDER BY f.seconds DESC) AS first_id,
    (SELECT TOP (1) f.error FROM @errors AS f ORDER BY f.seconds DESC) AS first_error,
    @before AS before,
    @before_seconds AS before_seconds
FROM @errors AS e
-- end
-- end
;
