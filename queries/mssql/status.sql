-- status: Zabir's "QueueSlow" on SQL Server: one wide table, a status, batches that lock before they update.
--
-- Consumers wait for each other (UPDLOCK, HOLDLOCK): one batch is selected at a time. The range lock reaches from the head
-- to the end of the batch, or of the index if the batch is not full: a push into it waits for the pop's transaction, and a
-- pop waits for an uncommitted push. States: 0 PENDING, 1 PROCESSING, 2 PROCESSED, 3 ARCHIVED (Zabir), 4 ERROR (ours).
-- Messages are ordered by QueueDateTime, which the caller may set. Done rows stay until they are archived.
--
-- The pop names its index, see claim.sql: any other would lock the ranges of all states.
-- For page locks, escalation, statistics and ghosts see monitor.sql.

-- define: is_ready
m.[{status}] = 0

-- define: is_claimed
m.[{status}] = 1

-- define: is_done
m.[{status}] = 2

-- define: is_error
m.[{status}] = 4

-- define: is_finished
m.status > 1

-- define: is_unfinished
m.status IN (0, 1)

-- define: state
CASE m.[{status}]
    WHEN 0 THEN N'ready'
    WHEN 1 THEN N'claimed'
    WHEN 2 THEN N'done'
    WHEN 3 THEN N'archived'
    WHEN 4 THEN N'error'
    ELSE CONCAT(N'status ', m.[{status}])
END

-- define: state_held
-- Not one that verbs act on, and never one that nobody examined.
CASE m.[{status}]
    WHEN 0 THEN N'ready'
    WHEN 1 THEN N'claimed'
    WHEN 2 THEN N'done'
    WHEN 4 THEN N'error'
    ELSE CONCAT(N'status ', m.[{status}])
END

-- define: title
m.title -- when installed=yes

-- define: oldest_first
m.[{pushed_at}] -- when role pushed_at

-- define: ready_index
N'{queue}_ready' -- when installed=yes

-- define: push_order
m.[{pushed_at}], m.[{id}]

-- define: pop_order
m.[{pushed_at}], m.[{id}]

-- define: may_insert_ids
-- Explicit ids in an IDENTITY column need ALTER on the table.
HAS_PERMS_BY_NAME(N'[{schema}].[{table}]', N'OBJECT', N'ALTER')

-- define: push_values
DECLARE @title nvarchar(max) = :title;

-- define: push_with
, @title = @title

-- define: last_pop
SELECT @last_pop = MAX(l.popped_at)
FROM (
    SELECT MAX(m.claimed_at) AS popped_at FROM [{schema}].[{table}] AS m {reading}
    WHERE m.status = 1
    UNION ALL
    SELECT MAX(m.done_at) FROM [{schema}].[{table}] AS m {reading} WHERE m.status = 2
    UNION ALL
    SELECT MAX(m.done_at) FROM [{schema}].[{table}] AS m {reading} WHERE m.status = 4
    UNION ALL
    SELECT MAX(a.archived_at) FROM (
        SELECT TOP (1) e.archived_at FROM [{schema}].[{queue}_archive] AS e WITH (READPAST, READCOMMITTEDLOCK)
        ORDER BY e.archive_id DESC
    ) AS a
) AS l;

-- define: popped
SUM(o.leaf_update_count)

-- define: contradicts
CASE WHEN l.state LIKE N'status %' THEN 1 ELSE 0 END -- when scan=any
CASE WHEN l.error IS NOT NULL THEN 1 ELSE 0 END -- when scan=done
0 -- when scan=claimed|error

-- name: tables
-- script: the queue's table and one filtered index for each state
-- SET options that filtered indexes require when they are created and at every write; clients have them on anyway.
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
GO
CREATE TABLE [{schema}].[{queue}] (
    id bigint IDENTITY(1, 1) NOT NULL,
    queue_date_time datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    title nvarchar(255) NOT NULL DEFAULT N'',
    status int NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 4),
    text_data {payload_type} NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(256) NULL,
    errors nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    history nvarchar(max) NULL, -- when keeps_history=yes
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- Ready rows in the order of the pop: Zabir's (QueueDateTime, Status), kept small by its filter.
CREATE INDEX [{queue}_ready] ON [{schema}].[{queue}] (queue_date_time, id)
INCLUDE (status) WHERE status = 0 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
-- One for each other state, so that monitoring and archiving read nothing else.
CREATE INDEX [{queue}_claimed] ON [{schema}].[{queue}] (claimed_at)
INCLUDE (status) WHERE status = 1 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_done] ON [{schema}].[{queue}] (done_at)
INCLUDE (status) WHERE status = 2 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_error] ON [{schema}].[{queue}] (done_at)
INCLUDE (status) WHERE status = 4 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many, complete, fail
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type},
    @title nvarchar(max) = N'',
    @queue_date_time datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payload_in_bounds}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payloads_as_rows}
    DECLARE @pushed TABLE (id bigint NOT NULL PRIMARY KEY);
    {rows_in_bounds}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {identify_claimant}
    DECLARE @batch TABLE (id bigint NOT NULL PRIMARY KEY);
    DECLARE @claimed TABLE (
        queue_date_time datetime2(7) NOT NULL,
        id bigint NOT NULL,
        payload {payload_type} NOT NULL,
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    EXEC [{schema}].[{queue}_pop_many] @n = 1, @consumer = @consumer, @bound = @bound;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_complete]
    @id bigint,
    @attempts int = NULL
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    UPDATE [{schema}].[{queue}] WITH (ROWLOCK)
    SET status = 4, errors = COALESCE(@error, N''), done_at = SYSUTCDATETIME()
    , history = {history_with_this_error} -- when keeps_history=yes
    WHERE id = @id AND status = 1 AND (@attempts IS NULL OR attempts = @attempts);
    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_complete], [{schema}].[{queue}_fail];
DROP TABLE [{schema}].[{queue}];

-- name: status_check
-- one row: whether a CHECK excludes every status but 0 to 4, so that no row need be examined
SELECT CAST(CASE WHEN EXISTS (
    SELECT 1 FROM sys.check_constraints AS k
    WHERE k.parent_object_id = OBJECT_ID(N'[{schema}].[{table}]') AND k.is_disabled = 0 AND k.is_not_trusted = 0
    AND k.[definition] LIKE N'%status_>=(0)%status_<=(4)%'
) THEN 1 ELSE 0 END AS bit) AS rules_out;

-- name: done_lag
-- one row: how many done rows are older than a day (counted to 10,001), and since when the oldest is done
SELECT
    COUNT_BIG(*) AS found,
    MAX(d.seconds) AS oldest_seconds
FROM (
    SELECT TOP (10001)
        CAST(DATEDIFF_BIG(microsecond, m.done_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE m.status = 2 AND m.done_at < DATEADD(day, -1, SYSUTCDATETIME())
    ORDER BY m.done_at
) AS d;

-- name: status_unknown
-- script: the rows with an invalid status, for the operator to judge
SELECT [{id}], [{status}] FROM [{schema}].[{table}] WITH (READPAST, READCOMMITTEDLOCK) WHERE [{status}] NOT BETWEEN 0 AND 4;

-- name: state_illegal
-- script: the rows whose columns contradict their state, for the operator to judge
SELECT [{id}], [{status}], claimed_at, claimed_by, done_at, errors
FROM [{schema}].[{table}] WITH (READPAST, READCOMMITTEDLOCK)
WHERE (status = 1 AND claimed_at IS NULL) OR (status IN (2, 4) AND done_at IS NULL) OR (status = 2 AND errors IS NOT NULL);
