-- ring, monitor: the samples, and the messages as lists and verbs read them. No statement here writes.

-- define: last_pop
-- the latest time of a free slot, for rings of up to 100,000 slots
IF CAST(N'{size}' AS bigint) <= 100000
    -- when subscribed=yes
    SELECT @last_pop = MAX(d.time)
    FROM [{schema}].[{queue}_subscribers] AS b WITH (NOLOCK)
    INNER JOIN [{schema}].[{queue}_popped] AS d WITH (NOLOCK) ON d.subscriber = b.number AND d.message_id >= b.since_number
    WHERE b.number = CAST(N'{subscriber_number}' AS smallint) -- when of=one
    ;
    -- else
    SELECT @last_pop = MAX(r.time) FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.reference_count = 0;
    -- end

-- name: status
-- one row: the two next numbers, the ready messages (null: too many to count), the age of the oldest
-- Ready are the messages in the slots of the next pop numbers, and those of parked numbers. Locked slots are skipped: no
-- pop can take them now. The next numbers are null, not 0, to a login that does not see the sequences.
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
    -- else
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
    CAST(NULL AS float) AS age_seconds, -- when no role pushed_at
    -- when in_hand=on
    -- when counters=yes
    (
        SELECT SUM(s.row_count) FROM sys.dm_db_partition_stats AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_in_hand]') AND s.index_id IN (0, 1)
    ) AS rows_estimated,
    -- end
    CAST(NULL AS bigint) AS rows_estimated, -- when counters=no
    -- end
    CAST(NULL AS bigint) AS rows_estimated, -- when in_hand=off
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
        {push_number_due} AS next_push,
        {visible_next_pop} AS next_pop,
        c.size AS size,
        c.base AS base
    FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    -- end
    -- when installed=no
        -- At the first value, "never used" and "used once" look the same.
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
        -- when subscribed=yes
        AND l.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
        -- end
    ) AS w
    -- else
    SELECT
        CAST(0 AS bigint) AS parked,
        CAST(0 AS bigint) AS found
    -- end
) AS late

-- name: estimate
-- one row: about how many messages in hand are claimed and in error; nothing to a login that does not see the row counts
-- Each state has an index; see monitor.sql. A ring's depth is its gap.
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
-- else
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end
-- else
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: target_state
-- one row: how many messages are ready (counted to 10,001), how many more fit, and how many after a relay
-- A login that does not see the sequences gets the number of full slots only.
SELECT
    CASE
        WHEN n.gap IS NULL THEN (
            SELECT COUNT_BIG(*) FROM (
                SELECT TOP (10001) 1 AS one
                FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) -- when subscribed=no
                FROM {visible_ring_m} -- when subscribed=yes
                WHERE m.reference_count > 0
            ) AS bounded
        )
        WHEN n.gap < 0 THEN CAST(0 AS bigint)
        ELSE n.gap
    END AS ready,
    CASE
        WHEN n.gap < 0 THEN n.size
        WHEN n.gap > n.size THEN CAST(0 AS bigint)
        ELSE n.size - n.gap
    END AS room,
    -- A push counts the numbers of purged messages until pops have passed them.
    CASE WHEN n.gap IS NOT NULL THEN (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (10001) 1 AS one FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
            WHERE p.void = 1 AND p.number >= n.next_pop{and_p_visible}
        ) AS bounded
    ) END AS voids
FROM (
    SELECT
        r.size,
        r.next_pop,
        r.next_push - r.next_pop AS gap
    FROM (
        SELECT
            c.size,
            {push_number_due} AS next_push,
            {visible_next_pop} AS next_pop
        FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    ) AS r
) AS n;

-- name: contents
-- one row: exact counts of the queue's messages, by a scan; for verbs, never for monitoring
-- Rows that others hold are skipped; after lock_all there are none.
SELECT
    (
        SELECT COUNT_BIG(*) FROM {visible_table_m}
        WHERE m.reference_count > 0
    )
    -- each partition
    + (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_content_{partition}] AS k WITH (READPAST, READCOMMITTEDLOCK)
        WHERE NOT EXISTS (
            SELECT 1 FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK) WHERE m.first_id = k.content_id
        )
    )
    -- end
    -- when in_hand=on
    + (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
        WHERE h.claimed_at IS NULL AND h.done_at IS NULL
    )
    -- end
    AS live,
    -- when in_hand=off
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- else
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
        WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL
    ) AS claimed,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_in_hand] AS h WITH (READPAST, READCOMMITTEDLOCK)
        WHERE h.done_at IS NOT NULL
    ) AS finished,
    -- end
    (SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)) AS archived;

-- name: extent
-- one row: the first and the last number still to be popped (null where the sequences are not visible), and the number of slots
SELECT
    -- when installed=yes
    {visible_next_pop} AS first,
    (
        SELECT CAST(s.current_value AS bigint) FROM sys.sequences AS s
        WHERE s.object_id = OBJECT_ID(N'[{schema}].[{push_sequence}]')
    ) AS last,
    c.size AS slots
FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);
    -- else
    -- At the first value, "never used" and "used once" look the same.
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
-- the messages numbered :first to :last, keyed by number, for `chunk` of common.sql
-- They are in the slots :first_slot to :last_slot, one range of the key, within one lap; locked slots are skipped.
SELECT
    m.[{id}] AS key_id,
    CAST(m.first_id AS nvarchar(450)) AS id, -- when installed=yes
    CAST(m.[{id}] AS nvarchar(450)) AS id, -- when installed=no
    CASE WHEN m.[{reference_count}] > 0 THEN N'ready' END AS state,
    m.[{pushed_at}] AS pushed_at, -- when role pushed_at
    m.[{slot}] AS slot,
    m.[{id}] AS number,
    {payload} AS payload
FROM {visible_table_m}
WHERE
    m.[{slot}] BETWEEN CAST(:first_slot AS bigint) AND CAST(:last_slot AS bigint)
    AND m.[{id}] BETWEEN CAST(:first AS bigint) AND CAST(:last AS bigint)

-- name: parked_messages
-- the parked numbers, each with its message if that has arrived, for `chunk` of common.sql
SELECT
    p.number AS key_id,
    CAST(m.first_id AS nvarchar(450)) AS id,
    CASE WHEN m.reference_count > 0 THEN N'ready' END AS state,
    m.time AS pushed_at,
    m.slot AS slot,
    p.number AS number,
    m.message AS payload -- when content=slot
    {visible_content} AS payload -- when content=apart
FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
CROSS JOIN [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
OUTER APPLY (
    SELECT
        r.slot,
        r.first_id,
        r.time,
        r.message, -- when content=slot
        r.reference_count
    FROM {visible_ring_r}
    WHERE r.slot = p.number % c.size AND r.message_id = p.number
) AS m
WHERE p.void = 0{and_p_visible}
-- when of=all
-- A number parked for another subscriber, which the scan of undrawn numbers does not include.
AND p.number < {visible_next_pop}
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS o WITH (READPAST, READCOMMITTEDLOCK)
    WHERE o.void = 0 AND o.number = p.number AND o.subscriber < p.subscriber
)
-- end

-- name: in_hand_messages
-- in_hand=on: the messages popped and not finished, or ready again (scan), for `chunk` of common.sql
SELECT
    h.claimed_at AS key_time, -- when scan=claimed
    h.done_at AS key_time, -- when scan=error
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
WHERE h.claimed_at IS NULL AND h.done_at IS NULL -- when scan=in_hand
WHERE h.claimed_at IS NOT NULL AND h.done_at IS NULL -- when scan=claimed
WHERE h.done_at IS NOT NULL -- when scan=error
-- when subscribed=yes
-- when of=one
WHERE h.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when scan=any
AND h.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when scan=in_hand|claimed|error
-- end
-- end

-- From here on: the doctor's checks and repairs. Checks read under NOLOCK, so that they neither wait nor make a caller
-- skip a row. They therefore see uncommitted rows, which can hide a loss for a moment but never invents one: tables are
-- read in an order that guarantees that, and the sequences last. Repairs check again under the row's lock.

-- name: slot_map
-- a row for each range of slots in the same state, in order, with the numbers they hold or are expected to get
--   ready, parked (popped before the rest), popping (a pop has its number), orphan; free, awaited (by a parked number),
--   pushing (a push has its number), hole, void; broken. Below :drawn_pop and :drawn_push the finished ones are proven.
SET NOCOUNT ON;
DECLARE @drawn_push bigint = :drawn_push;
DECLARE @drawn_pop bigint = :drawn_pop;
DECLARE @size bigint, @next_push bigint, @next_pop bigint;
DECLARE @slots TABLE (slot bigint NOT NULL PRIMARY KEY, number bigint NULL, reference_count tinyint NOT NULL);
DECLARE @parked TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @waiting TABLE (slot bigint NOT NULL PRIMARY KEY, number bigint NOT NULL);
DECLARE @voids TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
INSERT INTO @parked (number)
SELECT p.number FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 0{and_p_visible} GROUP BY p.number;
INSERT INTO @voids (number)
SELECT p.number FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 1{and_p_visible} GROUP BY p.number;
INSERT INTO @waiting (slot, number)
SELECT
    p.number % @size,
    MIN(p.number)
FROM @parked AS p
GROUP BY p.number % @size;
INSERT INTO @slots (slot, number, reference_count)
SELECT
    r.slot,
    r.message_id,
    r.reference_count
FROM {unlocked_ring_r};
{read_numbers}

WITH slots AS (
    SELECT
        r.slot,
        COALESCE(r.number, CASE WHEN e.number < @next_push THEN e.number END, w.number) AS number,
        CASE
            WHEN
                r.reference_count NOT IN (0, 1) OR (r.reference_count = 1 AND r.number IS NULL)
                OR (r.reference_count = 0 AND r.number IS NOT NULL) OR r.number % @size <> r.slot THEN N'broken'
            WHEN r.number >= @next_pop THEN N'ready'
            WHEN EXISTS (SELECT 1 FROM @parked AS p WHERE p.number = r.number) THEN N'parked'
            WHEN r.number < @drawn_pop THEN N'orphan'
            WHEN r.number IS NOT NULL THEN N'popping'
            WHEN e.number < @next_push AND v.number IS NOT NULL THEN N'void'
            WHEN e.number < @next_push AND e.number < @drawn_push THEN N'hole'
            WHEN e.number < @next_push THEN N'pushing'
            WHEN w.number < @drawn_push THEN N'hole'
            WHEN w.number < @next_push THEN N'pushing'
            WHEN w.number IS NOT NULL THEN N'awaited'
            ELSE N'free'
        END AS state
    FROM @slots AS r
    -- The number that a pop of this lap will look for here.
    CROSS APPLY (SELECT @next_pop + ((r.slot - @next_pop) % @size + @size) % @size AS number) AS e
    LEFT JOIN @waiting AS w ON r.slot = w.slot
    LEFT JOIN @voids AS v ON e.number = v.number
),

marked AS (
    SELECT
        s.slot,
        s.number,
        s.state,
        LAG(s.slot) OVER (ORDER BY s.slot) AS slot_before,
        LAG(s.number) OVER (ORDER BY s.slot) AS number_before,
        LAG(s.state) OVER (ORDER BY s.slot) AS state_before
    FROM slots AS s
),

counted AS (
    SELECT
        m.slot,
        m.number,
        m.state,
        SUM(CASE
            WHEN m.state = m.state_before AND m.slot = m.slot_before + 1 AND m.number = m.number_before + 1 THEN 0
            WHEN m.state = m.state_before AND m.slot = m.slot_before + 1 AND (m.number IS NULL OR m.number_before IS NULL) THEN 0
            ELSE 1
        END) OVER (ORDER BY m.slot ROWS UNBOUNDED PRECEDING) AS run
    FROM marked AS m
)

SELECT
    MIN(r.slot) AS first_slot,
    MAX(r.slot) AS last_slot,
    MIN(r.state) AS state,
    COUNT_BIG(*) AS count,
    MIN(r.number) AS first_number,
    MAX(r.number) AS last_number
FROM counted AS r
GROUP BY r.run
ORDER BY MIN(r.slot)
OPTION (RECOMPILE); -- see lost
