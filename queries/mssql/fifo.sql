-- fifo: Rusanu's FIFO queue on SQL Server: a clustered key that keeps the order, and a delete that returns.
--
-- order=lax     pop skips rows that other transactions hold (READPAST), so many can pop at a time. After a rollback a
--               message is popped later than some that followed it.
-- order=strict  pop skips nothing. It waits for the row at the head, whether another pop has deleted it or a push has not
--               committed it: an uncommitted row is in the index, locked (PostgreSQL's MVCC hides it). An identity value
--               is drawn before its row is inserted, and a later one could be inserted, committed and popped in between;
--               so push draws and inserts under an application lock that it releases at once: pushes wait for each other's
--               INSERT, never for each other's transaction. A pop of many also waits for uncommitted pushes behind the
--               head. A transaction that both pushes and pops can become a deadlock victim (1205).
--
-- READCOMMITTEDLOCK: under READ_COMMITTED_SNAPSHOT, READPAST is only guaranteed together with it; and with optimized locking
-- a strict pop would otherwise judge by row versions, which hide that row. READPAST skips row locks only, so page locks and
-- lock escalation are off. An index without page locks can be rebuilt, not reorganized: maintain rebuilds. Statistics are
-- not updated: every plan follows an index in its order, and updating them would be a scan in the middle of a pop. Deleted
-- rows stay as ghosts at the head, where every pop begins, until the server cleans up; a row version in use (a long
-- snapshot, a readable secondary) keeps them, and pops get slower.

-- define: oldest_first
m.[{id}] -- when role pushed_at

-- define: pop_order
m.[{id}]{pop_direction}

-- define: pop_direction
-- ascending; stack.sql, which shares all of this, pops from the other end

-- define: due_when_popped
CAST(NULL AS datetime2(7))

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
-- SET ROWCOUNT 0, in every procedure: the caller's own setting would cut what it inserts or returns (Microsoft's manual,
-- "SET ROWCOUNT").
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type}
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payload_in_bounds}
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload) OUTPUT inserted.id VALUES (@payload); -- when not order=strict
    -- when order=strict
    DECLARE @lock int;
    BEGIN TRANSACTION;
    EXEC @lock = sys.sp_getapplock
        @Resource = N'dbq {schema}.{queue}', @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @lock = -3
        THROW 51003, N'This push and another one wait for each other: a deadlock, without error 1205.||Nothing was pushed. Try again.', 1;
    IF @lock < 0
        THROW 51003, N'Another push holds the queue.||Try again.', 1;
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload) OUTPUT inserted.id VALUES (@payload);
    -- The row is in the index now and its own lock says so: the next push may draw.
    EXEC sys.sp_releaseapplock @Resource = N'dbq {schema}.{queue}', @LockOwner = N'Transaction';
    COMMIT TRANSACTION;
    -- end
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
    -- when order=strict
    DECLARE @lock int;
    BEGIN TRANSACTION;
    EXEC @lock = sys.sp_getapplock
        @Resource = N'dbq {schema}.{queue}', @LockMode = N'Exclusive', @LockOwner = N'Transaction';
    IF @lock = -3
        THROW 51003, N'This push and another one wait for each other: a deadlock, without error 1205.||Nothing was pushed. Try again.', 1;
    IF @lock < 0
        THROW 51003, N'Another push holds the queue.||Try again.', 1;
    -- end
    -- Identity values are drawn in the order of the SELECT, so they sort as the payloads do.
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (payload)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT r.payload FROM @rows AS r ORDER BY r.position;
    -- when order=strict
    EXEC sys.sp_releaseapplock @Resource = N'dbq {schema}.{queue}', @LockOwner = N'Transaction';
    COMMIT TRANSACTION;
    -- end
    SELECT p.id FROM @pushed AS p ORDER BY p.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
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
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) -- when not order=strict
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) -- when order=strict
        ORDER BY m.id{pop_direction}
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at INTO @popped (id, payload, pushed_at);
    -- when archive_at_pop=on
    -- Not OUTPUT's INTO, which has no order: the archive numbers its rows as they were popped.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, SYSUTCDATETIME(), N'done', 1, N'pop' FROM @popped AS p ORDER BY p.id{pop_direction};
    COMMIT TRANSACTION;
    -- end
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.id{pop_direction};
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    EXEC [{schema}].[{queue}_pop_many] @n = 1; -- when archive_at_pop=on
    -- when archive_at_pop=off
    {read_committed_only}
    WITH head AS (
        SELECT TOP (1) m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) -- when not order=strict
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) -- when order=strict
        ORDER BY m.id{pop_direction}
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];
