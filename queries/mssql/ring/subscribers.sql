-- ring, subscribers=a,b: what only such rings have, and what a ring looks like to one subscriber or to all (without
-- subscribers these definitions are the ring itself). The rules are at the head of install.sql.

-- define: next_pop_of_all
-- the lowest over all subscribers, and below the highest; NULL if one of the sequences is not visible
{pop_number_due} -- when subscribed=no
-- when subscribed=yes
(
    SELECT CASE WHEN COUNT(s.object_id) = COUNT(*) THEN MIN(CAST(s.current_value AS bigint)) + 1 END
    FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    LEFT JOIN sys.sequences AS s ON s.object_id = OBJECT_ID({pop_sequence_of})
)
-- end

-- define: highest_next_pop
{pop_number_due} -- when subscribed=no
-- when subscribed=yes
(
    SELECT CASE WHEN COUNT(s.object_id) = COUNT(*) THEN MAX(CAST(s.current_value AS bigint)) + 1 END
    FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    LEFT JOIN sys.sequences AS s ON s.object_id = OBJECT_ID({pop_sequence_of})
)
-- end

-- define: pop_sequence_of
-- for a subscriber b; by name, so that no procedure changes when one comes or goes
CONCAT(N'[{schema}].', QUOTENAME(CONCAT(N'{queue}_pop_seq_', b.number)))

-- define: find_subscriber
-- sets @of, the number of @subscriber, and its sequence
-- when subscribed=yes
SELECT
    @of = b.number,
    @pop_sequence = {pop_sequence_of}
FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
WHERE b.subscriber = @subscriber;
IF @of IS NULL
BEGIN
    SET @message = CONCAT(
        N'The ring {queue} has no subscriber ', COALESCE(N'"' + @subscriber + N'"', N'NULL'), N'.||',
        N'They are listed in [{schema}].[{queue}_subscribers].'
    );
    THROW 51002, @message, 1;
END;
-- end

-- define: subscriber_column
, subscriber -- when subscribed=yes

-- define: subscriber_value
, @of -- when subscribed=yes

-- define: subscriber_given
, @subscriber = @subscriber -- when subscribed=yes

-- define: of_subscriber
 AND subscriber = @of -- when subscribed=yes

-- define: p_of_subscriber
 AND p.subscriber = @of -- when subscribed=yes

-- define: is_owed
-- some subscriber is not known to have popped slot r. A row locked by a pop is skipped and so counts as owing;
-- searching for rows that owe would miss it.
-- when subscribed=yes
EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    WHERE NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE d.subscriber = b.number AND d.slot = r.slot AND d.message_id >= r.message_id
    )
)
-- end

-- define: slot_is_live
r.reference_count > 0 -- when subscribed=no
r.reference_count > 0 AND {is_owed} -- when subscribed=yes

-- define: keeps_popped
-- "yes" if a message that all have popped has to be archived or its content deleted, else nothing
-- when subscribed=yes
yes -- when content=apart
-- when content=slot
yes -- when archive_at_pop=on
-- end
-- end

-- define: reused_declared
-- the messages, popped by all, in slots that this call fills or empties
-- when defined keeps_popped
DECLARE @reused TABLE (
    id bigint NULL,
    payload {slot_payload_type} NULL, -- when content=slot
    slot bigint NOT NULL,
    pushed_at datetime2(7) NOT NULL,
    done_at datetime2(7) NULL
);
-- end

-- define: into_reused
-- when defined keeps_popped
-- when content=slot
OUTPUT deleted.first_id, deleted.message, deleted.slot, deleted.time INTO @reused (id, payload, slot, pushed_at)
-- end
OUTPUT deleted.first_id, deleted.slot, deleted.time INTO @reused (id, slot, pushed_at) -- when content=apart
-- end

-- define: discard_popped
-- archives the messages in @reused, one row each, and deletes their content
-- when defined keeps_popped
-- when archive_at_pop=on
UPDATE o
SET done_at = (
    SELECT MAX(d.time)
    FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    INNER JOIN [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ON d.subscriber = b.number AND d.slot = o.slot
)
FROM @reused AS o
WHERE o.id IS NOT NULL;
-- end
-- when content=slot
INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
SELECT
    o.id,
    o.payload,
    o.pushed_at,
    o.done_at,
    N'done',
    1,
    N'pop'
FROM @reused AS o
WHERE o.id IS NOT NULL
ORDER BY o.id;
-- end
-- each partition
DELETE k
-- when archive_at_pop=on
OUTPUT deleted.content_id, deleted.content, o.pushed_at, o.done_at, N'done', 1, N'pop'
INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
-- end
FROM @reused AS o
INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.content_id = o.id
WHERE o.id % CAST(N'{partitions}' AS bigint) = {partition}
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- end

-- define: visible_slot
-- a slot k popped up to o.popped: a message that is not owed any more makes no slot full
k.slot,
CASE WHEN k.message_id > o.popped THEN k.message_id END AS message_id,
CASE WHEN k.message_id > o.popped THEN k.first_id END AS first_id,
CASE WHEN k.message_id > o.popped THEN k.message END AS message, -- when content=slot
CASE WHEN k.message_id > o.popped OR k.reference_count = 0 THEN k.time ELSE o.popped_at END AS time,
CASE WHEN k.message_id > o.popped OR k.reference_count NOT IN (0, 1) THEN k.reference_count ELSE 0 END AS reference_count

-- define: visible_slots
-- as one subscriber sees them, or all together; locked rows are skipped
-- when subscribed=yes
(
    SELECT
        {visible_slot}
    FROM [{schema}].[{queue}] AS k WITH (READPAST, READCOMMITTEDLOCK)
    CROSS APPLY (
        SELECT
            MIN(d.message_id) AS popped,
            MAX(d.time) AS popped_at
        -- when of=one
        FROM [{schema}].[{queue}_popped] AS d WITH (READPAST, READCOMMITTEDLOCK)
        WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND d.slot = k.slot
        -- else
        FROM [{schema}].[{queue}_subscribers] AS b WITH (READPAST, READCOMMITTEDLOCK)
        INNER JOIN [{schema}].[{queue}_popped] AS d WITH (READPAST, READCOMMITTEDLOCK) ON d.subscriber = b.number AND d.slot = k.slot
        -- end
    ) AS o
)
-- end

-- define: visible_slots_unlocked
-- the same for the doctor, which counts a missing row as owing
-- when subscribed=yes
(
    SELECT
        {visible_slot}
    FROM [{schema}].[{queue}] AS k WITH (NOLOCK)
    CROSS APPLY (
        SELECT
            COALESCE(MIN(d.message_id), -1) AS popped,
            MAX(d.time) AS popped_at
        -- when of=one
        FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK)
        WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND d.slot = k.slot
        -- else
        FROM [{schema}].[{queue}_subscribers] AS b WITH (NOLOCK)
        INNER JOIN [{schema}].[{queue}_popped] AS d WITH (NOLOCK) ON d.subscriber = b.number AND d.slot = k.slot
        -- end
    ) AS o
)
-- end

-- define: visible_ring_m
[{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK) -- when subscribed=no
{visible_slots} AS m -- when subscribed=yes

-- define: visible_table_m
[{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK) -- when subscribed=no
{visible_slots} AS m -- when subscribed=yes

-- define: visible_ring_r
[{schema}].[{queue}] AS r WITH (READPAST, READCOMMITTEDLOCK) -- when subscribed=no
{visible_slots} AS r -- when subscribed=yes

-- define: unlocked_ring_r
[{schema}].[{queue}] AS r WITH (NOLOCK) -- when subscribed=no
{visible_slots_unlocked} AS r -- when subscribed=yes

-- define: rows_of_slots
[{schema}].[{queue}] AS r WITH (NOLOCK) -- when subscribed=no
-- when subscribed=yes
[{schema}].[{queue}] AS r WITH (NOLOCK) -- when of=all
-- when of=one
(
    SELECT d.slot FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK)
    WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint)
) AS r
-- end
-- end

-- define: visible_next_pop
-- when of=one
(
    SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]')
)
-- end
{next_pop_of_all} -- when of=all

-- define: and_p_visible
-- when subscribed=yes
 AND p.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
-- end

-- define: and_v_visible
-- when subscribed=yes
 AND v.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
-- end

-- define: and_w_visible
-- when subscribed=yes
 AND w.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
-- end

-- define: seen_column
, subscriber -- when subscribed=yes

-- define: seen_value
, CAST(N'{subscriber_number}' AS smallint) -- when subscribed=yes

-- more: tables
-- script: the subscribers, and what each has popped
GO
-- when subscribed=yes
-- The subscribers. Their objects are named by number, which is never reused.
CREATE TABLE [{schema}].[{queue}_subscribers] (
    subscriber nvarchar(31) COLLATE Latin1_General_100_BIN2 NOT NULL,
    number smallint NOT NULL,
    since_number bigint NOT NULL, -- the first that it was to pop
    since datetime2(7) NOT NULL,
    CONSTRAINT [{queue}_subscribers_key] PRIMARY KEY CLUSTERED (subscriber) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT [{queue}_subscribers_number] UNIQUE (number) WITH (ALLOW_PAGE_LOCKS = OFF)
);

-- The last number that each subscriber popped of each slot. Only that subscriber's pops write its rows; subscriber leads
-- the key, so that two of them share no page.
CREATE TABLE [{schema}].[{queue}_popped] (
    subscriber smallint NOT NULL,
    slot bigint NOT NULL,
    message_id bigint NOT NULL,
    time datetime2(7) NOT NULL,
    CONSTRAINT [{queue}_popped_key] PRIMARY KEY CLUSTERED (subscriber, slot)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);

ALTER TABLE [{schema}].[{queue}_subscribers] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_popped] SET (LOCK_ESCALATION = DISABLE);

-- when defined keeps_popped
-- Below this number no slot has a message that all have popped.
CREATE TABLE [{schema}].[{queue}_swept] (
    only_row bit NOT NULL,
    number bigint NOT NULL,
    CONSTRAINT [{queue}_swept_key] PRIMARY KEY CLUSTERED (only_row) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT [{queue}_swept_one] CHECK (only_row = 1)
);
ALTER TABLE [{schema}].[{queue}_swept] SET (LOCK_ESCALATION = DISABLE);
INSERT INTO [{schema}].[{queue}_swept] (only_row, number) VALUES (1, 1);

-- end
-- end

-- more: added
-- script: the sequences and first rows of subscribers that are new
-- each subscriber
GO
-- Subscriber {subscriber}: its sequences, and what it counts as popped of each slot at its start.
DECLARE @since bigint = CAST(N'{since}' AS bigint), @range sql_variant, @alter nvarchar(max);
DECLARE @size bigint = (SELECT c.size FROM [{schema}].[{queue}_config] AS c);
IF OBJECT_ID(N'[{schema}].[{queue}_turn_seq_{subscriber_number}]') IS NULL
    CREATE SEQUENCE [{schema}].[{queue}_turn_seq_{subscriber_number}] AS bigint START WITH 1 INCREMENT BY 1 CACHE 1000;
IF OBJECT_ID(N'[{schema}].[{queue}_pop_seq_{subscriber_number}]') IS NULL
BEGIN
    CREATE SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] AS bigint START WITH 0 INCREMENT BY 1;
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] RESTART WITH ', @since - 1, N' CACHE ', {pop_cache});
    EXEC (@alter);
    EXEC sys.sp_sequence_get_range
        @sequence_name = N'[{schema}].[{queue}_pop_seq_{subscriber_number}]',
        @range_size = 1, @range_first_value = @range OUTPUT;
END;
INSERT INTO [{schema}].[{queue}_subscribers] (subscriber, number, since_number, since)
SELECT N'{subscriber}', {subscriber_number}, @since, SYSUTCDATETIME()
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_subscribers] AS b WITH (READCOMMITTEDLOCK) WHERE b.number = {subscriber_number}
);
INSERT INTO [{schema}].[{queue}_popped] (subscriber, slot, message_id, time)
SELECT
    {subscriber_number},
    r.slot,
    @since - 1,
    SYSUTCDATETIME()
FROM [{schema}].[{queue}] AS r WITH (NOLOCK)
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK) WHERE d.subscriber = {subscriber_number} AND d.slot = r.slot
)
ORDER BY r.slot;
UPDATE [{schema}].[{queue}_config] SET subscribers = {subscriber_number} WHERE subscribers < {subscriber_number};
-- end

-- more: functions
-- script: sweep
-- when defined keeps_popped
-- Sweep: what all have popped goes into the archive, and its content goes, though no push comes that would reuse the
-- slot. Up to 100 slots a call, from where the last one stopped; it stops for good at what somebody still owes. An idle
-- ring is only asked how far that is. One at a time: who comes second leaves it to the first.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_sweep]
    @freed bigint = NULL OUTPUT
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @size bigint, @next_pop bigint, @first bigint, @last bigint, @swept bigint, @from bigint, @to bigint, @parked bigint;
    {reused_declared}

    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET @freed = 0;

    BEGIN TRANSACTION;
    SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
    SET @next_pop = {next_pop_of_all};
    SELECT @first = s.number FROM [{schema}].[{queue}_swept] AS s WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK);
    -- What somebody has parked may come yet.
    SELECT @parked = MIN(l.number)
    FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    CROSS APPLY (
        SELECT TOP (1) p.number
        FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK)
        WHERE p.subscriber = b.number AND p.void = 0
        ORDER BY p.number
    ) AS l;
    IF @parked < @next_pop
        SET @next_pop = @parked;
    IF @first < @next_pop
    BEGIN
        SET @first = NULL;
        SELECT @first = s.number
        FROM [{schema}].[{queue}_swept] AS s WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK);
    END;

    IF @first < @next_pop
    BEGIN
        -- A lap at most; a slot that a push passed over has an older message, and is met with the number it was for.
        IF @first < @next_pop - @size
            SET @first = @next_pop - @size;
        SET @last = @first + CASE WHEN @size < 400 THEN @size / 4 ELSE 99 END;
        IF @last >= @next_pop
            SET @last = @next_pop - 1;
        SET @swept = @last;
        SET @from = @first % @size;
        SET @to = @from + @last - @first;
        WHILE @from <= @to
        BEGIN
            UPDATE r
            SET {empty_slot}
                reference_count = 0
            {into_reused}
            FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE r.slot BETWEEN @from AND @to AND r.message_id <= @last AND NOT {is_owed}
            OPTION (LOOP JOIN);
            SET @freed += @@ROWCOUNT;

            SELECT @swept = COALESCE(MIN(CASE WHEN r.message_id <= @swept THEN r.message_id - 1 END), @swept)
            FROM [{schema}].[{queue}] AS r WITH (NOLOCK)
            WHERE r.slot BETWEEN @from AND @to AND r.message_id <= @last;
            SET @from = 0;
            SET @to -= @size;
        END;
        {discard_popped}
        UPDATE s
        SET number = @swept + 1
        FROM [{schema}].[{queue}_swept] AS s WITH (ROWLOCK, READCOMMITTEDLOCK)
        WHERE s.number <= @swept;
    END;

    COMMIT TRANSACTION;
END;
GO
-- end
-- name: subscriber_status
-- a row for each subscriber: the two next numbers, its ready messages (null: too many to count), its parked pops, its oldest age
-- Counts as much as `status` does for all of them together. popped is not read: a subscriber has not popped the messages
-- of its next numbers and of its parked ones.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    n.subscriber AS subscriber,
    CAST(n.number AS int) AS number,
    n.next_push AS next_push,
    n.next_pop AS next_pop,
    CASE WHEN p.gap <= p.counted AND late.parked <= 10000 THEN (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE m.slot >= p.head AND m.slot < CASE WHEN p.head + p.gap < n.size THEN p.head + p.gap ELSE n.size END
        AND m.reference_count > 0 AND m.message_id >= n.next_pop
    ) + (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE m.slot < p.head + p.gap - n.size
        AND m.reference_count > 0 AND m.message_id >= n.next_pop
    )
    -- when in_hand=on
    + (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (10001) 1 AS one
            FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
            WHERE h.subscriber = n.number AND h.claimed_at IS NULL AND h.done_at IS NULL
        ) AS bounded
    )
    -- end
    + late.found END AS ready,
    CASE WHEN n.next_pop IS NOT NULL THEN late.parked END AS parked,
    (
        SELECT CAST(DATEDIFF_BIG(microsecond, MIN(heads.pushed_at), SYSUTCDATETIME()) / 1e6 AS float)
        FROM (
            SELECT m.time AS pushed_at
            FROM (VALUES (0), (8), (16), (24), (32), (40), (48), (56)) AS eights (n)
            CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7)) AS ones (n)
            INNER JOIN [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
                ON m.slot = (n.next_pop + eights.n + ones.n) % n.size
            WHERE n.next_pop + eights.n + ones.n < n.next_push
            AND m.reference_count > 0 AND m.message_id >= n.next_pop
            UNION ALL
            SELECT late.oldest WHERE late.oldest IS NOT NULL
            -- when in_hand=on
            UNION ALL
            SELECT again.pushed_at
            FROM (
                SELECT TOP (1) h.pushed_at AS pushed_at
                FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
                WHERE h.subscriber = n.number AND h.claimed_at IS NULL AND h.done_at IS NULL
                ORDER BY h.id
            ) AS again
            -- end
        ) AS heads
    ) AS age_seconds
FROM (
    SELECT
        b.subscriber AS subscriber,
        b.number AS number,
        {push_number_due} AS next_push,
        (
            SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
            WHERE s.object_id = OBJECT_ID({pop_sequence_of})
        ) AS next_pop,
        c.size AS size,
        10000 / COUNT(*) OVER () AS counted
    FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    CROSS JOIN [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
) AS n
CROSS APPLY (
    SELECT
        n.next_pop % n.size AS head,
        CASE WHEN n.next_push > n.next_pop THEN n.next_push - n.next_pop ELSE n.next_pop - n.next_pop END AS gap,
        n.counted AS counted
) AS p
CROSS APPLY (
    SELECT
        COUNT_BIG(*) AS parked,
        COALESCE(SUM(w.found), 0) AS found,
        MIN(w.pushed_at) AS oldest
    FROM (
        SELECT TOP (10001)
            CASE WHEN m.message_id IS NULL THEN CAST(0 AS bigint) ELSE 1 END AS found,
            m.time AS pushed_at
        FROM [{schema}].[{queue}_parked] AS l WITH (READPAST, READCOMMITTEDLOCK)
        LEFT JOIN [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
            ON m.slot = l.number % n.size AND m.message_id = l.number AND m.reference_count > 0
        WHERE l.subscriber = n.number AND l.void = 0 AND l.number < n.next_pop
    ) AS w
) AS late;

-- name: consumers_at_work
-- one row: whether an open transaction holds a row of the subscriber, or it has a claim younger than :stuck_after seconds
-- A row that READPAST skips is held.
SELECT CAST(CASE
    WHEN EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK)
        WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND NOT EXISTS (
            SELECT 1 FROM [{schema}].[{queue}_popped] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
            WHERE p.subscriber = d.subscriber AND p.slot = d.slot
        )
    ) THEN 1
    -- when in_hand=on
    WHEN EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_in_hand] AS h WITH (NOLOCK)
        WHERE
            h.subscriber = CAST(N'{subscriber_number}' AS smallint) AND h.claimed_at IS NOT NULL AND h.done_at IS NULL
            AND h.claimed_at > DATEADD(second, 0 - CAST(:stuck_after AS int), SYSUTCDATETIME())
    ) THEN 1
    -- end
    ELSE 0
END AS bit) AS at_work;

-- name: unswept
-- one row: how many numbers all subscribers have drawn that no sweep has reached yet
-- when defined keeps_popped
SET NOCOUNT ON;
DECLARE @next_pop bigint = {next_pop_of_all}, @parked bigint, @swept bigint, @next_push bigint, @size bigint;
SELECT @parked = MIN(p.number)
FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK)
INNER JOIN [{schema}].[{queue}_subscribers] AS b WITH (NOLOCK) ON b.number = p.subscriber
WHERE p.void = 0;
IF @parked < @next_pop
    SET @next_pop = @parked;
SELECT @swept = w.number FROM [{schema}].[{queue}_swept] AS w WITH (NOLOCK);
SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);
SET @next_push = {push_number_due};
IF @swept < @next_push - @size
    SET @swept = @next_push - @size;
SELECT CASE WHEN @swept < @next_pop THEN @next_pop - @swept ELSE 0 END AS numbers;
-- end
SELECT CAST(0 AS bigint) AS numbers; -- when not defined keeps_popped

-- name: sweep
-- script: sweeps up to the first message still owed, a batch of numbers a transaction
-- when defined keeps_popped
DECLARE @swept bigint = -1, @number bigint;
SELECT @number = w.number FROM [{schema}].[{queue}_swept] AS w WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK);
WHILE @swept < @number
BEGIN
    SET @swept = @number;
    EXEC [{schema}].[{queue}_sweep];
    SELECT @number = w.number FROM [{schema}].[{queue}_swept] AS w WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK);
END;
-- end

-- name: add_popped
-- one row: how many rows of popped the subscriber lacked, and how many were added; it owes the messages in those slots
SET NOCOUNT ON;
INSERT INTO [{schema}].[{queue}_popped] (subscriber, slot, message_id, time)
SELECT
    b.number,
    m.slot,
    b.since_number - 1,
    SYSUTCDATETIME()
FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
CROSS JOIN (SELECT DISTINCT s.slot FROM [{schema}].[{queue}] AS s WITH (NOLOCK)) AS m
WHERE
    b.number = CAST(N'{subscriber_number}' AS smallint)
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK) WHERE d.subscriber = b.number AND d.slot = m.slot
    );
DECLARE @done bigint = @@ROWCOUNT;
SELECT
    @done AS selected,
    @done AS done;

-- name: beginnings
-- one row: the next subscriber's number, the next push number, and the oldest message in a slot
-- Exact only under lock_ring.
SELECT
    c.subscribers + 1 AS number,
    n.next_push AS next_push,
    COALESCE((
        SELECT MIN(m.message_id) FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE
            m.reference_count > 0 AND m.message_id >= n.next_push - c.size
            AND {has_content} -- when content=apart
    ), n.next_push) AS oldest
FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
CROSS JOIN (SELECT {push_number_due} AS next_push) AS n;

-- name: void_for_subscriber
-- one row: how many numbers from the subscriber's first on have no message; they are void for it now
SET NOCOUNT ON;
DECLARE @since bigint = :since;
DECLARE @next_push bigint = {push_number_due};

WITH {many}

INSERT INTO [{schema}].[{queue}_parked] (subscriber, number, void, parked_at)
SELECT
    CAST(N'{subscriber_number}' AS smallint),
    drawn.number,
    1,
    SYSUTCDATETIME()
FROM (
    SELECT TOP (CASE WHEN @next_push > @since THEN @next_push - @since ELSE 0 END)
        @since + many.n - 1 AS number
    FROM many
    ORDER BY many.n
) AS drawn
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}] AS m WITH (READCOMMITTEDLOCK)
    WHERE
        m.message_id = drawn.number AND m.reference_count > 0
        AND {has_content} -- when content=apart
)
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (READCOMMITTEDLOCK)
    WHERE p.subscriber = CAST(N'{subscriber_number}' AS smallint) AND p.void = 1 AND p.number = drawn.number
);
SELECT CAST(@@ROWCOUNT AS bigint) AS voids;

-- name: owed
-- one row: the messages that the subscriber still owes, those below :number, and its claims
DECLARE @number bigint = :number;
SELECT
    COUNT_BIG(*) AS owed,
    COUNT_BIG(CASE WHEN m.message_id < @number THEN 1 END) AS below,
    -- when in_hand=on
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
        WHERE h.subscriber = CAST(N'{subscriber_number}' AS smallint)
    ) AS in_hand
    -- end
    CAST(0 AS bigint) AS in_hand -- when in_hand=off
FROM [{schema}].[{queue}_popped] AS d WITH (READPAST, READCOMMITTEDLOCK)
INNER JOIN [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK) ON d.slot = m.slot AND m.message_id > d.message_id
WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND m.reference_count > 0;

-- name: number_older
-- one row: the lowest owed number whose message is younger than :seconds, else the next push number
DECLARE @seconds float = :seconds;
SELECT COALESCE(MIN(m.message_id), {push_number_due}) AS number
FROM [{schema}].[{queue}] AS m WITH (READPAST, READCOMMITTEDLOCK)
WHERE m.reference_count > 0
AND m.time > DATEADD(
    millisecond, -CAST((@seconds - FLOOR(@seconds / 86400) * 86400) * 1000 AS int),
    DATEADD(day, -CAST(FLOOR(@seconds / 86400) AS int), SYSUTCDATETIME())
);

-- name: unsubscribe
-- script: removes the subscriber; a call of its own that waits for this transaction gets an error
DELETE FROM [{schema}].[{queue}_subscribers] WHERE number = CAST(N'{subscriber_number}' AS smallint);
DELETE FROM [{schema}].[{queue}_popped] WHERE subscriber = CAST(N'{subscriber_number}' AS smallint);
DELETE FROM [{schema}].[{queue}_parked] WHERE subscriber = CAST(N'{subscriber_number}' AS smallint);
DELETE FROM [{schema}].[{queue}_in_hand] WHERE subscriber = CAST(N'{subscriber_number}' AS smallint); -- when in_hand=on
DROP SEQUENCE
    [{schema}].[{queue}_pop_seq_{subscriber_number}], [{schema}].[{queue}_turn_seq_{subscriber_number}];

-- name: skip
-- one row: how many messages below :number the subscriber had not popped, and how many are in the archive now
SET NOCOUNT ON;
DECLARE @number bigint = :number;
DECLARE @action_id bigint = :action_id;
DECLARE @skipped bigint, @archived bigint;

SELECT @skipped = COUNT_BIG(*)
FROM [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    ON d.slot = m.slot AND m.message_id > d.message_id AND m.message_id < @number
WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND m.reference_count > 0;

INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, state, attempts, reason, action_id)
SELECT
    k.first_id,
    k.payload,
    k.time,
    N'ready',
    0,
    CONCAT(N'skipped by ', N'{subscriber}'),
    @action_id
FROM (
    SELECT
        m.message_id,
        m.first_id,
        m.time,
        {payload} AS payload
    FROM [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READCOMMITTEDLOCK)
    INNER JOIN [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
        ON d.slot = m.slot AND m.message_id > d.message_id AND m.message_id < @number
    WHERE d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND m.reference_count > 0
) AS k
WHERE k.payload IS NOT NULL
ORDER BY k.message_id;
SET @archived = @@ROWCOUNT;

UPDATE [{schema}].[{queue}_popped]
SET message_id = @number - 1,
    time = SYSUTCDATETIME()
WHERE subscriber = CAST(N'{subscriber_number}' AS smallint) AND message_id < @number - 1;
DELETE FROM [{schema}].[{queue}_parked]
WHERE subscriber = CAST(N'{subscriber_number}' AS smallint) AND number < @number;
SELECT
    @skipped AS skipped,
    @archived AS archived;

-- name: skip_numbers
-- script: sets the subscriber's next number to at least '{since}'
DECLARE @next bigint = (
    SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq_{subscriber_number}]')
);
DECLARE @number bigint = CAST(N'{since}' AS bigint);
DECLARE @range sql_variant, @alter nvarchar(max);
IF @next IS NULL
    THROW 51004, N'The ring''s numbers cannot be read.|This login does not see its sequences, or they are gone.|Grant VIEW DEFINITION on them.', 1;
IF @next < @number
BEGIN
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] RESTART WITH ', @number - 1);
    EXEC (@alter);
    EXEC sys.sp_sequence_get_range
        @sequence_name = N'[{schema}].[{queue}_pop_seq_{subscriber_number}]',
        @range_size = 1, @range_first_value = @range OUTPUT;
END;
