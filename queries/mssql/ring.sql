-- ring: Kejser's preallocated ring with two sequences ("LMAX'ed"), on SQL Server.
--
-- A push draws a number and writes slot number % size, a pop draws a number and empties that slot.
-- The two sequences know nothing of each other and NEXT VALUE FOR is not transactional, so numbers
-- get lost: a caller that rolls back or dies; a server that crashes skips what is left of CACHE,
-- up to 100,000 of each. Three things keep that harmless:
--
--   parked (void = 0)   a pop number whose message was not there yet. It is used as soon as the
--                       message is there, so no message is stranded behind a pop that came early.
--   parked (void = 1)   a push number that could not be used. The pop that draws it drops it.
--   relay               numbers the live messages anew: the resize, and the last repair.
--
-- The order is the order in which numbers were drawn, not the order of commits: a late commit is
-- popped late.
--
-- Rules that every procedure here keeps, and why:
--   * READ COMMITTED only. Above it a caller's reads stay locked until the end of his transaction,
--     or are of an older snapshot. The refusal comes before a number is spent. (A caller at READ
--     UNCOMMITTED is lifted to READ COMMITTED for the call: READPAST wants it, and so do we.)
--   * A call is one transaction, its own or a part of the caller's: BEGIN and COMMIT only count
--     there, nothing here rolls back by hand, and XACT_ABORT undoes all of it after an error.
--   * The first read is of size and base, WITH (REPEATABLEREAD, ROWLOCK): that shared lock lasts to
--     the end of the transaction, and relay takes the configuration exclusively while it holds
--     nothing else. So no number and no size outlives a relay. Both are read again after the write,
--     and the call is undone where they differ: whatever takes the hint away loses no message.
--   * No write waits for a row: slots and parked numbers are taken WITH (ROWLOCK, READPAST,
--     READCOMMITTEDLOCK). READPAST skips row locks and nothing else, so page locks and escalation
--     are off; READCOMMITTEDLOCK makes it lock where READ_COMMITTED_SNAPSHOT is on. So a ring never
--     takes part in a deadlock, except with a relay, which is the one to give way.
--     Reads of parked numbers and slots skip locked rows too: a locked row is in the hands of
--     somebody else, and what it will be nobody knows yet.
--   * next_push is read before next_pop where "full" is decided, and after it where "empty" is: the
--     second one can only have grown meanwhile, so neither answer is given without its reason.
--   * Every slot and every parked number is sought by its key (LOOP JOIN, FORCE ORDER where numbers come
--     from a table variable): a plan that scans would lock, for a moment, rows that others look for,
--     and they would skip them.
--   * EXECUTE AS OWNER: sys.sequences shows a sequence only to those who have a right on it, and
--     catalog views do not follow ownership chains. Where it shows none, that is an error.

-- name: tables
-- script: the ring, its configuration, the parked numbers, the two sequences
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
-- A row that is updated in a clustered index stays on its page as long as it fits there, and is never
-- forwarded. So every slot is laid at full width, in the order of the slots, and then emptied: its
-- page has the room for good, and there is no split, however the lengths change. (char(n), Kejser's
-- fixed width, would strip blanks; a fixed width saves only the moving of a few bytes on the page.)
-- 16 bytes more than a payload may have: with row versions (READ_COMMITTED_SNAPSHOT, a readable
-- replica, accelerated recovery) a row grows by 14 at its next write.
CREATE TABLE [{schema}].[{queue}] (
    slot bigint NOT NULL,
    message_id bigint NULL, -- the push number that is valid now; null = free
    first_id bigint NULL, -- the number that push returned; pop returns it, whatever a relay did since
    time datetime2(7) NOT NULL,
    -- when payload=text|json
    message nvarchar(3508) NULL,
    -- end
    -- when payload=bytes
    message varbinary(7016) NULL,
    -- end
    reference_count tinyint NOT NULL,
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (slot)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON, FILLFACTOR = 100)
);

CREATE TABLE [{schema}].[{queue}_config] (
    only_row bit NOT NULL,
    size bigint NOT NULL,
    base bigint NOT NULL, -- the lowest number that is still valid
    CONSTRAINT [{queue}_config_key] PRIMARY KEY CLUSTERED (only_row) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT [{queue}_config_one] CHECK (only_row = 1)
);

-- The key begins with void, so that a pop and a push never wait for each other's row, and voids,
-- however many, do not lie between the parked numbers. A row's place is drawn: where there are many,
-- pops look at them from a place that is drawn too, so each has its turn wherever its number lies.
CREATE TABLE [{schema}].[{queue}_parked] (
    number bigint NOT NULL,
    void bit NOT NULL,
    parked_at datetime2(7) NOT NULL,
    place int NOT NULL CONSTRAINT [{queue}_parked_place] DEFAULT CHECKSUM(NEWID()),
    CONSTRAINT [{queue}_parked_key] PRIMARY KEY CLUSTERED (void, number)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);

CREATE NONCLUSTERED INDEX [{queue}_parked_places] ON [{schema}].[{queue}_parked] (void, place)
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_config] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_parked] SET (LOCK_ESCALATION = DISABLE);

-- Drawn once below, so that next = current_value + 1 always: current_value alone cannot tell "never
-- used" from "used once".
CREATE SEQUENCE [{schema}].[{queue}_push_seq] AS bigint START WITH 0 INCREMENT BY 1 CACHE 100000;
CREATE SEQUENCE [{schema}].[{queue}_pop_seq] AS bigint START WITH 0 INCREMENT BY 1 CACHE 100000;
GO
DECLARE @drawn bigint;
SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq];

INSERT INTO [{schema}].[{queue}_config] (only_row, size, base) VALUES (1, CAST(N'{size}' AS bigint), 1);

WITH ten AS (
    SELECT d.n FROM (VALUES (0), (0), (0), (0), (0), (0), (0), (0), (0), (0)) AS d (n)
), many AS (
    SELECT ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n
    FROM ten AS a CROSS JOIN ten AS b CROSS JOIN ten AS c CROSS JOIN ten AS d
    CROSS JOIN ten AS e CROSS JOIN ten AS f CROSS JOIN ten AS g CROSS JOIN ten AS h
)

INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, message, reference_count)
SELECT TOP (CAST(N'{size}' AS bigint))
    many.n - 1,
    SYSUTCDATETIME(),
    -- when payload=text|json
    REPLICATE(N'x', CAST(N'{max_bytes}' AS int) / 2 + 8),
    -- end
    -- when payload=bytes
    CAST(REPLICATE('x', CAST(N'{max_bytes}' AS int) + 16) AS varbinary(7016)),
    -- end
    0
FROM many
ORDER BY many.n;

UPDATE [{schema}].[{queue}] WITH (TABLOCKX) SET message = NULL;

-- when in_hand=on
-- What was popped and is not finished: claimed (claimed_at), ready again (neither), error (done_at).
CREATE TABLE [{schema}].[{queue}_in_hand] (
    id bigint NOT NULL,
    -- when payload=text|json
    payload nvarchar(3500) NOT NULL,
    -- end
    -- when payload=bytes
    payload varbinary(7000) NOT NULL,
    -- end
    pushed_at datetime2(7) NOT NULL,
    attempts int NOT NULL,
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(256) NULL,
    errors nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    CONSTRAINT [{queue}_in_hand_key] PRIMARY KEY CLUSTERED (id) WITH (ALLOW_PAGE_LOCKS = OFF)
);

ALTER TABLE [{schema}].[{queue}_in_hand] SET (LOCK_ESCALATION = DISABLE);

-- In the order in which pop takes what is ready again.
CREATE NONCLUSTERED INDEX [{queue}_in_hand_ready] ON [{schema}].[{queue}_in_hand] (id)
WHERE claimed_at IS NULL AND done_at IS NULL WITH (ALLOW_PAGE_LOCKS = OFF);

CREATE NONCLUSTERED INDEX [{queue}_in_hand_claimed] ON [{schema}].[{queue}_in_hand] (claimed_at)
WHERE claimed_at IS NOT NULL AND done_at IS NULL WITH (ALLOW_PAGE_LOCKS = OFF);

CREATE NONCLUSTERED INDEX [{queue}_in_hand_done] ON [{schema}].[{queue}_in_hand] (done_at)
WHERE done_at IS NOT NULL WITH (ALLOW_PAGE_LOCKS = OFF);

-- end
-- name: functions
-- script: push, push_many, pop, pop_many, relay, and with in_hand complete and fail
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    -- when payload=text|json
    @payload nvarchar(max)
    -- end
    -- when payload=bytes
    @payload varbinary(max)
    -- end
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint, @drawn bigint, @id bigint;
    DECLARE @try int = 0;

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Push outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    IF @payload IS NULL
        THROW 51002, N'The payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
    -- when payload=json
    IF ISJSON(N'[' + @payload + N']') = 0 OR (SELECT COUNT(*) FROM OPENJSON(N'[' + @payload + N']')) <> 1
        THROW 51002, N'The payload is not one JSON value.||Send one JSON value as the payload.', 1;
    -- end
    -- Bytes of UTF-16: two a character, four where it lies beyond the basic plane.
    IF DATALENGTH(@payload) > CAST(N'{max_bytes}' AS int)
        THROW 51002, N'The payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;

    BEGIN TRANSACTION;
    SELECT
        @size = c.size,
        @base = c.base
    FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

    WHILE @id IS NULL AND @try < 8
    BEGIN
        SET @try += 1;
        SET @next_push = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
        );
        SET @next_pop = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
        );
        IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
            THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was pushed. Look with: dbq-console doctor', 1;
        IF @next_push - @next_pop >= @size
            BREAK;

        SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];

        UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        SET message_id = @drawn,
            first_id = @drawn,
            time = SYSUTCDATETIME(),
            message = @payload,
            reference_count = reference_count + 1
        WHERE slot = @drawn % @size AND reference_count = 0;

        IF @@ROWCOUNT = 1
            SET @id = @drawn;
        ELSE
        BEGIN
            -- The slot is not free (a race at full, an orphan in it): this number carries nothing.
            DELETE FROM [{schema}].[{queue}_parked] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE void = 0 AND number = @drawn;

            IF @@ROWCOUNT = 0
                INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
                SELECT @drawn, 1, SYSUTCDATETIME()
                WHERE NOT EXISTS (
                    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    WHERE p.void = 1 AND p.number = @drawn
                );
        END;
    END;

    IF NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK) WHERE c.size = @size AND c.base = @base
    )
        THROW 51003, N'A relay came between.||Nothing was pushed. Try again.', 1;
    COMMIT TRANSACTION;

    SELECT @id AS id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint, @range sql_variant, @first bigint;
    DECLARE @wanted bigint, @room bigint = 0, @written bigint, @look int = 0, @from bigint, @to bigint;
    -- when payload=text|json
    DECLARE @given TABLE (position bigint NOT NULL PRIMARY KEY, payload nvarchar(max) NULL);
    -- end
    -- when payload=bytes
    DECLARE @given TABLE (position bigint NOT NULL PRIMARY KEY, payload varbinary(max) NULL);
    -- end
    DECLARE @free TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @filled TABLE (position bigint NOT NULL PRIMARY KEY, number bigint NOT NULL);
    DECLARE @unused TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @met TABLE (number bigint NOT NULL PRIMARY KEY);

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Push outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    IF ISJSON(@payloads) = 0
        THROW 51002, N'The payloads are not a JSON array.||Send an array of strings, one for each payload.', 1;

    INSERT INTO @given (position, payload)
    SELECT
        CAST(p.[key] AS bigint),
        -- when payload=text|json
        p.[value]
        -- end
        -- when payload=bytes
        TRY_CONVERT(varbinary(max), p.[value], 2)
        -- end
    FROM OPENJSON(@payloads) AS p;
    SET @wanted = @@ROWCOUNT;

    IF EXISTS (SELECT 1 FROM @given AS g WHERE g.payload IS NULL)
        -- when payload=text|json
        THROW 51002, N'A payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
        -- when payload=bytes
        THROW 51002, N'A payload is NULL or not hexadecimal digits.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
    -- when payload=json
    IF EXISTS (
        SELECT 1 FROM @given AS g
        WHERE ISJSON(N'[' + g.payload + N']') = 0 OR (SELECT COUNT(*) FROM OPENJSON(N'[' + g.payload + N']')) <> 1
    )
        THROW 51002, N'A payload is not one JSON value.||Send one JSON value as each payload.', 1;
    -- end
    IF EXISTS (SELECT 1 FROM @given AS g WHERE DATALENGTH(g.payload) > CAST(N'{max_bytes}' AS int))
        THROW 51002, N'A payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;

    BEGIN TRANSACTION;
    SELECT
        @size = c.size,
        @base = c.base
    FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

    SET @next_push = (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
    );
    SET @next_pop = (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
    );
    IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
        THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was pushed. Look with: dbq-console doctor', 1;

    -- Where poppers wait ahead the gap is negative, but more than size numbers never find a slot.
    SET @room = @size - (@next_push - @next_pop);
    IF @room > @size
        SET @room = @size;
    IF @room > @wanted
        SET @room = @wanted;

    IF @room > 0
    BEGIN
        -- Drawn at once; the numbers of a range follow each other.
        EXEC sys.sp_sequence_get_range
            @sequence_name = N'[{schema}].[{queue}_push_seq]', @range_size = @room, @range_first_value = @range OUTPUT;
        SET @first = CAST(@range AS bigint);

        -- Two looks; what the first one locked is locked in the second.
        WHILE @look < 2 AND (SELECT COUNT_BIG(*) FROM @free) < @room
        BEGIN
            SET @look += 1;
            DELETE FROM @free;
            -- So do their slots: to the last of the ring at most, and the rest from slot 0.
            SET @from = @first % @size;
            SET @to = @from + @room - 1;
            WHILE @from <= @to
            BEGIN
                INSERT INTO @free (number)
                SELECT @first + (r.slot - @first % @size + @size) % @size
                FROM [{schema}].[{queue}] AS r WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE r.slot BETWEEN @from AND @to AND r.reference_count = 0;

                SET @from = 0;
                SET @to -= @size;
            END;
        END;

        -- The first payload goes to the lowest number that has a slot, and so on.
        INSERT INTO @filled (position, number)
        SELECT
            ROW_NUMBER() OVER (ORDER BY f.number) - 1,
            f.number
        FROM @free AS f;

        UPDATE r
        SET message_id = f.number,
            first_id = f.number,
            time = SYSUTCDATETIME(),
            message = g.payload,
            reference_count = r.reference_count + 1
        FROM @filled AS f
        INNER JOIN @given AS g ON f.position = g.position
        INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON r.slot = f.number % @size
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @written = @@ROWCOUNT;

        IF @written <> (SELECT COUNT_BIG(*) FROM @filled)
            THROW 51004, N'A locked slot was not where it was locked.||Nothing was pushed. Look with: dbq-console doctor', 1;

        IF @written < @room
        BEGIN
            INSERT INTO @unused (number)
            SELECT @first + g.position
            FROM @given AS g
            WHERE g.position < @room AND NOT EXISTS (SELECT 1 FROM @filled AS f WHERE f.number = @first + g.position);

            DELETE p
            OUTPUT deleted.number INTO @met (number)
            FROM @unused AS u
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = u.number
            OPTION (LOOP JOIN, FORCE ORDER);

            INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
            SELECT
                u.number,
                1,
                SYSUTCDATETIME()
            FROM @unused AS u
            WHERE NOT EXISTS (SELECT 1 FROM @met AS m WHERE m.number = u.number)
            AND NOT EXISTS (
                SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 1 AND p.number = u.number
            );
        END;
    END;

    IF NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK) WHERE c.size = @size AND c.base = @base
    )
        THROW 51003, N'A relay came between.||Nothing was pushed. Try again.', 1;
    COMMIT TRANSACTION;

    SELECT f.number AS id
    FROM @given AS g
    LEFT JOIN @filled AS f ON g.position = f.position
    ORDER BY g.position;
END;
GO
-- when in_hand=on
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    -- One path for claims: what is in hand and ready again goes before the ring.
    EXEC [{schema}].[{queue}_pop_many] @n = 1, @consumer = @consumer, @bound = @bound;
END;
-- end
-- when in_hand=off
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint, @drawn bigint, @place int;
    DECLARE @tries int = 0, @voids int = 0, @look int, @taken bit = 0, @dropped bit;
    -- when payload=text|json
    DECLARE @id bigint, @payload nvarchar(3508), @pushed_at datetime2(7);
    -- end
    -- when payload=bytes
    DECLARE @id bigint, @payload varbinary(7016), @pushed_at datetime2(7);
    -- end
    DECLARE @parked TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @held TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @finished TABLE (number bigint NOT NULL PRIMARY KEY);

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Pop outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    BEGIN TRANSACTION;
    SELECT
        @size = c.size,
        @base = c.base
    FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

    -- Asked first and alone: a queue where nothing is parked, as it should be, fills no table.
    IF EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE p.void = 0
    )
    BEGIN
        INSERT INTO @parked (number)
        SELECT TOP (65) p.number
        FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE p.void = 0
        ORDER BY p.number;

        IF @@ROWCOUNT > 64
        BEGIN
            -- The 32 lowest, which are next in order, and 32 from a place that moves round: between
            -- numbers that lie far apart most would never have their turn.
            SET @place = CHECKSUM(NEWID());
            DELETE FROM @parked WHERE number NOT IN (SELECT TOP (32) p.number FROM @parked AS p ORDER BY p.number);
            INSERT INTO @parked (number)
            SELECT w.number
            FROM (
                SELECT TOP (32) p.number
                FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0 AND p.place >= @place
                ORDER BY p.place
            ) AS w
            WHERE w.number NOT IN (SELECT p.number FROM @parked AS p);
        END;

        -- Those that have their message now, one after the other, looked up slot by slot.
        SET @drawn = 0;
        WHILE @taken = 0 AND @drawn IS NOT NULL
        BEGIN
            SELECT @drawn = MIN(w.number)
            FROM @parked AS w
            INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON r.slot = w.number % @size AND r.message_id = w.number
            WHERE w.number > @drawn
            OPTION (LOOP JOIN, FORCE ORDER);

            IF EXISTS (
                SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0 AND p.number = @drawn
            )
            BEGIN
                UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                SET @id = first_id,
                    @payload = message,
                    @pushed_at = time,
                    message_id = NULL,
                    first_id = NULL,
                    time = SYSUTCDATETIME(),
                    message = NULL,
                    reference_count = reference_count - 1
                -- when archive_at_pop=on
                OUTPUT deleted.first_id, deleted.message, deleted.time, SYSUTCDATETIME(), N'done', 1, N'pop'
                INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
                -- end
                WHERE slot = @drawn % @size AND message_id = @drawn;

                SET @taken = @@ROWCOUNT;
                IF @taken = 1
                    DELETE FROM [{schema}].[{queue}_parked] WITH (ROWLOCK) WHERE void = 0 AND number = @drawn;
            END;
        END;

        -- None: finish the numbers that are void too, where both rows are free.
        IF @taken = 0
        BEGIN
            INSERT INTO @held (number)
            SELECT p.number
            FROM @parked AS w
            INNER JOIN [{schema}].[{queue}_parked] AS v WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON v.void = 1 AND v.number = w.number
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = v.number
            OPTION (LOOP JOIN, FORCE ORDER);

            IF @@ROWCOUNT > 0
            BEGIN
                DELETE p
                OUTPUT deleted.number INTO @finished (number)
                FROM @held AS h
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 1 AND p.number = h.number
                OPTION (LOOP JOIN, FORCE ORDER);

                DELETE p
                FROM @finished AS f
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 0 AND p.number = f.number
                OPTION (LOOP JOIN, FORCE ORDER);
            END;
        END;
    END;

    WHILE @taken = 0 AND @tries < 8 AND @voids < 1000
    BEGIN
        SET @next_pop = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
        );
        SET @next_push = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
        );
        IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
            THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was popped. Look with: dbq-console doctor', 1;
        IF @next_pop >= @next_push
            BREAK;

        SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq];
        SET @dropped = 0;
        SET @look = 0;
        WHILE @taken = 0 AND @dropped = 0 AND @look < 2
        BEGIN
            SET @look += 1;
            UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            SET @id = first_id,
                @payload = message,
                @pushed_at = time,
                message_id = NULL,
                first_id = NULL,
                time = SYSUTCDATETIME(),
                message = NULL,
                reference_count = reference_count - 1
            -- when archive_at_pop=on
            OUTPUT deleted.first_id, deleted.message, deleted.time, SYSUTCDATETIME(), N'done', 1, N'pop'
            INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
            -- end
            WHERE slot = @drawn % @size AND message_id = @drawn;

            SET @taken = @@ROWCOUNT;
            IF @taken = 0
            BEGIN
                DELETE FROM [{schema}].[{queue}_parked] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE void = 1 AND number = @drawn;

                SET @dropped = @@ROWCOUNT;
                IF @dropped = 0 AND @look = 1
                    WAITFOR DELAY '00:00:00.005'; -- the push's commit may be in flight
            END;
        END;

        IF @dropped = 1
            SET @voids += 1;
        ELSE IF @taken = 0
        BEGIN
            INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
            SELECT @drawn, 0, SYSUTCDATETIME()
            WHERE NOT EXISTS (
                SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0 AND p.number = @drawn
            );
            SET @tries += 1;
        END;
    END;

    IF NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK) WHERE c.size = @size AND c.base = @base
    )
        THROW 51003, N'A relay came between.||Nothing was popped. Try again.', 1;
    COMMIT TRANSACTION;

    SELECT
        @id AS id,
        @payload AS payload,
        @pushed_at AS pushed_at,
        1 AS attempts
    WHERE @taken = 1;
END;
-- end
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    -- when in_hand=on
    @n int,
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
    -- end
    -- when in_hand=off
    @n int
    -- end
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint, @range sql_variant, @first bigint;
    DECLARE @wanted bigint = 0, @room bigint, @found bigint, @from bigint, @to bigint, @place int;
    DECLARE @tries int = 0, @voids int = 0, @look int, @parked_now int;
    -- when in_hand=on
    DECLARE @session nvarchar(256);
    -- end
    DECLARE @parked TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @held TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @finished TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @missing TABLE (number bigint NOT NULL PRIMARY KEY);
    -- In lane 0 what was in hand, by id; in lane 1 what was in the ring, by number.
    DECLARE @popped TABLE (
        lane tinyint NOT NULL,
        number bigint NOT NULL,
        id bigint NOT NULL,
        -- when payload=text|json
        payload nvarchar(3508) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(7016) NOT NULL,
        -- end
        pushed_at datetime2(7) NOT NULL,
        attempts int NOT NULL,
        PRIMARY KEY (lane, number)
    );

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Pop outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    IF @n > 0
        SET @wanted = @n;

    BEGIN TRANSACTION;
    SELECT
        @size = c.size,
        @base = c.base
    FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

    -- when in_hand=on
    -- Who claims: this session, by its number and its login time, which the server keeps in local time.
    SET @session = CONCAT(N'session=', @@SPID);
    SELECT @session = CONCAT(@session, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
        minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
    ) AS datetime2(3)), 126), N'Z')
    FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
    SET @session = CONCAT(@session, CASE WHEN @bound = 1 THEN N' bound' END, N' consumer=' + @consumer);

    -- The hint: by the key this order could be had too, and then a pop would read all claims.
    WITH ready AS (
        SELECT TOP (@wanted)
            h.id,
            h.payload,
            h.pushed_at,
            h.attempts,
            h.claimed_at,
            h.claimed_by
        FROM [{schema}].[{queue}_in_hand] AS h
            WITH (INDEX ([{queue}_in_hand_ready]), ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE h.claimed_at IS NULL AND h.done_at IS NULL
        ORDER BY h.id
    )

    UPDATE ready
    SET claimed_at = SYSUTCDATETIME(),
        claimed_by = @session,
        attempts = attempts + 1
    OUTPUT 0, inserted.id, inserted.id, inserted.payload, inserted.pushed_at, inserted.attempts
    INTO @popped (lane, number, id, payload, pushed_at, attempts);
    SET @wanted -= @@ROWCOUNT;

    -- end
    IF @wanted > 0 AND EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE p.void = 0
    )
    BEGIN
        INSERT INTO @parked (number)
        SELECT TOP (65) p.number
        FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE p.void = 0
        ORDER BY p.number;

        IF @@ROWCOUNT > 64
        BEGIN
            SET @place = CHECKSUM(NEWID());
            DELETE FROM @parked WHERE number NOT IN (SELECT TOP (32) p.number FROM @parked AS p ORDER BY p.number);
            INSERT INTO @parked (number)
            SELECT w.number
            FROM (
                SELECT TOP (32) p.number
                FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0 AND p.place >= @place
                ORDER BY p.place
            ) AS w
            WHERE w.number NOT IN (SELECT p.number FROM @parked AS p);
        END;

        -- Those that have their message now: first their parked rows, then their slots.
        INSERT INTO @held (number)
        SELECT p.number
        FROM (
            SELECT TOP (@wanted) w.number
            FROM @parked AS w
            INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON r.slot = w.number % @size AND r.message_id = w.number
            ORDER BY w.number
        ) AS here
        INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
            ON p.void = 0 AND p.number = here.number
        OPTION (LOOP JOIN, FORCE ORDER);

        IF @@ROWCOUNT > 0
        BEGIN
            UPDATE r
            SET message_id = NULL,
                first_id = NULL,
                time = SYSUTCDATETIME(),
                message = NULL,
                reference_count = r.reference_count - 1
            OUTPUT 1, deleted.message_id, deleted.first_id, deleted.message, deleted.time, 1
            INTO @popped (lane, number, id, payload, pushed_at, attempts)
            FROM @held AS h
            INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON r.slot = h.number % @size AND r.message_id = h.number
            OPTION (LOOP JOIN, FORCE ORDER);
            SET @found = @@ROWCOUNT;
            SET @wanted -= @found;

            DELETE p
            FROM @popped AS t
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = t.number
            WHERE t.lane = 1
            OPTION (LOOP JOIN, FORCE ORDER);
            DELETE FROM @held;
        END;

        -- None: finish the numbers that are void too, where both rows are free.
        IF NOT EXISTS (SELECT 1 FROM @popped AS t WHERE t.lane = 1)
        BEGIN
            INSERT INTO @held (number)
            SELECT p.number
            FROM @parked AS w
            INNER JOIN [{schema}].[{queue}_parked] AS v WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON v.void = 1 AND v.number = w.number
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = v.number
            OPTION (LOOP JOIN, FORCE ORDER);

            IF @@ROWCOUNT > 0
            BEGIN
                DELETE p
                OUTPUT deleted.number INTO @finished (number)
                FROM @held AS h
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 1 AND p.number = h.number
                OPTION (LOOP JOIN, FORCE ORDER);

                DELETE p
                FROM @finished AS f
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 0 AND p.number = f.number
                OPTION (LOOP JOIN, FORCE ORDER);
            END;
        END;
    END;

    WHILE @wanted > 0 AND @tries < 8 AND @voids < 1000
    BEGIN
        SET @next_pop = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
        );
        SET @next_push = (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
        );
        IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
            THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was popped. Look with: dbq-console doctor', 1;

        -- At most once round the ring (after a crash the gap may be larger than it), and 10,000 at a time.
        SET @room = @next_push - @next_pop;
        IF @room > @wanted
            SET @room = @wanted;
        IF @room > @size
            SET @room = @size;
        IF @room > 10000
            SET @room = 10000;
        IF @room <= 0
            BREAK;

        EXEC sys.sp_sequence_get_range
            @sequence_name = N'[{schema}].[{queue}_pop_seq]', @range_size = @room, @range_first_value = @range OUTPUT;
        SET @first = CAST(@range AS bigint);

        SET @found = 0;
        SET @look = 0;
        WHILE @found < @room AND @look < 2
        BEGIN
            IF @look = 1
                WAITFOR DELAY '00:00:00.005'; -- a push's commit may be in flight
            SET @look += 1;
            -- The slots of a range: to the last of the ring at most, and the rest from slot 0.
            SET @from = @first % @size;
            SET @to = @from + @room - 1;
            WHILE @from <= @to
            BEGIN
                UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                SET message_id = NULL,
                    first_id = NULL,
                    time = SYSUTCDATETIME(),
                    message = NULL,
                    reference_count = reference_count - 1
                OUTPUT 1, deleted.message_id, deleted.first_id, deleted.message, deleted.time, 1
                INTO @popped (lane, number, id, payload, pushed_at, attempts)
                WHERE slot BETWEEN @from AND @to AND message_id BETWEEN @first AND @first + @room - 1;

                SET @found += @@ROWCOUNT;
                SET @from = 0;
                SET @to -= @size;
            END;
        END;
        SET @wanted -= @found;
        IF @found = @room
            CONTINUE;

        DELETE FROM @missing;
        DELETE FROM @finished;

        WITH ten AS (
            SELECT d.n FROM (VALUES (0), (0), (0), (0), (0), (0), (0), (0), (0), (0)) AS d (n)
        ), many AS (
            SELECT ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n
            FROM ten AS a CROSS JOIN ten AS b CROSS JOIN ten AS c CROSS JOIN ten AS d
        )

        INSERT INTO @missing (number)
        SELECT drawn.number
        FROM (SELECT TOP (@room) @first + many.n - 1 AS number FROM many ORDER BY many.n) AS drawn
        WHERE NOT EXISTS (SELECT 1 FROM @popped AS t WHERE t.lane = 1 AND t.number = drawn.number);

        DELETE p
        OUTPUT deleted.number INTO @finished (number)
        FROM @missing AS m
        INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            ON p.void = 1 AND p.number = m.number
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @voids += @@ROWCOUNT;

        INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
        SELECT
            m.number,
            0,
            SYSUTCDATETIME()
        FROM @missing AS m
        WHERE NOT EXISTS (SELECT 1 FROM @finished AS f WHERE f.number = m.number)
        AND NOT EXISTS (
            SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE p.void = 0 AND p.number = m.number
        );
        SET @parked_now = @@ROWCOUNT;

        IF EXISTS (SELECT 1 FROM @popped AS t WHERE t.lane = 1)
            BREAK;
        IF @parked_now > 0
            SET @tries += 1;
    END;

    -- when archive_at_pop=on
    -- In the same transaction: the rows went to the table variable, and one statement has but one INTO.
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT
        t.id,
        t.payload,
        t.pushed_at,
        SYSUTCDATETIME(),
        N'done',
        1,
        N'pop'
    FROM @popped AS t
    ORDER BY t.number;

    -- end
    -- when in_hand=on
    INSERT INTO [{schema}].[{queue}_in_hand] (id, payload, pushed_at, attempts, claimed_at, claimed_by)
    SELECT
        t.id,
        t.payload,
        t.pushed_at,
        1,
        SYSUTCDATETIME(),
        @session
    FROM @popped AS t
    WHERE t.lane = 1;

    -- end
    IF NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK) WHERE c.size = @size AND c.base = @base
    )
        THROW 51003, N'A relay came between.||Nothing was popped. Try again.', 1;
    COMMIT TRANSACTION;

    SELECT
        t.id,
        t.payload,
        t.pushed_at,
        t.attempts
    FROM @popped AS t
    ORDER BY t.lane, t.number;
END;
GO
-- when in_hand=on
-- complete and fail wait for the row's lock (the one exception): what they answer must be true.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_complete]
    @id bigint,
    @attempts int = NULL
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Complete outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    DELETE FROM [{schema}].[{queue}_in_hand] WITH (ROWLOCK, READCOMMITTEDLOCK)
    WHERE id = @id AND claimed_at IS NOT NULL AND done_at IS NULL
    AND (@attempts IS NULL OR attempts = @attempts);

    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
-- end
GO
-- when in_hand=on
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_fail]
    @id bigint,
    @error nvarchar(max),
    @attempts int = NULL
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Fail outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    UPDATE [{schema}].[{queue}_in_hand] WITH (ROWLOCK, READCOMMITTEDLOCK)
    SET errors = COALESCE(@error, N''),
        done_at = SYSUTCDATETIME()
    WHERE id = @id AND claimed_at IS NOT NULL AND done_at IS NULL
    AND (@attempts IS NULL OR attempts = @attempts);

    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
-- end
GO
-- Relay: one transaction; a crash in it leaves the ring as it was. It waits at most 200 ms, and only
-- for the configuration, on which every caller keeps a shared lock to the end of his transaction;
-- while it waits it holds nothing. Then nobody is left but readers without it (a sample, a DBA's
-- query): every later lock comes within 10 ms, or the whole call fails with error 1222 and has changed
-- nothing. In a deadlock it is the one to give way.
-- The sequences come last: a restart is undone with the transaction, but what is drawn is not. Whatever
-- ends the transaction after the draw leaves next numbers that are as before or higher (a crash's gap),
-- and another relay mends that.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_relay]
    @new_size bigint = NULL
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @old_size bigint, @size bigint, @base bigint, @next_push bigint, @next_pop bigint;
    DECLARE @live bigint, @drawn bigint, @held bigint, @restart nvarchar(max), @message nvarchar(2048);

    IF (SELECT s.transaction_isolation_level FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID) > 2
        THROW 51002, N'A ring works at READ COMMITTED only.|This transaction is at a higher isolation level.|Relay outside that transaction, or begin it at READ COMMITTED.', 1;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET DEADLOCK_PRIORITY LOW;
    SET LOCK_TIMEOUT 200;

    BEGIN TRANSACTION;
    SELECT @old_size = c.size FROM [{schema}].[{queue}_config] AS c WITH (TABLOCKX, HOLDLOCK);
    SET LOCK_TIMEOUT 10;
    SELECT @held = COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);
    SELECT @live = COUNT_BIG(*) FROM [{schema}].[{queue}] AS r WITH (TABLOCKX, HOLDLOCK) WHERE r.reference_count > 0;

    SET @size = COALESCE(@new_size, @old_size);
    SET @next_push = (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
    );
    SET @next_pop = (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
    );
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
        WITH ten AS (
            SELECT d.n FROM (VALUES (0), (0), (0), (0), (0), (0), (0), (0), (0), (0)) AS d (n)
        ), many AS (
            SELECT ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n
            FROM ten AS a CROSS JOIN ten AS b CROSS JOIN ten AS c CROSS JOIN ten AS d
            CROSS JOIN ten AS e CROSS JOIN ten AS f CROSS JOIN ten AS g CROSS JOIN ten AS h
        )

        INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, message, reference_count)
        SELECT TOP (@size - @old_size)
            @old_size + many.n - 1,
            SYSUTCDATETIME(),
            -- when payload=text|json
            REPLICATE(N'x', CAST(N'{max_bytes}' AS int) / 2 + 8),
            -- end
            -- when payload=bytes
            CAST(REPLICATE('x', CAST(N'{max_bytes}' AS int) + 16) AS varbinary(7016)),
            -- end
            0
        FROM many
        ORDER BY many.n;
    END;

    -- One statement: every message is read from its old slot before any is written to its new one.
    WITH live AS (
        SELECT
            r.first_id,
            r.time,
            r.message,
            r.reference_count,
            @base + ROW_NUMBER() OVER (ORDER BY r.message_id) - 1 AS number
        FROM [{schema}].[{queue}] AS r
        WHERE r.reference_count > 0
    )

    UPDATE r
    SET message_id = l.number,
        first_id = l.first_id,
        time = COALESCE(l.time, r.time),
        message = l.message,
        reference_count = COALESCE(l.reference_count, 0)
    FROM [{schema}].[{queue}] AS r WITH (TABLOCKX)
    LEFT JOIN live AS l ON r.slot = l.number % @size
    WHERE r.slot < @size AND (r.reference_count > 0 OR r.message IS NOT NULL OR l.number IS NOT NULL);

    DELETE FROM [{schema}].[{queue}] WITH (TABLOCKX) WHERE slot >= @size;
    DELETE FROM [{schema}].[{queue}_parked] WITH (TABLOCKX);
    UPDATE [{schema}].[{queue}_config] SET size = @size, base = @base;

    -- RESTART WITH takes a constant and nothing else, so these two have to be put together.
    SET @restart = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] RESTART WITH ', @base + @live - 1);
    EXEC (@restart);
    SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
    IF @drawn <> @base + @live - 1
        THROW 51004, N'The push sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;

    SET @restart = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] RESTART WITH ', @base - 1);
    EXEC (@restart);
    SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq];
    IF @drawn <> @base - 1
        THROW 51004, N'The pop sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;
    COMMIT TRANSACTION;

    SELECT
        @old_size AS size_before,
        @size AS size_after,
        @live AS live,
        @base AS base,
        @base + @live AS next_push;
END;
GO

-- name: drop
-- script: removes the ring, its sequences and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_relay];
-- when in_hand=on
DROP PROCEDURE [{schema}].[{queue}_complete], [{schema}].[{queue}_fail];
DROP TABLE [{schema}].[{queue}_in_hand];
-- end
DROP TABLE [{schema}].[{queue}_parked], [{schema}].[{queue}], [{schema}].[{queue}_config];
DROP SEQUENCE [{schema}].[{queue}_push_seq], [{schema}].[{queue}_pop_seq];

-- name: gate
-- one row: read before anything else of the ring; it waits while a relay runs, and a relay waits until its transaction ends
SELECT c.base AS number FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK)

-- name: status
-- one row: the two next numbers, the messages that can be popped (null: too many to count), the oldest one's age
-- Ready is what lies in the slots of the next numbers to be popped, and what lies there for a parked
-- number. A slot that is locked is being pushed to or popped from: a pop cannot take it now, so it is
-- skipped and not counted, and the count neither waits nor shows what may never be. The next numbers are
-- unknown, not 0, to a login that does not see the sequences.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    CASE WHEN p.gap <= 10000 AND late.parked <= 10000 THEN (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE m.[{slot}] >= p.head
        AND m.[{slot}] < CASE WHEN p.head + p.looked_at < n.size THEN p.head + p.looked_at ELSE n.size END
        AND m.[{reference_count}] > 0 AND m.[{id}] >= n.next_pop
    ) + (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE m.[{slot}] < p.head + p.looked_at - n.size
        AND m.[{reference_count}] > 0 AND m.[{id}] >= n.next_pop
    )
    -- when in_hand=on
    + (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
            WHERE h.claimed_at IS NULL AND h.done_at IS NULL
        ) AS bounded
    )
    -- end
    + late.found END AS ready,
    CAST(NULL AS bigint) AS scheduled,
    -- when in_hand=on
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{claimed_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
            WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL
        ) AS bounded
    ) AS claimed,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{stuck_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
            WHERE h.claimed_at < DATEADD(second, -CAST(CEILING(CAST(N'{stuck_after_seconds}' AS float)) AS int), SYSUTCDATETIME())
            AND h.claimed_at IS NOT NULL AND h.done_at IS NULL
        ) AS bounded
    ) AS stuck,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{errors_limit}' AS bigint)) 1 AS one
            FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
            WHERE h.done_at IS NOT NULL
        ) AS bounded
    ) AS errors,
    -- end
    -- when in_hand=off
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    -- end
    CAST(NULL AS bigint) AS done,
    -- when role pushed_at
    (
        SELECT CAST(DATEDIFF_BIG(microsecond, MIN(heads.pushed_at), SYSUTCDATETIME()) / 1e6 AS float)
        FROM (
            -- The oldest of the next 64 slots: a hole at the head does not hide the message behind it.
            SELECT m.[{pushed_at}] AS pushed_at
            FROM (VALUES (0), (8), (16), (24), (32), (40), (48), (56)) AS eights (n)
            CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7)) AS ones (n)
            INNER JOIN [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
                ON m.[{slot}] = (n.next_pop + eights.n + ones.n) % n.size
            WHERE eights.n + ones.n < 64 * CAST(N'{age_seconds_limit}' AS bigint)
            AND n.next_pop + eights.n + ones.n < n.next_push
            AND m.[{reference_count}] > 0 AND m.[{id}] >= n.next_pop
            -- when installed=yes
            UNION ALL
            SELECT late.oldest WHERE late.oldest IS NOT NULL
            -- end
            -- when in_hand=on
            UNION ALL
            SELECT again.pushed_at
            FROM (
                SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) h.pushed_at AS pushed_at
                FROM [{schema}].[{queue}_in_hand] AS h
                WITH (INDEX ([{queue}_in_hand_ready]), READPAST, READCOMMITTEDLOCK)
                WHERE h.claimed_at IS NULL AND h.done_at IS NULL
                ORDER BY h.id
            ) AS again
            -- end
        ) AS heads
    ) AS age_seconds,
    -- end
    -- when no role pushed_at
    CAST(NULL AS float) AS age_seconds,
    -- end
    -- when in_hand=on
    -- when counters=yes
    (
        SELECT SUM(s.row_count) FROM sys.dm_db_partition_stats AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_in_hand]') AND s.index_id IN (0, 1)
    ) AS rows_estimated,
    -- end
    -- when counters=no
    CAST(NULL AS bigint) AS rows_estimated,
    -- end
    -- end
    -- when in_hand=off
    CAST(NULL AS bigint) AS rows_estimated,
    -- end
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    n.next_push AS next_push,
    n.next_pop AS next_pop,
    n.base AS base,
    n.size AS capacity
FROM (
    SELECT
        -- when installed=yes
        (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{push_sequence}]')
        ) AS next_push,
        (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]')
        ) AS next_pop,
        c.size AS size,
        c.base AS base
    FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    -- end
    -- when installed=no
        -- Where the current value is the first, nobody can tell "never used" from "used once".
        (
            SELECT CASE WHEN s.current_value <> s.start_value THEN CAST(s.current_value AS bigint) + 1 END
            FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{push_sequence}]')
        ) AS next_push,
        (
            SELECT CASE WHEN s.current_value <> s.start_value THEN CAST(s.current_value AS bigint) + 1 END
            FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]')
        ) AS next_pop,
        CAST(N'{size}' AS bigint) AS size,
        CAST(NULL AS bigint) AS base
    -- end
) AS n
CROSS APPLY (
    SELECT
        n.next_pop % n.size AS head,
        n.next_push - n.next_pop AS gap,
        (
            SELECT MIN(bounds.slots)
            FROM (VALUES (n.next_push - n.next_pop), (n.size), (CAST(N'{ready_limit}' AS bigint))) AS bounds (slots)
        ) AS looked_at
) AS p
CROSS APPLY (
    -- when installed=yes
    SELECT
        COUNT_BIG(*) AS parked,
        COALESCE(SUM(w.found), 0) AS found,
        MIN(w.pushed_at) AS oldest
    FROM (
        SELECT TOP (
            CASE WHEN CAST(N'{ready_limit}' AS bigint) + CAST(N'{age_seconds_limit}' AS bigint) > 0 THEN 10001 ELSE 0 END
        )
            CASE WHEN m.[{id}] IS NULL THEN CAST(0 AS bigint) ELSE 1 END AS found,
            m.[{pushed_at}] AS pushed_at
        FROM [{schema}].[{queue}_parked] AS l WITH (READPAST, READCOMMITTEDLOCK)
        LEFT JOIN [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
            ON m.[{slot}] = l.number % n.size AND m.[{id}] = l.number AND m.[{reference_count}] > 0
        WHERE l.void = 0 AND l.number < n.next_pop
    ) AS w
    -- end
    -- when installed=no
    SELECT
        CAST(0 AS bigint) AS parked,
        CAST(0 AS bigint) AS found
    -- end
) AS late

-- name: claims
-- the oldest ten claims: since when, and whose
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    oldest.id AS id,
    CASE WHEN oldest.claimed_seconds < 0 THEN 0e0 ELSE oldest.claimed_seconds END AS claimed_seconds,
    oldest.claimed_by AS claimed_by,
    oldest.attempts AS attempts
FROM (
    SELECT TOP (10)
        CAST(h.id AS nvarchar(450)) AS id,
        CAST(DATEDIFF_BIG(microsecond, h.claimed_at, SYSUTCDATETIME()) / 1e6 AS float) AS claimed_seconds,
        CAST(h.claimed_by AS nvarchar(450)) AS claimed_by,
        h.attempts AS attempts
    FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
    WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL
    ORDER BY h.claimed_at
) AS oldest

-- name: estimate
-- one row: about how many messages in hand are claimed and in error; nothing to a login that does not see the row counts
-- Each state has an index; see fifo.sql. A ring's depth is its gap.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when in_hand=on
-- when counters=yes
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(estimated.claimed AS float) AS claimed,
    CAST(estimated.errors AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    SELECT
        SUM(CASE WHEN i.name = N'{queue}_in_hand_claimed' THEN p.row_count END) AS claimed,
        SUM(CASE WHEN i.name = N'{queue}_in_hand_done' THEN p.row_count END) AS errors
    FROM sys.indexes AS i
    INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id AND i.index_id = p.index_id
    WHERE i.object_id = OBJECT_ID(N'[{schema}].[{queue}_in_hand]')
) AS estimated
-- end
-- when counters=no
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end
-- end
-- when in_hand=off
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: base
-- one row: the lowest number still valid; another one later means that a relay came between
SELECT c.base AS base FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);

-- name: give_back
-- one row: how many messages, whose pop was rolled back by the session that asks, are parked again
-- Their numbers are spent and were drawn by nobody else, so only a parked number brings them back.
-- :ids is a JSON array of what pop returned; where a relay came between there is nothing to do.
SET NOCOUNT ON;
DECLARE @ids nvarchar(max) = :ids;
DECLARE @base bigint = :base;

INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    r.message_id,
    0,
    SYSUTCDATETIME()
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK)
INNER JOIN [{schema}].[{queue}] AS r WITH (READPAST, READCOMMITTEDLOCK) ON c.base = @base
WHERE r.first_id IN (SELECT CAST(given.[value] AS bigint) FROM OPENJSON(@ids) AS given) AND r.reference_count > 0
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 0 AND p.number = r.message_id
);

SELECT CAST(@@ROWCOUNT AS bigint) AS given_back;

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
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK) WHERE m.reference_count > 0
    ) AS live,
    (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
    ) AS next_push,
    (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
    ) AS next_pop,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK) WHERE p.void = 0
    ) AS parked,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK) WHERE p.void = 1
    ) AS voids
FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);

-- name: blockers
-- the transactions that a relay would have to wait for, oldest first; one row of nulls where this login may not see them
-- Every lock in a table comes with one on the table itself, so those tell. A reader under NOLOCK (Sch-S)
-- is in nobody's way. A prepared (distributed) transaction without a session is number -2.
IF COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE'), 0) = 1
    OR COALESCE(HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE'), 0) = 1
    OR (
        CAST(SERVERPROPERTY(N'EngineEdition') AS int) = 5
        AND COALESCE(HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'VIEW DATABASE STATE'), 0) = 1
    )
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
            OBJECT_ID(N'[{schema}].[{queue}_push_seq]'), OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
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

-- name: extent
-- one row: the first and the last number that a pop will ask for (unknown to a login that does not see the sequences), and the slots
SELECT
    -- when installed=yes
    (
        SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]')
    ) AS first,
    (
        SELECT CAST(s.current_value AS bigint) FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{push_sequence}]')
    ) AS last,
    c.size AS slots
FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);
    -- end
    -- when installed=no
    -- Where the current value is the first, nobody can tell "never used" from "used once".
    (
        SELECT CASE WHEN s.current_value <> s.start_value THEN CAST(s.current_value AS bigint) + 1 END
        FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]')
    ) AS first,
    (
        SELECT CASE WHEN s.current_value <> s.start_value THEN CAST(s.current_value AS bigint) END
        FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{push_sequence}]')
    ) AS last,
    CAST(N'{size}' AS bigint) AS slots;
    -- end

-- name: messages
-- the messages with the numbers :first to :last, each with its number as its key, for `looked` of common.sql
-- These are the slots :first_slot to :last_slot, one stretch of the key: those of one lap. A slot that is
-- locked is being pushed to or popped from, and is skipped.
SELECT
    m.[{id}] AS key_id,
    -- when installed=yes
    CAST(m.first_id AS nvarchar(450)) AS id,
    -- end
    -- when installed=no
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    -- end
    CASE WHEN m.[{reference_count}] > 0 THEN N'ready' END AS state,
    -- when role pushed_at
    m.[{pushed_at}] AS pushed_at,
    -- end
    m.[{slot}] AS slot,
    m.[{id}] AS number,
    m.[{payload}] AS payload
FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK)
WHERE
    m.[{slot}] BETWEEN CAST(:first_slot AS bigint) AND CAST(:last_slot AS bigint)
    AND m.[{id}] BETWEEN CAST(:first AS bigint) AND CAST(:last AS bigint)

-- name: parked_messages
-- the parked numbers, each with its message where that is there by now, for `looked` of common.sql
SELECT
    p.number AS key_id,
    CAST(m.first_id AS nvarchar(450)) AS id,
    CASE WHEN m.reference_count > 0 THEN N'ready' END AS state,
    m.time AS pushed_at,
    m.slot AS slot,
    p.number AS number,
    m.message AS payload
FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
CROSS JOIN [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
OUTER APPLY (
    SELECT
        r.slot,
        r.first_id,
        r.time,
        r.message,
        r.reference_count
    FROM [{schema}].[{queue}] AS r WITH (READPAST, READCOMMITTEDLOCK)
    WHERE r.slot = p.number % c.size AND r.message_id = p.number
) AS m
WHERE p.void = 0

-- name: in_hand_messages
-- in_hand=on: what was popped and is not finished, or is ready again (walk), for `looked` of common.sql
SELECT
    -- when walk=claimed
    h.claimed_at AS key_time,
    -- end
    -- when walk=error
    h.done_at AS key_time,
    -- end
    h.id AS key_id,
    CAST(h.id AS nvarchar(450)) AS id,
    CASE
        WHEN h.done_at IS NOT NULL THEN N'error'
        WHEN h.claimed_at IS NULL THEN N'ready'
        ELSE N'claimed'
    END AS state,
    h.pushed_at AS pushed_at,
    h.claimed_at AS claimed_at,
    h.claimed_by AS claimed_by,
    h.attempts AS attempts,
    h.done_at AS done_at,
    h.errors AS error,
    CAST(NULL AS bigint) AS slot,
    CAST(NULL AS bigint) AS number,
    h.payload AS payload
FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
-- when walk=in_hand
WHERE h.claimed_at IS NULL AND h.done_at IS NULL
-- end
-- when walk=claimed
WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL
-- end
-- when walk=error
WHERE h.done_at IS NOT NULL
-- end
