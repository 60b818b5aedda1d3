-- ring: Kejser's preallocated ring with two sequences ("LMAX'ed"), on SQL Server.
--
-- A push draws a number and fills slot number % size; a pop draws a number and empties that slot. The two sequences
-- are independent and NEXT VALUE FOR is not transactional, so a rollback or a killed caller loses a number, and a
-- server crash or a fail-over, planned or not, skips what is left of CACHE (Microsoft's manual, "Sequence Numbers").
-- CACHE is therefore small, and at most a quarter of the slots, unless the option cache says otherwise: each skipped pop
-- number is an orphan, and a ring that skips a lap refuses every push until a relay. Three things keep lost numbers
-- harmless:
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
--     the end of the transaction, and relay locks that row exclusively while it holds nothing else, so no number or size
--     outlives a relay. The row and not the table: on 16 and more processors a table's lock is taken partition by
--     partition. A read at READ COMMITTED may pass by an exclusive lock on a row that is not changed, one WITH (REPEATABLEREAD)
--     never, so that hint is what keeps callers out. tests/microsoft/test_ring.py checks the hint and the order in the syntax trees.
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
--
-- parts: push pop subscribers content relay repair monitor

-- define: empty_slot
-- the columns of an emptied slot
message_id = NULL, first_id = NULL, time = SYSUTCDATETIME(),
message = NULL, -- when content=slot

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

-- define: read_numbers
-- read last; sequences that are not visible are an error, never "empty"
SET @next_push = {push_number_due};
SET @next_pop = {visible_next_pop};
IF @next_push IS NULL OR @next_pop IS NULL OR @size IS NULL
    THROW 51004, N'The ring''s numbers or its size cannot be read.|This login does not see its sequences, or its configuration is empty.|Grant VIEW DEFINITION on them.', 1;

-- define: push_cache
-- how many numbers a crash or a fail-over may skip: of pushes they become holes, of pops orphans, which are worse
COALESCE(TRY_CAST(N'{cache}' AS bigint), CASE WHEN @size >= 396 THEN 100 ELSE @size / 4 + 1 END)

-- define: pop_cache
COALESCE(TRY_CAST(N'{cache}' AS bigint), CASE WHEN @size >= 196 THEN 50 ELSE @size / 4 + 1 END)

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

-- define: chosen_key
COALESCE(CAST(l.number AS nvarchar(450)), l.id)

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
-- the configuration's row first, in the callers' order
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_config] AS c WITH (XLOCK, ROWLOCK, HOLDLOCK);
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_parked] AS p WITH (TABLOCKX, HOLDLOCK);
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_popped] AS d WITH (TABLOCKX, HOLDLOCK); -- when subscribed=yes
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_in_hand] AS h WITH (TABLOCKX, HOLDLOCK); -- when in_hand=on
SELECT TOP (1) @held = 1 FROM [{schema}].[{table}] AS m WITH (TABLOCKX, HOLDLOCK);

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
-- when defined keeps_popped
GRANT SELECT ON OBJECT::[{schema}].[{queue}_swept] TO dbq_reader;
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_sweep] TO dbq_operator;
-- end
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

ALTER TABLE [{schema}].[{queue}] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_config] SET (LOCK_ESCALATION = DISABLE);
ALTER TABLE [{schema}].[{queue}_parked] SET (LOCK_ESCALATION = DISABLE);

-- Drawn once below, so that next = current_value + 1 always: current_value alone does not distinguish "never used" from
-- "used once".
CREATE SEQUENCE [{schema}].[{queue}_push_seq] AS bigint START WITH 0 INCREMENT BY 1;
CREATE SEQUENCE [{schema}].[{queue}_pop_seq] AS bigint START WITH 0 INCREMENT BY 1; -- when subscribed=no
GO
-- CACHE takes only a constant, hence dynamic SQL.
DECLARE @drawn bigint, @alter nvarchar(max), @size bigint = CAST(N'{size}' AS bigint);
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_push_seq] CACHE ', {push_cache});
EXEC (@alter);
-- when subscribed=no
SET @alter = CONCAT(N'ALTER SEQUENCE [{schema}].[{queue}_pop_seq] CACHE ', {pop_cache});
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
