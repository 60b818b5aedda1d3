-- naive: Kejser's naive queue on SQL Server: a sequence, a unique clustered index, delete the first in order.
--
-- No row is skipped: all consumers wait for the one that holds the head, and for an uncommitted push at the head, so an open
-- transaction stops the queue. A push draws its number before it inserts: only a pop between the two overtakes it.
-- It is here to be compared with, and because such queues exist.
-- READCOMMITTEDLOCK: under READ_COMMITTED_SNAPSHOT a pop must not judge by row versions either.
-- STATISTICS_NORECOMPUTE: Kejser's first complaint. Such a table's statistics are never up to date, and updating them costs
-- scans and recompilations; every statement here follows the key's order.

-- define: oldest_first
m.[{id}] -- when role pushed_at

-- define: pop_order
m.[{id}]

-- define: due_when_popped
CAST(NULL AS datetime2(7))

-- define: id_sequence
N'[{schema}].[{queue}_seq]'

-- define: read_committed_only
-- refused for another reason than elsewhere: nothing is skipped here
IF EXISTS (
    SELECT 1 FROM sys.dm_exec_sessions AS s
    WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
)
    THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue must see what others committed, and nothing else.|Call it at READ COMMITTED.', 1;

-- name: tables
-- script: the queue's table and its sequence
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE SEQUENCE [{schema}].[{queue}_seq] AS bigint START WITH 1 INCREMENT BY 1;

CREATE TABLE [{schema}].[{queue}] (
    message_id bigint NOT NULL,
    time datetime2(7) NOT NULL,
    message {payload_type} NOT NULL,
    CONSTRAINT [{queue}_key] UNIQUE CLUSTERED (message_id)
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
    SET ROWCOUNT 0;
    DECLARE @id bigint;
    {read_committed_only}
    {payload_in_bounds}
    SET @id = NEXT VALUE FOR [{schema}].[{queue}_seq];
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (message_id, time, message) VALUES (@id, SYSUTCDATETIME(), @payload);
    SELECT @id AS id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    DECLARE @drawn TABLE (position int NOT NULL PRIMARY KEY, id bigint NOT NULL);
    {read_committed_only}
    {payloads_as_rows}
    {rows_in_bounds}
    -- Not by sp_sequence_get_range, which follows no ownership chain: callers would need UPDATE on the sequence.
    INSERT INTO @drawn (position, id)
    SELECT
        g.position,
        NEXT VALUE FOR [{schema}].[{queue}_seq] OVER (ORDER BY g.position) -- noqa: RF01
    FROM @rows AS g;
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (message_id, time, message)
    SELECT
        d.id,
        SYSUTCDATETIME(),
        g.payload
    FROM @rows AS g
    INNER JOIN @drawn AS d ON g.position = d.position;
    SELECT d.id FROM @drawn AS d ORDER BY d.position;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    DECLARE @popped TABLE (
        id bigint NOT NULL PRIMARY KEY,
        payload {payload_type} NOT NULL,
        pushed_at datetime2(7) NOT NULL
    );
    {read_committed_only}
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    BEGIN TRANSACTION;
    WITH head AS (
        SELECT TOP (@n)
            m.message_id,
            m.message,
            m.time
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
        ORDER BY m.message_id
    )

    DELETE FROM head
    OUTPUT deleted.message_id, deleted.message, deleted.time INTO @popped (id, payload, pushed_at);
    -- when archive_at_pop=on
    -- A second statement of the same transaction: OUTPUT has no order, and the archive is read in its own.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT
        p.id,
        p.payload,
        p.pushed_at,
        SYSUTCDATETIME(),
        N'done',
        1,
        N'pop'
    FROM @popped AS p
    ORDER BY p.id;
    -- end
    COMMIT TRANSACTION;
    SELECT
        p.id,
        p.payload,
        p.pushed_at,
        1 AS attempts
    FROM @popped AS p
    ORDER BY p.id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    EXEC [{schema}].[{queue}_pop_many] @n = 1;
END;

-- name: drop
-- script: removes the queue's table, its sequence and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];
DROP SEQUENCE [{schema}].[{queue}_seq];
