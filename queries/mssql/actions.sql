-- What an operator does with messages that lie in a queue: each statement is one batch of one action, in a
-- transaction that begins with `hold`. Who chose the rows saw them a moment ago; only what is still in the
-- same state, and not in anybody's hands, is held and acted on.
--
-- Rows lie on a shelf: the queue's table, a ring's slots, or its in_hand. A row has no address here that a
-- statement could seek (%%physloc%% is undocumented, and is found by a scan): its place is its clustered key.
-- UPDLOCK holds it to the end of the transaction, so that it neither moves nor changes; READPAST passes over
-- what others hold, and with READCOMMITTEDLOCK it does so where READ_COMMITTED_SNAPSHOT is on too.
-- LOOP JOIN, FORCE ORDER: from the chosen, each sought by its key. A plan that scans would lock all that it
-- meets. A batch is at most 4,000 rows: below the number of locks at which a table without
-- LOCK_ESCALATION = DISABLE, somebody else's, is locked whole. What has to be waited for (an index row that a
-- consumer's transaction passed over) is waited for as long as the session's LOCK_TIMEOUT.
-- Somebody else's table without an index on its id is scanned by every batch, and held meanwhile.
--
-- Every batch tells its ledger: how many rows went out of the source, and how many came into the target.
-- The two are counted apart, and what came in is counted where it lies: a row count says nothing of what a
-- trigger did instead.

-- name: moment
-- one row: the server's clock, which an action's cut-off is taken from
-- Rounded up to the microseconds that a client keeps: what was pushed within this tick of the clock was before.
SELECT CAST(DATEADD(nanosecond, 400, SYSUTCDATETIME()) AS datetime2(6)) AS moment;

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
-- :keys is a JSON array: ids, a ring's numbers, the broker's order numbers; :due, beside it, the due times.
DECLARE @keys nvarchar(max) = :keys;
-- when design=pending
DECLARE @due nvarchar(max) = :due;
-- end
-- when installed=yes
-- when design=naive|heap|fifo|stack|status|split|ring|broker
DECLARE @chosen TABLE (id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (id) SELECT CAST(k.[value] AS bigint) FROM OPENJSON(@keys) AS k;
-- end
-- when design=claim
DECLARE @chosen TABLE (id uniqueidentifier NOT NULL PRIMARY KEY);
INSERT INTO @chosen (id) SELECT CAST(k.[value] AS uniqueidentifier) FROM OPENJSON(@keys) AS k;
-- end
-- when design=pending
DECLARE @chosen TABLE (due datetime2(7) NOT NULL, id bigint NOT NULL, PRIMARY KEY (due, id));
INSERT INTO @chosen (due, id)
SELECT
    CAST(d.[value] AS datetime2(7)),
    CAST(k.[value] AS bigint)
FROM OPENJSON(@keys) AS k INNER JOIN OPENJSON(@due) AS d ON k.[key] = d.[key];
-- end
-- end
-- when installed=no
-- Of whatever type: the column's own decides how they are compared.
DECLARE @chosen TABLE (due datetime2(7) NULL, id nvarchar(450) NOT NULL);
-- when design=naive|heap|fifo|stack|claim|status|split|ring|broker
INSERT INTO @chosen (id) SELECT CAST(k.[value] AS nvarchar(450)) FROM OPENJSON(@keys) AS k;
-- end
-- when design=pending
INSERT INTO @chosen (due, id)
SELECT
    CAST(d.[value] AS datetime2(7)),
    CAST(k.[value] AS nvarchar(450))
FROM OPENJSON(@keys) AS k INNER JOIN OPENJSON(@due) AS d ON k.[key] = d.[key];
-- end
-- end
-- when design=heap
-- when role pushed_at
-- A heap has no key to seek: a scan, which ends with the last of the chosen. As a read with UPDLOCK it would
-- hold every row that it meets; a write holds what it writes and nothing else.
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DECLARE @held TABLE (id nvarchar(450) NOT NULL);
UPDATE TOP (@n) m
SET [{pushed_at}] = m.[{pushed_at}]
OUTPUT inserted.[{id}] INTO @held (id)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON m.[{id}] = c.id
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    h.id AS place,
    h.id AS id,
    CAST(NULL AS nvarchar(20)) AS state,
    CAST(NULL AS bigint) AS attempts
FROM @held AS h;
-- end
-- when no role pushed_at
SELECT
    CAST(m.[{id}] AS nvarchar(450)) AS place,
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    CAST(NULL AS nvarchar(20)) AS state,
    CAST(NULL AS bigint) AS attempts
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) ON c.id = m.[{id}];
-- end
-- end
-- when design=broker
-- Nothing can be held here but by a RECEIVE: these are there, and put_away receives them or fails.
SELECT
    CAST(m.queuing_order AS nvarchar(450)) AS place,
    CAST(CAST(CAST(SUBSTRING(m.message_body, 1, 16) AS binary(16)) AS uniqueidentifier) AS nvarchar(450)) AS id,
    N'ready' AS state,
    CAST(NULL AS bigint) AS attempts
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (NOLOCK) ON c.id = m.queuing_order
WHERE m.status = 1;
-- end
-- when design=naive|fifo|stack|pending|claim|status|split|ring
-- when shelf=table|in_hand
SELECT
    -- when design=pending
    CONCAT(CONVERT(nvarchar(27), CAST(m.[{due_at}] AS datetime2(7)), 126), N',', m.[{id}]) AS place,
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    CAST(m.[{id}] AS nvarchar(450)) AS place,
    -- end
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    -- when design=naive|fifo|stack|pending
    CAST(NULL AS nvarchar(20)) AS state,
    -- end
    -- when design=claim|ring
    CASE
        -- when role done_at
        WHEN m.[{done_at}] IS NOT NULL THEN N'error'
        -- end
        -- when role error
        WHEN m.[{error}] IS NOT NULL THEN N'error'
        -- end
        WHEN m.[{claimed_at}] IS NULL THEN N'ready'
        ELSE N'claimed'
    END AS state,
    -- end
    -- when design=status|split
    CASE m.[{status}]
        WHEN 0 THEN N'ready'
        WHEN 1 THEN N'claimed'
        WHEN 2 THEN N'done'
        WHEN 4 THEN N'error'
        -- None that a verb takes, and never one that is not looked at.
        ELSE CONCAT(N'status ', m.[{status}])
    END AS state,
    -- end
    -- when role attempts
    CAST(m.[{attempts}] AS bigint) AS attempts
    -- end
    -- when no role attempts
    CAST(NULL AS bigint) AS attempts
    -- end
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)
    -- when design=pending
    -- Its key begins with the due time: by its id alone a message is found by a look at all of them.
    -- when installed=yes
    ON c.due = m.[{due_at}] AND c.id = m.[{id}]
    -- end
    -- when installed=no
    ON c.id = m.[{id}] AND c.due = CAST(m.[{due_at}] AS datetime2(7))
    -- end
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.id = m.[{id}]
    -- end
-- when payload_beside=yes
-- One half of a message is no message: the doctor looks for those.
WHERE EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.id = m.id
)
-- end
-- when installed=yes
OPTION (LOOP JOIN, FORCE ORDER)
-- end
;
-- end
-- when shelf=slots
SELECT
    CAST(m.slot AS nvarchar(450)) AS place,
    CAST(m.first_id AS nvarchar(450)) AS id,
    N'ready' AS state,
    CAST(NULL AS bigint) AS attempts
FROM [{schema}].[{queue}_config] AS s WITH (REPEATABLEREAD, ROWLOCK)
CROSS JOIN @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)
    ON m.slot = c.id % s.size AND m.message_id = c.id
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- end

-- name: put_away
-- one row: how many messages left the queue, and how many came into its archive
-- Not OUTPUT's INTO, which has no order: the archive numbers them in the order of their pushes, wherever they
-- lie, and what comes back by a push comes back in this one. (A heap has none to keep.)
SET NOCOUNT ON;
DECLARE @places nvarchar(max) = :places;
DECLARE @state nvarchar(20) = :state;
DECLARE @reason nvarchar(400) = :reason;
DECLARE @action_id bigint = :action_id;
DECLARE @taken_out bigint = 0;
-- Rows of this batch are those of this action after this one; other sessions' are of none, or of another.
DECLARE @before bigint = COALESCE(
    (SELECT MAX(a.archive_id) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)), 0
);
-- when design=naive|heap|fifo|stack|status|split|ring|broker
DECLARE @chosen TABLE (place bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (place) SELECT CAST(p.[value] AS bigint) FROM OPENJSON(@places) AS p;
-- end
-- when design=claim
DECLARE @chosen TABLE (place uniqueidentifier NOT NULL PRIMARY KEY);
INSERT INTO @chosen (place) SELECT CAST(p.[value] AS uniqueidentifier) FROM OPENJSON(@places) AS p;
-- end
-- when design=pending
DECLARE @chosen TABLE (due datetime2(7) NOT NULL, place bigint NOT NULL, PRIMARY KEY (due, place));
INSERT INTO @chosen (due, place)
SELECT
    CAST(LEFT(p.[value], CHARINDEX(N',', p.[value]) - 1) AS datetime2(7)),
    CAST(SUBSTRING(p.[value], CHARINDEX(N',', p.[value]) + 1, 450) AS bigint)
FROM OPENJSON(@places) AS p;
-- end
-- when design=heap
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DELETE TOP (@n) m
OUTPUT
    deleted.[{id}],
    deleted.[{payload}],
    -- when role pushed_at
    deleted.[{pushed_at}],
    -- end
    @state,
    0,
    @reason,
    @action_id
INTO [{schema}].[{queue}_archive] (
    id,
    payload,
    -- when role pushed_at
    pushed_at,
    -- end
    state,
    attempts,
    reason,
    action_id
)
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON m.[{id}] = c.place
OPTION (LOOP JOIN, FORCE ORDER);
-- Without a look at who is still there: that would be one more scan, to its end.
SET @taken_out = @@ROWCOUNT;
-- end
-- when design=broker
-- Only RECEIVE takes from a queue, and only from the beginning of a conversation: of each conversation, so
-- many as are chosen without another one before them. The first RECEIVE locks the conversation. If somebody
-- took from it since it was looked at, too much is received, and all of the batch is undone.
DECLARE @conversation uniqueidentifier, @group uniqueidentifier, @other bigint, @count int;
DECLARE @there TABLE (
    queuing_order bigint NOT NULL PRIMARY KEY,
    conversation_handle uniqueidentifier NOT NULL,
    conversation_group_id uniqueidentifier NOT NULL
);
DECLARE @received TABLE (
    queuing_order bigint NOT NULL,
    message_type_name nvarchar(256) NOT NULL,
    message_body varbinary(max) NULL
);
INSERT INTO @there (queuing_order, conversation_handle, conversation_group_id)
SELECT
    m.queuing_order,
    m.conversation_handle,
    m.conversation_group_id
FROM @chosen AS c INNER JOIN [{schema}].[{table}] AS m WITH (NOLOCK) ON c.place = m.queuing_order
WHERE m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type';
WHILE EXISTS (SELECT 1 FROM @there)
BEGIN
    SELECT TOP (1)
        @conversation = t.conversation_handle,
        @group = t.conversation_group_id
    FROM @there AS t ORDER BY t.queuing_order;
    SET @other = (
        SELECT MIN(m.queuing_order) FROM [{schema}].[{table}] AS m WITH (NOLOCK)
        WHERE m.status = 1 AND m.conversation_group_id = @group AND m.conversation_handle = @conversation
        AND NOT EXISTS (SELECT 1 FROM @there AS t WHERE t.queuing_order = m.queuing_order)
    );
    SET @count = (
        SELECT COUNT(*) FROM @there AS t
        WHERE t.conversation_handle = @conversation AND (@other IS NULL OR t.queuing_order < @other)
    );
    IF @count > 0
    BEGIN
        RECEIVE TOP (@count) queuing_order, message_type_name, message_body
        FROM [{schema}].[{table}] INTO @received WHERE conversation_handle = @conversation;
        -- when conversation=each
        END CONVERSATION @conversation;
        -- end
    END;
    DELETE FROM @there WHERE conversation_handle = @conversation;
END;
IF EXISTS (
    SELECT 1 FROM @received AS r
    WHERE r.message_type_name <> N'{schema}.{queue}_message_type'
    OR NOT EXISTS (SELECT 1 FROM @chosen AS c WHERE c.place = r.queuing_order)
)
BEGIN
    THROW 51003, N'A consumer took from the same conversation meanwhile.||Nothing was changed. Try again.', 1;
END;
SET @taken_out = (SELECT COUNT_BIG(*) FROM @received);
INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, state, attempts, reason, action_id)
SELECT
    CAST(CAST(SUBSTRING(r.message_body, 1, 16) AS binary(16)) AS uniqueidentifier),
    -- when payload=text|json
    CAST(SUBSTRING(r.message_body, 26, 2147483647) AS nvarchar(max)),
    -- end
    -- when payload=bytes
    SUBSTRING(r.message_body, 26, 2147483647),
    -- end
    CAST(CAST(SUBSTRING(r.message_body, 17, 9) AS binary(9)) AS datetime2(7)),
    @state,
    0,
    @reason,
    @action_id
FROM @received AS r ORDER BY r.queuing_order;
-- end
-- when design=naive|fifo|stack|pending|claim|status|split|ring
INSERT INTO [{schema}].[{queue}_archive] (
    id,
    payload,
    -- when titled=yes
    title,
    -- end
    -- when role pushed_at
    pushed_at,
    -- end
    -- when role due_at
    due_at,
    -- end
    -- when role claimed_at
    claimed_at,
    -- end
    -- when role claimed_by
    claimed_by,
    -- end
    -- when role done_at
    done_at,
    -- end
    -- when role error
    error,
    -- end
    state,
    attempts,
    reason,
    action_id
)
SELECT
    -- when shelf=slots
    m.first_id,
    -- end
    -- when shelf=table|in_hand
    m.[{id}],
    -- end
    -- when payload_beside=yes
    d.text_data,
    -- end
    -- when payload_beside=no
    m.[{payload}],
    -- end
    -- when titled=yes
    m.title,
    -- end
    -- when role pushed_at
    m.[{pushed_at}],
    -- end
    -- when role due_at
    m.[{due_at}],
    -- end
    -- when role claimed_at
    m.[{claimed_at}],
    -- end
    -- when role claimed_by
    m.[{claimed_by}],
    -- end
    -- when role done_at
    m.[{done_at}],
    -- end
    -- when role error
    m.[{error}],
    -- end
    @state,
    -- when role attempts
    m.[{attempts}],
    -- end
    -- when no role attempts
    0,
    -- end
    @reason,
    @action_id
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when shelf=slots
    ON c.place = m.slot
    -- end
    -- when shelf=table|in_hand
    -- when design=pending
    ON c.due = m.[{due_at}] AND c.place = m.[{id}]
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.place = m.[{id}]
    -- end
    -- end
-- when payload_beside=yes
INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON m.id = d.id
-- end
-- when shelf=slots
ORDER BY m.message_id
-- end
-- when shelf=table|in_hand
-- when design=naive|fifo|stack|pending|ring
ORDER BY m.[{id}]
-- end
-- when design=claim|status|split
ORDER BY m.[{pushed_at}], m.[{id}]
-- end
-- end
OPTION (LOOP JOIN, FORCE ORDER);
-- when payload_beside=yes
DELETE d
FROM @chosen AS c INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = d.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when shelf=slots
-- The pop that draws the number of a slot that was emptied here drops it: the number is void.
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    m.message_id,
    1,
    SYSUTCDATETIME()
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0 AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 1 AND p.number = m.message_id
)
OPTION (LOOP JOIN, FORCE ORDER);
UPDATE m
SET message_id = NULL, first_id = NULL, time = SYSUTCDATETIME(), message = NULL, reference_count = 0
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when shelf=table|in_hand
DELETE m
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when design=pending
    ON c.due = m.[{due_at}] AND c.place = m.[{id}]
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.place = m.[{id}]
    -- end
OPTION (LOOP JOIN, FORCE ORDER);
-- Less those that are there all the same.
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when design=pending
    ON c.due = m.[{due_at}] AND c.place = m.[{id}]
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.place = m.[{id}]
    -- end
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- end
SELECT
    @taken_out AS taken_out,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
        WHERE a.archive_id > @before AND a.action_id = @action_id
    ) AS put_in;

-- name: destroy
-- one row: how many messages left the queue for good
-- Of a message in two halves, both are counted.
SET NOCOUNT ON;
DECLARE @places nvarchar(max) = :places;
DECLARE @taken_out bigint = 0, @put_in bigint;
-- when installed=yes
-- when design=naive|heap|fifo|stack|status|split|ring|broker
DECLARE @chosen TABLE (place bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (place) SELECT CAST(p.[value] AS bigint) FROM OPENJSON(@places) AS p;
-- end
-- when design=claim
DECLARE @chosen TABLE (place uniqueidentifier NOT NULL PRIMARY KEY);
INSERT INTO @chosen (place) SELECT CAST(p.[value] AS uniqueidentifier) FROM OPENJSON(@places) AS p;
-- end
-- when design=pending
DECLARE @chosen TABLE (due datetime2(7) NOT NULL, place bigint NOT NULL, PRIMARY KEY (due, place));
INSERT INTO @chosen (due, place)
SELECT
    CAST(LEFT(p.[value], CHARINDEX(N',', p.[value]) - 1) AS datetime2(7)),
    CAST(SUBSTRING(p.[value], CHARINDEX(N',', p.[value]) + 1, 450) AS bigint)
FROM OPENJSON(@places) AS p;
-- end
-- end
-- when installed=no
DECLARE @chosen TABLE (place nvarchar(450) NOT NULL);
-- when design=naive|heap|fifo|stack|claim|status|split|ring|broker
INSERT INTO @chosen (place) SELECT CAST(p.[value] AS nvarchar(450)) FROM OPENJSON(@places) AS p;
-- end
-- when design=pending
INSERT INTO @chosen (place)
SELECT SUBSTRING(p.[value], CHARINDEX(N',', p.[value]) + 1, 450) FROM OPENJSON(@places) AS p;
-- end
-- end
-- when design=heap
DECLARE @n bigint = (SELECT COUNT_BIG(*) FROM @chosen);
DELETE TOP (@n) m
FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
INNER JOIN @chosen AS c ON m.[{id}] = c.place
OPTION (LOOP JOIN, FORCE ORDER);
SET @taken_out = @@ROWCOUNT;
-- end
-- when design=broker
-- As put_away receives them; see there.
DECLARE @conversation uniqueidentifier, @group uniqueidentifier, @other bigint, @count int;
DECLARE @there TABLE (
    queuing_order bigint NOT NULL PRIMARY KEY,
    conversation_handle uniqueidentifier NOT NULL,
    conversation_group_id uniqueidentifier NOT NULL
);
DECLARE @received TABLE (queuing_order bigint NOT NULL, message_type_name nvarchar(256) NOT NULL);
INSERT INTO @there (queuing_order, conversation_handle, conversation_group_id)
SELECT
    m.queuing_order,
    m.conversation_handle,
    m.conversation_group_id
FROM @chosen AS c INNER JOIN [{schema}].[{table}] AS m WITH (NOLOCK) ON c.place = m.queuing_order
WHERE m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type';
WHILE EXISTS (SELECT 1 FROM @there)
BEGIN
    SELECT TOP (1)
        @conversation = t.conversation_handle,
        @group = t.conversation_group_id
    FROM @there AS t ORDER BY t.queuing_order;
    SET @other = (
        SELECT MIN(m.queuing_order) FROM [{schema}].[{table}] AS m WITH (NOLOCK)
        WHERE m.status = 1 AND m.conversation_group_id = @group AND m.conversation_handle = @conversation
        AND NOT EXISTS (SELECT 1 FROM @there AS t WHERE t.queuing_order = m.queuing_order)
    );
    SET @count = (
        SELECT COUNT(*) FROM @there AS t
        WHERE t.conversation_handle = @conversation AND (@other IS NULL OR t.queuing_order < @other)
    );
    IF @count > 0
    BEGIN
        RECEIVE TOP (@count) queuing_order, message_type_name
        FROM [{schema}].[{table}] INTO @received WHERE conversation_handle = @conversation;
        -- when conversation=each
        END CONVERSATION @conversation;
        -- end
    END;
    DELETE FROM @there WHERE conversation_handle = @conversation;
END;
IF EXISTS (
    SELECT 1 FROM @received AS r
    WHERE r.message_type_name <> N'{schema}.{queue}_message_type'
    OR NOT EXISTS (SELECT 1 FROM @chosen AS c WHERE c.place = r.queuing_order)
)
BEGIN
    THROW 51003, N'A consumer took from the same conversation meanwhile.||Nothing was changed. Try again.', 1;
END;
SET @taken_out = (SELECT COUNT_BIG(*) FROM @received);
-- end
-- when design=naive|fifo|stack|pending|claim|status|split|ring
-- when payload_beside=yes
DELETE d
FROM @chosen AS c INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = d.id
OPTION (LOOP JOIN, FORCE ORDER);
SET @put_in = @@ROWCOUNT;
-- end
-- when shelf=slots
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    m.message_id,
    1,
    SYSUTCDATETIME()
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0 AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}_parked] AS p WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE p.void = 1 AND p.number = m.message_id
)
OPTION (LOOP JOIN, FORCE ORDER);
UPDATE m
SET message_id = NULL, first_id = NULL, time = SYSUTCDATETIME(), message = NULL, reference_count = 0
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.slot
WHERE m.reference_count > 0
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when shelf=table|in_hand
DELETE m
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when installed=yes
    -- when design=pending
    ON c.due = m.[{due_at}] AND c.place = m.[{id}]
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.place = m.[{id}]
    -- end
OPTION (LOOP JOIN, FORCE ORDER)
    -- end
    -- when installed=no
    ON c.place = m.[{id}]
    -- end
;
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when installed=yes
    -- when design=pending
    ON c.due = m.[{due_at}] AND c.place = m.[{id}]
    -- end
    -- when design=naive|fifo|stack|claim|status|split|ring
    ON c.place = m.[{id}]
    -- end
OPTION (LOOP JOIN, FORCE ORDER)
    -- end
    -- when installed=no
    ON c.place = m.[{id}]
    -- end
;
-- end
-- end
SELECT
    @taken_out AS taken_out,
    COALESCE(@put_in, @taken_out) AS put_in;

-- name: make_ready
-- one row: how many messages, claimed or in error, can be popped again; their attempts stay counted
-- when design=claim|status|split|ring
SET NOCOUNT ON;
DECLARE @places nvarchar(max) = :places;
DECLARE @taken_out bigint = 0;
-- when to_back=yes
DECLARE @now datetime2(7) = SYSUTCDATETIME();
-- end
-- when installed=yes
-- when design=status|split|ring
DECLARE @chosen TABLE (position int NOT NULL, place bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS bigint)
FROM OPENJSON(@places) AS p;
-- end
-- when design=claim
DECLARE @chosen TABLE (position int NOT NULL, place uniqueidentifier NOT NULL PRIMARY KEY);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS uniqueidentifier)
FROM OPENJSON(@places) AS p;
-- end
-- end
-- when installed=no
DECLARE @chosen TABLE (position int NOT NULL, place nvarchar(450) NOT NULL);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS nvarchar(450))
FROM OPENJSON(@places) AS p;
-- end
UPDATE m
SET
    -- when role error
    [{error}] = NULL,
    -- end
    -- when role done_at
    [{done_at}] = NULL,
    -- end
    -- when role claimed_by
    [{claimed_by}] = NULL,
    -- end
    -- when to_back=yes
    -- A microsecond apart, in the order in which they were chosen.
    [{pushed_at}] = DATEADD(microsecond, c.position, @now),
    -- end
    -- when design=status|split
    -- when role claimed_at
    [{claimed_at}] = NULL,
    -- end
    [{status}] = 0
    -- end
    -- when design=claim|ring
    [{claimed_at}] = NULL
    -- end
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.[{id}]
-- when installed=yes
OPTION (LOOP JOIN, FORCE ORDER)
-- end
;
SET @taken_out = @@ROWCOUNT;
SELECT
    @taken_out AS taken_out,
    COUNT_BIG(*) AS put_in
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.place = m.[{id}]
-- when design=status|split
WHERE m.[{status}] = 0
-- end
-- when design=claim|ring
WHERE m.[{claimed_at}] IS NULL
-- end
-- when installed=yes
OPTION (LOOP JOIN, FORCE ORDER)
-- end
;
-- end

-- name: in_archive
-- of the next :look rows of the archive after one: at most :n that match, and the last one whether it matches or not
-- READPAST: what others take out or put in at this moment is passed over, and nobody is waited for. Texts are
-- compared as in `matching` of common.sql.
DECLARE @moment datetime2(7) = :moment;
SELECT TOP (CAST(:n AS bigint))
    l.position AS position,
    t.matches AS matches,
    l.archive_id AS archive_id,
    CAST(l.id AS nvarchar(450)) AS id,
    l.state AS state,
    l.pushed_at AS pushed_at,
    CAST(DATEDIFF_BIG(microsecond, l.archived_at, @moment) / 1e6 AS float) AS age_seconds,
    l.due_at AS due_at,
    l.attempts AS attempts,
    l.claimed_at AS claimed_at,
    l.claimed_by AS claimed_by,
    l.done_at AS done_at,
    l.title AS title,
    CAST(DATALENGTH(l.payload) AS bigint) AS payload_bytes,
    LEFT(l.error COLLATE Latin1_General_100_CI_AS_SC, CAST(:error_length AS int)) AS error
FROM (
    SELECT TOP (CAST(:look AS bigint))
        ROW_NUMBER() OVER (ORDER BY a.archive_id) AS position,
        a.archive_id,
        a.id,
        a.state,
        a.pushed_at,
        -- when design=pending
        a.due_at,
        -- end
        -- when design=naive|ring|heap|fifo|stack|claim|status|split|broker
        CAST(NULL AS datetime2(7)) AS due_at,
        -- end
        a.attempts,
        a.claimed_at,
        a.claimed_by,
        a.done_at,
        -- when design=status|split
        a.title,
        -- end
        -- when design=naive|ring|heap|fifo|stack|pending|claim|broker
        CAST(NULL AS nvarchar(255)) AS title,
        -- end
        a.error,
        a.reason,
        a.action_id,
        a.archived_at,
        a.payload
    FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE a.archive_id > CAST(:after_id AS bigint)
    ORDER BY a.archive_id
) AS l
CROSS APPLY (
    SELECT
        CAST(CASE
            WHEN l.archived_at > @moment THEN 0
            -- A popped message was delivered: it is meant by its own word, and never by another.
            -- when popped=yes
            WHEN l.reason <> N'pop' THEN 0
            -- end
            -- when popped=no
            WHEN l.reason = N'pop' THEN 0
            -- end
            -- when by_state=yes
            WHEN l.state <> CAST(:state AS nvarchar(20)) THEN 0
            -- end
            -- when by_action=yes
            WHEN l.action_id <> CAST(:action AS bigint) OR l.action_id IS NULL THEN 0
            -- end
            -- when by_reason=yes
            -- Nothing is found in nothing, as CHARINDEX sees it.
            WHEN DATALENGTH(CAST(:reason AS nvarchar(400))) > 0 AND CHARINDEX(
                CAST(:reason AS nvarchar(400)) COLLATE Latin1_General_100_CI_AS_SC, l.reason COLLATE Latin1_General_100_CI_AS_SC
            ) = 0 THEN 0
            -- end
            -- when by_older=yes
            WHEN l.archived_at >= DATEADD(microsecond, 0 - CAST(:older_us AS int), DATEADD(second, 0 - CAST(:older_s AS int), @moment)) THEN 0
            -- end
            -- when by_newer=yes
            WHEN l.archived_at < DATEADD(microsecond, 0 - CAST(:newer_us AS int), DATEADD(second, 0 - CAST(:newer_s AS int), @moment)) THEN 0
            -- end
            -- when by_id=yes
            WHEN CAST(l.id AS nvarchar(450)) <> CAST(:id AS nvarchar(450)) THEN 0
            -- end
            -- when by_error=yes
            WHEN l.error IS NULL OR EXISTS (
                SELECT 1 FROM OPENJSON(CAST(:errors AS nvarchar(max))) AS e
                WHERE CHARINDEX(e.[value] COLLATE Latin1_General_100_CI_AS_SC, l.error COLLATE Latin1_General_100_CI_AS_SC) = 0
            ) THEN 0
            -- end
            -- when by_claimed_by=yes
            WHEN l.claimed_by IS NULL OR (
                CONCAT(l.claimed_by, N'|') COLLATE Latin1_General_100_BIN2 <> CONCAT(CAST(:claimed_by AS nvarchar(max)), N'|')
                AND CHARINDEX(CONCAT(CAST(:claimed_by AS nvarchar(1000)), N' login='), l.claimed_by COLLATE Latin1_General_100_BIN2) <> 1
                AND (
                    CHARINDEX(N' consumer=', l.claimed_by) = 0
                    OR CONCAT(SUBSTRING(l.claimed_by, CHARINDEX(N' consumer=', l.claimed_by) + 10, 1000), N'|') COLLATE Latin1_General_100_BIN2
                    <> CONCAT(CAST(:claimed_by AS nvarchar(max)), N'|')
                )
            ) THEN 0
            -- end
            -- when by_payload_1=yes
            WHEN CASE WHEN ISJSON(l.payload) = 1 THEN
                CASE WHEN JSON_VALUE(l.payload, N'{payload_path_1}') + N'|' COLLATE Latin1_General_100_BIN2
                    = CAST(:payload_value_1 AS nvarchar(max)) + N'|' THEN 1 END
            END IS NULL THEN 0
            -- end
            -- when by_payload_2=yes
            WHEN CASE WHEN ISJSON(l.payload) = 1 THEN
                CASE WHEN JSON_VALUE(l.payload, N'{payload_path_2}') + N'|' COLLATE Latin1_General_100_BIN2
                    = CAST(:payload_value_2 AS nvarchar(max)) + N'|' THEN 1 END
            END IS NULL THEN 0
            -- end
            -- when by_payload_3=yes
            WHEN CASE WHEN ISJSON(l.payload) = 1 THEN
                CASE WHEN JSON_VALUE(l.payload, N'{payload_path_3}') + N'|' COLLATE Latin1_General_100_BIN2
                    = CAST(:payload_value_3 AS nvarchar(max)) + N'|' THEN 1 END
            END IS NULL THEN 0
            -- end
            -- when by_payload_4=yes
            WHEN CASE WHEN ISJSON(l.payload) = 1 THEN
                CASE WHEN JSON_VALUE(l.payload, N'{payload_path_4}') + N'|' COLLATE Latin1_General_100_BIN2
                    = CAST(:payload_value_4 AS nvarchar(max)) + N'|' THEN 1 END
            END IS NULL THEN 0
            -- end
            ELSE 1
        END AS bit) AS matches
) AS t
WHERE t.matches = 1 OR l.position = CAST(:look AS bigint)
ORDER BY l.archive_id;

-- name: purges
-- one row: of the :look rows of the archive before one, how many there are, the lowest, and the last purge among them
DECLARE @moment datetime2(7) = :moment;
SELECT
    COUNT_BIG(*) AS looked,
    MIN(l.archive_id) AS lowest,
    MAX(l.purge_id) AS action_id
FROM (
    SELECT TOP (CAST(:look AS bigint))
        a.archive_id,
        CASE WHEN (a.reason = N'purge' OR a.reason LIKE N'purge: %') AND a.archived_at <= @moment THEN a.action_id END AS purge_id
    FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE a.archive_id < COALESCE(CAST(:before AS bigint), CAST(9223372036854775807 AS bigint))
    ORDER BY a.archive_id DESC
) AS l;

-- name: hold_archived
-- a row for each of the chosen rows of the archive that is there and in nobody's hands (lock=yes: locked now)
-- READUNCOMMITTED: an id is not free where somebody writes it at this moment, and nobody is waited for.
DECLARE @keys nvarchar(max) = :keys;
DECLARE @chosen TABLE (archive_id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (archive_id) SELECT CAST(k.[value] AS bigint) FROM OPENJSON(@keys) AS k;
SELECT
    a.archive_id AS archive_id,
    -- when limited=yes
    CAST(CASE WHEN DATALENGTH(a.payload) > CAST(N'{max_bytes}' AS bigint) THEN 1 ELSE 0 END AS bit) AS too_long,
    -- end
    -- when limited=no
    CAST(0 AS bit) AS too_long,
    -- end
    -- when rows=kept
    CAST(CASE
        WHEN EXISTS (SELECT 1 FROM [{schema}].[{table}] AS m WITH (READUNCOMMITTED) WHERE m.id = a.id) THEN 0
        -- when design=status|split
        -- A table that numbers its rows takes a number of ours only from who may ALTER it.
        WHEN COALESCE(HAS_PERMS_BY_NAME(N'[{schema}].[{table}]', N'OBJECT', N'ALTER'), 0) = 0 THEN 0
        -- end
        ELSE 1
    END AS bit) AS id_is_free
    -- end
    -- when rows=pushed
    CAST(0 AS bit) AS id_is_free
    -- end
FROM @chosen AS c
-- when lock=yes
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) ON c.archive_id = a.archive_id
-- end
-- when lock=no
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON c.archive_id = a.archive_id
-- end
ORDER BY a.archive_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: put_back
-- one row: how many rows left the archive, and how many messages lie in the queue again, in their former state
-- ids=kept: those whose id is taken, by a message or by another row of the batch, stay; ids=new takes them.
-- An id that somebody takes in this very moment is an error, which undoes the batch; the next try sees it.
-- when design=claim|status|split|ring
SET NOCOUNT ON;
DECLARE @keys nvarchar(max) = :keys;
DECLARE @taken_out bigint = 0;
-- when design=claim
DECLARE @wanted TABLE (archive_id bigint NOT NULL PRIMARY KEY, id uniqueidentifier NULL);
DECLARE @kept TABLE (archive_id bigint NOT NULL PRIMARY KEY, id uniqueidentifier NOT NULL);
-- end
-- when design=status|split|ring
DECLARE @wanted TABLE (archive_id bigint NOT NULL PRIMARY KEY, id bigint NULL);
DECLARE @kept TABLE (archive_id bigint NOT NULL PRIMARY KEY, id bigint NOT NULL);
-- end
-- when ids=kept
INSERT INTO @wanted (archive_id, id)
SELECT
    MIN(a.archive_id),
    a.id
FROM OPENJSON(@keys) AS k
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON a.archive_id = CAST(k.[value] AS bigint)
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{table}] AS m WITH (READUNCOMMITTED) WHERE m.id = a.id)
-- when payload_beside=yes
-- Half a message of that id takes it too.
AND NOT EXISTS (SELECT 1 FROM [{schema}].[{queue}_data] AS d WITH (READUNCOMMITTED) WHERE d.id = a.id)
-- end
-- when design=status|split
AND HAS_PERMS_BY_NAME(N'[{schema}].[{table}]', N'OBJECT', N'ALTER') = 1
-- end
GROUP BY a.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when ids=new
INSERT INTO @wanted (archive_id, id)
SELECT
    a.archive_id,
    -- when design=claim
    NEWID()
    -- end
    -- when design=status|split|ring
    NULL
    -- end
FROM OPENJSON(@keys) AS k
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON a.archive_id = CAST(k.[value] AS bigint)
OPTION (LOOP JOIN, FORCE ORDER);
-- when design=ring
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
-- end
-- when design=ring
-- A number that a message has in hand was drawn, and no slot will ever have it.
INSERT INTO [{schema}].[{queue}_parked] (number, void, parked_at)
SELECT
    w.id,
    1,
    SYSUTCDATETIME()
FROM @wanted AS w;
-- end
-- end
IF EXISTS (SELECT 1 FROM @wanted)
BEGIN
    -- when ids=kept
    -- when design=status|split
    SET IDENTITY_INSERT [{schema}].[{table}] ON;
    BEGIN TRY
    -- end
    -- end
    -- A MERGE that only inserts: of all statements that insert, its OUTPUT alone tells from which row.
    MERGE INTO [{schema}].[{table}] WITH (ROWLOCK) AS m
    USING (
        SELECT
            w.archive_id,
            w.id,
            a.payload,
            -- when titled=yes
            CAST(COALESCE(a.title, N'') AS nvarchar(255)) AS title,
            -- end
            -- when role status
            CASE a.state WHEN N'ready' THEN 0 WHEN N'done' THEN 2 ELSE 4 END AS status,
            -- end
            COALESCE(a.pushed_at, SYSUTCDATETIME()) AS pushed_at,
            a.attempts,
            -- A claim comes back as an error: whoever had it is told nothing, and nobody shall work on it unasked.
            CASE
                WHEN a.state = N'claimed' THEN COALESCE(a.error, N'was claimed when it went into the archive')
                WHEN a.state = N'error' THEN COALESCE(a.error, N'')
                WHEN a.state = N'done' THEN a.error
            END AS error,
            CASE
                WHEN a.state = N'done' THEN a.claimed_at
                WHEN a.state IN (N'claimed', N'error') THEN COALESCE(a.claimed_at, a.archived_at)
            END AS claimed_at,
            CASE
                WHEN a.state IN (N'claimed', N'error', N'done') THEN CAST(a.claimed_by AS nvarchar(256))
            END AS claimed_by,
            CASE WHEN a.state IN (N'claimed', N'error', N'done') THEN COALESCE(a.done_at, a.archived_at) END AS done_at
        FROM @wanted AS w
        INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON w.archive_id = a.archive_id
    ) AS s ON 1 = 0
    WHEN NOT MATCHED THEN INSERT (
        -- when ids=kept
        id,
        -- end
        -- when ids=new
        -- when design=claim|ring
        id,
        -- end
        -- end
        -- when payload_beside=no
        [{payload}],
        -- end
        -- when titled=yes
        title,
        -- end
        -- when role status
        [{status}],
        -- end
        [{pushed_at}],
        [{attempts}],
        [{error}],
        [{claimed_at}],
        [{claimed_by}],
        [{done_at}]
    )
    VALUES (
        -- when ids=kept
        s.id,
        -- end
        -- when ids=new
        -- when design=claim|ring
        s.id,
        -- end
        -- end
        -- when payload_beside=no
        s.payload,
        -- end
        -- when titled=yes
        s.title,
        -- end
        -- when role status
        s.status,
        -- end
        s.pushed_at,
        s.attempts,
        s.error,
        s.claimed_at,
        s.claimed_by,
        s.done_at
    )
    OUTPUT s.archive_id, inserted.id INTO @kept (archive_id, id);
    -- when ids=kept
    -- when design=status|split
    END TRY
    BEGIN CATCH
        -- Undone with the transaction is all but this, which is the session's.
        SET IDENTITY_INSERT [{schema}].[{table}] OFF;
        THROW;
    END CATCH;
    SET IDENTITY_INSERT [{schema}].[{table}] OFF;
    -- end
    -- end
    -- when payload_beside=yes
    INSERT INTO [{schema}].[{queue}_data] WITH (ROWLOCK) (id, text_data)
    SELECT
        k.id,
        a.payload
    FROM @kept AS k
    INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.archive_id = a.archive_id
    OPTION (LOOP JOIN, FORCE ORDER);
    -- end
    DELETE a
    FROM @kept AS k
    INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.archive_id = a.archive_id
    OPTION (LOOP JOIN, FORCE ORDER);
    SET @taken_out = @@ROWCOUNT;
END;
SELECT
    @taken_out AS taken_out,
    COUNT_BIG(*) AS put_in
FROM @kept AS k
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.id = m.id
-- when payload_beside=yes
INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.id = d.id
-- end
OPTION (LOOP JOIN, FORCE ORDER);
-- end

-- name: push_back
-- one row: how many rows left the archive, and how many the queue's own push took; what it did not take stays
-- One push after the other: an array would hold all payloads of a batch at once, and there is no clean way to
-- make one of rows before SQL Server 2022.
-- when design=naive|ring|heap|fifo|stack|pending|broker
SET NOCOUNT ON;
DECLARE @keys nvarchar(max) = :keys;
DECLARE @archive_id bigint = 0, @put_in bigint = 0, @taken_out bigint;
-- when payload=text|json
DECLARE @payload nvarchar(max);
-- end
-- when payload=bytes
DECLARE @payload varbinary(max);
-- end
-- when design=pending
DECLARE @due_time datetime2(7);
-- end
DECLARE @wanted TABLE (archive_id bigint NOT NULL PRIMARY KEY);
DECLARE @pushed TABLE (archive_id bigint NOT NULL PRIMARY KEY);
DECLARE @answer TABLE (id nvarchar(36) NULL);
INSERT INTO @wanted (archive_id) SELECT CAST(k.[value] AS bigint) FROM OPENJSON(@keys) AS k;
WHILE 1 = 1
BEGIN
    -- NULL after the last; identities begin at 1.
    SET @archive_id = (SELECT MIN(w.archive_id) FROM @wanted AS w WHERE w.archive_id > @archive_id);
    IF @archive_id IS NULL
    BEGIN
        BREAK;
    END;
    SET @payload = NULL;
    SELECT
        -- when design=pending
        @due_time = a.due_at,
        -- end
        @payload = a.payload
    FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE a.archive_id = @archive_id;
    IF @payload IS NULL
    BEGIN
        CONTINUE;
    END;
    DELETE FROM @answer;
    -- when design=pending
    INSERT INTO @answer (id) EXEC [{schema}].[{queue}_push] @payload = @payload, @due_time = @due_time;
    -- end
    -- when design=naive|ring|heap|fifo|stack|broker
    INSERT INTO @answer (id) EXEC [{schema}].[{queue}_push] @payload = @payload;
    -- end
    IF NOT EXISTS (SELECT 1 FROM @answer AS r WHERE r.id IS NOT NULL)
    BEGIN
        -- A full ring. What comes later in the archive does not go before what it did not take.
        BREAK;
    END;
    SET @put_in += 1;
    INSERT INTO @pushed (archive_id) VALUES (@archive_id);
END;
DELETE a
FROM @pushed AS p
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON p.archive_id = a.archive_id
OPTION (LOOP JOIN, FORCE ORDER);
SET @taken_out = @@ROWCOUNT;
SELECT
    @taken_out AS taken_out,
    @put_in AS put_in;
-- end

-- name: standing
-- one row: how many messages are ready, counted to 10,001; of a ring, how many more it takes, and how many after a relay
-- A login that does not see a ring's sequences is told how many slots are full, and of the rest nothing.
-- when design=ring
SELECT
    CASE
        WHEN n.gap IS NULL THEN (
            SELECT COUNT_BIG(*) FROM (
                SELECT TOP (10001) 1 AS one FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
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
    -- Where messages were purged a push still counts their numbers, until a pop steps over them.
    CASE WHEN n.gap IS NOT NULL THEN (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (10001) 1 AS one FROM [{schema}].[{queue}_parked] AS p WITH (READPAST, READCOMMITTEDLOCK)
            WHERE p.void = 1 AND p.number >= n.next_pop
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
            (
                SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
                WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_push_seq]')
            ) AS next_push,
            (
                SELECT CAST(s.current_value AS bigint) + 1 FROM sys.sequences AS s
                WHERE s.object_id = OBJECT_ID(N'[{schema}].[{queue}_pop_seq]')
            ) AS next_pop
        FROM [{schema}].[{queue}_config] AS c WITH (READCOMMITTEDLOCK)
    ) AS r
) AS n;
-- end
-- when design=naive|heap|fifo|stack|pending|claim|status|split|broker
SELECT
    COUNT_BIG(*) AS ready,
    CAST(NULL AS bigint) AS room,
    CAST(NULL AS bigint) AS voids
FROM (
    SELECT TOP (10001) 1 AS one
    -- when design=naive|heap|fifo|stack|pending|claim|status|split
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    -- end
    -- when design=claim
    WHERE m.[{claimed_at}] IS NULL
    -- end
    -- when design=status|split
    WHERE m.[{status}] = 0
    -- end
    -- when design=broker
    FROM [{schema}].[{table}] AS m WITH (NOLOCK)
    WHERE m.status = 1 AND m.message_type_name NOT LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'
    -- end
) AS bounded;
-- end

-- name: weigh
-- a row for each of the chosen: whether its payload is over the limit of the queue that it shall go to, NULL where it is none of its kind
-- An error here would undo the whole transaction, so nothing is converted that may fail.
-- when design=claim|status|split|ring
DECLARE @keys nvarchar(max) = :keys;
SELECT
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    CAST(CASE
        WHEN b.payload IS NULL THEN NULL
        -- when target_payload=json
        -- As the one element of an array: ISJSON alone takes no scalars before SQL Server 2022.
        WHEN ISJSON(N'[' + b.payload + N']') = 0 THEN NULL
        WHEN (SELECT COUNT(*) FROM OPENJSON(CASE WHEN ISJSON(N'[' + b.payload + N']') = 1 THEN N'[' + b.payload + N']' END)) <> 1 THEN NULL
        -- end
        WHEN DATALENGTH(b.payload) > CAST(N'{target_max_bytes}' AS bigint) THEN 1
        ELSE 0
    END AS bit) AS too_long
FROM OPENJSON(@keys) AS k
-- when installed=yes
-- when design=claim
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.[{id}] = CAST(k.[value] AS uniqueidentifier)
-- end
-- when design=status|split|ring
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.[{id}] = CAST(k.[value] AS bigint)
-- end
-- end
-- when installed=no
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.[{id}] = CAST(k.[value] AS nvarchar(450))
-- end
-- when payload_beside=yes
INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.id = d.id
-- end
CROSS APPLY (
    SELECT
        -- when payload_beside=yes
        -- when target_payload=text|json
        CAST(d.text_data AS nvarchar(max)) AS payload
        -- end
        -- when target_payload=bytes
        CAST(d.text_data AS varbinary(max)) AS payload
        -- end
        -- end
        -- when payload_beside=no
        -- when target_payload=text|json
        CAST(m.[{payload}] AS nvarchar(max)) AS payload
        -- end
        -- when target_payload=bytes
        CAST(m.[{payload}] AS varbinary(max)) AS payload
        -- end
        -- end
) AS b;
-- end

-- name: push_to
-- one row: how many messages left the queue, and how many the other queue's own push took; the others stay
-- One push after the other, as in push_back.
-- when design=claim|status|split|ring
SET NOCOUNT ON;
DECLARE @places nvarchar(max) = :places;
DECLARE @at int = 0, @count int, @taken_out bigint = 0, @put_in bigint = 0;
-- when target_payload=text|json
DECLARE @payload nvarchar(max);
-- end
-- when target_payload=bytes
DECLARE @payload varbinary(max);
-- end
-- when titles=yes
DECLARE @title nvarchar(max);
-- end
-- when installed=yes
-- when design=claim
DECLARE @place uniqueidentifier;
DECLARE @chosen TABLE (position int NOT NULL PRIMARY KEY, place uniqueidentifier NOT NULL);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS uniqueidentifier)
FROM OPENJSON(@places) AS p;
-- end
-- when design=status|split|ring
DECLARE @place bigint;
DECLARE @chosen TABLE (position int NOT NULL PRIMARY KEY, place bigint NOT NULL);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS bigint)
FROM OPENJSON(@places) AS p;
-- end
-- end
-- when installed=no
DECLARE @place nvarchar(450);
DECLARE @chosen TABLE (position int NOT NULL PRIMARY KEY, place nvarchar(450) NOT NULL);
INSERT INTO @chosen (position, place)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS nvarchar(450))
FROM OPENJSON(@places) AS p;
-- end
DECLARE @answer TABLE (id nvarchar(36) NULL);
SET @count = (SELECT COUNT(*) FROM @chosen);
WHILE @at < @count
BEGIN
    SET @place = (SELECT c.place FROM @chosen AS c WHERE c.position = @at);
    SET @payload = NULL;
    SELECT
        -- when titles=yes
        @title = m.title,
        -- end
        -- when payload_beside=yes
        @payload = d.text_data
        -- end
        -- when payload_beside=no
        -- when target_payload=text|json
        @payload = CAST(m.[{payload}] AS nvarchar(max))
        -- end
        -- when target_payload=bytes
        @payload = CAST(m.[{payload}] AS varbinary(max))
        -- end
        -- end
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    -- when payload_beside=yes
    INNER JOIN [{schema}].[{queue}_data] AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON m.id = d.id
    -- end
    WHERE m.[{id}] = @place;
    DELETE FROM @answer;
    -- when titles=yes
    INSERT INTO @answer (id) EXEC [{target_schema}].[{target}_push] @payload = @payload, @title = @title;
    -- end
    -- when titles=no
    INSERT INTO @answer (id) EXEC [{target_schema}].[{target}_push] @payload = @payload;
    -- end
    IF NOT EXISTS (SELECT 1 FROM @answer AS r WHERE r.id IS NOT NULL)
    BEGIN
        -- A full ring.
        BREAK;
    END;
    SET @put_in += 1;
    -- when payload_beside=yes
    DELETE FROM [{schema}].[{queue}_data] WITH (ROWLOCK) WHERE id = @place;
    -- end
    DELETE FROM [{schema}].[{table}] WITH (ROWLOCK) WHERE [{id}] = @place;
    SET @taken_out += @@ROWCOUNT;
    SET @at += 1;
END;
SELECT
    @taken_out AS taken_out,
    @put_in AS put_in;
-- end

-- name: living
-- a row for each of the sessions, as claimed_by names them, that is there: who, and from where
-- The host as the client called it: its address is for logins with more rights.
DECLARE @sessions nvarchar(max) = :sessions;
SELECT
    w.session AS session,
    CAST(s.session_id AS int) AS session_id,
    s.login_name AS user_name,
    s.program_name AS application_name,
    s.host_name AS client_address,
    s.status AS state
FROM (
    SELECT
        asked.[value] COLLATE DATABASE_DEFAULT AS session,
        -- ABS: of a text without a blank in its place, whatever is computed first, no error.
        CASE WHEN asked.[value] LIKE N'session=[0-9]% login=%'
            THEN TRY_CAST(SUBSTRING(asked.[value], 9, ABS(CHARINDEX(N' ', asked.[value]) - 9)) AS int)
        END AS session_id
    FROM OPENJSON(@sessions) AS asked
) AS w
INNER JOIN sys.dm_exec_sessions AS s ON w.session_id = s.session_id
ORDER BY s.session_id;
