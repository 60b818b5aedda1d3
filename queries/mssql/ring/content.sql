-- ring, content=apart: where a message is if it is not in its slot, and the proof that each slot has its content and
-- each content its slot.

-- define: content
-- content=apart: the message of slot m, by its first_id
-- when content=apart
CASE m.first_id % CAST(N'{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (
        SELECT k.content FROM [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK)
        WHERE k.content_id = m.first_id
    )
-- end
END
-- end

-- define: has_content
-- when content=apart
CASE m.first_id % CAST(N'{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (
        SELECT 1 FROM [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK)
        WHERE k.content_id = m.first_id
    )
-- end
END = 1
-- end

-- define: slot_has_content
-- the same for a slot r, in functions
-- READPAST: a pop that took the slot since it was read has deleted the content, and is not waited for.
-- when content=apart
CASE r.first_id % CAST(N'{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (
        SELECT 1 FROM [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        WHERE k.content_id = r.first_id
    )
-- end
END = 1
-- end

-- define: visible_content
-- for monitoring; a locked content is being popped
-- when content=apart
CASE m.first_id % CAST(N'{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (
        SELECT k.content FROM [{schema}].[{queue}_content_{partition}] AS k WITH (READPAST, READCOMMITTEDLOCK)
        WHERE k.content_id = m.first_id
    )
-- end
END
-- end

-- define: contents_without_slot
-- fills @astray. Proof: a committed content, then no committed slot with it where it belongs (or, after a relay,
-- anywhere in the ring), then the content again. A transaction that emptied its slot would have deleted the content
-- before the slot could be read. Locked rows are not reported.
DECLARE @size bigint, @base bigint, @read bigint;
DECLARE @slots TABLE (slot bigint NOT NULL PRIMARY KEY, first_id bigint NULL);
DECLARE @suspect TABLE (content_id bigint NOT NULL PRIMARY KEY);
DECLARE @committed TABLE (content_id bigint NOT NULL PRIMARY KEY);
DECLARE @astray TABLE (content_id bigint NOT NULL PRIMARY KEY);

SELECT
    @size = c.size,
    @base = c.base
FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK);
INSERT INTO @slots (slot, first_id)
SELECT
    r.slot,
    MAX(r.first_id)
FROM [{schema}].[{queue}] AS r WITH (NOLOCK)
GROUP BY r.slot;
-- each partition
INSERT INTO @suspect (content_id)
SELECT k.content_id
FROM [{schema}].[{queue}_content_{partition}] AS k WITH (NOLOCK)
WHERE NOT EXISTS (SELECT 1 FROM @slots AS s WHERE s.first_id = k.content_id)
GROUP BY k.content_id
OPTION (RECOMPILE);
-- end
IF EXISTS (SELECT 1 FROM @suspect)
BEGIN
    -- each partition
    INSERT INTO @committed (content_id)
    SELECT k.content_id
    FROM @suspect AS s
    INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ON s.content_id = k.content_id
    OPTION (LOOP JOIN, FORCE ORDER);
    -- end
    DELETE FROM @slots;
    INSERT INTO @slots (slot, first_id)
    SELECT
        r.slot,
        r.first_id
    FROM [{schema}].[{queue}] AS r WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK);
    SET @read = @@ROWCOUNT;
    DELETE c
    FROM @committed AS c
    WHERE EXISTS (SELECT 1 FROM @slots AS s WHERE s.first_id = c.content_id)
    OR (@read < @size AND (
        c.content_id < @base OR NOT EXISTS (SELECT 1 FROM @slots AS s WHERE s.slot = c.content_id % @size)
    ));
    -- each partition
    INSERT INTO @astray (content_id)
    SELECT k.content_id
    FROM @committed AS c
    INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ON c.content_id = k.content_id
    OPTION (LOOP JOIN, FORCE ORDER);
    -- end
END;

-- define: slots_without_content
-- fills @bare and keeps these slots locked, so that nobody takes slot or content between the two reads
DECLARE @suspected TABLE (slot bigint NOT NULL PRIMARY KEY, number bigint NOT NULL);
DECLARE @bare TABLE (slot bigint NOT NULL PRIMARY KEY, number bigint NOT NULL, first_id bigint NOT NULL);

INSERT INTO @suspected (slot, number)
SELECT
    m.slot,
    MAX(m.message_id)
FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
WHERE m.reference_count > 0 AND m.message_id IS NOT NULL AND m.first_id IS NOT NULL AND {content_exists} IS NULL
-- when subscribed=yes
AND EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_popped] AS d WITH (NOLOCK)
    INNER JOIN [{schema}].[{queue}_subscribers] AS b WITH (NOLOCK) ON b.number = d.subscriber
    WHERE d.slot = m.slot AND d.message_id < m.message_id
)
-- end
GROUP BY m.slot;
INSERT INTO @bare (slot, number, first_id)
SELECT
    m.slot,
    m.message_id,
    m.first_id
FROM @suspected AS s
INNER JOIN [{schema}].[{queue}] AS m WITH (UPDLOCK, ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON s.slot = m.slot AND s.number = m.message_id
OPTION (LOOP JOIN, FORCE ORDER);
DELETE m
FROM @bare AS m
WHERE {content_exists} IS NOT NULL;

-- define: content_exists
-- 1 if there is such a row, committed or not
CASE m.first_id % CAST(N'{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (
        SELECT TOP (1) 1 FROM [{schema}].[{queue}_content_{partition}] AS k WITH (NOLOCK) WHERE k.content_id = m.first_id
    )
-- end
END

-- define: payload
m.[{payload}] -- when content=slot
{visible_content} -- when content=apart

-- define: joined_payload
m.[{payload}] -- when content=slot
-- when content=apart
{content} -- when storage=slots
m.[{payload}] -- when storage=in_hand
-- end

-- define: slot_payload_type
-- when content=slot
nvarchar(3508) -- when payload=text|json
varbinary(7016) -- when payload=bytes
-- end
{payload_type} -- when content=apart

-- name: content_mismatches
-- a row for each of the first 20 contents without a slot and slots without content: its id, and how many there are of its kind
-- The proof is at contents_without_slot and slots_without_content. Nothing waits or is skipped unless there is a suspect.
-- when content=apart
SET NOCOUNT ON;
{contents_without_slot}
{slots_without_content}
SELECT
    f.kind AS kind,
    f.id AS id,
    f.found AS found
FROM (
    SELECT
        N'content' AS kind,
        a.content_id AS id,
        COUNT_BIG(*) OVER () AS found,
        ROW_NUMBER() OVER (ORDER BY a.content_id) AS position
    FROM @astray AS a
    UNION ALL
    SELECT
        N'slot' AS kind,
        b.first_id AS id,
        COUNT_BIG(*) OVER () AS found,
        ROW_NUMBER() OVER (ORDER BY b.number) AS position
    FROM @bare AS b
) AS f
WHERE f.position <= 20
ORDER BY f.kind, f.position;
-- end

-- name: archive_contents
-- one row: how many contents without a slot there were, and how many are in the archive now
-- Proven in this statement: see content_mismatches.
-- when content=apart
SET NOCOUNT ON;
DECLARE @action_id bigint = :action_id;
DECLARE @selected bigint, @done bigint;
DECLARE @contents TABLE (content_id bigint NOT NULL PRIMARY KEY, content {payload_type} NOT NULL);
{contents_without_slot}
SET @selected = (SELECT COUNT_BIG(*) FROM @astray);
-- each partition
DELETE k
OUTPUT deleted.content_id, deleted.content INTO @contents (content_id, content)
FROM @astray AS a
INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON a.content_id = k.content_id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
INSERT INTO [{schema}].[{queue}_archive] (id, payload, state, attempts, error, reason, action_id)
SELECT
    k.content_id,
    k.content,
    N'error',
    0,
    N'it had no slot: whether it was popped is not known',
    N'content without slot',
    @action_id
FROM @contents AS k
ORDER BY k.content_id;
SET @done = @@ROWCOUNT;
SELECT
    @selected AS selected,
    @done AS done;
-- end

-- name: free_slots
-- one row: how many slots had no content, and how many are free now; the pops that draw their numbers drop them
-- They are locked by slot and number: whatever else a slot holds by then is not what was seen without content.
-- when content=apart
SET NOCOUNT ON;
DECLARE @done bigint;
{slots_without_content}
-- when subscribed=no
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    b.number,
    1,
    SYSUTCDATETIME()
FROM @bare AS b
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 1 AND p.number = b.number
);
-- else
-- NOLOCK: no pop takes a slot without content, so its number does not change.
INSERT INTO [{schema}].[{queue}_parked] (subscriber, number, void, parked_at)
SELECT
    d.subscriber,
    b.number,
    1,
    SYSUTCDATETIME()
FROM @bare AS b
INNER JOIN [{schema}].[{queue}_popped] AS d WITH (NOLOCK) ON d.slot = b.slot AND d.message_id < b.number
WHERE NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.subscriber = d.subscriber AND p.void = 1 AND p.number = b.number
);
-- end
UPDATE m
SET message_id = NULL, first_id = NULL, time = SYSUTCDATETIME(), reference_count = 0
FROM @bare AS b
INNER JOIN [{schema}].[{queue}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON b.slot = m.slot
OPTION (LOOP JOIN, FORCE ORDER);
SET @done = @@ROWCOUNT;
SELECT
    COUNT_BIG(*) AS selected,
    @done AS done
FROM @bare AS b;
-- end
