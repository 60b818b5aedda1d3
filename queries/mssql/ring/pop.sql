-- ring, pop: parked numbers first, then new ones; what is popped is in hand or gone. The rules are at the head of
-- install.sql.

-- define: into_popped
-- in pop_many: what it takes from slot r
-- when content=slot
OUTPUT 1, deleted.message_id, deleted.first_id, deleted.message, deleted.time, 1 -- when subscribed=no
OUTPUT 1, r.message_id, r.first_id, r.message, r.time, 1 -- when subscribed=yes
INTO @popped (lane, number, id, payload, pushed_at, attempts)
-- else
OUTPUT 1, deleted.message_id, deleted.first_id, deleted.time, 1 -- when subscribed=no
OUTPUT 1, r.message_id, r.first_id, r.time, 1 -- when subscribed=yes
INTO @popped (lane, number, id, pushed_at, attempts)
-- end

-- define: draw_on
-- Eight times nothing came: that is no race any more, as after a crash or a fail-over, which skip numbers. It draws on
-- without waiting, but only up to a message that is here: what it draws is parked, and slows down the calls after it.
IF @tries >= 8 AND COALESCE(@ready, -1) < @next_pop
BEGIN
    SET @to = @next_push - @next_pop;
    IF @to > @size
        SET @to = @size;
    IF @to > 10000
        SET @to = 10000;
    SET @from = @next_pop % @size;
    SET @to += @from - 1;
    SET @ready = (
        SELECT MIN(r.message_id) FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE r.slot BETWEEN @from AND @to AND r.message_id BETWEEN @next_pop AND @next_push - 1
    );
    -- What is left of them is at the beginning of the ring.
    IF @ready IS NULL
        SET @ready = (
            SELECT MIN(r.message_id) FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE r.slot BETWEEN 0 AND @to - @size AND r.message_id BETWEEN @next_pop AND @next_push - 1
        );
    IF @ready IS NULL
        BREAK;
END;

-- more: functions
-- script: pop and pop_many, and with in_hand complete and fail
-- when in_hand=on
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @subscriber nvarchar(128), -- when subscribed=yes
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    -- One path for claims: what is in hand and ready again goes before the ring.
    EXEC [{schema}].[{queue}_pop_many] @n = 1{subscriber_given}, @consumer = @consumer, @bound = @bound;
END;
-- else
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @subscriber nvarchar(128) -- when subscribed=yes
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @size bigint, @next_push bigint, @next_pop bigint, @drawn bigint;
    DECLARE @parked bit, @tries int = 0, @voids int = 0, @ready bigint, @from bigint, @to bigint, @look int, @taken bit = 0, @dropped bit;
    DECLARE @id bigint, @payload {slot_payload_type}, @pushed_at datetime2(7);
    -- when subscribed=yes
    DECLARE @of smallint, @pop_sequence nvarchar(600), @range sql_variant, @message nvarchar(2048);
    -- end

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    BEGIN TRANSACTION;
    SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
    {find_subscriber}
    SELECT
        @next_pop = {pop_number_due},
        @next_push = {push_number_due},
        @parked = CASE WHEN EXISTS (
            SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE p.void = 0{p_of_subscriber}
        ) THEN 1 ELSE 0 END;

    IF @parked = 1
    BEGIN
        -- Parked numbers go first, in a batch of one.
        COMMIT TRANSACTION;
        EXEC [{schema}].[{queue}_pop_many] @n = 1{subscriber_given};
        RETURN;
    END;

    WHILE @taken = 0 AND @tries + @voids < 1000
    BEGIN
        IF @tries + @voids > 0 OR @next_pop >= @next_push
        BEGIN
            -- Empty by that, or another round: in the order that proves it.
            SET @next_pop = {pop_number_due};
            SET @next_push = {push_number_due};
        END;
        IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
            THROW 51004, N'The ring''s numbers or its size cannot be read.|Its owner does not see its sequences, or its configuration is empty.|Nothing was popped. Look with: dbq-console doctor', 1;
        IF @next_pop >= @next_push
            BREAK;
        {draw_on}

        SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq]; -- when subscribed=no
        -- when subscribed=yes
        EXEC sys.sp_sequence_get_range
            @sequence_name = @pop_sequence, @range_size = 1, @range_first_value = @range OUTPUT;
        SET @drawn = CAST(@range AS bigint);
        -- end
        SET @dropped = 0;
        SET @look = 0;
        WHILE @taken = 0 AND @dropped = 0 AND (@look = 0 OR @tries < 8)
        AND (@look - 1) * 5 < CAST(N'{commit_wait_ms}' AS int)
        BEGIN
            IF @look > 0
                WAITFOR DELAY '00:00:00.005'; -- the push's commit may be in flight
            SET @look += 1;
            IF EXISTS (
                SELECT 1 FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE r.slot = @drawn % @size AND r.message_id = @drawn
                AND {slot_has_content} -- when content=apart
            )
            BEGIN
                -- when subscribed=yes
                -- Its row of popped is locked first: whoever takes the message out of the ring wants that too.
                UPDATE d
                SET message_id = @drawn,
                    time = SYSUTCDATETIME(),
                    @id = r.first_id,
                    @payload = r.message, -- when content=slot
                    @pushed_at = r.time
                FROM [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON r.slot = d.slot
                WHERE d.subscriber = @of AND d.slot = @drawn % @size AND d.message_id < @drawn AND r.message_id = @drawn
                OPTION (LOOP JOIN, FORCE ORDER);
                -- else
                UPDATE [{schema}].[{queue}] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                SET @id = first_id,
                    @payload = message, -- when content=slot
                    @pushed_at = time,
                    {empty_slot}
                    reference_count = reference_count - 1
                -- when content=slot
                -- when archive_at_pop=on
                OUTPUT deleted.first_id, deleted.message, deleted.time, SYSUTCDATETIME(), N'done', 1, N'pop'
                INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
                -- end
                -- end
                WHERE slot = @drawn % @size AND message_id = @drawn;
                -- end

                SET @taken = @@ROWCOUNT;
            END;
            IF @taken = 0
            BEGIN
                DELETE FROM [{schema}].[{queue}_parked] WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE void = 1 AND number = @drawn{of_subscriber};

                SET @dropped = @@ROWCOUNT;
            END;
        END;

        IF @dropped = 1
            SET @voids += 1;
        ELSE IF @taken = 0
        BEGIN
            INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{subscriber_column})
            SELECT @drawn, 0, SYSUTCDATETIME(){subscriber_value}
            WHERE NOT EXISTS (
                SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0 AND p.number = @drawn{p_of_subscriber}
            );
            SET @tries += 1;
        END;
    END;

    -- each partition
    IF @taken = 1 AND @id % CAST(N'{partitions}' AS bigint) = {partition}
    BEGIN
        SELECT @payload = k.content
        FROM [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE k.content_id = @id;
        -- when subscribed=no
        DELETE FROM [{schema}].[{queue}_content_{partition}] WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE content_id = @id;
        -- end
    END;
    -- end
    -- when content=apart
    -- when archive_at_pop=on
    -- when subscribed=no
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT @id, @payload, @pushed_at, SYSUTCDATETIME(), N'done', 1, N'pop'
    WHERE @taken = 1;
    -- end
    -- end
    -- end
    -- when defined keeps_popped
    IF @taken = 0
        EXEC [{schema}].[{queue}_sweep];
    -- end
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
    @subscriber nvarchar(128), -- when subscribed=yes
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
    -- else
    @n int -- when subscribed=no
    -- when subscribed=yes
    @n int,
    @subscriber nvarchar(128)
    -- end
    -- end
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @size bigint, @next_push bigint, @next_pop bigint, @range sql_variant, @first bigint;
    DECLARE @wanted bigint = 0, @room bigint, @found bigint, @from bigint, @to bigint, @low bigint, @high bigint;
    DECLARE @tries int = 0, @voids int = 0, @look int, @parked_now int, @ready bigint;
    DECLARE @session nvarchar(256); -- when in_hand=on
    DECLARE @turn bigint, @stretch bigint, @first_stretch bigint, @stretches bigint, @all_turns bigint = 1;
    -- when subscribed=yes
    DECLARE @of smallint, @pop_sequence nvarchar(600), @turn_sequence nvarchar(600), @message nvarchar(2048);
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
        payload {slot_payload_type} NOT NULL, -- when content=slot
        -- when content=apart
        payload {slot_payload_type} NULL, -- of lane 1 until its content is taken, below
        -- end
        pushed_at datetime2(7) NOT NULL,
        attempts int NOT NULL,
        PRIMARY KEY (lane, number)
    );
    -- when content=apart
    -- when subscribed=no
    DECLARE @contents TABLE (content_id bigint NOT NULL PRIMARY KEY, content {payload_type} NOT NULL);
    -- end
    -- end

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    IF @n > 0
        SET @wanted = @n;

    BEGIN TRANSACTION;
    SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
    {find_subscriber}

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
        AND h.subscriber = @of -- when subscribed=yes
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
        SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE p.void = 0{p_of_subscriber}
    )
    BEGIN
        INSERT INTO @parked (number)
        SELECT TOP (65) p.number
        FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE p.void = 0{p_of_subscriber}
        ORDER BY p.number;

        IF @@ROWCOUNT > 64
        BEGIN
            SET @turn = NEXT VALUE FOR [{schema}].[{queue}_turn_seq]; -- when subscribed=no
            -- when subscribed=yes
            -- Its own: of turns that are shared one subscriber might get none but the even ones.
            SELECT @turn_sequence = CONCAT(N'[{schema}].', QUOTENAME(CONCAT(N'{queue}_turn_seq_', b.number)))
            FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
            WHERE b.subscriber = @subscriber;
            EXEC sys.sp_sequence_get_range
                @sequence_name = @turn_sequence, @range_size = 1, @range_first_value = @range OUTPUT;
            SET @turn = CAST(@range AS bigint);
            -- end
            -- One after the other: both in one SELECT would read all of them.
            SET @first_stretch = (
                SELECT TOP (1) p.parked_order / 40
                FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0{p_of_subscriber}
                ORDER BY p.parked_order
            );
            SET @stretches = 1 - @first_stretch + (
                SELECT TOP (1) p.parked_order / 40
                FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0{p_of_subscriber}
                ORDER BY p.parked_order DESC
            );
            WHILE @all_turns < @stretches SET @all_turns *= 2;
            -- What the remainder of a negative number lacks comes before the second one.
            SET @stretch = @first_stretch
                + ((@turn * 31 - @first_stretch) % @all_turns + @all_turns) % @all_turns % @stretches;
            DELETE FROM @parked WHERE number NOT IN (SELECT TOP (24) p.number FROM @parked AS p ORDER BY p.number);
            INSERT INTO @parked (number)
            SELECT w.number
            FROM (
                SELECT TOP (40) p.number
                FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE p.void = 0{p_of_subscriber} AND p.parked_order >= @stretch * 40
                ORDER BY p.parked_order
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
            WHERE {slot_has_content} -- when content=apart
            ORDER BY w.number
        ) AS here
        INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
            ON p.void = 0 AND p.number = here.number{p_of_subscriber}
        OPTION (LOOP JOIN, FORCE ORDER);

        IF @@ROWCOUNT > 0
        BEGIN
            -- when subscribed=yes
            UPDATE d
            SET message_id = h.number,
                time = SYSUTCDATETIME()
            {into_popped}
            FROM @held AS h
            INNER JOIN [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON d.subscriber = @of AND d.slot = h.number % @size AND d.message_id < h.number
            INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON r.slot = d.slot AND r.message_id = h.number
            OPTION (LOOP JOIN, FORCE ORDER);
            -- else
            UPDATE r
            SET {empty_slot}
                reference_count = r.reference_count - 1
            {into_popped}
            FROM @held AS h
            INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON r.slot = h.number % @size AND r.message_id = h.number
            OPTION (LOOP JOIN, FORCE ORDER);
            -- end
            SET @found = @@ROWCOUNT;
            SET @wanted -= @found;

            DELETE p
            FROM @popped AS t
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = t.number{p_of_subscriber}
            WHERE t.lane = 1
            OPTION (LOOP JOIN, FORCE ORDER);
            -- when defined keeps_popped
            -- A sweep may have passed it by, when its push was in flight.
            UPDATE s
            SET number = (SELECT MIN(t.number) FROM @popped AS t WHERE t.lane = 1)
            FROM [{schema}].[{queue}_swept] AS s WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE s.number > (SELECT MIN(t.number) FROM @popped AS t WHERE t.lane = 1);
            -- end
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
                AND v.subscriber = @of -- when subscribed=yes
            INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
                ON p.void = 0 AND p.number = v.number{p_of_subscriber}
            OPTION (LOOP JOIN, FORCE ORDER);

            IF @@ROWCOUNT > 0
            BEGIN
                DELETE p
                OUTPUT deleted.number INTO @finished (number)
                FROM @held AS h
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 1 AND p.number = h.number{p_of_subscriber}
                OPTION (LOOP JOIN, FORCE ORDER);

                DELETE p
                FROM @finished AS f
                INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    ON p.void = 0 AND p.number = f.number{p_of_subscriber}
                OPTION (LOOP JOIN, FORCE ORDER);
            END;
        END;
    END;

    WHILE @wanted > 0 AND @tries + @voids < 1000
    BEGIN
        SELECT
            @next_pop = {pop_number_due},
            @next_push = {push_number_due};
        IF @next_pop >= @next_push
        BEGIN
            -- Empty by that: in the order that proves it.
            SET @next_pop = {pop_number_due};
            SET @next_push = {push_number_due};
        END;
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
        {draw_on}

        EXEC sys.sp_sequence_get_range
            -- when subscribed=no
            @sequence_name = N'[{schema}].[{queue}_pop_seq]', @range_size = @room, @range_first_value = @range OUTPUT;
            -- else
            @sequence_name = @pop_sequence, @range_size = @room, @range_first_value = @range OUTPUT;
            -- end
        SET @first = CAST(@range AS bigint);

        SET @found = 0;
        SET @look = 0;
        WHILE @found < @room AND (@look = 0 OR @tries < 8) AND (@look - 1) * 5 < CAST(N'{commit_wait_ms}' AS int)
        BEGIN
            IF @look > 0
                WAITFOR DELAY '00:00:00.005'; -- a push's commit may be in flight
            SET @look += 1;
            -- The slots of a range: to the last of the ring at most, and the rest from slot 0.
            SET @from = @first % @size;
            SET @to = @from + @room - 1;
            WHILE @from <= @to
            BEGIN
                -- Near the end of the queue the last numbers are those of pushes in flight: their slots are left alone.
                SET @low = @from;
                SET @high = @to;
                IF @next_push - @next_pop < 32 * @room
                    SELECT
                        @low = MIN(r.slot),
                        @high = MAX(r.slot)
                    FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                    WHERE r.slot BETWEEN @from AND @to AND r.message_id BETWEEN @first AND @first + @room - 1;

                -- when subscribed=yes
                UPDATE d
                SET message_id = r.message_id,
                    time = SYSUTCDATETIME()
                {into_popped}
                FROM [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON r.slot = d.slot
                WHERE d.subscriber = @of AND d.slot BETWEEN @low AND @high AND d.message_id < r.message_id
                AND r.message_id BETWEEN @first AND @first + @room - 1
                AND {slot_has_content} -- when content=apart
                OPTION (LOOP JOIN, FORCE ORDER);
                -- else
                UPDATE r
                SET {empty_slot}
                    reference_count = r.reference_count - 1
                {into_popped}
                FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
                WHERE r.slot BETWEEN @low AND @high
                AND {slot_has_content} -- when content=apart
                AND r.message_id BETWEEN @first AND @first + @room - 1;
                -- end

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
            ON p.void = 1 AND p.number = m.number{p_of_subscriber}
        OPTION (LOOP JOIN, FORCE ORDER);
        SET @voids += @@ROWCOUNT;

        INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{subscriber_column})
        SELECT
            m.number,
            0,
            SYSUTCDATETIME(){subscriber_value}
        FROM @missing AS m
        WHERE NOT EXISTS (SELECT 1 FROM @finished AS f WHERE f.number = m.number)
        AND NOT EXISTS (
            SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE p.void = 0 AND p.number = m.number{p_of_subscriber}
        );
        SET @parked_now = @@ROWCOUNT;

        IF EXISTS (SELECT 1 FROM @popped AS t WHERE t.lane = 1)
            BREAK;
        IF @parked_now > 0
            SET @tries += 1;
    END;

    -- when content=apart
    -- when subscribed=yes
    UPDATE t
    SET payload = CASE t.id % CAST(N'{partitions}' AS bigint)
        -- each partition
        WHEN {partition} THEN (
            SELECT k.content FROM [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK)
            WHERE k.content_id = t.id
        )
        -- end
    END
    FROM @popped AS t
    WHERE t.lane = 1;

    -- else
    -- each partition
    DELETE k
    OUTPUT deleted.content_id, deleted.content INTO @contents (content_id, content)
    FROM @popped AS t
    INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.content_id = t.id
    WHERE t.lane = 1 AND t.id % CAST(N'{partitions}' AS bigint) = {partition}
    OPTION (LOOP JOIN, FORCE ORDER);

    -- end
    UPDATE t
    SET payload = k.content
    FROM @popped AS t
    INNER JOIN @contents AS k ON t.id = k.content_id
    WHERE t.lane = 1;

    -- end
    -- end
    -- when archive_at_pop=on
    -- when subscribed=no
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
    -- end
    -- when in_hand=on
    INSERT INTO [{schema}].[{queue}_in_hand] (id, payload, pushed_at, attempts, claimed_at, claimed_by{subscriber_column})
    SELECT
        t.id,
        t.payload,
        t.pushed_at,
        1,
        SYSUTCDATETIME(),
        @session{subscriber_value}
    FROM @popped AS t
    WHERE t.lane = 1;

    -- end
    -- when defined keeps_popped
    IF NOT EXISTS (SELECT 1 FROM @popped AS t)
        EXEC [{schema}].[{queue}_sweep];

    -- end
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
    @subscriber nvarchar(128), -- when subscribed=yes
    @id bigint,
    @attempts int = NULL
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    -- when subscribed=yes
    DECLARE @of smallint, @pop_sequence nvarchar(600), @message nvarchar(2048);
    {find_subscriber}

    -- end
    DELETE FROM [{schema}].[{queue}_in_hand] WITH (ROWLOCK, READCOMMITTEDLOCK)
    WHERE id = @id AND claimed_at IS NOT NULL AND done_at IS NULL{of_subscriber}
    AND (@attempts IS NULL OR attempts = @attempts);

    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
-- end
GO
-- when in_hand=on
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_fail]
    @subscriber nvarchar(128), -- when subscribed=yes
    @id bigint,
    @error nvarchar(max),
    @attempts int = NULL
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;

    -- when subscribed=yes
    DECLARE @of smallint, @pop_sequence nvarchar(600), @message nvarchar(2048);
    {find_subscriber}

    -- end
    UPDATE [{schema}].[{queue}_in_hand] WITH (ROWLOCK, READCOMMITTEDLOCK)
    SET errors = COALESCE(@error, N''),
        done_at = SYSUTCDATETIME()
    , history = {history_with_this_error} -- when keeps_history=yes
    WHERE id = @id AND claimed_at IS NOT NULL AND done_at IS NULL{of_subscriber}
    AND (@attempts IS NULL OR attempts = @attempts);

    SELECT CAST(@@ROWCOUNT AS bit) AS acted;
END;
-- end
GO

-- name: park_again
-- one row: how many messages whose pop this session rolled back are parked again
-- Their numbers are consumed and nobody else drew them, so only a parked number brings them back.
-- :ids is a JSON array of what pop returned; after a relay there is nothing to do.
SET NOCOUNT ON;
DECLARE @ids nvarchar(max) = :ids;
DECLARE @base bigint = :base;

INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{seen_column})
SELECT
    r.message_id,
    0,
    SYSUTCDATETIME(){seen_value}
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK)
INNER JOIN {visible_ring_r} ON c.base = @base
WHERE r.first_id IN (SELECT CAST(given.[value] AS bigint) FROM OPENJSON(@ids) AS given) AND r.reference_count > 0
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 0 AND p.number = r.message_id{and_p_visible}
);

SELECT CAST(@@ROWCOUNT AS bigint) AS given_back;
