-- Pausing a queue: its pop functions are replaced by ones that report it empty. Without a pause this costs callers nothing.
-- Who replaces a procedure may alter it; who writes into dbq.pause need not. So the procedure that replaced it has the digest of
-- the body that comes back, and of the record that body alone is used.

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
-- one row: how many other sessions have an open transaction that has changed the queue's table; null: this login may not see that
IF {sees_server_state} = 1
    SELECT COUNT(DISTINCT l.request_session_id) AS sessions
    FROM sys.dm_tran_locks AS l
    WHERE
        l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT' AND l.request_mode IN (N'IX', N'X')
        AND l.resource_associated_entity_id = OBJECT_ID(N'[{schema}].[{table}]') AND l.request_session_id <> @@SPID;
ELSE
    SELECT CAST(NULL AS int) AS sessions;

-- define: as_line
-- where the line AS begins, after name, parameters and EXECUTE AS
COALESCE(NULLIF(CHARINDEX(NCHAR(10) + N'AS' + NCHAR(10), d.definition), 0), NULLIF(CHARINDEX(NCHAR(10) + N'AS' + NCHAR(13) + NCHAR(10), d.definition), 0))

-- define: body
-- what follows the word AS
SUBSTRING(d.definition, {as_line} + 3, DATALENGTH(d.definition) / 2)

-- define: mark
-- in the procedure that replaced one with this body
CONCAT(N'/* paused by dbq-console */', NCHAR(10), N'/* before: ', CONVERT(nvarchar(64), HASHBYTES('SHA2_256', {body}), 2), N' */')

-- define: head
-- an ALTER of the procedure, up to the line AS
CONCAT(N'ALTER ', SUBSTRING(d.definition, CHARINDEX(N'PROCEDURE', d.definition), {as_line} - CHARINDEX(N'PROCEDURE', d.definition)))

-- name: exchange
-- script: a pop that returns nothing or a push that returns null for each message, with the same signature
-- ALTER keeps owner and rights. A call in progress ends as it began; ALTER waits only for sessions that are compiling the
-- procedure. Everything before the line AS stays: name, parameters, EXECUTE AS.
DECLARE @procedure int = OBJECT_ID(N'[{schema}].[{function}]', N'P');
DECLARE @head nvarchar(max), @mark nvarchar(max);
SELECT
    @head = {head},
    @mark = {mark}
FROM (VALUES (OBJECT_DEFINITION(@procedure))) AS d (definition)
WHERE {as_line} IS NOT NULL;
-- All designs have these. The server cannot describe a procedure that calls an extended one (11520), as order=strict does.
DECLARE @columns nvarchar(max) = N'CAST(NULL AS {id_type}) AS id';
IF N'{pushes}' = N'no'
    SET @columns += N', CAST(NULL AS {payload_type}) AS payload, CAST(NULL AS datetime2(7)) AS pushed_at, CAST(NULL AS int) AS attempts';
IF @head IS NULL
    THROW 51004, N'A procedure cannot be exchanged: it was changed, or this login may not see its text.||Nothing was changed. See: dbq-console upgrade --dry-run', 1;
DECLARE @rows nvarchar(max) = CASE
    WHEN N'{pushes}' = N'no' THEN N'SELECT TOP (0) ' + @columns
    WHEN CHARINDEX(N'@payloads', @head) > 0 THEN N'SELECT ' + @columns + N' FROM OPENJSON(@payloads)'
    ELSE N'SELECT ' + @columns
END;
DECLARE @line nvarchar(1) = NCHAR(10);
DECLARE @exchange nvarchar(max) = CONCAT(
    @head, @line, N'AS', @line, @mark, @line, N'BEGIN', @line,
    N'    SET NOCOUNT ON;', @line, N'    ', @rows, N';', @line, N'END;'
);
EXEC (@exchange);

-- name: restore_code
-- script: restores a procedure's body; nothing else of what was recorded is executed
DECLARE @body nvarchar(max), @mark nvarchar(max), @restore nvarchar(max);
SELECT
    @body = {body},
    @mark = {mark}
FROM dbq.pause AS p
CROSS APPLY OPENJSON(p.functions) WITH (name nvarchar(128), definition nvarchar(max)) AS d
WHERE p.schema_name = N'{schema}' AND p.queue_name = N'{queue}' AND d.name = N'{function}';
SELECT @restore = CONCAT({head}, NCHAR(10), N'AS', @body)
FROM (VALUES (OBJECT_DEFINITION(OBJECT_ID(N'[{schema}].[{function}]', N'P')))) AS d (definition)
WHERE CHARINDEX(@mark, d.definition) > 0;
IF @restore IS NULL
    THROW 51004, N'What dbq.pause has of a procedure is not what was there before the pause.||Nothing was changed. Install this version of it: dbq-console upgrade', 1;
EXEC (@restore);

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
-- the definition to restore for each replaced function, and whether it is still what was there; none if the queue is not paused
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
SELECT
    COALESCE(d.name, N'?') AS name,
    d.id AS id,
    d.definition AS definition,
    d.signature AS signature,
    d.settings AS settings,
    d.body AS body,
    p.push AS push,
    CAST(CASE
        WHEN CHARINDEX({mark}, OBJECT_DEFINITION(OBJECT_ID(CONCAT(QUOTENAME(p.schema_name), N'.', QUOTENAME(d.name)), N'P'))) > 0 THEN 1
        ELSE 0
    END AS bit) AS intact
FROM dbq.pause AS p
CROSS APPLY OPENJSON(p.functions) WITH (
    name nvarchar(128),
    id nvarchar(400),
    definition nvarchar(max),
    signature nvarchar(max),
    settings nvarchar(max),
    body nvarchar(max)
) AS d
WHERE p.schema_name = @schema AND p.queue_name = @queue
ORDER BY d.name, d.id;

-- name: end
-- one row: since when the queue had been paused, which ends now
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DELETE p
OUTPUT TODATETIMEOFFSET(deleted.paused_at, 0) AS since
FROM dbq.pause AS p
WHERE p.schema_name = @schema AND p.queue_name = @queue;
