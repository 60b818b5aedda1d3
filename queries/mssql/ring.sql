-- ring: Kejser's preallocated ring with two sequences ("LMAX'ed"), on SQL Server.
--
-- A push draws a number and fills slot number % size; a pop draws a number and empties that slot. The two sequences
-- are independent and NEXT VALUE FOR is not transactional, so a rollback or a killed caller loses a number, and a
-- server crash skips what is left of CACHE (Microsoft's manual, "Sequence Numbers"). CACHE is therefore at most a
-- quarter of the slots unless the option cache says otherwise: a ring that skips a lap refuses every push until a
-- relay. Three things keep lost numbers harmless:
--
--   parked (void = 0)   a pop number whose message was not there yet; it is used as soon as the message arrives
--   parked (void = 1)   a push number that could not be used; the pop that draws it drops it
--   relay               renumbers all live messages: to resize the ring, and as the last repair
--
-- Messages are ordered by the numbers they drew, not by commit: a late commit is popped late.
--
-- content=apart: a slot has its numbers but no message. The message is in one of {queue}_content_0, _1 ..., chosen by
-- first_id modulo the number of partitions; relay keeps first_id, so it moves no content. The push that fills a slot
-- inserts its content and the pop that empties it deletes it, in the same transaction. Both write the slot first, so
-- only the holder of the slot's lock touches the content. No READPAST on contents: once a slot could be locked, only a
-- push that has committed and is releasing its locks can still hold its content, and that is worth waiting for. If
-- someone deletes a content, its slot counts as one whose message has not arrived: the number is parked, no pop stops
-- there, and the doctor reports it.
--
-- subscribers=a,b: each gets every message once. A subscriber has its own pop sequence, parked numbers and claims, and
-- for each slot a row in {queue}_popped with the last number it popped there. A pop locks and writes that row and only
-- reads the slot, so subscribers never wait for each other. A slot is free once all its rows have reached its number. A
-- message that all have popped stays until a push reuses the slot or an idle pop sweeps; either one archives it and
-- deletes its content, once. The subscribers are read from a table, under the lock on the configuration that every call
-- holds, and their sequences are addressed by name, so the procedures do not change as subscribers come and go. Turns
-- (below) are drawn per subscriber, so that none uses up another's turns.
--
-- Rules for every procedure here, and why:
--   * READ COMMITTED, whatever the caller's level: SET TRANSACTION ISOLATION LEVEL precedes the first read. It lasts
--     for the call and is allowed in any transaction, one begun at SNAPSHOT too (Microsoft's manual, "SET TRANSACTION
--     ISOLATION LEVEL"). Every table has a locking hint, so READ_COMMITTED_SNAPSHOT gives no call an older version.
--     Locks that a SERIALIZABLE caller took before remain its own. Only relay refuses a higher level, because its
--     transaction may have read the ring before.
--   * A call is one transaction, its own or part of the caller's: BEGIN and COMMIT only count there, nothing rolls back
--     by hand, and XACT_ABORT undoes all of it after an error.
--   * The first read is of size, WITH (REPEATABLEREAD, ROWLOCK), in a statement of its own. That shared lock lasts to
--     the end of the transaction, and relay locks the configuration exclusively while it holds nothing else, so no
--     number or size outlives a relay. tests/microsoft/test_ring.py checks the hint and the order in the syntax trees.
--     (Together with other reads, the statement could wait for a relay while holding what the relay needs next.)
--   * No write waits for a row: slots and parked numbers are taken WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK). READPAST
--     skips row locks only, so page locks and lock escalation are off; READCOMMITTEDLOCK makes it lock where
--     READ_COMMITTED_SNAPSHOT is on. So a ring never deadlocks, except with a relay, which is the victim. Reads of
--     slots and parked numbers skip locked rows too: their outcome is not known yet.
--   * Every parked number gets its turn. A call checks at most 64: if there are more, the 24 lowest, which are next in
--     order, and one stretch of the rest: 40 consecutive values of parked_order, which numbers the rows as they were
--     parked. Each such call draws a turn from a sequence, which neither rollback nor other callers reset. Proof: a row
--     stays in its stretch s = parked_order / 40. Of n stretches from the first one, f, turn t checks 31 t modulo the
--     lowest power of two >= n, counted from f (another one where that is over n). f and n vary, but the highest of
--     these powers, m, is a multiple of all others and 31 is odd: among any m consecutive turns there is one with
--     31 t = s modulo m, hence modulo the power at that moment, and from f on there is only one such stretch. So a
--     number is checked within m calls: 2 for each 40 numbers parked since the oldest that still is, usually fewer,
--     because a call continues until it has 40 rows. Calls that are killed, or skipped by a crash, do not count.
--   * next_push is read before next_pop to decide "full", and after it to decide "empty": the one read last can only
--     have grown, so neither is reported wrongly. A first query reads both in any order, which can only mean "go on":
--     at worst the call then meets an ordinary race (a push at full records a void, a pop ahead of the pushes parks).
--     Every further round reads them in the proving order.
--   * An UPDATE locks a slot before it checks it, and releases it if it does not match. A pop that drew the number of a
--     push in flight would thereby make that push skip its own slot (READPAST). So a pop reads first and locks only a
--     slot that has its message; a read's shared lock only delays the push's update lock by one row. The message cannot
--     disappear in between, since only the holder of its number takes it; if a repair does, the UPDATE finds nothing. A
--     push whose slot is locked or not free tries once more with the same number before it records the number as void.
--   * While nothing is parked, the normal case, a pop of one message needs no table variable. Otherwise it commits,
--     which only releases the configuration's lock, and pops a batch of one, because a batch starts with the parked
--     numbers. It commits first so that the batch's result is sent after the batch's own commit.
--   * Every slot and every parked number is found by a key seek (LOOP JOIN, FORCE ORDER where the numbers are in a
--     table variable): a plan that scans would briefly lock rows that others need, and they would skip them.
--   * SET ROWCOUNT 0: the caller's own setting would limit INSERT, UPDATE and DELETE here (Microsoft's manual).
--   * EXECUTE AS 'dbq_owner': sys.sequences shows a sequence only to those with a right on it, and neither catalog views
--     nor dynamic SQL (relay's ALTER SEQUENCE) follow ownership chains. This user has rights on the sequences only. A
--     sequence that is not visible is an error.

-- define: claims_table
[{schema}].[{queue}_in_hand]

-- define: empty_slot
-- the columns of an emptied slot
message_id = NULL, first_id = NULL, time = SYSUTCDATETIME(),
message = NULL, -- when content=slot

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

-- define: many
-- the numbers 1 to 100,000,000; take as many as needed
ten AS (
    SELECT d.n FROM (VALUES (0), (0), (0), (0), (0), (0), (0), (0), (0), (0)) AS d (n)
), many AS (
    SELECT ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS n
    FROM ten AS a CROSS JOIN ten AS b CROSS JOIN ten AS c CROSS JOIN ten AS d
    CROSS JOIN ten AS e CROSS JOIN ten AS f CROSS JOIN ten AS g CROSS JOIN ten AS h
)

-- define: push_number_due
(
    SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
)

-- define: pop_number_due
(
    SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
    WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]') -- when subscribed=no
    WHERE s.object_id = OBJECT_ID(@pop_sequence) -- when subscribed=yes
)

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

-- define: slot_is_free
r.reference_count = 0 -- when subscribed=no
(r.reference_count = 0 OR NOT {is_owed}) -- when subscribed=yes

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

-- define: read_numbers
-- read last; sequences that are not visible are an error, never "empty"
SET @next_push = {push_number_due};
SET @next_pop = {visible_next_pop};
IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
    THROW 51004, N'The ring''s numbers or its size cannot be read.|This login does not see its sequences, or its configuration is empty.|Grant VIEW DEFINITION on them.', 1;

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

-- define: prefilled
-- what a new slot contains: a message of full width
-- when content=slot
REPLICATE(N'x', CAST(N'{max_bytes}' AS int) / 2 + 8), -- when payload=text|json
CAST(REPLICATE('x', CAST(N'{max_bytes}' AS int) + 16) AS varbinary(7016)), -- when payload=bytes
-- end

-- define: state_held
N'ready' -- when storage=slots
{state_in_hand} -- when storage=in_hand

-- define: is_claimed
-- for a row m of in_hand (in_hand=on)
m.claimed_at IS NOT NULL AND m.done_at IS NULL

-- define: is_error
m.done_at IS NOT NULL

-- define: own_id
m.first_id -- when storage=slots
m.[{id}] -- when storage=in_hand

-- define: row_location
CAST(m.slot AS nvarchar(450)) -- when storage=slots
{id} -- when storage=in_hand

-- define: by_location
c.location = m.slot -- when storage=slots
c.location = m.[{id}] {and_mine} -- when storage=in_hand

-- define: by_key
c.id = m.[{id}] {and_mine}

-- define: and_mine
-- for in_hand: ids are unique per subscriber only
-- when storage=in_hand
-- when subscribed=yes
AND m.subscriber = CAST(N'{subscriber_number}' AS smallint) -- when of=one
-- end
-- end

-- define: push_order
m.message_id -- when storage=slots
m.[{id}] -- when storage=in_hand

-- define: key_text
CAST(m.slot AS nvarchar(450))

-- define: slot
m.[{slot}]

-- define: chosen_rows
-- when storage=slots
FROM [{schema}].[{queue}_config] AS s WITH (REPEATABLEREAD, ROWLOCK)
CROSS JOIN @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)
    ON m.slot = c.id % s.size AND m.message_id = c.id
WHERE m.reference_count > 0
-- when subscribed=yes
-- A message that a subscriber is popping right now stays. Whoever holds all rows of a slot holds the slot.
AND (
    SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    INNER JOIN [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)
        ON d.subscriber = b.number AND d.slot = m.slot
) = (SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK))
AND EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
    INNER JOIN [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
        ON d.subscriber = b.number AND d.slot = m.slot AND d.message_id < m.message_id
)
-- end
AND {has_content} -- when content=apart
OPTION (LOOP JOIN, FORCE ORDER)
-- end
{rows_by_key} -- when storage=in_hand

-- define: remove_rows
-- A slot is emptied, never deleted; its number becomes void and is dropped by the pop that draws it.
-- when storage=slots
-- when subscribed=yes
INSERT INTO [{schema}].[{queue}_parked] (subscriber, number, void, parked_at)
SELECT
    b.number,
    m.message_id,
    1,
    SYSUTCDATETIME()
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.slot
CROSS JOIN [{schema}].[{queue}_subscribers] AS b WITH (ROWLOCK, READCOMMITTEDLOCK)
INNER JOIN [{schema}].[{queue}_popped] AS d WITH (ROWLOCK, READCOMMITTEDLOCK)
    ON d.subscriber = b.number AND d.slot = m.slot AND d.message_id < m.message_id
WHERE m.reference_count > 0 AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.subscriber = b.number AND p.void = 1 AND p.number = m.message_id
)
OPTION (LOOP JOIN, FORCE ORDER);
-- else
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    m.message_id,
    1,
    SYSUTCDATETIME()
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.slot
WHERE m.reference_count > 0 AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 1 AND p.number = m.message_id
)
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- each partition
DELETE k
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.slot
INNER JOIN [{schema}].[{queue}_content_{partition}] AS k WITH (ROWLOCK, READCOMMITTEDLOCK) ON m.first_id = k.content_id
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
-- end
UPDATE m
SET {empty_slot}
    reference_count = 0
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
-- end
{deleted} -- when storage=in_hand

-- define: is_ready_again
m.[{claimed_at}] IS NULL

-- define: void_new_ids
-- The number of a message in hand was drawn, and no slot will ever have it.
DECLARE @range sql_variant, @count bigint = (SELECT COUNT_BIG(*) FROM @wanted);
IF @count > 0
BEGIN
    EXEC sys.sp_sequence_get_range
        @sequence_name = N'[{schema}].[{queue}_push_seq]', @range_size = @count, @range_first_value = @range OUTPUT;
END;
WITH numbered AS (
    SELECT
        w.id,
        ROW_NUMBER() OVER (ORDER BY w.archive_id) AS position
    FROM @wanted AS w
)

UPDATE numbered SET id = CAST(@range AS bigint) + position - 1;
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    w.id,
    1,
    SYSUTCDATETIME()
FROM @wanted AS w;

-- define: locked
-- the configuration first, in the callers' order
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_config] AS c WITH (TABLOCKX, HOLDLOCK);
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_popped] AS d WITH (TABLOCKX, HOLDLOCK); -- when subscribed=yes
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_in_hand] AS h WITH (TABLOCKX, HOLDLOCK); -- when in_hand=on
SELECT TOP (1) @held = 1 FROM [{schema}].[{table}] AS m WITH (TABLOCKX, HOLDLOCK);

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

-- define: valid_number
-- the number to keep for an inconsistent slot r (configuration c); null: a new one is needed
COALESCE(r.message_id, r.first_id) -- when subscribed=no
-- when subscribed=yes
CASE
    WHEN r.message_id % c.size = r.slot AND r.message_id >= c.base THEN r.message_id
    WHEN r.first_id % c.size = r.slot AND r.first_id >= c.base THEN r.first_id
END
-- end

-- define: next_pop
-- when of=one
SELECT @next = CAST(s.current_value AS nvarchar(450)) FROM sys.sequences AS s
WHERE s.object_id = OBJECT_ID(N'[{schema}].[{pop_sequence}]');
-- end
SET @next = CAST({next_pop_of_all} - 1 AS nvarchar(450)); -- when of=all

-- define: popped
-- Known from the pop sequence.

-- define: due_when_popped
CAST(NULL AS datetime2(7))

-- define: unfinished_payloads
SELECT {payload} AS payload FROM [{schema}].[{table}] AS m WHERE m.reference_count > 0 -- when subscribed=no
SELECT {payload} AS payload FROM {visible_table_m} WHERE m.reference_count > 0 -- when subscribed=yes
-- when in_hand=on
UNION ALL
SELECT h.payload AS payload FROM [{schema}].[{queue}_in_hand] AS h WHERE h.done_at IS NULL
-- end

-- define: grants
GRANT SELECT ON OBJECT::[{schema}].[{queue}_config] TO dbq_reader;
GRANT SELECT ON OBJECT::[{schema}].[{queue}_parked] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_parked] TO dbq_operator;
-- Restore draws numbers by sp_sequence_get_range, which follows no ownership chain: it needs UPDATE on the sequence
-- (Microsoft's manual, "sp_sequence_get_range", Security).
GRANT UPDATE ON OBJECT::[{schema}].[{queue}_push_seq] TO dbq_operator;
-- when subscribed=yes
GRANT SELECT ON OBJECT::[{schema}].[{queue}_subscribers] TO dbq_reader;
GRANT SELECT ON OBJECT::[{schema}].[{queue}_popped] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_popped] TO dbq_operator;
-- end
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_sweep] TO dbq_operator; -- when defined keeps_popped
-- Relay affects all callers: it takes more than the right to work with messages.
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_relay] TO dbq_admin;
-- each partition
GRANT SELECT ON OBJECT::[{schema}].[{queue}_content_{partition}] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_content_{partition}] TO dbq_operator;
-- end
-- when in_hand=on
GRANT SELECT ON OBJECT::[{schema}].[{queue}_in_hand] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_in_hand] TO dbq_operator;
-- end

-- name: tables
-- script: the ring, its configuration, the parked numbers, the two sequences
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
-- when content=slot
-- In a clustered index a row stays on its page while it fits there and is never forwarded. So slots are inserted at full
-- width, in order, and then emptied: pages keep the space and never split. (char(n), Kejser's fixed width, would strip
-- blanks.) 16 bytes more than the largest payload, because with row versions (READ_COMMITTED_SNAPSHOT, a readable
-- replica, accelerated recovery) a row grows by 14 bytes at its next write.
-- end
CREATE TABLE [{schema}].[{queue}] (
    slot bigint NOT NULL,
    message_id bigint NULL, -- the push number that is valid now; null = free
    first_id bigint NULL, -- the number that push returned; pop returns it, whatever a relay did since
    time datetime2(7) NOT NULL,
    -- when content=slot
    message nvarchar(3508) NULL, -- when payload=text|json
    message varbinary(7016) NULL, -- when payload=bytes
    -- end
    reference_count tinyint NOT NULL,
    CONSTRAINT [{queue}_key] PRIMARY KEY CLUSTERED (slot)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON, FILLFACTOR = 100)
);

-- when content=apart
-- The messages by their first number; several heaps, so that pushes do not all need the same last page.
-- each partition
CREATE TABLE [{schema}].[{queue}_content_{partition}] (
    content_id bigint NOT NULL,
    content {payload_type} NOT NULL,
    CONSTRAINT [{queue}_content_{partition}_key] PRIMARY KEY NONCLUSTERED (content_id)
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);
ALTER TABLE [{schema}].[{queue}_content_{partition}] SET (LOCK_ESCALATION = DISABLE);

-- end
-- end
CREATE TABLE [{schema}].[{queue}_config] (
    only_row bit NOT NULL,
    size bigint NOT NULL,
    -- when subscribed=yes
    subscribers smallint NOT NULL, -- the highest number that a subscriber has had
    -- end
    base bigint NOT NULL, -- the lowest number that is still valid
    CONSTRAINT [{queue}_config_key] PRIMARY KEY CLUSTERED (only_row) WITH (ALLOW_PAGE_LOCKS = OFF),
    CONSTRAINT [{queue}_config_one] CHECK (only_row = 1)
);

-- void leads the key, so that a pop and a push never wait for each other's row and voids do not separate the parked
-- numbers.
CREATE TABLE [{schema}].[{queue}_parked] (
    subscriber smallint NOT NULL, -- when subscribed=yes
    number bigint NOT NULL,
    void bit NOT NULL,
    parked_at datetime2(7) NOT NULL,
    CONSTRAINT [{queue}_parked_key] PRIMARY KEY CLUSTERED (void, number) -- when subscribed=no
    CONSTRAINT [{queue}_parked_key] PRIMARY KEY CLUSTERED (subscriber, void, number) -- when subscribed=yes
    WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON)
);

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

-- end
-- end
ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_config] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_parked] SET (LOCK_ESCALATION = DISABLE);

-- Drawn once below, so that next = current_value + 1 always: current_value alone does not distinguish "never used" from
-- "used once".
CREATE SEQUENCE [{schema}].[{queue}_push_seq] AS bigint START WITH 0 INCREMENT BY 1;
CREATE SEQUENCE [{schema}].[{queue}_pop_seq] AS bigint START WITH 0 INCREMENT BY 1; -- when subscribed=no
GO
-- CACHE takes only a constant, hence dynamic SQL.
DECLARE @drawn bigint, @alter nvarchar(max);
DECLARE @cache bigint = COALESCE(
    TRY_CAST(N'{cache}' AS bigint),
    CASE WHEN CAST(N'{size}' AS bigint) >= 4000 THEN 1000 ELSE CAST(N'{size}' AS bigint) / 4 + 1 END
);
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] CACHE ', @cache);
EXEC (@alter);
-- when subscribed=no
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] CACHE ', @cache);
EXEC (@alter);
-- end
SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_push_seq];
SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq]; -- when subscribed=no

-- when subscribed=no
INSERT INTO [{schema}].[{queue}_config] (only_row, size, base) VALUES (1, CAST(N'{size}' AS bigint), 1);
-- else
INSERT INTO [{schema}].[{queue}_config] (only_row, size, subscribers, base) VALUES (1, CAST(N'{size}' AS bigint), 0, 1);
-- end

WITH {many}

INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, message, reference_count) -- when content=slot
INSERT INTO [{schema}].[{queue}] WITH (TABLOCKX) (slot, time, reference_count) -- when content=apart
SELECT TOP (CAST(N'{size}' AS bigint))
    many.n - 1,
    SYSUTCDATETIME(),
    {prefilled}
    0
FROM many
ORDER BY many.n;

-- when content=slot
UPDATE [{schema}].[{queue}] WITH (TABLOCKX) SET message = NULL;

-- end
-- when defined keeps_popped
INSERT INTO [{schema}].[{queue}_swept] (only_row, number) VALUES (1, 1);

-- end
-- when in_hand=on
-- Popped and not finished: claimed (claimed_at), ready again (neither), error (done_at).
CREATE TABLE [{schema}].[{queue}_in_hand] (
    subscriber smallint NOT NULL, -- when subscribed=yes
    id bigint NOT NULL,
    -- when content=slot
    payload nvarchar(3500) NOT NULL, -- when payload=text|json
    payload varbinary(7000) NOT NULL, -- when payload=bytes
    -- end
    payload {payload_type} NOT NULL, -- when content=apart
    pushed_at datetime2(7) NOT NULL,
    attempts int NOT NULL,
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(256) NULL,
    errors nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    history nvarchar(max) NULL, -- when keeps_history=yes
    CONSTRAINT [{queue}_in_hand_key] PRIMARY KEY CLUSTERED (id) WITH (ALLOW_PAGE_LOCKS = OFF) -- when subscribed=no
    -- when subscribed=yes
    CONSTRAINT [{queue}_in_hand_key] PRIMARY KEY CLUSTERED (subscriber, id) WITH (ALLOW_PAGE_LOCKS = OFF)
    -- end
);

ALTER TABLE [{schema}].[{queue}_in_hand] SET (LOCK_ESCALATION = DISABLE);

-- In the order of pop.
CREATE NONCLUSTERED INDEX [{queue}_in_hand_ready] ON [{schema}].[{queue}_in_hand] (id) -- when subscribed=no
-- when subscribed=yes
CREATE NONCLUSTERED INDEX [{queue}_in_hand_ready] ON [{schema}].[{queue}_in_hand] (subscriber, id)
-- end
WHERE claimed_at IS NULL AND done_at IS NULL WITH (ALLOW_PAGE_LOCKS = OFF);

CREATE NONCLUSTERED INDEX [{queue}_in_hand_claimed] ON [{schema}].[{queue}_in_hand] (claimed_at)
WHERE claimed_at IS NOT NULL AND done_at IS NULL WITH (ALLOW_PAGE_LOCKS = OFF);

CREATE NONCLUSTERED INDEX [{queue}_in_hand_done] ON [{schema}].[{queue}_in_hand] (done_at)
WHERE done_at IS NOT NULL WITH (ALLOW_PAGE_LOCKS = OFF);

-- end
-- name: added
-- script: adds what rings of older versions lack: the order of the parked numbers, the sequence of their turns
-- Before parked_order the column place had a random value, which two rows could share.
IF EXISTS (
    SELECT 1 FROM sys.indexes AS i
    WHERE i.object_id = OBJECT_ID(N'[{schema}].[{queue}_parked]') AND i.name = N'{queue}_parked_places'
)
    DROP INDEX [{queue}_parked_places] ON [{schema}].[{queue}_parked];
IF COL_LENGTH(N'[{schema}].[{queue}_parked]', N'place') IS NOT NULL
BEGIN
    ALTER TABLE [{schema}].[{queue}_parked] DROP CONSTRAINT [{queue}_parked_place];
    ALTER TABLE [{schema}].[{queue}_parked] DROP COLUMN place;
END;
IF COL_LENGTH(N'[{schema}].[{queue}_parked]', N'parked_order') IS NULL
    ALTER TABLE [{schema}].[{queue}_parked] ADD parked_order bigint IDENTITY (1, 1) NOT NULL;
GO
IF NOT EXISTS (
    SELECT 1 FROM sys.indexes AS i
    WHERE i.object_id = OBJECT_ID(N'[{schema}].[{queue}_parked]') AND i.name = N'{queue}_parked_order'
)
-- when subscribed=no
CREATE NONCLUSTERED INDEX [{queue}_parked_order] ON [{schema}].[{queue}_parked] (void, parked_order)
-- else
CREATE NONCLUSTERED INDEX [{queue}_parked_order] ON [{schema}].[{queue}_parked] (subscriber, void, parked_order)
-- end
WITH (ALLOW_PAGE_LOCKS = OFF, STATISTICS_NORECOMPUTE = ON);

-- when subscribed=no
-- A sequence writes once for all that it caches: a pop that finds nothing writes nothing else.
IF OBJECT_ID(N'[{schema}].[{queue}_turn_seq]') IS NULL
    CREATE SEQUENCE [{schema}].[{queue}_turn_seq] AS bigint START WITH 1 INCREMENT BY 1 CACHE 1000;
-- end
-- each subscriber
GO
-- Subscriber {subscriber}: its sequences, and what it counts as popped of each slot at its start.
DECLARE @since bigint = CAST(N'{since}' AS bigint), @range sql_variant, @alter nvarchar(max);
DECLARE @cache bigint = COALESCE(TRY_CAST(N'{cache}' AS bigint), (
    SELECT CASE WHEN c.size >= 4000 THEN 1000 ELSE c.size / 4 + 1 END FROM [{schema}].[{queue}_config] AS c
));
IF OBJECT_ID(N'[{schema}].[{queue}_turn_seq_{subscriber_number}]') IS NULL
    CREATE SEQUENCE [{schema}].[{queue}_turn_seq_{subscriber_number}] AS bigint START WITH 1 INCREMENT BY 1 CACHE 1000;
IF OBJECT_ID(N'[{schema}].[{queue}_pop_seq_{subscriber_number}]') IS NULL
BEGIN
    CREATE SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] AS bigint START WITH 0 INCREMENT BY 1;
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] RESTART WITH ', @since - 1, N' CACHE ', @cache);
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

-- name: functions
-- script: push, push_many, pop, pop_many, relay, and with in_hand complete and fail
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
{owner_exists}
GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_push_seq] TO dbq_owner;
GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_pop_seq] TO dbq_owner; -- when subscribed=no
-- each subscriber
GRANT ALTER, UPDATE, VIEW DEFINITION ON OBJECT::[{schema}].[{queue}_pop_seq_{subscriber_number}] TO dbq_owner;
GRANT UPDATE ON OBJECT::[{schema}].[{queue}_turn_seq_{subscriber_number}] TO dbq_owner;
-- end
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
-- when in_hand=on
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @subscriber nvarchar(128), -- when subscribed=yes
    @consumer nvarchar(128) = NULL,
    @bound bit = 0
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;

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
    DECLARE @parked bit, @tries int = 0, @voids int = 0, @look int, @taken bit = 0, @dropped bit;
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

    WHILE @taken = 0 AND @tries < 8 AND @voids < 1000
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

        SET @drawn = NEXT VALUE FOR [{schema}].[{queue}_pop_seq]; -- when subscribed=no
        -- when subscribed=yes
        EXEC sys.sp_sequence_get_range
            @sequence_name = @pop_sequence, @range_size = 1, @range_first_value = @range OUTPUT;
        SET @drawn = CAST(@range AS bigint);
        -- end
        SET @dropped = 0;
        SET @look = 0;
        WHILE @taken = 0 AND @dropped = 0 AND (@look - 1) * 5 < CAST(N'{commit_wait_ms}' AS int)
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
    DECLARE @tries int = 0, @voids int = 0, @look int, @parked_now int;
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

    WHILE @wanted > 0 AND @tries < 8 AND @voids < 1000
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

        EXEC sys.sp_sequence_get_range
            -- when subscribed=no
            @sequence_name = N'[{schema}].[{queue}_pop_seq]', @range_size = @room, @range_first_value = @range OUTPUT;
            -- else
            @sequence_name = @pop_sequence, @range_size = @room, @range_first_value = @range OUTPUT;
            -- end
        SET @first = CAST(@range AS bigint);

        SET @found = 0;
        SET @look = 0;
        WHILE @found < @room AND (@look - 1) * 5 < CAST(N'{commit_wait_ms}' AS int)
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
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;

    DECLARE @old_size bigint, @size bigint, @base bigint, @next_push bigint, @next_pop bigint;
    DECLARE @live bigint, @drawn bigint, @held bigint, @cache bigint, @alter nvarchar(max), @message nvarchar(2048);
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
    SELECT @old_size = c.size FROM [{schema}].[{queue}_config] AS c WITH (TABLOCKX, HOLDLOCK);
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
    SET @cache = COALESCE(TRY_CAST(N'{cache}' AS bigint), CASE WHEN @size >= 4000 THEN 1000 ELSE @size / 4 + 1 END);
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] RESTART WITH ', @base + @live - 1, N' CACHE ', @cache);
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
        SET @alter = CONCAT(N'ALTER SEQUENCE ', @pop_sequence, N' RESTART WITH ', @start - 1, N' CACHE ', @cache);
        EXEC (@alter);
        EXEC sys.sp_sequence_get_range
            @sequence_name = @pop_sequence, @range_size = 1, @range_first_value = @range OUTPUT;
        IF CAST(@range AS bigint) <> @start - 1
            THROW 51004, N'A pop sequence did not restart where it should.||Nothing was changed. Look with: dbq-console doctor', 1;
        SET @of = (SELECT MIN(b.number) FROM [{schema}].[{queue}_subscribers] AS b WHERE b.number > @of);
    END;
    -- else
    SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] RESTART WITH ', @base - 1, N' CACHE ', @cache);
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

-- name: drop
-- script: removes the ring, its sequences and procedures
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_relay];
-- when defined keeps_popped
DROP PROCEDURE [{schema}].[{queue}_sweep];
DROP TABLE [{schema}].[{queue}_swept];
-- end
-- when in_hand=on
DROP PROCEDURE [{schema}].[{queue}_complete], [{schema}].[{queue}_fail];
DROP TABLE [{schema}].[{queue}_in_hand];
-- end
-- each partition
DROP TABLE [{schema}].[{queue}_content_{partition}];
-- end
DROP TABLE [{schema}].[{queue}_parked], [{schema}].[{queue}], [{schema}].[{queue}_config];
-- when subscribed=no
DROP SEQUENCE [{schema}].[{queue}_push_seq], [{schema}].[{queue}_pop_seq];
DROP SEQUENCE IF EXISTS [{schema}].[{queue}_turn_seq]; -- of an older version there is none
-- else
DROP TABLE [{schema}].[{queue}_popped], [{schema}].[{queue}_subscribers];
DROP SEQUENCE [{schema}].[{queue}_push_seq];
-- end
-- each subscriber
DROP SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}], [{schema}].[{queue}_turn_seq_{subscriber_number}];
-- end

-- name: wait_for_relay
-- one row: read before anything else of the ring; it waits while a relay runs, and a relay waits for this transaction
SELECT c.base AS number FROM [{schema}].[{queue}_config] AS c WITH (REPEATABLEREAD, ROWLOCK)

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

-- name: base
-- one row: the lowest valid number; it changes with every relay
SELECT c.base AS base FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK);

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
IF {sees_server_state}
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

-- name: server_start
-- one row: when the server was started, and how many numbers a crash may lose
-- An orderly shutdown saves the sequences; a crash skips the rest of their caches. So a start together with numbers lost
-- around that time means a crash, and a start alone means nothing. Rollbacks and lost sessions are counted nowhere.
-- Without the right to see the server's state, tempdb's creation time is used; Azure SQL Database hides that too.
DECLARE @started datetime;
IF {sees_server_state}
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
FROM sys.databases AS d WHERE d.database_id = DB_ID();

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

-- name: lock_ring
-- script: locks the ring exclusively until the end of the transaction, as relay does
DECLARE @found bigint;
SELECT @found = COUNT_BIG(*) FROM [{schema}].[{queue}_config] AS c WITH (TABLOCKX, HOLDLOCK);
SELECT @found = COUNT_BIG(*) FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);

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

-- name: uncache
-- script: both sequences get INCREMENT 1 and the option's cache
DECLARE @size bigint = (SELECT c.size FROM [{schema}].[{queue}_config] AS c);
DECLARE @alter nvarchar(max);
DECLARE @cache bigint = COALESCE(
    TRY_CAST(N'{cache}' AS bigint), CASE WHEN @size >= 4000 THEN 1000 ELSE @size / 4 + 1 END
);
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] INCREMENT BY 1 NO CYCLE CACHE ', @cache);
EXEC (@alter);
-- when subscribed=no
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] INCREMENT BY 1 NO CYCLE CACHE ', @cache);
EXEC (@alter);
-- end
-- each subscriber
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq_{subscriber_number}] INCREMENT BY 1 NO CYCLE CACHE ', @cache);
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
