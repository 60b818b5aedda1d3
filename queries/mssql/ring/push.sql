-- ring, push: a push draws a number and fills its slot; what it cannot use becomes void. The rules are at the head of
-- install.sql.

-- define: slot_is_free
r.reference_count = 0 -- when subscribed=no
(r.reference_count = 0 OR NOT {is_owed}) -- when subscribed=yes

-- define: void_numbers
-- records the numbers in @unused as void for each subscriber; a parked pop number among them is finished
DELETE p
OUTPUT deleted.subscriber, deleted.number INTO @met (subscriber, number)
FROM @unused AS u
CROSS JOIN [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON p.subscriber = b.number AND p.void = 0 AND p.number = u.number
OPTION (LOOP JOIN, FORCE ORDER);
INSERT INTO [{schema}].[{queue}_parked] (subscriber, number, void, parked_at)
SELECT
    b.number,
    u.number,
    1,
    SYSUTCDATETIME()
FROM @unused AS u
CROSS JOIN [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
WHERE NOT EXISTS (SELECT 1 FROM @met AS m WHERE m.subscriber = b.number AND m.number = u.number)
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.subscriber = b.number AND p.void = 1 AND p.number = u.number
)
OPTION (LOOP JOIN, FORCE ORDER);

-- name: functions
-- script: push, push_many, pop, pop_many, relay, and with in_hand complete and fail
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
{owner_exists}
IF NOT {owned_already}
BEGIN
    GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_push_seq] TO dbq_owner;
    GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_pop_seq] TO dbq_owner; -- when subscribed=no
    -- each subscriber
    GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_pop_seq_{subscriber_number}] TO dbq_owner;
    GRANT UPDATE ON OBJECT::[{schema}].[{queue}_turn_seq_{subscriber_number}] TO dbq_owner;
    -- end
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type}
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @size bigint, @next_push bigint, @next_pop bigint, @drawn bigint, @id bigint, @try int = 0, @look int;
    -- when subscribed=yes
    DECLARE @unused TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @met TABLE (subscriber smallint NOT NULL, number bigint NOT NULL, PRIMARY KEY (subscriber, number));
    {reused_declared}
    -- end

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    {payload_in_bounds}

    BEGIN TRANSACTION;
    SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
    SELECT
        @next_push = {push_number_due},
        @next_pop = {next_pop_of_all};

    WHILE @id IS NULL AND @try < 8
    BEGIN
        IF @try > 0 OR @next_push - @next_pop >= @size
        BEGIN
            -- Full by that, or another round: in the order that proves it.
            SET @next_push = {push_number_due};
            SET @next_pop = {next_pop_of_all};
        END;
        IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
            THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was pushed. Look with: dbq-console doctor', 1;
        IF @next_push - @next_pop >= @size
            BREAK;

        SET @try += 1;
        SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
        SET @look = 0;
        -- Twice where the first finds the slot locked or not free: a lock may be for a moment.
        WHILE @id IS NULL AND @look < 2
        BEGIN
            SET @look += 1;
            UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) -- when subscribed=no
            UPDATE r -- when subscribed=yes
            SET message_id = @drawn,
                first_id = @drawn,
                time = SYSUTCDATETIME(),
                message = @payload, -- when content=slot
                -- when subscribed=no
                reference_count = reference_count + 1
            WHERE slot = @drawn % @size AND reference_count = 0;
                -- else
                reference_count = 1
            {into_reused}
            FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE r.slot = @drawn % @size AND {slot_is_free}
            OPTION (LOOP JOIN);
                -- end

            IF @@ROWCOUNT = 1
                SET @id = @drawn;
        END;
        -- when defined keeps_popped
        IF @id IS NOT NULL
        BEGIN
            {discard_popped}
        END;
        -- end
        -- each partition
        IF @id % CAST(N'{partitions}' AS bigint) = {partition}
            INSERT INTO [{schema}].[{queue}_content_{partition}] WITH (ROWLOCK) (content_id, content) VALUES (@id, @payload);
        -- end

        IF @id IS NULL
        BEGIN
            -- The slot is not free (a race at full, an orphan in it): this number carries nothing.
            -- when subscribed=yes
            DELETE FROM @unused;
            DELETE FROM @met;
            INSERT INTO @unused (number) VALUES (@drawn);
            {void_numbers}
            -- else
            DELETE FROM [{schema}].[{queue}_parked] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE void = 0 AND number = @drawn;

            IF @@ROWCOUNT = 0
                INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
                SELECT @drawn, 1, SYSUTCDATETIME()
                WHERE NOT EXISTS (
                    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    WHERE p.void = 1 AND p.number = @drawn
                );
            -- end
        END;
    END;

    COMMIT TRANSACTION;

    SELECT @id AS id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @size bigint, @next_push bigint, @next_pop bigint, @range sql_variant, @first bigint;
    DECLARE @wanted bigint, @room bigint = 0, @written bigint, @look int = 0, @from bigint, @to bigint;
    DECLARE @free TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @filled TABLE (position bigint NOT NULL PRIMARY KEY, number bigint NOT NULL);
    DECLARE @unused TABLE (number bigint NOT NULL PRIMARY KEY);
    DECLARE @met TABLE (number bigint NOT NULL PRIMARY KEY); -- when subscribed=no
    -- when subscribed=yes
    DECLARE @met TABLE (subscriber smallint NOT NULL, number bigint NOT NULL, PRIMARY KEY (subscriber, number));
    {reused_declared}
    -- end

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    {payloads_as_rows}
    {rows_in_bounds}
    SET @wanted = (SELECT COUNT_BIG(*) FROM @rows);

    BEGIN TRANSACTION;
    SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
    SELECT
        @next_push = {push_number_due},
        @next_pop = {next_pop_of_all};
    IF @next_push - @next_pop > @size - @wanted
    BEGIN
        -- Not room for all by that: in the order that proves it.
        SET @next_push = {push_number_due};
        SET @next_pop = {next_pop_of_all};
    END;
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
                WHERE r.slot BETWEEN @from AND @to AND {slot_is_free}; -- when subscribed=no
                -- when subscribed=yes
                WHERE r.slot BETWEEN @from AND @to AND {slot_is_free}
                OPTION (LOOP JOIN);
                -- end

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
            message = g.payload, -- when content=slot
            reference_count = r.reference_count + 1 -- when subscribed=no
            reference_count = 1 -- when subscribed=yes
        {into_reused}
        FROM @filled AS f
        INNER JOIN @rows AS g ON f.position = g.position -- when content=slot
        INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON r.slot = f.number % @size
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @written = @@ROWCOUNT;

        IF @written <> (SELECT COUNT_BIG(*) FROM @filled)
            THROW 51004, N'A locked slot was not where it was locked.||Nothing was pushed. Look with: dbq-console doctor', 1;

        {discard_popped}
        -- each partition
        INSERT INTO [{schema}].[{queue}_content_{partition}] WITH (ROWLOCK) (content_id, content)
        SELECT
            f.number,
            g.payload
        FROM @filled AS f
        INNER JOIN @rows AS g ON f.position = g.position
        WHERE f.number % CAST(N'{partitions}' AS bigint) = {partition};

        -- end
        IF @written < @room
        BEGIN
            INSERT INTO @unused (number)
            SELECT @first + g.position
            FROM @rows AS g
            WHERE g.position < @room AND NOT EXISTS (SELECT 1 FROM @filled AS f WHERE f.number = @first + g.position);

            {void_numbers} -- when subscribed=yes
            -- when subscribed=no
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
            -- end
        END;
    END;

    COMMIT TRANSACTION;

    SELECT f.number AS id
    FROM @rows AS g
    LEFT JOIN @filled AS f ON g.position = f.position
    ORDER BY g.position;
END;
GO
