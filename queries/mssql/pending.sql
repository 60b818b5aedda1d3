-- pending: Rusanu's pending queue on SQL Server: a message can be popped when it is due, never before.
--
-- Due times are UTC, so daylight saving changes nothing (Rusanu's advice). Messages are ordered by due time. Rows that other
-- transactions hold are skipped. For the hints, locks, statistics and ghosts see monitor.sql.

-- define: is_ready
m.[{due_at}] <= SYSUTCDATETIME()

-- define: is_scheduled
m.[{due_at}] > SYSUTCDATETIME()

-- define: is_live
-- every row

-- define: state
N'ready' -- when scan=ready
N'scheduled' -- when scan=scheduled

-- define: key_time
m.[{due_at}] -- when installed=yes
-- when installed=no
-- Any type: a key that was written out as text has to match the same time again.
CAST(m.[{due_at}] AS datetime2(7))
-- end

-- define: oldest_first
m.[{due_at}] -- when role pushed_at

-- define: is_overdue
-- what was pushed to be popped at once has an age only
{is_ready} AND {due_at} > DATEADD(second, 1, {pushed_at}) -- when role pushed_at
{is_ready} -- when no role pushed_at

-- define: key_text
CONCAT(CONVERT(nvarchar(27), m.due_time, 126), N' ', m.id)

-- define: next_pop
SELECT TOP (1) @next = CONVERT(nvarchar(30), m.[{due_at}], 126)
FROM [{schema}].[{table}] AS m {reading} ORDER BY m.[{due_at}];

-- define: due_when_popped
a.due_at

-- define: due_in_key
{key_time_text}

-- define: chosen_keys
-- Its key begins with the due time: finding a message by its id alone is a scan.
DECLARE @keys nvarchar(max) = :keys;
DECLARE @due nvarchar(max) = :due;
-- when installed=yes
DECLARE @chosen TABLE (due datetime2(7) NOT NULL, id {location_type} NOT NULL, PRIMARY KEY (due, id));
-- end
DECLARE @chosen TABLE (due datetime2(7) NULL, id {location_type} NOT NULL); -- when installed=no
INSERT INTO @chosen (due, id)
SELECT
    CAST(d.[value] AS datetime2(7)),
    CAST(k.[value] AS {location_type})
FROM OPENJSON(@keys) AS k INNER JOIN OPENJSON(@due) AS d ON k.[key] = d.[key];

-- define: chosen_locations
-- when installed=yes
DECLARE @chosen TABLE (due datetime2(7) NOT NULL, location {location_type} NOT NULL, PRIMARY KEY (due, location));
INSERT INTO @chosen (due, location)
SELECT
    CAST(LEFT(p.[value], CHARINDEX(N',', p.[value]) - 1) AS datetime2(7)),
    CAST(SUBSTRING(p.[value], CHARINDEX(N',', p.[value]) + 1, 450) AS {location_type})
FROM OPENJSON(@locations) AS p;
-- else
DECLARE @chosen TABLE (location {location_type} NOT NULL);
INSERT INTO @chosen (location)
SELECT SUBSTRING(p.[value], CHARINDEX(N',', p.[value]) + 1, 450) FROM OPENJSON(@locations) AS p;
-- end

-- define: row_location
CONCAT(CONVERT(nvarchar(27), CAST(m.[{due_at}] AS datetime2(7)), 126), N',', m.[{id}])

-- define: by_key
c.due = m.[{due_at}] AND c.id = m.[{id}] -- when installed=yes
c.id = m.[{id}] AND c.due = CAST(m.[{due_at}] AS datetime2(7)) -- when installed=no

-- define: by_location
c.due = m.[{due_at}] AND c.location = m.[{id}] -- when installed=yes
c.location = m.[{id}] -- when installed=no

-- define: push_values
-- Whole seconds and milliseconds separately: DATEADD takes an int of one unit.
DECLARE @seconds float = :due_in_seconds;
DECLARE @due_time datetime2(7) = :due_at;
IF @due_time IS NULL AND @seconds IS NOT NULL SET @due_time = DATEADD(
    millisecond, CAST((@seconds - FLOOR(@seconds)) * 1000 AS int),
    DATEADD(second, CAST(FLOOR(@seconds) AS int), SYSUTCDATETIME())
);

-- define: push_with
, @due_time = @due_time

-- name: tables
-- script: the queue's table
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE TABLE [{schema}].[{queue}] (
    due_time datetime2(7) NOT NULL,
    id bigint IDENTITY(1, 1) NOT NULL,
    payload {payload_type} NOT NULL,
    pushed_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (due_time, id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);

-- name: functions
-- script: the procedures push, push_many, pop, pop_many
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type},
    @due_time datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payload_in_bounds}
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (due_time, payload)
    OUTPUT inserted.id VALUES (COALESCE(@due_time, SYSUTCDATETIME()), @payload);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max),
    @due_time datetime2(7) = NULL
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payloads_as_rows}
    DECLARE @pushed TABLE (id bigint NOT NULL PRIMARY KEY);
    {rows_in_bounds}
    -- Identity values are drawn in the order of the SELECT, so they sort as the payloads do.
    INSERT INTO [{schema}].[{queue}] WITH (ROWLOCK) (due_time, payload)
    OUTPUT inserted.id INTO @pushed (id)
    SELECT COALESCE(@due_time, SYSUTCDATETIME()), r.payload FROM @rows AS r ORDER BY r.position;
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
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    DECLARE @popped TABLE (
        due_time datetime2(7) NOT NULL,
        id bigint NOT NULL,
        payload {payload_type} NOT NULL,
        pushed_at datetime2(7) NOT NULL,
        PRIMARY KEY (due_time, id)
    );
    SET @n = CASE WHEN @n > 0 THEN @n ELSE 0 END;
    BEGIN TRANSACTION; -- when archive_at_pop=on
    WITH head AS (
        SELECT TOP (@n) m.due_time, m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE m.due_time <= @now
        ORDER BY m.due_time, m.id
    )
    DELETE FROM head
    OUTPUT deleted.due_time, deleted.id, deleted.payload, deleted.pushed_at
    INTO @popped (due_time, id, payload, pushed_at);
    -- when archive_at_pop=on
    -- Not OUTPUT's INTO, which has no order: the archive numbers its rows as they were popped.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, due_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, p.due_time, SYSUTCDATETIME(), N'done', 1, N'pop'
    FROM @popped AS p ORDER BY p.due_time, p.id;
    COMMIT TRANSACTION;
    -- end
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.due_time, p.id;
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
    DECLARE @now datetime2(7) = SYSUTCDATETIME();
    WITH head AS (
        SELECT TOP (1) m.id, m.payload, m.pushed_at
        FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE m.due_time <= @now
        ORDER BY m.due_time, m.id
    )
    DELETE FROM head OUTPUT deleted.id, deleted.payload, deleted.pushed_at, 1 AS attempts;
    -- end
END;

-- name: due_before
-- one row: how many messages are due before a time, counted to 10,001
DECLARE @due_time datetime2(7) = :due_time;
SELECT COUNT_BIG(*) AS messages FROM (
    SELECT TOP (10001) 1 AS one FROM [{schema}].[{table}] AS m {reading}
    WHERE m.[{due_at}] < @due_time
) AS bounded;

-- name: reschedule
-- one row: how many messages were rescheduled
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @due_time datetime2(7) = :due_time;
DECLARE @taken_out bigint = 0;
{chosen_locations}
UPDATE m
SET [{due_at}] = @due_time
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
{seek_by_key};
SET @taken_out = @@ROWCOUNT;
SELECT
    @taken_out AS taken_out,
    COUNT_BIG(*) AS put_in
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    ON c.location = m.[{id}] AND m.[{due_at}] = @due_time
{seek_by_key};

-- name: drop
-- script: removes the queue's table and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop], [{schema}].[{queue}_pop_many];
DROP TABLE [{schema}].[{queue}];
