-- ring, repair: the doctor's proofs of lost numbers, orphans, holes and inconsistent slots, and what mends each.

-- define: valid_number
-- the number to keep for an inconsistent slot r (configuration c); null: a new one is needed
COALESCE(r.message_id, r.first_id) -- when subscribed=no
-- when subscribed=yes
CASE
    WHEN r.message_id % c.size = r.slot AND r.message_id >= c.base THEN r.message_id
    WHEN r.first_id % c.size = r.slot AND r.first_id >= c.base THEN r.first_id
END
-- end

-- name: next_numbers
-- one row: the two next numbers; an error, never "empty", where they are not visible to this login
DECLARE @next_push bigint, @next_pop bigint;
SET @next_push = {push_number_due};
SET @next_pop = {visible_next_pop};
IF @next_push IS NULL OR @next_pop IS NULL
    THROW 51004, N'The ring''s numbers cannot be read.|This login does not see its sequences, or they are gone.|Grant VIEW DEFINITION on them.', 1;
SELECT
    @next_push AS next_push,
    @next_pop AS next_pop;

-- name: lost
-- a row for each range of lost numbers below :drawn_pop or :drawn_push, by kind, with the times around it
--   orphan       a message whose pop number is consumed and not parked
--   parked_hole  a parked pop number whose push number is consumed, without message and not void
--   hole         the same before any pop has drawn it
--   spent        a pop number that is consumed, not parked, and not pushed yet
--   void         a void number whose pop number is consumed and not parked: nobody will drop it
-- Proven if two runs agree, between which all that had drawn have finished. Parked numbers are read before and after the
-- slots: a parked number taken in between is no loss. A slot's time is that of its push or, when it is free, of its pop.
SET NOCOUNT ON;
DECLARE @drawn_push bigint = :drawn_push;
DECLARE @drawn_pop bigint = :drawn_pop;
DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint;
DECLARE @first_pop bigint, @first_push bigint, @behind_holes bigint, @behind_spent bigint;
DECLARE @slots TABLE (slot bigint NOT NULL PRIMARY KEY, number bigint NULL, time datetime2(7) NOT NULL);
DECLARE @before TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @waiting TABLE (number bigint NOT NULL PRIMARY KEY, parked_at datetime2(7) NOT NULL);
DECLARE @voids TABLE (number bigint NOT NULL PRIMARY KEY, parked_at datetime2(7) NOT NULL);
DECLARE @live TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT
    @size = c.size,
    @base = c.base
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

-- GROUP BY: under NOLOCK a page split may return a row twice.
INSERT INTO @before (number)
SELECT p.number FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 0{and_p_visible} GROUP BY p.number;

INSERT INTO @voids (number, parked_at)
SELECT
    p.number,
    MIN(p.parked_at)
FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK)
WHERE p.void = 1{and_p_visible}
GROUP BY p.number;

INSERT INTO @slots (slot, number, time)
SELECT
    r.slot,
    r.message_id,
    r.time
FROM {unlocked_ring_r};

INSERT INTO @live (number)
SELECT DISTINCT s.number FROM @slots AS s WHERE s.number IS NOT NULL;

INSERT INTO @waiting (number, parked_at)
SELECT
    p.number,
    MIN(p.parked_at)
FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK)
WHERE p.void = 0{and_p_visible}
GROUP BY p.number;

{read_numbers}

SET @first_pop = CASE WHEN @next_pop > @base THEN @next_pop ELSE @base END;
SET @first_push = CASE WHEN @next_push > @base THEN @next_push ELSE @base END;
SET @behind_holes = CASE WHEN @drawn_push > @first_pop THEN @drawn_push ELSE @first_pop END;
SET @behind_spent = CASE WHEN @drawn_pop > @first_push THEN @drawn_pop ELSE @first_push END;

WITH single AS (
    SELECT
        N'orphan' AS kind,
        s.number AS number,
        s.time AS since
    FROM @slots AS s
    WHERE
        s.number < @drawn_pop AND s.number >= @base AND s.slot = s.number % @size
        AND NOT EXISTS (SELECT 1 FROM @before AS b WHERE b.number = s.number)
        AND NOT EXISTS (SELECT 1 FROM @waiting AS w WHERE w.number = s.number)
    UNION ALL
    SELECT
        N'parked_hole' AS kind,
        w.number AS number,
        w.parked_at AS since
    FROM @waiting AS w
    WHERE
        w.number < @drawn_push
        AND NOT EXISTS (SELECT 1 FROM @live AS l WHERE l.number = w.number)
        AND NOT EXISTS (SELECT 1 FROM @voids AS v WHERE v.number = w.number)
    UNION ALL
    SELECT
        N'void' AS kind,
        v.number AS number,
        v.parked_at AS since
    FROM @voids AS v
    WHERE
        v.number < @drawn_pop
        AND NOT EXISTS (SELECT 1 FROM @before AS b WHERE b.number = v.number)
        AND NOT EXISTS (SELECT 1 FROM @waiting AS w WHERE w.number = v.number)
),

-- The existing numbers in order, with one before the first and one after the last; the gaps between them are missing.
present AS (
    SELECT
        N'hole' AS kind,
        l.number AS number
    FROM @live AS l WHERE l.number >= @first_pop AND l.number < @drawn_push
    UNION
    SELECT
        N'hole' AS kind,
        v.number AS number
    FROM @voids AS v WHERE v.number >= @first_pop AND v.number < @drawn_push
    UNION
    SELECT
        ends.kind AS kind,
        ends.number AS number
    FROM (
        VALUES
        (N'hole', @first_pop - 1),
        (N'hole', @behind_holes),
        (N'spent', @first_push - 1),
        (N'spent', @behind_spent)
    ) AS ends (kind, number)
    UNION
    SELECT
        N'spent' AS kind,
        w.number AS number
    FROM @waiting AS w WHERE w.number >= @first_push AND w.number < @drawn_pop
),

runs AS (
    SELECT
        s.kind AS kind,
        MIN(s.number) AS first,
        MAX(s.number) AS last,
        MIN(s.since) AS since
    FROM (
        SELECT
            single.kind,
            single.number,
            single.since,
            single.number - ROW_NUMBER() OVER (PARTITION BY single.kind ORDER BY single.number) AS run
        FROM single
    ) AS s
    GROUP BY s.kind, s.run
    UNION ALL
    SELECT
        g.kind AS kind,
        g.number + 1 AS first,
        g.following - 1 AS last,
        CAST(NULL AS datetime2(7)) AS since
    FROM (
        SELECT
            present.kind,
            present.number,
            LEAD(present.number) OVER (PARTITION BY present.kind ORDER BY present.number) AS following
        FROM present
    ) AS g
    WHERE g.following > g.number + 1
)

SELECT
    r.kind AS kind,
    r.first AS first,
    r.last AS last,
    r.since AS since,
    CASE
        WHEN r.kind IN (N'orphan', N'spent', N'void') AND b.number IS NULL THEN b.time
        WHEN r.kind IN (N'hole', N'parked_hole') AND b.number = r.first - 1 THEN b.time
    END AS before_at,
    CASE
        WHEN r.kind IN (N'orphan', N'spent', N'void') AND a.number IS NULL AND r.last + 1 < @next_pop THEN a.time
        WHEN r.kind IN (N'hole', N'parked_hole') AND (a.number = r.last + 1 OR a.number IS NULL AND r.last + 1 < @next_pop)
            THEN a.time
    END AS after_at
FROM runs AS r
LEFT JOIN @slots AS b ON b.slot = (r.first - 1) % @size
LEFT JOIN @slots AS a ON a.slot = (r.last + 1) % @size
ORDER BY r.kind, r.first
OPTION (RECOMPILE); -- else it is planned for tables of one row

-- name: stranded
-- a row for each parked number whose message has arrived and is held by nobody, and the turn at that time
-- turn is NULL for a ring of an older version and before the first turn. A number that a pop holds is locked and skipped.
SELECT TOP (1000)
    p.number AS number,
    r.first_id AS id,
    r.time AS pushed_at,
    CAST(DATEDIFF_BIG(microsecond, r.time, SYSUTCDATETIME()) / 1e6 AS float) AS age_seconds,
    {visible_next_pop} AS next_pop,
    (
        SELECT CAST(s.current_value AS bigint)
        FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_turn_seq]') -- when subscribed=no
        -- when subscribed=yes
        FROM sys.sequences AS s WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_turn_seq_{subscriber_number}]')
        -- end
    ) AS turn
FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
CROSS JOIN [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
INNER JOIN {visible_ring_r}
    ON r.slot = p.number % c.size AND r.message_id = p.number
WHERE p.void = 0{and_p_visible} AND r.reference_count > 0
AND {slot_has_content} -- when content=apart
ORDER BY r.time;

-- name: structure
-- one row: the ring's numbers, its slots and their inconsistencies; a scan of the ring
-- The sequences are read last: one that is behind what the ring holds is really behind.
SET NOCOUNT ON;
DECLARE @size bigint, @base bigint, @next_push bigint, @next_pop bigint, @pops bigint;
DECLARE @slots bigint, @outside bigint, @live bigint, @misplaced bigint, @miscounted bigint, @below_base bigint;
DECLARE @highest bigint, @parked bigint, @voids bigint, @voids_ahead bigint, @highest_parked bigint;
DECLARE @highest_void bigint, @parked_seconds float;

SELECT
    @size = c.size,
    @base = c.base
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
SET @pops = {visible_next_pop};

SELECT
    @slots = COUNT_BIG(*),
    @outside = COUNT_BIG(CASE WHEN r.slot < 0 OR r.slot >= @size THEN 1 END),
    @live = COUNT_BIG(CASE WHEN r.reference_count > 0 THEN 1 END),
    @misplaced = COUNT_BIG(CASE WHEN r.message_id % @size <> r.slot THEN 1 END),
    @miscounted = COUNT_BIG(CASE
        WHEN r.reference_count NOT IN (0, 1) THEN 1
        -- when content=slot
        WHEN r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL OR r.message IS NOT NULL) THEN 1
        WHEN r.reference_count = 1 AND (r.message_id IS NULL OR r.first_id IS NULL OR r.message IS NULL) THEN 1
        -- else
        WHEN r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL) THEN 1
        WHEN r.reference_count = 1 AND (r.message_id IS NULL OR r.first_id IS NULL) THEN 1
        -- end
    END),
    @below_base = COUNT_BIG(CASE WHEN r.message_id < @base THEN 1 END),
    @highest = COALESCE(MAX(CASE WHEN r.first_id > r.message_id OR r.message_id IS NULL THEN r.first_id ELSE r.message_id END), 0)
FROM {unlocked_ring_r};

-- when subscribed=yes
-- A wrong number may look popped by all: it is counted where it is.
SELECT
    @misplaced = COUNT_BIG(CASE WHEN r.message_id % @size <> r.slot THEN 1 END),
    @below_base = COUNT_BIG(CASE WHEN r.message_id < @base THEN 1 END)
FROM [{schema}].[{queue}] AS r WITH (NOLOCK);

-- end
SELECT
    @parked = COUNT_BIG(CASE WHEN p.void = 0 THEN 1 END),
    @voids = COUNT_BIG(CASE WHEN p.void = 1 THEN 1 END),
    @voids_ahead = COUNT_BIG(CASE WHEN p.void = 1 AND p.number >= @pops THEN 1 END),
    @highest_parked = COALESCE(MAX(CASE WHEN p.void = 0 THEN p.number END), 0),
    @highest_void = COALESCE(MAX(CASE WHEN p.void = 1 THEN p.number END), 0),
    @parked_seconds = CAST(
        DATEDIFF_BIG(microsecond, MIN(CASE WHEN p.void = 0 THEN p.parked_at END), SYSUTCDATETIME()) / 1e6 AS float
    )
FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK)
-- when subscribed=yes
WHERE p.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
-- end
;

{read_numbers}

SELECT
    @next_push AS next_push,
    @next_pop AS next_pop,
    @size AS size,
    @base AS base,
    @slots AS slots,
    @outside AS outside,
    @live AS live,
    @misplaced AS misplaced,
    @miscounted AS miscounted,
    @below_base AS below_base,
    @highest AS highest,
    @parked AS parked,
    @voids AS voids,
    @voids_ahead AS voids_ahead,
    @highest_parked AS highest_parked,
    @highest_void AS highest_void,
    @parked_seconds AS parked_seconds;

-- name: broken_slots
-- the first 20 inconsistent slots: what is wrong with each
SELECT TOP (20)
    b.slot AS slot,
    b.number AS number,
    b.reference_count AS reference_count,
    b.wrong AS wrong
FROM (
    SELECT
        r.slot,
        r.message_id AS number,
        CAST(r.reference_count AS int) AS reference_count,
        CASE
            WHEN r.slot < 0 OR r.slot >= c.size THEN N'outside the ring'
            WHEN r.message_id % c.size <> r.slot THEN N'its number belongs to another slot'
            WHEN r.message_id < c.base THEN N'its number is older than the last relay'
            WHEN r.reference_count NOT IN (0, 1) THEN N'its reference count is neither 0 nor 1'
            -- when content=slot
            WHEN r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL OR r.message IS NOT NULL)
            -- end
            WHEN r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL) -- when content=apart
                THEN N'not empty, but counted as free'
            WHEN r.reference_count = 1 AND (r.message_id IS NULL OR r.first_id IS NULL) THEN N'a message without its number'
            WHEN r.reference_count = 1 AND r.message IS NULL THEN N'a number without a message' -- when content=slot
        END AS wrong
    FROM [{schema}].[{queue}] AS r WITH (NOLOCK)
    CROSS JOIN [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
) AS b
WHERE b.wrong IS NOT NULL
ORDER BY b.slot;

-- name: missing_slots
-- a row for each range of slots that have no row, or no row for this subscriber
SELECT
    g.slot + 1 AS first,
    g.following - 1 AS last
FROM (
    SELECT
        s.slot,
        LEAD(s.slot) OVER (ORDER BY s.slot) AS following
    FROM (
        SELECT r.slot FROM {rows_of_slots}
        CROSS JOIN [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
        WHERE r.slot >= 0 AND r.slot < c.size
        UNION
        SELECT -1 AS slot
        UNION
        SELECT c.size AS slot FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    ) AS s
) AS g
WHERE g.following > g.slot + 1
ORDER BY g.slot;

-- name: sequence_settings
-- two rows: each sequence's cache, where it is too large (else 1), and its increment
-- The cache is the server's, so numbers are in order whatever its size; a crash skips what is left of it. It must not be
-- larger than the option cache says, nor as large as the ring. CACHE without a size: the server chooses, 50 so far; NO
-- CACHE leaves cache_size NULL.
-- when installed=yes
DECLARE @most bigint = COALESCE(
    TRY_CAST(N'{cache}' AS bigint), (SELECT CASE WHEN c.size >= 200 THEN c.size / 4 + 1 ELSE 50 END FROM [{schema}].[{queue}_config] AS c)
);
-- else
DECLARE @most bigint = CASE WHEN CAST(N'{size}' AS bigint) >= 200 THEN CAST(N'{size}' AS bigint) / 4 + 1 ELSE 50 END;
-- end
IF (
    SELECT COUNT(*) FROM sys.sequences AS s
    WHERE s.object_id IN (OBJECT_ID(N'[{schema}].[{push_sequence}]'), OBJECT_ID(N'[{schema}].[{pop_sequence}]'))
) < 2
    THROW 51004, N'The ring''s sequences cannot be looked at.|This login does not see them, or they are gone.|Grant VIEW DEFINITION on them.', 1;
SELECT
    CAST(s.name AS nvarchar(128)) AS sequence,
    CASE WHEN s.is_cached = 1 AND s.cache_size > @most THEN s.cache_size ELSE 1 END AS cached,
    CAST(s.increment AS bigint) AS step,
    s.is_cycling AS cycles
FROM sys.sequences AS s
WHERE s.object_id IN (OBJECT_ID(N'[{schema}].[{push_sequence}]'), OBJECT_ID(N'[{schema}].[{pop_sequence}]'))
ORDER BY s.name;

-- name: large_caches
-- a row for each sequence that caches more than this version would: those of older installations
DECLARE @size bigint = (SELECT c.size FROM [{schema}].[{queue}_config] AS c);
SELECT CAST(s.name AS nvarchar(128)) AS sequence
FROM sys.sequences AS s
WHERE
    s.is_cached = 1 AND (
        (s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]') AND s.cache_size > {push_cache})
        -- when subscribed=no
        OR (s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]') AND s.cache_size > {pop_cache})
        -- end
        -- each subscriber
        OR (s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq_{subscriber_number}]') AND s.cache_size > {pop_cache})
        -- end
    );

-- name: server_start
-- one row: when the server was started, and how many numbers a crash may lose
-- An orderly shutdown saves the sequences; a crash skips the rest of their caches. So a start together with numbers lost
-- around that time means a crash, and a start alone means nothing. Rollbacks and lost sessions are counted nowhere.
-- Without the right to see the server's state, tempdb's creation time is used; Azure SQL Database hides that too.
DECLARE @started datetime;
IF {sees_server_state} = 1
    SELECT @started = i.sqlserver_start_time FROM sys.dm_os_sys_info AS i;
ELSE
    SELECT @started = d.create_date FROM sys.databases AS d WHERE d.name = N'tempdb';
SELECT
    CAST(DATEADD(minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), COALESCE(@started, d.create_date)) AS datetime2(3))
        AS server_started,
    CAST(NULL AS datetime2(3)) AS checkpointer_started,
    CAST(DATEADD(minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), @started) AS datetime2(3)) AS counts_since,
    CAST(NULL AS int) AS timeline,
    CAST(0 AS bigint) AS rollbacks,
    CAST(0 AS bigint) AS sessions_lost,
    CAST(CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY' THEN 1 ELSE 0 END AS bit) AS recovering,
    COALESCE((
        SELECT MAX(CAST(CASE WHEN s.is_cached = 1 THEN COALESCE(s.cache_size, 50) ELSE 1 END AS bigint))
        FROM sys.sequences AS s
        WHERE s.object_id IN (OBJECT_ID(N'[{schema}].[{queue}_push_seq]'), OBJECT_ID(N'[{schema}].[{pop_sequence}]'))
    ), 1) AS ahead
FROM sys.databases AS d WHERE d.name = DB_NAME();

-- name: park_orphans
-- one row: how many orphans there were below :drawn_pop (proven), and how many are parked now
-- Under the slot's lock: a pop that is taking the message has that lock, and the slot is skipped. message_id = number makes
-- it safe to repeat, and to run twice at once.
SET NOCOUNT ON;
DECLARE @drawn_pop bigint = :drawn_pop;
DECLARE @size bigint, @base bigint, @selected bigint;
DECLARE @orphan TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @held TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT
    @size = c.size,
    @base = c.base
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

INSERT INTO @orphan (number)
SELECT r.message_id
FROM {unlocked_ring_r}
WHERE
    r.message_id < @drawn_pop AND r.message_id >= @base AND r.slot = r.message_id % @size
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 0 AND p.number = r.message_id{and_p_visible}
    )
GROUP BY r.message_id;
SET @selected = @@ROWCOUNT;

INSERT INTO @held (number)
SELECT o.number
FROM @orphan AS o
-- when subscribed=no
INNER JOIN [{schema}].[{queue}] AS r WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON r.slot = o.number % @size AND r.message_id = o.number
-- else
INNER JOIN [{schema}].[{queue}_popped] AS d WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON d.subscriber = CAST(N'{subscriber_number}' AS smallint) AND d.slot = o.number % @size AND d.message_id < o.number
INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON r.slot = d.slot AND r.message_id = o.number
-- end
OPTION (LOOP JOIN, FORCE ORDER);

INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{seen_column})
SELECT
    h.number,
    0,
    SYSUTCDATETIME(){seen_value}
FROM @held AS h
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 0 AND p.number = h.number{and_p_visible}
);
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;

-- name: drop_holes
-- one row: how many parked numbers below :drawn_push (proven) had no message and no void, and how many are removed
-- Under the row's lock: a pop that uses the number has that lock before it empties the slot.
SET NOCOUNT ON;
DECLARE @drawn_push bigint = :drawn_push;
DECLARE @size bigint, @selected bigint;
DECLARE @hole TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @held TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT @size = c.size FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);

INSERT INTO @hole (number)
SELECT w.number
FROM [{schema}].[{queue}_parked] AS w WITH (NOLOCK)
WHERE
    w.void = 0 AND w.number < @drawn_push{and_w_visible}
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_parked] AS v WITH (NOLOCK) WHERE v.void = 1 AND v.number = w.number{and_v_visible}
    )
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.slot = w.number % @size AND r.message_id = w.number
    )
GROUP BY w.number;
SET @selected = @@ROWCOUNT;

INSERT INTO @held (number)
SELECT p.number
FROM @hole AS h
INNER JOIN [{schema}].[{queue}_parked] AS p WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON p.void = 0 AND p.number = h.number{and_p_visible}
OPTION (LOOP JOIN, FORCE ORDER);

DELETE p
FROM @held AS h
INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON p.void = 0 AND p.number = h.number{and_p_visible}
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.slot = p.number % @size AND r.message_id = p.number
)
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS v WITH (NOLOCK) WHERE v.void = 1 AND v.number = p.number{and_v_visible}
)
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;

-- name: void_holes
-- one row: how many push numbers below :drawn_push (proven) have neither message nor pop, and how many are void now
-- The next pop number is read after the messages, so that one popped meanwhile is not taken for a hole.
SET NOCOUNT ON;
DECLARE @drawn_push bigint = :drawn_push;
DECLARE @base bigint, @next_pop bigint, @first bigint, @selected bigint;
DECLARE @there TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @hole TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT @base = c.base FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
INSERT INTO @there (number)
SELECT t.number
FROM (
    SELECT r.message_id AS number FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.message_id < @drawn_push
    UNION
    SELECT v.number FROM [{schema}].[{queue}_parked] AS v WITH (NOLOCK) WHERE v.void = 1{and_v_visible}
) AS t;
SET @next_pop = {visible_next_pop};
IF @next_pop IS NULL OR @base IS NULL
    THROW 51004, N'The ring''s numbers cannot be read.|This login does not see its sequences, or its configuration is empty.|Grant VIEW DEFINITION on them.', 1;
SET @first = CASE WHEN @next_pop > @base THEN @next_pop ELSE @base END;

WITH {many}, drawn AS (
    SELECT TOP (CASE WHEN @drawn_push > @first THEN @drawn_push - @first ELSE 0 END)
        @first + many.n - 1 AS number
    FROM many
    ORDER BY many.n
)

INSERT INTO @hole (number)
SELECT d.number FROM drawn AS d WHERE NOT EXISTS (SELECT 1 FROM @there AS t WHERE t.number = d.number);
SET @selected = @@ROWCOUNT;

INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{seen_column})
SELECT
    h.number,
    1,
    SYSUTCDATETIME(){seen_value}
FROM @hole AS h;
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;

-- name: park_spent
-- one row: how many consumed pop numbers below :drawn_pop (proven) are neither pushed nor parked, and how many are parked now
-- The next push number is read last: a number pushed meanwhile is left alone, and may then be an orphan.
SET NOCOUNT ON;
DECLARE @drawn_pop bigint = :drawn_pop;
DECLARE @base bigint, @next_push bigint, @first bigint, @selected bigint;
DECLARE @there TABLE (number bigint NOT NULL PRIMARY KEY);
DECLARE @spent TABLE (number bigint NOT NULL PRIMARY KEY);

SELECT @base = c.base FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
INSERT INTO @there (number)
SELECT p.number FROM [{schema}].[{queue}_parked] AS p WITH (NOLOCK) WHERE p.void = 0{and_p_visible} GROUP BY p.number;
SET @next_push = {push_number_due};
IF @next_push IS NULL OR @base IS NULL
    THROW 51004, N'The ring''s numbers cannot be read.|This login does not see its sequences, or its configuration is empty.|Grant VIEW DEFINITION on them.', 1;
SET @first = CASE WHEN @next_push > @base THEN @next_push ELSE @base END;

WITH {many}, drawn AS (
    SELECT TOP (CASE WHEN @drawn_pop > @first THEN @drawn_pop - @first ELSE 0 END)
        @first + many.n - 1 AS number
    FROM many
    ORDER BY many.n
)

INSERT INTO @spent (number)
SELECT d.number FROM drawn AS d WHERE NOT EXISTS (SELECT 1 FROM @there AS t WHERE t.number = d.number);
SET @selected = @@ROWCOUNT;

INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at{seen_column})
SELECT
    s.number,
    0,
    SYSUTCDATETIME(){seen_value}
FROM @spent AS s;
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;

-- name: drop_voids
-- one row: how many void numbers below :drawn_pop (proven) nobody will drop, and how many are removed
SET NOCOUNT ON;
DECLARE @drawn_pop bigint = :drawn_pop;
DECLARE @selected bigint;
DECLARE @stale TABLE (number bigint NOT NULL PRIMARY KEY);

INSERT INTO @stale (number)
SELECT v.number
FROM [{schema}].[{queue}_parked] AS v WITH (NOLOCK)
WHERE
    v.void = 1 AND v.number < @drawn_pop{and_v_visible}
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}_parked] AS w WITH (NOLOCK) WHERE w.void = 0 AND w.number = v.number{and_w_visible}
    )
GROUP BY v.number;
SET @selected = @@ROWCOUNT;

DELETE p
FROM @stale AS s
INNER JOIN [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON p.void = 1 AND p.number = s.number{and_p_visible}
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    @selected AS selected,
    CAST(@@ROWCOUNT AS bigint) AS done;

-- name: add_slots
-- a row for each slot that had no row and has one now, still at full payload width; `empty_slots` comes next
WITH {many}, wanted AS (
    SELECT TOP (SELECT c.size FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK))
        many.n - 1 AS slot
    FROM many
    ORDER BY many.n
)

INSERT INTO [{schema}].[{queue}] (slot, time, message, reference_count) -- when content=slot
INSERT INTO [{schema}].[{queue}] (slot, time, reference_count) -- when content=apart
OUTPUT inserted.slot AS slot
SELECT
    w.slot,
    SYSUTCDATETIME(),
    {prefilled}
    0
FROM wanted AS w
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}] AS r WITH (NOLOCK) WHERE r.slot = w.slot);

-- name: empty_slots
-- a row for each of :slots (a JSON array), added by this transaction: they are free now
DECLARE @slots nvarchar(max) = :slots;
UPDATE r
SET message = NULL -- when content=slot
SET first_id = NULL -- when content=apart
OUTPUT inserted.slot AS slot
FROM OPENJSON(@slots) AS given
INNER JOIN [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON r.slot = CAST(given.[value] AS bigint) AND r.reference_count = 0 AND r.message_id IS NULL
OPTION (LOOP JOIN, FORCE ORDER);

-- name: lock_ring
-- script: locks the ring exclusively until the end of the transaction, as relay does
DECLARE @found bigint;
SELECT @found = COUNT_BIG(*) FROM [{schema}].[{queue}_config] AS c WITH (XLOCK, ROWLOCK, HOLDLOCK);
SELECT @found = COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);

-- name: uncache
-- script: both sequences get INCREMENT 1 and the option's cache
DECLARE @size bigint = (SELECT c.size FROM [{schema}].[{queue}_config] AS c);
DECLARE @alter nvarchar(max);
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] INCREMENT BY 1 NO CYCLE CACHE ', {push_cache});
EXEC (@alter);
-- when subscribed=no
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] INCREMENT BY 1 NO CYCLE CACHE ', {pop_cache});
EXEC (@alter);
-- end
-- each subscriber
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] INCREMENT BY 1 NO CYCLE CACHE ', {pop_cache});
EXEC (@alter);
-- end

-- name: raise_numbers
-- one row: the next push number, raised above every number that the ring knows
-- A draw is not undone by a rollback: then the sequence is as before or higher.
SET NOCOUNT ON;
DECLARE @next_push bigint, @next_pop bigint, @last bigint, @drawn bigint, @alter nvarchar(max);
SET @next_push = {push_number_due};
SET @next_pop = {highest_next_pop};
IF @next_push IS NULL OR @next_pop IS NULL
    THROW 51004, N'The ring''s numbers cannot be read.|This login does not see its sequences, or they are gone.|Grant VIEW DEFINITION on them.', 1;
SELECT @last = MAX(known.number)
FROM (
    SELECT @next_push - 1 AS number
    UNION ALL
    SELECT @next_pop - 1
    UNION ALL
    SELECT c.base - 1 FROM [{schema}].[{queue}_config] AS c
    UNION ALL
    SELECT r.message_id FROM [{schema}].[{queue}] AS r
    UNION ALL
    SELECT r.first_id FROM [{schema}].[{queue}] AS r
    UNION ALL
    SELECT p.number FROM [{schema}].[{queue}_parked] AS p
) AS known;
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] RESTART WITH ', @last);
EXEC (@alter);
SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
SELECT @drawn + 1 AS next_push;

-- name: repair_slots
-- one row: how many slots were inconsistent, how many of them are messages now, and how many are free
-- A payload is a message, whatever the other columns say; without one there is nothing to pop. With subscribers the
-- number says who has popped it: if neither it nor first_id belongs to this slot since the last relay, the message gets
-- a new number, and every subscriber gets it, perhaps again.
SET NOCOUNT ON;
DECLARE @numberless bigint, @range sql_variant, @first bigint = 0, @selected bigint;
-- position: the rank among those with a payload and no number
DECLARE @broken TABLE (slot bigint NOT NULL PRIMARY KEY, kept bit NOT NULL, number bigint NULL, position bigint NOT NULL);
DECLARE @repaired TABLE (kept tinyint NOT NULL);

INSERT INTO @broken (slot, kept, number, position)
SELECT
    k.slot,
    k.kept,
    k.number,
    ROW_NUMBER() OVER (PARTITION BY CASE WHEN k.kept = 1 AND k.number IS NULL THEN 1 ELSE 0 END ORDER BY k.slot)
FROM (
    -- when content=apart
    SELECT
        m.slot,
        CASE WHEN {has_content} THEN 1 ELSE 0 END AS kept,
        m.number
    FROM (
        SELECT
            r.slot,
            {valid_number} AS number,
            COALESCE(r.first_id, r.message_id) AS first_id
        FROM [{schema}].[{queue}] AS r CROSS JOIN [{schema}].[{queue}_config] AS c
        WHERE
            r.reference_count NOT IN (0, 1)
            OR (r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL))
            OR (r.reference_count = 1 AND (r.message_id IS NULL OR r.first_id IS NULL))
            OR r.message_id % c.size <> r.slot OR r.message_id < c.base -- when subscribed=yes
    ) AS m
    -- else
    SELECT
        r.slot,
        CASE WHEN r.message IS NOT NULL THEN 1 ELSE 0 END AS kept,
        {valid_number} AS number
    FROM [{schema}].[{queue}] AS r CROSS JOIN [{schema}].[{queue}_config] AS c
    WHERE
        r.reference_count NOT IN (0, 1)
        OR (r.reference_count = 0 AND (r.message_id IS NOT NULL OR r.first_id IS NOT NULL OR r.message IS NOT NULL))
        OR (r.reference_count = 1 AND (r.message_id IS NULL OR r.first_id IS NULL OR r.message IS NULL))
        OR r.message_id % c.size <> r.slot OR r.message_id < c.base -- when subscribed=yes
    -- end
) AS k;
SET @selected = @@ROWCOUNT;

SET @numberless = (SELECT COUNT_BIG(*) FROM @broken AS b WHERE b.kept = 1 AND b.number IS NULL);
IF @numberless > 0
BEGIN
    EXEC sys.sp_sequence_get_range
        @sequence_name = N'[{schema}].[{queue}_push_seq]', @range_size = @numberless, @range_first_value = @range OUTPUT;
    SET @first = CAST(@range AS bigint);
END;

UPDATE r
SET message_id = CASE WHEN b.kept = 1 THEN COALESCE(b.number, @first + b.position - 1) END,
    first_id = CASE WHEN b.kept = 1 THEN COALESCE(r.first_id, r.message_id, @first + b.position - 1) END,
    reference_count = b.kept
OUTPUT inserted.reference_count INTO @repaired (kept)
FROM [{schema}].[{queue}] AS r
INNER JOIN @broken AS b ON r.slot = b.slot;

SELECT
    @selected AS selected,
    COUNT_BIG(CASE WHEN m.kept = 1 THEN 1 END) AS kept,
    COUNT_BIG(CASE WHEN m.kept = 0 THEN 1 END) AS emptied
FROM @repaired AS m;
