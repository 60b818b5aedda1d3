-- status: Zabir's "QueueSlow" on SQL Server: one wide table, a status, batches that lock before they update.
--
-- Consumers wait for each other (UPDLOCK, HOLDLOCK): one batch is chosen at a time. The range lock reaches
-- from the head to the end of the batch, and to the end of the index where the batch is not full: a push
-- into it waits for the pop's transaction, and a pop waits for a push that is not committed. The status
-- says everything: 0 PENDING, 1 PROCESSING, 2 PROCESSED, 3 ARCHIVED (Zabir), 4 ERROR (ours).
-- QueueDateTime is the time by which messages are ordered; the caller may give another than now.
-- Done rows stay until they are archived.
--
-- The index is named in the pop, see claim.sql: any other would lock the ranges of all states.
-- For page locks, escalation, statistics and ghosts see fifo.sql.

-- name: tables
-- script: the queue's table and one filtered index for each state
-- What filtered indexes ask for, when they are made and at every write; clients have all of it on anyway.
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
GO
CREATE TABLE [{schema}].[{queue}] (
    id bigint IDENTITY(1, 1) NOT NULL,
    queue_date_time datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    title nvarchar(255) NOT NULL DEFAULT N'',
    status int NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 4),
    -- when payload=text|json
    text_data nvarchar(max) NOT NULL,
    -- end
    -- when payload=bytes
    text_data varbinary(max) NOT NULL,
    -- end
    attempts int NOT NULL DEFAULT 0,
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(256) NULL,
    errors nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- Ready, in the order of the pop: Zabir's (QueueDateTime, Status), kept small by the rows that count.
CREATE INDEX [{queue}_ready] ON [{schema}].[{queue}] (queue_date_time, id)
INCLUDE (status) WHERE status = 0 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
-- One for each other state, so that monitoring and archiving never look at the rest.
CREATE INDEX [{queue}_claimed] ON [{schema}].[{queue}] (claimed_at)
INCLUDE (status) WHERE status = 1 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_done] ON [{schema}].[{queue}] (done_at)
INCLUDE (status) WHERE status = 2 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_error] ON [{schema}].[{queue}] (done_at)
INCLUDE (status) WHERE status = 4 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

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
    @title nvarchar(max) = N'',
    @queue_date_time datetime2(7) = NULL
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
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (queue_date_time, title, text_data)
    OUTPUT inserted.id VALUES (COALESCE(@queue_date_time, SYSUTCDATETIME()), COALESCE(@title, N''), @payload);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max),
    @title nvarchar(max) = N'',
    @queue_date_time datetime2(7) = NULL
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
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (queue_date_time, title, text_data)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT COALESCE(@queue_date_time, SYSUTCDATETIME()), COALESCE(@title, N''), r.payload
    FROM @rows AS r ORDER BY r.position;
    SELECT p.id FROM @pushed AS p ORDER BY p.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int,
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
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
    DECLARE @batch TABLE (id bigint NOT NULL PRIMARY KEY);
    DECLARE @claimed TABLE (
        queue_date_time datetime2(7) NOT NULL,
        id bigint NOT NULL,
        -- when payload=text|json
        payload nvarchar(max) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(max) NOT NULL,
        -- end
        attempts int NOT NULL,
        PRIMARY KEY (queue_date_time, id)
    );
    DECLARE @chosen int;
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    -- Zabir's steps: choose and lock, update what is still pending, compare the counts.
    BEGIN TRANSACTION;
    INSERT INTO @batch (id)
    SELECT TOP (@n) m.id
    FROM [{schema}].[{queue}] AS m WITH (INDEX ([{queue}_ready]), ROWLOCK, UPDLOCK, HOLDLOCK)
    WHERE m.status = 0
    ORDER BY m.queue_date_time, m.id;
    SET @chosen = @@ROWCOUNT;
    UPDATE [{schema}].[{queue}]
    SET
        status = 1, claimed_at = SYSUTCDATETIME(), claimed_by = @session,
        attempts = [{queue}].attempts + 1
    OUTPUT inserted.queue_date_time, inserted.id, inserted.text_data, inserted.attempts
    INTO @claimed (queue_date_time, id, payload, attempts)
    FROM @batch AS b INNER JOIN [{schema}].[{queue}] WITH (ROWLOCK) ON b.id = [{queue}].id
    WHERE [{queue}].status = 0
    OPTION (FORCE ORDER, LOOP JOIN);
    IF @@ROWCOUNT <> @chosen
    BEGIN
        -- Zabir's rollback, and the caller's transaction with it (XACT_ABORT), as after a deadlock: a
        -- savepoint would leave him in a transaction in which nothing tells that his pop was undone.
        THROW 51003, N'Another session took rows of this batch.|Nothing was popped.|Try again.', 1;
    END;
    COMMIT TRANSACTION;
    SELECT c.id, c.payload, c.queue_date_time AS pushed_at, c.attempts
    FROM @claimed AS c ORDER BY c.queue_date_time, c.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    EXEC [{schema}].[{queue}_pop_many] @n = 1, @consumer = @consumer, @bound = @bound;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_complete]
    @id bigint,
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
    SET status = 2, done_at = SYSUTCDATETIME()
    WHERE id = @id AND status = 1 AND (@attempts IS NULL OR attempts = @attempts);
    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_fail]
    @id bigint,
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
    SET status = 4, errors = COALESCE(@error, N''), done_at = SYSUTCDATETIME()
    WHERE id = @id AND status = 1 AND (@attempts IS NULL OR attempts = @attempts);
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
            WHERE m.[{status}] = 0
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{status}] = 1
        ) AS bounded
    ) AS claimed,
    -- when role claimed_at
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{status}] = 1
            AND m.[{claimed_at}] < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
        ) AS bounded
    ) AS stuck,
    -- end
    -- when no role claimed_at
    CAST(NULL AS bigint) AS stuck,
    -- end
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{errors_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{status}] = 4
        ) AS bounded
    ) AS errors,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{done_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE m.[{status}] = 2
        ) AS bounded
    ) AS done,
    -- when role pushed_at
    (
        SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) CAST(DATEDIFF_BIG(microsecond, head.[{pushed_at}], SYSUTCDATETIME()) / 1e6 AS float)
        FROM [{schema}].[{table}] AS head WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE head.[{status}] = 0 ORDER BY head.[{pushed_at}]
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
    WHERE m.[{status}] = 1
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
    CAST(estimated.done AS float) AS done
FROM (
    SELECT
        SUM(CASE WHEN i.name = N'{queue}_ready' THEN p.row_count END) AS ready,
        SUM(CASE WHEN i.name = N'{queue}_claimed' THEN p.row_count END) AS claimed,
        SUM(CASE WHEN i.name = N'{queue}_error' THEN p.row_count END) AS errors,
        SUM(CASE WHEN i.name = N'{queue}_done' THEN p.row_count END) AS done
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
    estimated.number_of_rows * found.done / found.looked_at AS done
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.dm_db_partition_stats AS p
    WHERE p.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND p.index_id IN (0, 1)
) AS estimated
CROSS JOIN (
    SELECT
        SUM(CASE WHEN m.[{status}] = 0 THEN 1e0 ELSE 0e0 END) AS ready,
        SUM(CASE WHEN m.[{status}] = 1 THEN 1e0 ELSE 0e0 END) AS claimed,
        SUM(CASE WHEN m.[{status}] = 4 THEN 1e0 ELSE 0e0 END) AS errors,
        SUM(CASE WHEN m.[{status}] = 2 THEN 1e0 ELSE 0e0 END) AS done,
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
    CASE m.[{status}]
        WHEN 0 THEN N'ready'
        WHEN 1 THEN N'claimed'
        WHEN 2 THEN N'done'
        WHEN 3 THEN N'archived'
        WHEN 4 THEN N'error'
        ELSE CONCAT(N'status ', m.[{status}])
    END AS state,
    -- when role pushed_at
    m.[{pushed_at}] AS pushed_at,
    -- end
    -- when role claimed_at
    m.[{claimed_at}] AS claimed_at,
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
    -- when installed=yes
    m.title AS title,
    -- end
    -- when installed=no
    CAST(NULL AS nvarchar(255)) AS title,
    -- end
    m.[{payload}] AS payload
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
-- when walk=ready
WHERE m.[{status}] = 0
-- end
-- when walk=claimed
WHERE m.[{status}] = 1
-- end
-- when walk=error
WHERE m.[{status}] = 4
-- end
-- when walk=done
WHERE m.[{status}] = 2
-- end
