-- split: Zabir's QueueMeta and QueueData on SQL Server: a narrow table to search, the payload in another.
--
-- dequeue=two_step  as the status queue, on the narrow table; then the payloads are read. Consumers wait, see status.sql.
-- dequeue=single    one UPDATE with OUTPUT that skips rows that others hold: Zabir's fastest. His UPDATE TOP (n) takes any
--                   n rows, because TOP in an UPDATE has no ORDER BY. Here TOP is in a common table expression with the
--                   order, through which the UPDATE goes; the SELECT that returns the payloads reads them once.
-- The states are the status queue's: 0 PENDING, 1 PROCESSING, 2 PROCESSED, 3 ARCHIVED, 4 ERROR (ours). Done rows stay
-- until they are archived; updates never touch the payload table. Zabir's QueueData is a heap with a unique index; a
-- clustered key saves a lookup, and deletes free its pages. A row whose payload is missing is claimed but not returned: it
-- shows as stuck, and stops nobody.
--
-- The pop names its index, see claim.sql. For page locks, escalation, statistics and ghosts see monitor.sql.

-- like: status

-- define: beside
-- the payload table
[{schema}].[{queue}_data] -- when installed=yes

-- define: payload
-- One key lookup for each row, whatever the planner would choose.
(SELECT d.text_data FROM {beside} AS d {reading} WHERE d.id = m.id) -- when installed=yes
m.[{payload}] -- when installed=no

-- define: joined_payload
d.text_data -- when installed=yes
m.[{payload}] -- when installed=no

-- define: lacks_payload
-- A locked payload exists: NOLOCK.
-- when installed=yes
CAST(CASE
    WHEN EXISTS (SELECT 1 FROM {beside} AS d WITH (NOLOCK) WHERE d.id = l.key_id) THEN 0
    ELSE 1
END AS bit)
-- end
CAST(0 AS bit) -- when installed=no

-- define: locked
SELECT TOP (1) @held = 1 FROM [{schema}].[{table}] AS m WITH (TABLOCKX, HOLDLOCK);
SELECT TOP (1) @held = 1 FROM {beside} AS d WITH (TABLOCKX, HOLDLOCK);

-- define: grants
GRANT SELECT ON OBJECT::[{schema}].[{queue}_data] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_data] TO dbq_operator;

-- name: tables
-- script: the two tables and one filtered index for each state
-- SET options that filtered indexes require when they are created and at every write; clients have them on anyway.
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
GO
CREATE TABLE [{schema}].[{queue}_meta] (
    id bigint IDENTITY(1, 1) NOT NULL,
    queue_date_time datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    title nvarchar(255) NOT NULL DEFAULT N'',
    status int NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 4),
    attempts int NOT NULL DEFAULT 0,
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(256) NULL,
    errors nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    history nvarchar(max) NULL, -- when keeps_history=yes
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}_meta] SET (LOCK_ESCALATION = DISABLE);

-- Ready rows in the order of the pop: Zabir's (QueueDateTime, Status), kept small by its filter.
CREATE INDEX [{queue}_ready] ON [{schema}].[{queue}_meta] (queue_date_time, id)
INCLUDE (status) WHERE status = 0 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
-- One for each other state, so that monitoring and archiving read nothing else.
CREATE INDEX [{queue}_claimed] ON [{schema}].[{queue}_meta] (claimed_at)
INCLUDE (status) WHERE status = 1 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_done] ON [{schema}].[{queue}_meta] (done_at)
INCLUDE (status) WHERE status = 2 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_error] ON [{schema}].[{queue}_meta] (done_at)
INCLUDE (status) WHERE status = 4 WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

-- No foreign key: it would cost a lookup in the other table for each row. The doctor finds rows without their counterpart.
CREATE TABLE [{schema}].[{queue}_data] (
    id bigint NOT NULL,
    text_data {payload_type} NOT NULL,
    CONSTRAINT [{queue}_data_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}_data] SET (LOCK_ESCALATION = DISABLE);

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
    DECLARE @id bigint;
    BEGIN TRANSACTION;
    INSERT INTO [{schema}].[{queue}_meta] WITH (ROWLOCK) (queue_date_time, title)
    VALUES (COALESCE(@queue_date_time, SYSUTCDATETIME()), COALESCE(@title, N''));
    SET @id = SCOPE_IDENTITY();
    INSERT INTO [{schema}].[{queue}_data] WITH (ROWLOCK) (id, text_data) VALUES (@id, @payload);
    COMMIT TRANSACTION;
    SELECT @id AS id;
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
    BEGIN TRANSACTION;
    -- Identity values are drawn in the order of the SELECT, so they sort as the payloads do.
    INSERT INTO [{schema}].[{queue}_meta] WITH (ROWLOCK) (queue_date_time, title)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT COALESCE(@queue_date_time, SYSUTCDATETIME()), COALESCE(@title, N'') FROM @rows AS r ORDER BY r.position;
    INSERT INTO [{schema}].[{queue}_data] WITH (ROWLOCK) (id, text_data)
    SELECT p.id, r.payload
    FROM (SELECT q.id, ROW_NUMBER() OVER (ORDER BY q.id) AS rank_of FROM @pushed AS q) AS p
    INNER JOIN (SELECT q.payload, ROW_NUMBER() OVER (ORDER BY q.position) AS rank_of FROM @rows AS q) AS r
        ON p.rank_of = r.rank_of;
    COMMIT TRANSACTION;
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
    DECLARE @claimed TABLE (
        queue_date_time datetime2(7) NOT NULL,
        id bigint NOT NULL,
        attempts int NOT NULL,
        PRIMARY KEY (queue_date_time, id)
    );
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    -- when dequeue=two_step
    DECLARE @batch TABLE (id bigint NOT NULL PRIMARY KEY);
    DECLARE @chosen int;
    -- Zabir's steps: choose and lock, update what is still pending, compare the counts.
    BEGIN TRANSACTION;
    INSERT INTO @batch (id)
    SELECT TOP (@n) m.id
    FROM [{schema}].[{queue}_meta] AS m WITH (INDEX ([{queue}_ready]), ROWLOCK, UPDLOCK, HOLDLOCK)
    WHERE m.status = 0
    ORDER BY m.queue_date_time, m.id;
    SET @chosen = @@ROWCOUNT;
    UPDATE [{schema}].[{queue}_meta]
    SET
        status = 1, claimed_at = SYSUTCDATETIME(), claimed_by = @session,
        attempts = [{queue}_meta].attempts + 1
    OUTPUT inserted.queue_date_time, inserted.id, inserted.attempts
    INTO @claimed (queue_date_time, id, attempts)
    FROM @batch AS b INNER JOIN [{schema}].[{queue}_meta] WITH (ROWLOCK) ON b.id = [{queue}_meta].id
    WHERE [{queue}_meta].status = 0
    OPTION (FORCE ORDER, LOOP JOIN);
    IF @@ROWCOUNT <> @chosen
    BEGIN
        -- Zabir's rollback, and the caller's transaction with it (XACT_ABORT), as after a deadlock: a
        -- savepoint would leave him in a transaction in which nothing tells that his pop was undone.
        THROW 51003, N'Another session took rows of this batch.|Nothing was popped.|Try again.', 1;
    END;
    COMMIT TRANSACTION;
    -- end
    -- when dequeue=single
    WITH head AS (
        SELECT TOP (@n) m.id, m.queue_date_time, m.status, m.claimed_at, m.claimed_by, m.attempts
        FROM [{schema}].[{queue}_meta] AS m
            WITH (INDEX ([{queue}_ready]), ROWLOCK, READPAST, UPDLOCK, READCOMMITTEDLOCK)
        WHERE m.status = 0
        ORDER BY m.queue_date_time, m.id
    )
    UPDATE head
    SET status = 1, claimed_at = SYSUTCDATETIME(), claimed_by = @session, attempts = head.attempts + 1
    OUTPUT inserted.queue_date_time, inserted.id, inserted.attempts
    INTO @claimed (queue_date_time, id, attempts);
    -- end
    SELECT c.id, d.text_data AS payload, c.queue_date_time AS pushed_at, c.attempts
    FROM @claimed AS c INNER JOIN [{schema}].[{queue}_data] AS d ON c.id = d.id
    ORDER BY c.queue_date_time, c.id
    OPTION (FORCE ORDER, LOOP JOIN);
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
    UPDATE [{schema}].[{queue}_meta] WITH (ROWLOCK)
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
    UPDATE [{schema}].[{queue}_meta] WITH (ROWLOCK)
    SET status = 4, errors = COALESCE(@error, N''), done_at = SYSUTCDATETIME()
    , history = {history_with_this_error} -- when keeps_history=yes
    WHERE id = @id AND status = 1 AND (@attempts IS NULL OR attempts = @attempts);
    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;

-- name: drop
-- script: removes the queue's tables and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_complete], [{schema}].[{queue}_fail];
DROP TABLE [{schema}].[{queue}_meta], [{schema}].[{queue}_data];

-- name: missing_payloads
-- one row: of the next :most messages from id :newest downwards: how many there are, the lowest, how many lack their payload, and the first ten of those
-- ready: still to be popped; stuck: claimed for :stuck_after seconds, or by one of :gone; kept: all others. owners: who
-- claimed the kept ones. Suspects are checked twice: by then a transaction that deletes both rows has ended, or holds them.
SET NOCOUNT ON;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @stuck_after float = :stuck_after, @gone nvarchar(max) = :gone;
DECLARE @chunk TABLE (id bigint NOT NULL PRIMARY KEY);
DECLARE @unpaired TABLE (
    id bigint NOT NULL PRIMARY KEY,
    state nvarchar(10) COLLATE DATABASE_DEFAULT NOT NULL,
    claimed_by nvarchar(450) COLLATE Latin1_General_100_BIN2 NULL
);
INSERT INTO @chunk (id)
SELECT TOP (@most) m.id FROM [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE m.id <= @newest
ORDER BY m.id DESC;
INSERT INTO @unpaired (id, state, claimed_by)
SELECT
    m.id,
    CASE
        WHEN m.status = 0 THEN N'ready'
        WHEN m.status <> 1 THEN N'kept'
        WHEN DATEDIFF_BIG(microsecond, m.claimed_at, SYSUTCDATETIME()) / 1e6 >= @stuck_after THEN N'stuck'
        WHEN EXISTS (
            SELECT 1 FROM OPENJSON(@gone) AS g
            WHERE g.[value] = CAST(m.claimed_by AS nvarchar(450)) COLLATE Latin1_General_100_BIN2
        ) THEN N'stuck'
        ELSE N'kept'
    END,
    CASE WHEN m.status = 1 THEN CAST(m.claimed_by AS nvarchar(450)) END
FROM @chunk AS l
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON l.id = m.id
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = l.id)
OPTION (LOOP JOIN, FORCE ORDER);
DELETE h
FROM @unpaired AS h
WHERE
    NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE m.id = h.id
    )
    OR EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = h.id);
SELECT
    (SELECT COUNT_BIG(*) FROM @chunk AS l) AS rows_read,
    (SELECT MIN(l.id) FROM @chunk AS l) AS lowest,
    (SELECT COUNT_BIG(*) FROM @unpaired AS h WHERE h.state = N'ready') AS ready,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @unpaired AS h WHERE h.state = N'ready'
        ORDER BY h.id
        FOR JSON PATH
    ) AS ready_ids,
    (SELECT COUNT_BIG(*) FROM @unpaired AS h WHERE h.state = N'stuck') AS stuck,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @unpaired AS h WHERE h.state = N'stuck'
        ORDER BY h.id
        FOR JSON PATH
    ) AS stuck_ids,
    (SELECT COUNT_BIG(*) FROM @unpaired AS h WHERE h.state = N'kept') AS kept,
    (
        SELECT TOP (10) CAST(h.id AS nvarchar(20)) AS id FROM @unpaired AS h WHERE h.state = N'kept'
        ORDER BY h.id
        FOR JSON PATH
    ) AS kept_ids,
    (
        SELECT o.claimed_by AS claimed_by
        FROM (
            SELECT DISTINCT h.claimed_by FROM @unpaired AS h WHERE h.state = N'kept' AND h.claimed_by IS NOT NULL
        ) AS o
        FOR JSON PATH
    ) AS owners;

-- name: orphaned_payloads
-- one row: of the next :most payloads from id :newest downwards: how many there are, the lowest, how many belong to no message, and the first ten of those
SET NOCOUNT ON;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @chunk TABLE (id bigint NOT NULL PRIMARY KEY);
DECLARE @orphaned TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chunk (id)
SELECT TOP (@most) d.id FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
WHERE d.id <= @newest
ORDER BY d.id DESC;
INSERT INTO @orphaned (id)
SELECT l.id FROM @chunk AS l
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (NOLOCK) WHERE m.id = l.id)
OPTION (LOOP JOIN);
DELETE a
FROM @orphaned AS a
WHERE
    NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.id = a.id
    )
    OR EXISTS (SELECT 1 FROM [{schema}].[{queue}_meta] AS m WITH (NOLOCK) WHERE m.id = a.id);
SELECT
    (SELECT COUNT_BIG(*) FROM @chunk AS l) AS rows_read,
    (SELECT MIN(l.id) FROM @chunk AS l) AS lowest,
    (SELECT COUNT_BIG(*) FROM @orphaned AS a) AS orphaned,
    (SELECT TOP (10) CAST(a.id AS nvarchar(20)) AS id FROM @orphaned AS a ORDER BY a.id FOR JSON PATH) AS orphaned_ids;

-- name: fail_missing_payloads
-- one row: of the next :most ready or stuck rows from id :newest downwards: how many lack their payload (see missing_payloads), and how many of those are in error now
SET NOCOUNT ON;
DECLARE @error nvarchar(max) = :error;
DECLARE @newest bigint = :newest, @most bigint = :most;
DECLARE @stuck_after float = :stuck_after, @gone nvarchar(max) = :gone;
DECLARE @selected bigint;
DECLARE @held TABLE (id bigint NOT NULL PRIMARY KEY);
-- Locked before it is checked, so that nobody deletes both rows meanwhile.
INSERT INTO @held (id)
SELECT m.id
FROM (
    SELECT TOP (@most) n.id FROM [{schema}].[{queue}_meta] AS n WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE n.id <= @newest
    ORDER BY n.id DESC
) AS w
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON w.id = m.id AND m.status IN (0, 1)
WHERE
    NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = w.id)
    AND (
        m.status = 0
        OR DATEDIFF_BIG(microsecond, m.claimed_at, SYSUTCDATETIME()) / 1e6 >= @stuck_after
        OR EXISTS (
            SELECT 1 FROM OPENJSON(@gone) AS g
            WHERE g.[value] = CAST(m.claimed_by AS nvarchar(450)) COLLATE Latin1_General_100_BIN2
        )
    )
OPTION (LOOP JOIN, FORCE ORDER);
SET @selected = @@ROWCOUNT;
UPDATE m
SET status = 4,
    errors = @error,
    done_at = SYSUTCDATETIME()
FROM @held AS h
INNER JOIN [{schema}].[{queue}_meta] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.id = h.id
WHERE m.status IN (0, 1)
AND NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (NOLOCK) WHERE d.id = m.id)
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;
