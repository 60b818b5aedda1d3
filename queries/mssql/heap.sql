-- heap: Rusanu's heap queue on SQL Server: no order, no index, any row that is not locked.
--
-- The id and the push time are ours and stand in no index. A pop scans from the heap's first page to the
-- first row that is free. A delete under row locks leaves its empty pages to the heap (only TABLOCK, or a
-- clustered index, gives them back), so after a deep queue every pop reads them all again, until
-- maintain's ALTER TABLE ... REBUILD, which keeps everybody out unless the edition can do it ONLINE.
--
-- ALTER INDEX cannot name a heap, so its page locks are not switched off here: ROWLOCK in every statement
-- keeps our own sessions from taking any, and READPAST would only stop at somebody else's. Whoever wants
-- them off, on SQL Server itself: EXEC sp_indexoption, on the table, with 'DisAllowPageLocks' and 'TRUE';
-- it is deprecated, yet the only way that Microsoft documents.
-- For the other hints and for escalation see fifo.sql.

-- name: tables
-- script: the queue's table
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE TABLE [{schema}].[{queue}] (
    id bigint IDENTITY(1, 1) NOT NULL,
    -- when payload=text|json
    payload nvarchar(max) NOT NULL,
    -- end
    -- when payload=bytes
    payload varbinary(max) NOT NULL,
    -- end
    pushed_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME()
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    -- when payload=text|json
    @payload nvarchar(max)
    -- end
    -- when payload=bytes
    @payload varbinary(max)
    -- end
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
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload) OUTPUT inserted.id VALUES (@payload);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
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
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT r.payload FROM @rows AS r ORDER BY r.position;
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
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    -- when archive_at_pop=on
    DECLARE @popped TABLE (
        id bigint NOT NULL,
        -- when payload=text|json
        payload nvarchar(max) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(max) NOT NULL,
        -- end
        pushed_at datetime2(7) NOT NULL
    );
    BEGIN TRANSACTION;
    -- end
    DELETE TOP (@n) FROM [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    -- when archive_at_pop=off
    OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
    -- when archive_at_pop=on
    OUTPUT deleted.id, deleted.payload, deleted.pushed_at INTO @popped (id, payload, pushed_at);
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, SYSUTCDATETIME(), N'done', 1, N'pop' FROM @popped AS p ORDER BY p.id;
    COMMIT TRANSACTION;
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.id;
    -- end
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
    DELETE TOP (1) FROM [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];

-- name: status
-- one row: counts of at most 10,001, the table's counters; the age is never known
-- READPAST: what could be popped now, without waiting for anybody; see fifo.sql.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one FROM [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    -- Without an order there is no oldest message to look at: only a scan could tell.
    CAST(NULL AS float) AS age_seconds,
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
-- See fifo.sql.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when counters=yes
    CAST(estimated.number_of_rows AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.dm_db_partition_stats AS p
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND p.index_id IN (0, 1)
) AS estimated
-- end
-- when counters=no
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: extent
-- one row of nulls: a heap has no places to go on from, so its list is what a scan meets first
SELECT
    CAST(NULL AS bigint) AS first,
    CAST(NULL AS bigint) AS last,
    CAST(NULL AS bigint) AS slots;

-- name: messages
-- the messages without order or key, for `looked` of common.sql
-- READPAST: what could be popped now, without waiting for anybody; see fifo.sql.
SELECT
    N'' AS key_id,
    -- when role id
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    -- end
    -- when no role id
    CAST(NULL AS nvarchar(450)) AS id,
    -- end
    N'ready' AS state,
    -- when role pushed_at
    m.[{pushed_at}] AS pushed_at,
    -- end
    m.[{payload}] AS payload
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
