-- claim: Pintér's queue with an atomic test-and-set, on SQL Server, as in his second article.
--
-- A pop marks the oldest unclaimed row and returns it, in one statement; the row stays until complete
-- deletes it or fail writes why. A consumer that dies leaves its claim behind: that is what "stuck"
-- means here. The caller may pass his own id and times, as Pintér does: one time for a whole run.
--
-- UPDLOCK and READPAST are his; they also hold with READ_COMMITTED_SNAPSHOT on. The index is named in the
-- pop: a plan that was made while the table was empty would scan it, and lock what it meets, later.
-- Ids that the caller does not give are sequential: random ones split the pages of the clustered key.
-- For page locks, escalation, statistics and ghosts see fifo.sql.

-- name: tables
-- script: the queue's table and one filtered index for each state
-- What filtered indexes ask for, when they are made and at every write; clients have all of it on anyway.
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
GO
CREATE TABLE [{schema}].[{queue}] (
    id uniqueidentifier NOT NULL DEFAULT NEWSEQUENTIALID(),
    created_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    processing_started_at datetime2(7) NULL,
    errors nvarchar(max) NULL,
    -- when payload=text|json
    payload nvarchar(max) NOT NULL,
    -- end
    -- when payload=bytes
    payload varbinary(max) NOT NULL,
    -- end
    attempts int NOT NULL DEFAULT 0,
    claimed_by nvarchar(256) NULL,
    done_at datetime2(7) NULL,
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- Ready, in the order of the pop. What is IS NULL has to be included, or each row is looked up to prove it.
CREATE INDEX [{queue}_ready] ON [{schema}].[{queue}] (created_at, id)
INCLUDE (processing_started_at) WHERE processing_started_at IS NULL
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
-- Claimed, and in error (done_at is set with errors): few rows, counted without a look at the others.
CREATE INDEX [{queue}_claimed] ON [{schema}].[{queue}] (processing_started_at)
INCLUDE (done_at) WHERE processing_started_at IS NOT NULL AND done_at IS NULL
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_error] ON [{schema}].[{queue}] (done_at)
WHERE done_at IS NOT NULL WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many, complete, fail
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
    @id uniqueidentifier = NULL,
    @created_at datetime2(7) = NULL
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
    IF @id IS NULL
    BEGIN
        INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (created_at, payload)
        OUTPUT inserted.id VALUES (COALESCE(@created_at, SYSUTCDATETIME()), @payload);
    END
    ELSE
    BEGIN
        INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (id, created_at, payload)
        OUTPUT inserted.id VALUES (@id, COALESCE(@created_at, SYSUTCDATETIME()), @payload);
    END;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max),
    @ids nvarchar(max) = NULL,
    @created_at datetime2(7) = NULL
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
    IF ISJSON(@payloads) = 0 OR ISJSON(@ids) = 0
    BEGIN
        THROW 51002, N'The payloads or their ids are not a JSON array.||Send an array of strings, one for each payload.', 1;
    END;
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    DECLARE @rows TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL DEFAULT NEWSEQUENTIALID(),
        -- when payload=text|json
        payload nvarchar(max) NULL
        -- end
        -- when payload=bytes
        payload varbinary(max) NULL
        -- end
    );
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
    UPDATE r SET id = CAST(j.value AS uniqueidentifier)
    FROM @rows AS r INNER JOIN OPENJSON(@ids) AS j ON r.position = CAST(j.[key] AS int)
    WHERE j.value IS NOT NULL;
    -- A batch given no time takes its order from times a microsecond apart.
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (id, created_at, payload)
    SELECT r.id, COALESCE(@created_at, DATEADD(microsecond, r.position, @now)), r.payload FROM @rows AS r;
    SELECT r.id FROM @rows AS r ORDER BY r.position;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @consumer nvarchar(128) = NULL,
    @bound bit = 0,
    @started_at datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    -- Who claims: this session, by its number and its login time, which the server keeps in local time.
    DECLARE @isolation smallint, @session nvarchar(256) = CONCAT(N'session=', @@SPID);
    SELECT
        @isolation = s.transaction_isolation_level,
        @session = CONCAT(@session, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
            minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
        ) AS datetime2(3)), 126), N'Z')
    FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
    IF @isolation IN (4, 5)
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    SET @session = CONCAT(@session, CASE WHEN @bound = 1 THEN N' bound' END, N' consumer=' + @consumer);
    WITH head AS (
        SELECT TOP (1) m.id, m.payload, m.created_at, m.processing_started_at, m.claimed_by, m.attempts
        FROM [{schema}].[{queue}] AS m
            WITH (INDEX ([{queue}_ready]), ROWLOCK, READPAST, UPDLOCK, READCOMMITTEDLOCK)
        WHERE m.processing_started_at IS NULL
        ORDER BY m.created_at, m.id
    )
    UPDATE head
    SET
        processing_started_at = COALESCE(@started_at, SYSUTCDATETIME()), claimed_by = @session,
        attempts = head.attempts + 1
    OUTPUT inserted.id, inserted.payload, inserted.created_at AS pushed_at, inserted.attempts;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int,
    @consumer nvarchar(128) = NULL,
    @bound bit = 0,
    @started_at datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    -- Who claims: this session, by its number and its login time, which the server keeps in local time.
    DECLARE @isolation smallint, @session nvarchar(256) = CONCAT(N'session=', @@SPID);
    SELECT
        @isolation = s.transaction_isolation_level,
        @session = CONCAT(@session, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
            minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
        ) AS datetime2(3)), 126), N'Z')
    FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
    IF @isolation IN (4, 5)
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    SET @session = CONCAT(@session, CASE WHEN @bound = 1 THEN N' bound' END, N' consumer=' + @consumer);
    DECLARE @claimed TABLE (
        created_at datetime2(7) NOT NULL,
        id uniqueidentifier NOT NULL,
        -- when payload=text|json
        payload nvarchar(max) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(max) NOT NULL,
        -- end
        attempts int NOT NULL,
        PRIMARY KEY (created_at, id)
    );
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    WITH head AS (
        SELECT TOP (@n) m.id, m.payload, m.created_at, m.processing_started_at, m.claimed_by, m.attempts
        FROM [{schema}].[{queue}] AS m
            WITH (INDEX ([{queue}_ready]), ROWLOCK, READPAST, UPDLOCK, READCOMMITTEDLOCK)
        WHERE m.processing_started_at IS NULL
        ORDER BY m.created_at, m.id
    )
    UPDATE head
    SET
        processing_started_at = COALESCE(@started_at, SYSUTCDATETIME()), claimed_by = @session,
        attempts = head.attempts + 1
    OUTPUT inserted.created_at, inserted.id, inserted.payload, inserted.attempts
    INTO @claimed (created_at, id, payload, attempts);
    SELECT c.id, c.payload, c.created_at AS pushed_at, c.attempts
    FROM @claimed AS c ORDER BY c.created_at, c.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_complete]
    @id uniqueidentifier,
    @attempts int = NULL
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
    DELETE FROM [{schema}].[{queue}] WITH (ROWLOCK)
    WHERE id = @id AND processing_started_at IS NOT NULL AND errors IS NULL
    AND (@attempts IS NULL OR attempts = @attempts);
    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_fail]
    @id uniqueidentifier,
    @error nvarchar(max),
    @attempts int = NULL
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
    UPDATE [{schema}].[{queue}] WITH (ROWLOCK)
    SET errors = COALESCE(@error, N''), done_at = SYSUTCDATETIME()
    WHERE id = @id AND processing_started_at IS NOT NULL AND errors IS NULL
    AND (@attempts IS NULL OR attempts = @attempts);
    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_complete], [{schema}].[{queue}_fail];
DROP TABLE [{schema}].[{queue}];

-- name: status
-- one row: counts of at most 10,001 by state, the age of the oldest ready message, the table's counters
-- READPAST: what is so now, without waiting for anybody; see fifo.sql.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] IS NULL
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    -- when installed=yes
    -- By done_at, which is set with errors: it is what the indexes are filtered by.
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] IS NOT NULL AND m.[{done_at}] IS NULL
        ) AS bounded
    ) AS claimed,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
            AND m.[{claimed_at}] IS NOT NULL AND m.[{done_at}] IS NULL
        ) AS bounded
    ) AS stuck,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{errors_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{done_at}] IS NOT NULL
        ) AS bounded
    ) AS errors,
    -- end
    -- when installed=no
    -- when role error
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] IS NOT NULL AND m.[{error}] IS NULL
        ) AS bounded
    ) AS claimed,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
            AND m.[{error}] IS NULL
        ) AS bounded
    ) AS stuck,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{errors_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{error}] IS NOT NULL
        ) AS bounded
    ) AS errors,
    -- end
    -- when no role error
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] IS NOT NULL
        ) AS bounded
    ) AS claimed,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{claimed_at}] < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
        ) AS bounded
    ) AS stuck,
    CAST(NULL AS bigint) AS errors,
    -- end
    -- end
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) CAST(DATEDIFF_BIG(microsecond, head.[{pushed_at}], SYSUTCDATETIME()) / 1e6 AS float)
        FROM [{schema}].[{table}] AS head WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE head.[{claimed_at}] IS NULL ORDER BY head.[{pushed_at}]
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
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND p.index_id IN (0, 1)
) AS estimated
CROSS JOIN (
    SELECT
        SUM(o.leaf_insert_count) AS inserted,
        SUM(o.leaf_update_count) AS updated,
        -- A delete makes a ghost, except where the row goes at once.
        SUM(o.leaf_delete_count + o.leaf_ghost_count) AS deleted
    FROM sys.dm_db_index_operational_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{table}]'), NULL, NULL) AS o
    -- Of an object that is not to be seen the function would tell all.
    WHERE o.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND o.index_id IN (0, 1)
) AS counted
-- end

-- name: claims
-- the oldest ten claims: since when, and whose
-- READPAST: one that is just being finished is none any more; see fifo.sql. A table that somebody else made
-- may have another collation than the others of the union.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    oldest.id AS id,
    CASE WHEN oldest.claimed_seconds < 0 THEN 0e0 ELSE oldest.claimed_seconds END AS claimed_seconds,
    oldest.claimed_by AS claimed_by,
    oldest.attempts AS attempts
FROM (
    SELECT TOP (10)
        CAST(m.[{id}] AS nvarchar(450)) COLLATE DATABASE_DEFAULT AS id,
        -- when role claimed_at
        CAST(DATEDIFF_BIG(microsecond, m.[{claimed_at}], SYSUTCDATETIME()) / 1e6 AS float) AS claimed_seconds,
        -- end
        -- when no role claimed_at
        CAST(NULL AS float) AS claimed_seconds,
        -- end
        -- when role claimed_by
        CAST(m.[{claimed_by}] AS nvarchar(450)) COLLATE DATABASE_DEFAULT AS claimed_by,
        -- end
        -- when no role claimed_by
        CAST(NULL AS nvarchar(450)) AS claimed_by,
        -- end
        -- when role attempts
        CAST(m.[{attempts}] AS int) AS attempts
        -- end
        -- when no role attempts
        CAST(NULL AS int) AS attempts
        -- end
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE m.[{claimed_at}] IS NOT NULL
    -- when installed=yes
    AND m.[{done_at}] IS NULL
    -- end
    -- when installed=no
    -- when role error
    AND m.[{error}] IS NULL
    -- end
    -- end
    -- when role claimed_at
    ORDER BY m.[{claimed_at}]
    -- end
) AS oldest

-- name: estimate
-- one row: about how many rows there are of each state; nothing to a login that does not see the row counts
-- Installed: the engine counts the rows of each index (see fifo.sql), and each state has one. Adopted: of all
-- rows, the share that a state has in some pages; see pending.sql.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when counters=yes
-- when installed=yes
    CAST(estimated.ready AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(estimated.claimed AS float) AS claimed,
    CAST(estimated.errors AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    SELECT
        SUM(CASE WHEN i.name = N'{queue}_ready' THEN p.row_count END) AS ready,
        SUM(CASE WHEN i.name = N'{queue}_claimed' THEN p.row_count END) AS claimed,
        SUM(CASE WHEN i.name = N'{queue}_error' THEN p.row_count END) AS errors
    FROM sys.indexes AS i
    INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id AND i.index_id = p.index_id
    WHERE i.object_id = OBJECT_ID(N'[{schema}].[{table}]')
) AS estimated
-- end
-- when installed=no
    estimated.number_of_rows * found.ready / found.looked_at AS ready,
    CAST(NULL AS float) AS scheduled,
    estimated.number_of_rows * found.claimed / found.looked_at AS claimed,
    estimated.number_of_rows * found.errors / found.looked_at AS errors,
    CAST(NULL AS float) AS done
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.dm_db_partition_stats AS p
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND p.index_id IN (0, 1)
) AS estimated
CROSS JOIN (
    SELECT
        SUM(CASE WHEN m.[{claimed_at}] IS NULL THEN 1e0 ELSE 0e0 END) AS ready,
        -- when role error
        SUM(CASE WHEN m.[{claimed_at}] IS NOT NULL AND m.[{error}] IS NULL THEN 1e0 ELSE 0e0 END) AS claimed,
        SUM(CASE WHEN m.[{error}] IS NOT NULL THEN 1e0 ELSE 0e0 END) AS errors,
        -- end
        -- when no role error
        SUM(CASE WHEN m.[{claimed_at}] IS NOT NULL THEN 1e0 ELSE 0e0 END) AS claimed,
        CAST(NULL AS float) AS errors,
        -- end
        NULLIF(COUNT_BIG(*), 0) AS looked_at
    FROM [{schema}].[{table}] AS m TABLESAMPLE (5000 ROWS) WITH (NOLOCK)
) AS found
-- end
-- end
-- when counters=no
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: messages
-- the messages of one state, or all (walk), without order, each with its key, for `looked` of common.sql
-- READPAST: what is so now, without waiting for anybody; see fifo.sql.
SELECT
    -- when sorted=time_up|time_down|undated_up|undated_down
    m.[{since}] AS key_time,
    -- end
    m.[{id}] AS key_id,
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    CASE
        -- when installed=yes
        -- By done_at, which is set with errors: it is what the indexes are filtered by.
        WHEN m.[{done_at}] IS NOT NULL THEN N'error'
        -- end
        -- when installed=no
        -- when role error
        WHEN m.[{error}] IS NOT NULL THEN N'error'
        -- end
        -- end
        WHEN m.[{claimed_at}] IS NULL THEN N'ready'
        ELSE N'claimed'
    END AS state,
    -- when role pushed_at
    m.[{pushed_at}] AS pushed_at,
    -- end
    -- when role claimed_by
    m.[{claimed_by}] AS claimed_by,
    -- end
    -- when role attempts
    m.[{attempts}] AS attempts,
    -- end
    -- when role done_at
    m.[{done_at}] AS done_at,
    -- end
    -- when role error
    m.[{error}] AS error,
    -- end
    m.[{claimed_at}] AS claimed_at,
    m.[{payload}] AS payload
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
-- when walk=ready
WHERE m.[{claimed_at}] IS NULL
-- end
-- when walk=claimed
WHERE m.[{claimed_at}] IS NOT NULL
-- when installed=yes
AND m.[{done_at}] IS NULL
-- end
-- when installed=no
-- when role error
AND m.[{error}] IS NULL
-- end
-- end
-- end
-- when walk=error
-- when installed=yes
WHERE m.[{done_at}] IS NOT NULL
-- end
-- when installed=no
WHERE m.[{error}] IS NOT NULL
-- end
-- end
