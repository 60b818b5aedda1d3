-- ring, relay: renumbers all live messages, to resize the ring or as its last repair.

-- more: functions
-- script: relay
-- One transaction; a crash in it leaves the ring as it was. It waits at most 200 ms, and only for the configuration's row,
-- on which every caller keeps a shared lock to the end of his transaction. While it waits it holds nothing, but callers
-- that come later wait behind it: a lock is given in the order of asking. Then nobody is left but readers without that lock
-- (a sample, a DBA's query): every later lock comes within 10 ms, or the call fails with error 1222 and has changed nothing.
-- In a deadlock it is the one to give way.
-- The sequences come last: a restart is undone with the transaction, but what is drawn is not. Whatever ends the
-- transaction after the draw leaves next numbers that are as before or higher (a crash's gap), and another relay mends that.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_relay]
    @new_size bigint = NULL
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @old_size bigint, @size bigint, @base bigint, @next_push bigint, @next_pop bigint;
    DECLARE @live bigint, @drawn bigint, @held bigint, @alter nvarchar(max), @message nvarchar(2048);
    -- when subscribed=yes
    DECLARE @of smallint, @pop_sequence nvarchar(600), @start bigint, @range sql_variant;
    DECLARE @moved TABLE (slot bigint NOT NULL PRIMARY KEY, old_number bigint NOT NULL, number bigint NOT NULL);
    DECLARE @owed TABLE (subscriber smallint NOT NULL, number bigint NOT NULL, PRIMARY KEY (subscriber, number));
    {reused_declared}
    -- end

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Relay outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET DEADLOCK_PRIORITY LOW;
    SET LOCK_TIMEOUT 200;

    BEGIN TRANSACTION;
    SELECT @old_size = c.size FROM [{schema}].[{queue}_config] AS c WITH (XLOCK, ROWLOCK, HOLDLOCK);
    SET LOCK_TIMEOUT 10;
    SELECT @held = COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);
    SELECT @held = COUNT_BIG(*) FROM [{schema}].[{queue}_popped] AS d WITH (TABLOCKX, HOLDLOCK); -- when subscribed=yes
    SELECT @live = COUNT_BIG(*) FROM [{schema}].[{queue}] AS r WITH (TABLOCKX, HOLDLOCK) WHERE {slot_is_live};

    SET @size = COALESCE(@new_size, @old_size);
    SET @next_push = {push_number_due};
    SET @next_pop = {highest_next_pop};
    IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
        THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was changed. Look with: dbq-console doctor', 1;
    IF @size < 1
        THROW 51002, N'A ring has at least one slot.||Choose a size of 1 or more.', 1;
    IF @live > @size
    BEGIN
        SET @message = CONCAT(
            N'The ring holds ', @live, N' live messages, ', @live - @size, N' more than ', @size, N' slots take.||',
            N'Drain ', @live - @size, N' messages first, or choose at least ', @live, N' slots.'
        );
        THROW 51004, @message, 1;
    END;
    SET @base = CASE WHEN @next_push > @next_pop THEN @next_push ELSE @next_pop END;

    IF @size > @old_size
    BEGIN
        WITH {many}

        INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, message, reference_count) -- when content=slot
        INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, reference_count) -- when content=apart
        SELECT TOP (@size - @old_size)
            @old_size + many.n - 1,
            SYSUTCDATETIME(),
            {prefilled}
            0
        FROM many
        ORDER BY many.n;
    END;

    -- when subscribed=yes
    -- Who still owes which message; what nobody owes has been popped by all.
    INSERT INTO @moved (slot, old_number, number)
    SELECT
        r.slot,
        r.message_id,
        @base + ROW_NUMBER() OVER (ORDER BY r.message_id) - 1
    FROM [{schema}].[{queue}] AS r
    WHERE {slot_is_live};
    INSERT INTO @owed (subscriber, number)
    SELECT
        b.number,
        m.number
    FROM @moved AS m
    CROSS JOIN [{schema}].[{queue}_subscribers] AS b
    WHERE NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_popped] AS d
        WHERE d.subscriber = b.number AND d.slot = m.slot AND d.message_id >= m.old_number
    );
    -- when defined keeps_popped
    -- when content=slot
    INSERT INTO @reused (id, payload, slot, pushed_at)
    SELECT
        r.first_id,
        r.message,
        r.slot,
        r.time
    -- else
    INSERT INTO @reused (id, slot, pushed_at)
    SELECT
        r.first_id,
        r.slot,
        r.time
    -- end
    FROM [{schema}].[{queue}] AS r
    WHERE r.reference_count > 0 AND NOT EXISTS (SELECT 1 FROM @moved AS m WHERE m.slot = r.slot);
    {discard_popped}
    -- end

    -- end
    -- One statement: every message is read from its old slot before any is written to its new one.
    WITH live AS (
        SELECT
            r.first_id,
            r.time,
            r.message, -- when content=slot
            r.reference_count,
            @base + ROW_NUMBER() OVER (ORDER BY r.message_id) - 1 AS number
        FROM [{schema}].[{queue}] AS r
        WHERE {slot_is_live}
    )

    UPDATE r
    SET message_id = l.number,
        first_id = l.first_id,
        time = COALESCE(l.time, r.time),
        message = l.message, -- when content=slot
        reference_count = COALESCE(l.reference_count, 0)
    FROM [{schema}].[{queue}] AS r WITH (TABLOCKX)
    LEFT JOIN live AS l ON r.slot = l.number % @size
    -- when content=slot
    WHERE r.slot < @size AND (r.reference_count > 0 OR r.message IS NOT NULL OR l.number IS NOT NULL);
    -- end
    WHERE r.slot < @size AND (r.reference_count > 0 OR l.number IS NOT NULL); -- when content=apart

    DELETE FROM [{schema}].[{queue}] WITH (TABLOCKX) WHERE slot >= @size OR slot < 0;
    DELETE FROM [{schema}].[{queue}_parked] WITH (TABLOCKX);
    -- when subscribed=yes
    DELETE d
    FROM [{schema}].[{queue}_popped] AS d WITH (TABLOCKX)
    WHERE d.slot >= @size OR d.slot < 0
    OR NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_subscribers] AS b WHERE b.number = d.subscriber);
    INSERT INTO [{schema}].[{queue}_popped] WITH (TABLOCKX) (subscriber, slot, message_id, time)
    SELECT
        b.number,
        r.slot,
        0,
        SYSUTCDATETIME()
    FROM [{schema}].[{queue}_subscribers] AS b
    CROSS JOIN [{schema}].[{queue}] AS r
    WHERE NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_popped] AS d WHERE d.subscriber = b.number AND d.slot = r.slot
    );
    UPDATE d
    SET message_id = COALESCE(r.message_id, @base - 1)
    FROM [{schema}].[{queue}_popped] AS d WITH (TABLOCKX)
    LEFT JOIN [{schema}].[{queue}] AS r
        ON d.slot = r.slot AND r.reference_count > 0
        AND NOT EXISTS (SELECT 1 FROM @owed AS o WHERE o.subscriber = d.subscriber AND o.number = r.message_id);
    -- Each begins at the first that it owes; what it has popped behind that it will drop.
    INSERT INTO [{schema}].[{queue}_parked] WITH (TABLOCKX) (subscriber, number, void, parked_at)
    SELECT
        b.number,
        m.number,
        1,
        SYSUTCDATETIME()
    FROM [{schema}].[{queue}_subscribers] AS b
    CROSS JOIN @moved AS m
    WHERE m.number > (SELECT MIN(o.number) FROM @owed AS o WHERE o.subscriber = b.number)
    AND NOT EXISTS (SELECT 1 FROM @owed AS o WHERE o.subscriber = b.number AND o.number = m.number);
    UPDATE [{schema}].[{queue}_swept] SET number = @base; -- when defined keeps_popped
    -- end
    UPDATE [{schema}].[{queue}_config] SET size = @size, base = @base;

    -- RESTART WITH and CACHE take constants and nothing else, so these two have to be put together.
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] RESTART WITH ', @base + @live - 1, N' CACHE ', {push_cache});
    EXEC (@alter);
    SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
    IF @drawn <> @base + @live - 1
        THROW 51004, N'The push sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;

    -- when subscribed=yes
    SET @of = (SELECT MIN(b.number) FROM [{schema}].[{queue}_subscribers] AS b);
    WHILE @of IS NOT NULL
    BEGIN
        SELECT @pop_sequence = {pop_sequence_of} FROM [{schema}].[{queue}_subscribers] AS b WHERE b.number = @of;
        SET @start = COALESCE((SELECT MIN(o.number) FROM @owed AS o WHERE o.subscriber = @of), @base + @live);
        SET @alter = CONCAT(N'ALTER SEQUENCE ', @pop_sequence, N' RESTART WITH ', @start - 1, N' CACHE ', {pop_cache});
        EXEC (@alter);
        EXEC sys.sp_sequence_get_range
            @sequence_name = @pop_sequence, @range_size = 1, @range_first_value = @range OUTPUT;
        IF CAST(@range AS bigint) <> @start - 1
            THROW 51004, N'A pop sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;
        SET @of = (SELECT MIN(b.number) FROM [{schema}].[{queue}_subscribers] AS b WHERE b.number > @of);
    END;
    -- else
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] RESTART WITH ', @base - 1, N' CACHE ', {pop_cache});
    EXEC (@alter);
    SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq];
    IF @drawn <> @base - 1
        THROW 51004, N'The pop sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;
    -- end
    COMMIT TRANSACTION;

    SELECT
        @old_size AS size_before,
        @size AS size_after,
        @live AS live,
        @base AS base,
        @base + @live AS next_push;
END;
GO

-- name: base
-- one row: the lowest valid number; it changes with every relay
SELECT c.base AS base FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);

-- name: relay
-- one row: sizes before and after, live messages, the new base and the next push number
DECLARE @new_size bigint = :new_size;
EXEC [{schema}].[{queue}_relay] @new_size = @new_size;

-- name: measure
-- one row: size, live messages, the two next numbers and what is parked; a scan of the ring
-- Rows that open transactions hold are skipped, not waited for: they are in nobody's count yet.
SELECT
    c.size AS size,
    c.base AS base,
    (
        SELECT COUNT_BIG(*) FROM {visible_ring_m} WHERE m.reference_count > 0
    ) AS live,
    {push_number_due} AS next_push,
    {visible_next_pop} AS next_pop,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK) WHERE p.void = 0{and_p_visible}
    ) AS parked,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK) WHERE p.void = 1{and_p_visible}
    ) AS voids
FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);

-- name: blockers
-- the transactions that a relay would wait for, oldest first; one row of nulls where this login may not see them
-- Every lock in a table comes with one on the table itself. Readers under NOLOCK (Sch-S) block nobody. A prepared
-- (distributed) transaction without a session is number -2.
IF {sees_server_state} = 1
    SELECT
        b.pid AS pid,
        s.login_name AS user_name,
        s.program_name AS application_name,
        (SELECT MIN(c.client_net_address) FROM sys.dm_exec_connections AS c WHERE c.session_id = b.pid) AS client_address,
        CASE WHEN s.status = N'sleeping' THEN N'idle in transaction' ELSE s.status END AS state,
        CAST(DATEDIFF_BIG(millisecond, t.transaction_begin_time, SYSDATETIME()) AS float) / 1000 AS transaction_seconds,
        b.prepared_transaction AS prepared_transaction
    FROM (
        SELECT DISTINCT
            l.request_session_id AS pid,
            l.request_owner_id AS transaction_id,
            CASE WHEN l.request_session_id < 0 THEN CAST(l.request_owner_guid AS nvarchar(36)) END AS prepared_transaction
        FROM sys.dm_tran_locks AS l
        WHERE l.resource_type = N'OBJECT' AND l.resource_database_id = DB_ID()
        AND l.request_status <> N'WAIT' AND l.request_mode <> N'Sch-S'
        AND l.request_session_id <> @@SPID
        AND l.resource_associated_entity_id IN (
            OBJECT_ID(N'[{schema}].[{queue}_config]'), OBJECT_ID(N'[{schema}].[{queue}_parked]'),
            OBJECT_ID(N'[{schema}].[{queue}]'),
            -- when subscribed=yes
            OBJECT_ID(N'[{schema}].[{queue}_popped]'), OBJECT_ID(N'[{schema}].[{queue}_subscribers]'),
            -- end
            -- each subscriber
            OBJECT_ID(N'[{schema}].[{queue}_pop_seq_{subscriber_number}]'),
            -- end
            OBJECT_ID(N'[{schema}].[{queue}_pop_seq]'), -- when subscribed=no
            OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
        )
    ) AS b
    LEFT JOIN sys.dm_exec_sessions AS s ON b.pid = s.session_id
    LEFT JOIN sys.dm_tran_active_transactions AS t ON b.transaction_id = t.transaction_id
    ORDER BY t.transaction_begin_time, b.pid;
ELSE
    SELECT
        CAST(NULL AS int) AS pid,
        CAST(NULL AS nvarchar(128)) AS user_name,
        CAST(NULL AS nvarchar(128)) AS application_name,
        CAST(NULL AS nvarchar(48)) AS client_address,
        CAST(NULL AS nvarchar(30)) AS state,
        CAST(NULL AS float) AS transaction_seconds,
        CAST(NULL AS nvarchar(36)) AS prepared_transaction;
