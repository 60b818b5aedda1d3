-- Pausing a queue: its pop functions are replaced by ones that report it empty. Without a pause this costs callers nothing.

-- name: code
-- a row for each procedure of the given names (a JSON array): its definition, which resume restores
DECLARE @schema nvarchar(max) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT
    o.name AS name,
    N'' AS id,
    OBJECT_DEFINITION(o.object_id) AS definition,
    CAST(CASE WHEN OBJECT_DEFINITION(o.object_id) LIKE N'%/* paused by dbq-console */%' THEN 1 ELSE 0 END AS bit) AS exchanged
FROM sys.objects AS o
INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
INNER JOIN OPENJSON(@names) AS given ON o.name = given.[value] COLLATE Latin1_General_100_BIN2
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND o.type = N'P'
ORDER BY o.name;

-- name: calling
-- one row: how many other sessions have an open transaction that has changed the queue's table
SELECT COUNT(DISTINCT l.request_session_id) AS sessions
FROM sys.dm_tran_locks AS l
WHERE
    l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT' AND l.request_mode IN (N'IX', N'X')
    AND l.resource_associated_entity_id = OBJECT_ID(N'[{schema}].[{table}]') AND l.request_session_id <> @@SPID;

-- name: exchange
-- script: a pop that returns nothing or a push that returns null for each message, with the same signature
-- ALTER keeps owner and rights. A call in progress ends as it began; ALTER waits only for sessions that are compiling the
-- procedure. Everything before the line AS stays: name, parameters, EXECUTE AS.
DECLARE @procedure int = OBJECT_ID(N'[{schema}].[{function}]', N'P');
DECLARE @definition nvarchar(max) = REPLACE(OBJECT_DEFINITION(@procedure), NCHAR(13), N'');
DECLARE @as int = CHARINDEX(NCHAR(10) + N'AS' + NCHAR(10), @definition);
DECLARE @columns nvarchar(max) = STUFF((
    SELECT CONCAT(N', CAST(NULL AS ', r.system_type_name, N') AS ', QUOTENAME(r.name)) AS [text()]
    FROM sys.dm_exec_describe_first_result_set_for_object(@procedure, 0) AS r
    WHERE r.is_hidden = 0 AND r.name IS NOT NULL
    ORDER BY r.column_ordinal
    FOR XML PATH('')
), 1, 2, N'');
IF @as IS NULL OR @as = 0 OR @columns IS NULL
    THROW 51007, N'A procedure cannot be exchanged: it was changed, or this login may not see its text.||Nothing was changed. See: dbq-console upgrade --dry-run', 1;
DECLARE @rows nvarchar(max) = CASE
    WHEN N'{pushes}' = N'no' THEN N'SELECT TOP (0) ' + @columns
    WHEN CHARINDEX(N'@payloads', LEFT(@definition, @as)) > 0 THEN N'SELECT ' + @columns + N' FROM OPENJSON(@payloads)'
    ELSE N'SELECT ' + @columns
END;
DECLARE @line nvarchar(1) = NCHAR(10);
DECLARE @exchange nvarchar(max) = CONCAT(
    N'ALTER ', SUBSTRING(@definition, CHARINDEX(N'PROCEDURE', @definition), @as - CHARINDEX(N'PROCEDURE', @definition)),
    @line, N'AS', @line, N'/* paused by dbq-console */', @line, N'BEGIN', @line,
    N'    SET NOCOUNT ON;', @line, N'    ', @rows, N';', @line, N'END;'
);
EXEC (@exchange);

-- name: restore_code
-- script: restores a procedure
DECLARE @definition nvarchar(max) = (
    SELECT f.definition
    FROM dbq.pause AS p
    CROSS APPLY OPENJSON(p.functions) WITH (name nvarchar(128), definition nvarchar(max)) AS f
    WHERE p.schema_name = N'{schema}' AND p.queue_name = N'{queue}' AND f.name = N'{function}'
);
SET @definition = CONCAT(N'ALTER ', SUBSTRING(@definition, CHARINDEX(N'PROCEDURE', @definition), LEN(@definition) + 1));
EXEC (@definition);

-- name: store_definitions
-- one row: since when the queue is paused; `functions`: the definitions that resume restores (a JSON array)
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @reason nvarchar(max) = :reason;
DECLARE @seconds float = :seconds;
DECLARE @push bit = :push;
DECLARE @functions nvarchar(max) = :functions;
INSERT INTO dbq.pause (schema_name, queue_name, operator, reason, until, push, functions)
OUTPUT TODATETIMEOFFSET(inserted.paused_at, 0) AS since
VALUES (@schema, @queue, @operator, @reason, DATEADD(second, @seconds, SYSUTCDATETIME()), @push, @functions);

-- name: renew
-- one row: since when it is paused; resume restores what an upgrade has installed
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @functions nvarchar(max) = :functions;
UPDATE p
SET p.functions = @functions
OUTPUT TODATETIMEOFFSET(inserted.paused_at, 0) AS since
FROM dbq.pause AS p
WHERE p.schema_name = @schema AND p.queue_name = @queue;

-- name: stored_definitions
-- the definition to restore for each replaced function; none if the queue is not paused
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
SELECT
    f.name AS name,
    f.id AS id,
    f.definition AS definition,
    f.signature AS signature,
    f.settings AS settings,
    f.body AS body,
    p.push AS push
FROM dbq.pause AS p
CROSS APPLY OPENJSON(p.functions) WITH (
    name nvarchar(128),
    id nvarchar(400),
    definition nvarchar(max),
    signature nvarchar(max),
    settings nvarchar(max),
    body nvarchar(max)
) AS f
WHERE p.schema_name = @schema AND p.queue_name = @queue
ORDER BY f.name, f.id;

-- name: end
-- one row: since when the queue had been paused, which ends now
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DELETE p
OUTPUT TODATETIMEOFFSET(deleted.paused_at, 0) AS since
FROM dbq.pause AS p
WHERE p.schema_name = @schema AND p.queue_name = @queue;
