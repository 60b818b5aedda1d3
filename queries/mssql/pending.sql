-- pending: Rusanu's pending queue on SQL Server: a message may be popped when it is due, never before.
--
-- Due times are UTC, so a change of clocks in any zone changes nothing (Rusanu's advice). The order is
-- that of the due times. Rows that other transactions hold are skipped.
-- For the hints, the locks, statistics and ghosts see fifo.sql.

-- name: tables
-- script: the queue's table
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE TABLE [{schema}].[{queue}] (
    due_time datetime2(7) NOT NULL,
    id bigint IDENTITY(1, 1) NOT NULL,
    -- when payload=text|json
    payload nvarchar(max) NOT NULL,
    -- end
    -- when payload=bytes
    payload varbinary(max) NOT NULL,
    -- end
    pushed_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (due_time, id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    -- when payload=text|json
    @payload nvarchar(max),
    -- end
    -- when payload=bytes
    @payload varbinary(max),
    -- end
    @due_time datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    IF @payload IS NULL
    BEGIN
        THROW 51002, N'The payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
    END;
    -- when limited=yes
    -- In bytes as they are stored: two for each UTF-16 unit of a text.
    IF DATALENGTH(@payload) > CAST(N'{max_bytes}' AS bigint)
    BEGIN
        THROW 51002, N'The payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
    END;
    -- end
    -- when payload=json
    -- As the one element of an array: ISJSON alone takes no scalars before SQL Server 2022.
    IF ISJSON(N'[' + @payload + N']') = 0
    BEGIN
        THROW 51002, N'The payload is not valid JSON.||Send one JSON value as the payload.', 1;
    END;
    IF (SELECT COUNT(*) FROM OPENJSON(N'[' + @payload + N']')) <> 1
    BEGIN
        THROW 51002, N'The payload is not one JSON value.||Send one JSON value as the payload.', 1;
    END;
    -- end
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (due_time, payload)
    OUTPUT inserted.id VALUES (COALESCE(@due_time, SYSUTCDATETIME()), @payload);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max),
    @due_time datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    IF ISJSON(@payloads) = 0
    BEGIN
        THROW 51002, N'The payloads are not a JSON array.||Send an array of strings, one for each payload.', 1;
    END;
    DECLARE @rows TABLE (
        position int NOT NULL PRIMARY KEY,
        -- when payload=text|json
        payload nvarchar(max) NULL
        -- end
        -- when payload=bytes
        payload varbinary(max) NULL
        -- end
    );
    DECLARE @pushed TABLE (id bigint NOT NULL PRIMARY KEY);
    INSERT INTO @rows (position, payload)
    -- when payload=text|json
    SELECT CAST(j.[key] AS int), j.value FROM OPENJSON(@payloads) AS j;
    -- end
    -- when payload=bytes
    -- Hexadecimal digits; what is none becomes NULL, which is refused below.
    SELECT CAST(j.[key] AS int), TRY_CONVERT(varbinary(max), j.value, 2) FROM OPENJSON(@payloads) AS j;
    -- end
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE r.payload IS NULL)
    BEGIN
        -- when payload=text|json
        THROW 51002, N'A payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
        -- when payload=bytes
        THROW 51002, N'A payload is NULL or not hexadecimal digits.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
    END;
    -- when limited=yes
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE DATALENGTH(r.payload) > CAST(N'{max_bytes}' AS bigint))
    BEGIN
        THROW 51002, N'A payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
    END;
    -- end
    -- when payload=json
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE ISJSON(N'[' + r.payload + N']') = 0)
    BEGIN
        THROW 51002, N'A payload is not valid JSON.||Send one JSON value as each payload.', 1;
    END;
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE (SELECT COUNT(*) FROM OPENJSON(N'[' + r.payload + N']')) <> 1)
    BEGIN
        THROW 51002, N'A payload is not one JSON value.||Send one JSON value as each payload.', 1;
    END;
    -- end
    -- Identity values are drawn in the order of the SELECT, so they sort as the payloads do.
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (due_time, payload)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT COALESCE(@due_time, SYSUTCDATETIME()), r.payload FROM @rows AS r ORDER BY r.position;
    SELECT p.id FROM @pushed AS p ORDER BY p.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    DECLARE @popped TABLE (
        due_time datetime2(7) NOT NULL,
        id bigint NOT NULL,
        -- when payload=text|json
        payload nvarchar(max) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(max) NOT NULL,
        -- end
        pushed_at datetime2(7) NOT NULL,
        PRIMARY KEY (due_time, id)
    );
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    -- when archive_at_pop=on
    BEGIN TRANSACTION;
    -- end
    WITH head AS (
        SELECT TOP (@n) m.due_time, m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE m.due_time <= @now
        ORDER BY m.due_time, m.id
    )
    DELETE FROM head
    OUTPUT deleted.due_time, deleted.id, deleted.payload, deleted.pushed_at
    INTO @popped (due_time, id, payload, pushed_at);
    -- when archive_at_pop=on
    -- Not OUTPUT's INTO, which has no order: the archive numbers its rows as they were popped.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, due_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, p.due_time, SYSUTCDATETIME(), N'done', 1, N'pop'
    FROM @popped AS p ORDER BY p.due_time, p.id;
    COMMIT TRANSACTION;
    -- end
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.due_time, p.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    -- when archive_at_pop=on
    EXEC [{schema}].[{queue}_pop_many] @n = 1;
    -- end
    -- when archive_at_pop=off
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    WITH head AS (
        SELECT TOP (1) m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE m.due_time <= @now
        ORDER BY m.due_time, m.id
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: push_many_due
-- a row for each payload in order: its id as text; all are due :due_in_seconds from now
DECLARE @payloads nvarchar(max) = :payloads;
DECLARE @seconds float = :due_in_seconds;
-- Whole seconds and the milliseconds beyond: DATEADD takes an int of one unit.
DECLARE @due_time datetime2(7) = DATEADD(
    millisecond, CAST((@seconds - FLOOR(@seconds)) * 1000 AS int),
    DATEADD(second, CAST(FLOOR(@seconds) AS int), SYSUTCDATETIME())
);
EXEC [{schema}].[{queue}_push_many] @payloads = @payloads, @due_time = @due_time
WITH RESULT SETS ((id nvarchar(36) NULL));

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];

-- name: status
-- one row: counts of at most 10,001, the age of the message that is due first, the table's counters
-- READPAST: what could be popped now, without waiting for anybody; see fifo.sql.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{due_at}] <= SYSUTCDATETIME()
        ) AS bounded
    ) AS ready,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{scheduled_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{due_at}] > SYSUTCDATETIME()
        ) AS bounded
    ) AS scheduled,
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) CAST(DATEDIFF_BIG(microsecond, head.[{pushed_at}], SYSUTCDATETIME()) / 1e6 AS float)
        FROM [{schema}].[{queue}] AS head WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE head.[{due_at}] <= SYSUTCDATETIME() ORDER BY head.[{due_at}]
    ) AS age_seconds,
    -- end
    -- when no role pushed_at
    CAST(NULL AS float) AS age_seconds,
    -- end
    -- when counters=yes
    estimated.number_of_rows AS rows_estimated,
    counted.inserted AS inserted,
    counted.updated AS updated,
    counted.deleted AS deleted,
    -- end
    -- when counters=no
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
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.dm_db_partition_stats AS p
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND p.index_id IN (0, 1)
) AS estimated
CROSS JOIN (
    SELECT
        SUM(o.leaf_insert_count) AS inserted,
        SUM(o.leaf_update_count) AS updated,
        -- A delete makes a ghost, except where the row goes at once.
        SUM(o.leaf_delete_count + o.leaf_ghost_count) AS deleted
    FROM sys.dm_db_index_operational_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{queue}]'), NULL, NULL) AS o
    -- Of an object that is not to be seen the function would tell all.
    WHERE o.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND o.index_id IN (0, 1)
) AS counted
-- end

-- name: estimate
-- one row: about how many rows there are of each state; nothing to a login that does not see the row counts
-- Of the rows that the engine has counted (see fifo.sql), the share that is due in some pages drawn from all
-- over the table: no index can be filtered by a time that goes on. NOLOCK: the count of rows is of what is
-- not committed too, and nobody waits for it.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when counters=yes
    estimated.number_of_rows * found.ready / found.looked_at AS ready,
    estimated.number_of_rows * found.scheduled / found.looked_at AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.dm_db_partition_stats AS p
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND p.index_id IN (0, 1)
) AS estimated
CROSS JOIN (
    SELECT
        SUM(CASE WHEN m.[{due_at}] <= SYSUTCDATETIME() THEN 1e0 ELSE 0e0 END) AS ready,
        SUM(CASE WHEN m.[{due_at}] > SYSUTCDATETIME() THEN 1e0 ELSE 0e0 END) AS scheduled,
        NULLIF(COUNT_BIG(*), 0) AS looked_at
    FROM [{schema}].[{queue}] AS m TABLESAMPLE (5000 ROWS) WITH (NOLOCK)
) AS found
-- end
-- when counters=no
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: messages
-- the messages that are due, or not yet (walk), without order, each with its key, for `looked` of common.sql
-- READPAST: what is so now, without waiting for anybody; see fifo.sql.
SELECT
    -- when installed=yes
    m.[{due_at}] AS key_time,
    -- end
    -- when installed=no
    -- Of whatever type: a key that was written out has to meet the same time again.
    CAST(m.[{due_at}] AS datetime2(7)) AS key_time,
    -- end
    -- when role id
    m.[{id}] AS key_id,
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    -- end
    -- when no role id
    -- Without an id there is no place to go on from: only the first page can be seen.
    N'' AS key_id,
    CAST(NULL AS nvarchar(450)) AS id,
    -- end
    -- when walk=ready
    N'ready' AS state,
    -- end
    -- when walk=scheduled
    N'scheduled' AS state,
    -- end
    -- when role pushed_at
    m.[{pushed_at}] AS pushed_at,
    -- end
    m.[{due_at}] AS due_at,
    m.[{payload}] AS payload
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
-- when walk=ready
WHERE m.[{due_at}] <= SYSUTCDATETIME()
-- end
-- when walk=scheduled
WHERE m.[{due_at}] > SYSUTCDATETIME()
-- end
