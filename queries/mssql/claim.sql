-- claim: Pintér's queue with an atomic test-and-set, on SQL Server, as in his second article.
--
-- A pop marks the oldest unclaimed row and returns it, in one statement; the row stays until complete deletes it or fail
-- records the error. The claim of a consumer that dies remains: it becomes "stuck". The caller may pass his own id and
-- times, as Pintér does: one time for a whole run.
--
-- UPDLOCK and READPAST are his; they also hold under READ_COMMITTED_SNAPSHOT. The pop names its index: a plan made while the
-- table was empty would scan it, and lock what it meets, later. Ids that the caller does not give are sequential: random
-- ones split the pages of the clustered key. For page locks, escalation, statistics and ghosts see monitor.sql.

-- define: is_ready
m.[{claimed_at}] IS NULL

-- define: is_claimed
-- By done_at, which is set together with errors and is what the indexes filter by.
m.[{claimed_at}] IS NOT NULL
AND m.[{done_at}] IS NULL -- when installed=yes
-- when installed=no
AND m.[{error}] IS NULL -- when role error
-- end

-- define: is_error
m.[{done_at}] IS NOT NULL -- when installed=yes
-- when installed=no
m.[{error}] IS NOT NULL -- when role error
-- end

-- define: is_finished
{is_error}

-- define: state
CASE
    WHEN {is_error} THEN N'error' -- when defined is_error
    WHEN {is_ready} THEN N'ready'
    ELSE N'claimed'
END

-- define: state_held
{state_in_hand}

-- define: oldest_first
m.[{pushed_at}] -- when role pushed_at

-- define: ready_index
N'{queue}_ready' -- when installed=yes

-- define: push_order
m.[{pushed_at}], m.[{id}]

-- define: pop_order
m.[{pushed_at}], m.[{id}]

-- define: id_type
uniqueidentifier

-- define: archived_id
LOWER(CAST(a.id AS nvarchar(36)))

-- define: new_id
NEWID()

-- define: push_values
DECLARE @ids nvarchar(max) = :ids;

-- define: push_with
, @ids = @ids

-- define: last_pop
-- complete deletes the row, which leaves no trace.

-- define: popped
SUM(o.leaf_update_count)

-- define: contradicts
CASE WHEN l.claimed_at IS NULL THEN 1 ELSE 0 END -- when scan=error

-- name: tables
-- script: the queue's table and one filtered index for each state
-- SET options that filtered indexes require when they are created and at every write; clients have them on anyway.
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, CONCAT_NULL_YIELDS_NULL, QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF;
GO
CREATE TABLE [{schema}].[{queue}] (
    id uniqueidentifier NOT NULL DEFAULT NEWSEQUENTIALID(),
    created_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    processing_started_at datetime2(7) NULL,
    errors nvarchar(max) NULL,
    payload {payload_type} NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    claimed_by nvarchar(256) NULL,
    done_at datetime2(7) NULL,
    history nvarchar(max) NULL, -- when keeps_history=yes
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- Ready rows in the order of the pop. Columns tested by IS NULL have to be included, or each row is looked up.
CREATE INDEX [{queue}_ready] ON [{schema}].[{queue}] (created_at, id)
INCLUDE (processing_started_at) WHERE processing_started_at IS NULL
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
-- Claimed and failed rows (done_at is set with errors): few, counted without reading the others.
CREATE INDEX [{queue}_claimed] ON [{schema}].[{queue}] (processing_started_at)
INCLUDE (done_at) WHERE processing_started_at IS NOT NULL AND done_at IS NULL
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);
CREATE INDEX [{queue}_error] ON [{schema}].[{queue}] (done_at)
WHERE done_at IS NOT NULL WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many, complete, fail
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type},
    @id uniqueidentifier = NULL,
    @created_at datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payload_in_bounds}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    IF ISJSON(@payloads) = 0 OR ISJSON(@ids) = 0
        THROW 51002, N'The payloads or their ids are not a JSON array.||Send an array of strings, one for each payload.', 1;
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    DECLARE @rows TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL DEFAULT NEWSEQUENTIALID(),
        payload {payload_type} NULL
    );
    {rows_in_bounds}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {identify_claimant}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {identify_claimant}
    DECLARE @claimed TABLE (
        created_at datetime2(7) NOT NULL,
        id uniqueidentifier NOT NULL,
        payload {payload_type} NOT NULL,
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    UPDATE [{schema}].[{queue}] WITH (ROWLOCK)
    SET errors = COALESCE(@error, N''), done_at = SYSUTCDATETIME()
    , history = {history_with_this_error} -- when keeps_history=yes
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

-- name: state_illegal
-- script: the rows whose columns contradict their state, for the operator to judge
SELECT [{id}], processing_started_at, claimed_by, done_at, errors
FROM [{schema}].[{table}] WITH (READPAST, READCOMMITTEDLOCK)
WHERE errors IS NOT NULL AND (processing_started_at IS NULL OR done_at IS NULL);
