-- What all presets have; for the head of a preset and its definitions see postgresql/preset.sql. Here `find` compares names exactly, whatever the database's collation.

-- define: in_part
-- restricts the table to one of the library's queues
-- when defined part
{part} -- when part=one
1 = 1 -- when part=all
-- end

-- define: state
CASE
    WHEN {is_ready} THEN N'ready'
    WHEN {is_scheduled} THEN N'scheduled' -- when defined is_scheduled
    WHEN {is_claimed} THEN N'claimed' -- when defined is_claimed
    WHEN {is_error} THEN N'error' -- when defined is_error
    WHEN {is_done} THEN N'done' -- when defined is_done
    ELSE CAST(m.[{status}] AS nvarchar(450))
END

-- define: oldest_first
m.[{id}] -- when defined pushed_at

-- define: is_overdue
-- due, and not taken: it was to run later than it was pushed, or its library should have made it ready
(
    1 = 0
    OR ({is_ready} AND {overdue_since} > DATEADD(second, 1, {pushed_at})) -- when defined pushed_at
    OR ({is_scheduled} AND {overdue_since} <= SYSUTCDATETIME()) -- when defined is_scheduled
)

-- define: joined_table
(
    SELECT b.name FROM sys.tables AS b
    WHERE b.schema_id = t.schema_id AND b.name = @beside COLLATE Latin1_General_100_BIN2
)

-- define: found_queue
CAST(NULL AS nvarchar(128))

-- name: recognised
-- a row for each table with the name and the columns of a preset, by one pass over the columns of all tables
-- Candidates are found by one of the preset's rarer columns; only theirs are compared in full.
DECLARE @presets nvarchar(max) = :presets;
SELECT
    p.name AS name,
    s.name AS [schema],
    t.name AS [table]
FROM (
    SELECT
        o.name,
        o.[schema],
        REPLACE(REPLACE(o.[table], N'_', N'[_]'), N'*', N'%') AS pattern,
        o.columns,
        o.rarest_column
    FROM OPENJSON(@presets) WITH (
        name nvarchar(128),
        [schema] nvarchar(128),
        [table] nvarchar(128),
        columns nvarchar(max) AS JSON,
        rarest_column nvarchar(128)
    ) AS o
) AS p
INNER JOIN sys.columns AS c ON p.rarest_column = c.name COLLATE Latin1_General_100_BIN2
INNER JOIN sys.tables AS t ON c.object_id = t.object_id AND t.name COLLATE Latin1_General_100_BIN2 LIKE p.pattern
INNER JOIN sys.schemas AS s ON t.schema_id = s.schema_id
WHERE (p.[schema] IS NULL OR s.name = p.[schema] COLLATE Latin1_General_100_BIN2)
AND NOT EXISTS (
    SELECT 1 AS one FROM OPENJSON(p.columns) AS w
    WHERE NOT EXISTS (
        SELECT 1 AS one FROM sys.columns AS b
        WHERE b.object_id = t.object_id AND b.name = w.[value] COLLATE Latin1_General_100_BIN2
    )
)
ORDER BY p.name, s.name, t.name;

-- name: find
-- the library's tables that this login may read, each with its payload table, and its queue if it has only one
DECLARE @schema nvarchar(128) = :schema;
DECLARE @table nvarchar(128) = :table;
DECLARE @columns nvarchar(max) = :columns;
DECLARE @beside nvarchar(128) = :beside;
SELECT
    f.[schema],
    f.[table],
    f.beside,
    f.queue
FROM (
    SELECT
        s.name AS [schema],
        t.name AS [table],
        {joined_table} AS beside,
        {found_queue} AS queue
    FROM sys.tables AS t
    INNER JOIN sys.schemas AS s ON t.schema_id = s.schema_id
    WHERE (@schema IS NULL OR s.name = @schema COLLATE Latin1_General_100_BIN2)
    AND t.name LIKE REPLACE(REPLACE(@table, N'_', N'[_]'), N'*', N'%') COLLATE Latin1_General_100_BIN2
    AND HAS_PERMS_BY_NAME(CONCAT(QUOTENAME(s.name), N'.', QUOTENAME(t.name)), N'OBJECT', N'SELECT') = 1
    AND NOT EXISTS (
        SELECT 1 AS one FROM OPENJSON(@columns) AS w
        WHERE NOT EXISTS (
            SELECT 1 AS one FROM sys.columns AS c
            WHERE c.object_id = t.object_id AND c.name = w.[value] COLLATE Latin1_General_100_BIN2
        )
    )
) AS f
WHERE @beside IS NULL OR f.beside IS NOT NULL
ORDER BY f.[schema], f.[table];

-- name: stager
-- one row: who makes due jobs ready now, by the library's own table; null: nobody
SELECT CAST({stager} AS nvarchar(max)) AS stager;

-- name: version
-- one row: the installed version, as the library records it; null: it does not
SELECT
    {installed_version} AS version; -- when defined installed_version
    CAST(NULL AS nvarchar(128)) AS version; -- when not defined installed_version
