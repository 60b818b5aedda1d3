-- heap: Rusanu's heap queue on SQL Server: no order, no index, any row that is not locked.
--
-- id and push time are our additions, in no index. A pop scans from the heap's first page to the first free row. A delete
-- under row locks leaves its empty pages in the heap (only TABLOCK or a clustered index frees them), so after a deep queue
-- every pop reads them all, until maintain's ALTER TABLE ... REBUILD, which blocks everybody unless the edition can do it
-- ONLINE.
--
-- ALTER INDEX cannot name a heap, so its page locks remain enabled: ROWLOCK in every statement keeps our sessions from
-- taking any, and READPAST stops only at somebody else's. To disable them: EXEC sp_indexoption on the table, with
-- 'DisAllowPageLocks' and 'TRUE'; deprecated, yet the only way that Microsoft documents.
-- For the other hints and for escalation see monitor.sql.

-- define: key
-- No key: only what a scan meets first can be listed.
N''

-- define: key_text
-- A heap has no key that could be missing.

-- name: tables
-- script: the queue's table
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE TABLE [{schema}].[{queue}] (
    id bigint IDENTITY(1, 1) NOT NULL,
    payload {payload_type} NOT NULL,
    pushed_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME()
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
    SET ROWCOUNT 0;
    {read_committed_only}
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    -- when archive_at_pop=on
    DECLARE @popped TABLE (
        id bigint NOT NULL,
        payload {payload_type} NOT NULL,
        pushed_at datetime2(7) NOT NULL
    );
    BEGIN TRANSACTION;
    -- end
    DELETE TOP (@n) FROM [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts; -- when archive_at_pop=off
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
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    EXEC [{schema}].[{queue}_pop_many] @n = 1; -- when archive_at_pop=on
    -- when archive_at_pop=off
    {read_committed_only}
    DELETE TOP (1) FROM [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];

-- name: extent
-- one row of nulls: a heap has no key to continue from
SELECT
    CAST(NULL AS bigint) AS first,
    CAST(NULL AS bigint) AS last,
    CAST(NULL AS bigint) AS slots;

-- name: lock_rows
-- a row for each chosen row that exists, by its id
-- A heap has no key to seek: a scan, up to the last chosen row. A read with UPDLOCK would lock every row that it meets; a
-- write locks only what it writes.
{chosen_keys}
-- when role pushed_at
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DECLARE @held TABLE (id nvarchar(450) NOT NULL);
UPDATE TOP (@n) m
SET [{pushed_at}] = m.[{pushed_at}]
OUTPUT inserted.[{id}] INTO @held (id)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON {by_key}
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    h.id AS location,
    h.id AS id,
    CAST(NULL AS nvarchar(20)) AS state,
    CAST(NULL AS bigint) AS attempts,
    CAST(NULL AS nvarchar(64)) AS error_hash
FROM @held AS h;
-- else
SELECT
    CAST(m.[{id}] AS nvarchar(450)) AS location,
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    CAST(NULL AS nvarchar(20)) AS state,
    CAST(NULL AS bigint) AS attempts,
    CAST(NULL AS nvarchar(64)) AS error_hash
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) ON {by_key};
-- end

-- name: archive_rows
-- one row: how many messages left the queue, and how many entered its archive
-- A heap has no order for the archive to keep, so one DELETE moves the rows.
{batch_begins}
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DELETE TOP (@n) m
OUTPUT
    deleted.[{id}],
    deleted.[{payload}],
    deleted.[{pushed_at}], -- when role pushed_at
    @state,
    0,
    @reason,
    @action_id
INTO [{schema}].[{queue}_archive] (
    id,
    payload,
    pushed_at, -- when role pushed_at
    state,
    attempts,
    reason,
    action_id
)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON {by_location}
OPTION (LOOP JOIN, FORCE ORDER);
-- Not verified by another read: that would be a full scan.
SET @taken_out = @@ROWCOUNT;
{batch_ends}

-- name: delete_rows
-- one row: how many messages were deleted
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @taken_out bigint = 0, @put_in bigint;
{chosen_locations}
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DELETE TOP (@n) m
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON {by_location}
OPTION (LOOP JOIN, FORCE ORDER);
SET @taken_out = @@ROWCOUNT;
SELECT
    @taken_out AS taken_out,
    COALESCE(@put_in, @taken_out) AS put_in;
