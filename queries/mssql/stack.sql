-- stack: Rusanu's LIFO stack on SQL Server: as the FIFO queue, popped from the other end.
--
-- Pushes and pops meet at one end of the index: a busy stack is one page, and its latch (PAGELATCH_EX)
-- is what everybody waits for, as Rusanu says. What lies at the bottom waits as long as the top is busy.
-- Rows that other transactions hold are skipped. For the hints, the locks, statistics and ghosts see monitor.sql.

-- define: oldest_first
m.[{id}] -- when role pushed_at

-- define: pop_order
m.[{id}] DESC

-- name: tables
-- script: the queue's table
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE TABLE [{schema}].[{queue}] (
    id bigint IDENTITY(1, 1) NOT NULL,
    payload {payload_type} NOT NULL,
    pushed_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type}
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    {read_committed_only}
    {payload_in_bounds}
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload) OUTPUT inserted.id VALUES (@payload);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payloads_as_rows}
    DECLARE @pushed TABLE (id bigint NOT NULL PRIMARY KEY);
    {rows_in_bounds}
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
    SET NOCOUNT, XACT_ABORT ON;
    {read_committed_only}
    DECLARE @popped TABLE (
        id bigint NOT NULL PRIMARY KEY,
        payload {payload_type} NOT NULL,
        pushed_at datetime2(7) NOT NULL
    );
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    BEGIN TRANSACTION; -- when archive_at_pop=on
    WITH head AS (
        SELECT TOP (@n) m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ORDER BY m.id DESC
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at INTO @popped (id, payload, pushed_at);
    -- when archive_at_pop=on
    -- Not OUTPUT's INTO, which has no order: the archive numbers its rows as they were popped.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, SYSUTCDATETIME(), N'done', 1, N'pop' FROM @popped AS p ORDER BY p.id DESC;
    COMMIT TRANSACTION;
    -- end
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.id DESC;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    EXEC [{schema}].[{queue}_pop_many] @n = 1; -- when archive_at_pop=on
    -- when archive_at_pop=off
    {read_committed_only}
    WITH head AS (
        SELECT TOP (1) m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ORDER BY m.id DESC
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];

-- name: bottom
-- one row: the oldest message of a stack, and how many that came later went before it, among the ids of the newest 10,001
SELECT
    CAST(b.id AS nvarchar(20)) AS id,
    b.seconds AS seconds,
    newest.overtaking AS overtaking
FROM (
    SELECT TOP (1)
        m.id,
        CAST(DATEDIFF_BIG(microsecond, m.pushed_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
    FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ORDER BY m.id
) AS b
CROSS JOIN (
    -- NOLOCK: a message that is being popped has not gone before anybody yet.
    SELECT COALESCE(MAX(n.id) - MIN(n.id) + 1 - COUNT_BIG(*), 0) AS overtaking FROM (
        SELECT TOP (10001) m.id FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
        ORDER BY m.id DESC
    ) AS n
) AS newest;
