-- What operators do with messages: each statement is one batch of an action, in a transaction that begins with
-- `lock_rows`. The plan was made earlier; only rows that are still in the same state, and that nobody holds, are locked
-- and acted on.
--
-- Rows are in a storage: the queue's table, a ring's slots, or its in_hand. A row has no address that a statement could
-- seek (%%physloc%% is undocumented and needs a scan), so it is addressed by its clustered key. UPDLOCK holds it to the
-- end of the transaction; READPAST skips what others hold, and needs READCOMMITTEDLOCK where READ_COMMITTED_SNAPSHOT is
-- on. LOOP JOIN, FORCE ORDER: key seeks from the chosen rows, because a scan would lock everything it meets. A batch has
-- at most 4,000 rows, of an adopted table 4,000 rows and index keys, which stays below lock escalation. Other waits (an
-- index row that a consumer's transaction skipped) last at most the session's LOCK_TIMEOUT. A table without an index on its
-- id is scanned by every batch, and locked meanwhile.
--
-- Each batch counts its ledger: rows out of the source, rows into the target. The target is counted by reading it: a row
-- count does not show what a trigger did instead.

-- define: id_type
-- the type of a message's id, in the table and in the archive
bigint

-- define: location_type
{id_type} -- when installed=yes
-- when installed=no
-- Any type: the column's type decides how they are compared.
nvarchar(450) -- when narrow=no
-- But a varchar gives way to an nvarchar: without a seek each batch would lock all of the table.
varchar(900) -- when narrow=yes
-- end

-- define: chosen_keys
-- @chosen, from :keys, a JSON array (ids, a ring's numbers, or the broker's order numbers)
DECLARE @keys nvarchar(max) = :keys;
DECLARE @chosen TABLE (id {location_type} NOT NULL PRIMARY KEY); -- when installed=yes
DECLARE @chosen TABLE (id {location_type} NOT NULL); -- when installed=no
INSERT INTO @chosen (id) SELECT CAST(k.[value] AS {location_type}) FROM OPENJSON(@keys) AS k;

-- define: chosen_locations
-- @chosen: the row locations, as `lock_rows` returned them
DECLARE @chosen TABLE (location {location_type} NOT NULL PRIMARY KEY); -- when installed=yes
DECLARE @chosen TABLE (location {location_type} NOT NULL); -- when installed=no
INSERT INTO @chosen (location) SELECT CAST(p.[value] AS {location_type}) FROM OPENJSON(@locations) AS p;

-- define: row_location
{id}

-- define: by_key
-- A key with a collation of its own is error 468: another one would decide which rows are the same.
c.id = m.[{id}]

-- define: by_location
c.location = m.[{id}]

-- define: and_mine
-- where an id is not unique in its table

-- define: own_id
m.[{id}]

-- define: seek_by_key
-- A key seek for each chosen row; an adopted table may have no index for it.
OPTION (LOOP JOIN, FORCE ORDER) -- when installed=yes

-- define: state_held
-- null: a row that exists has not changed
CAST(NULL AS nvarchar(20))

-- define: state_in_hand
-- A row with an end is finished, whatever its other columns say.
CASE
    WHEN m.[{done_at}] IS NOT NULL THEN N'error' -- when role done_at
    WHEN m.[{error}] IS NOT NULL THEN N'error' -- when role error
    WHEN m.[{claimed_at}] IS NULL THEN N'ready'
    ELSE N'claimed'
END

-- define: chosen_rows
-- the rows of @chosen
{rows_by_key}

-- define: rows_by_key
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) -- when lock=yes
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) -- when lock=no
    ON {by_key}
-- when defined beside
-- when lock=yes
-- Only one of the two rows is not a message; the doctor reports those.
WHERE EXISTS (
    SELECT 1 FROM {beside} AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) WHERE d.id = m.id
)
-- end
-- end
{seek_by_key}

-- define: remove_rows
-- removes the rows of @chosen from the queue and counts them in @taken_out
{deleted}

-- define: deleted
-- Minus those that are still there.
DELETE m
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
{seek_by_key};
SELECT @taken_out = @@ROWCOUNT - COUNT_BIG(*)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
{seek_by_key};

-- define: payloads_taken_out
-- when defined beside
DELETE d
FROM @chosen AS c INNER JOIN {beside} AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = d.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end

-- define: batch_begins
-- for archive_rows: @chosen, and the values of its INSERT into the archive
-- @before: later rows of this action are this batch's; other sessions' rows have no action or another one.
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @state nvarchar(20) = :state;
DECLARE @reason nvarchar(400) = :reason;
DECLARE @action_id bigint = :action_id;
DECLARE @taken_out bigint = 0;
DECLARE @before bigint = COALESCE(
    (SELECT MAX(a.archive_id) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)), 0
);
{chosen_locations}

-- define: batch_ends
SELECT
    @taken_out AS taken_out,
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
        WHERE a.archive_id > @before AND a.action_id = @action_id
    ) AS put_in;

-- define: target_payload_type
nvarchar(max) -- when target_payload=text|json
varbinary(max) -- when target_payload=bytes

-- define: new_id
-- for a message restored under another id; null: its table, or void_new_ids, numbers it
NULL

-- define: void_new_ids

-- name: server_time
-- one row: the server's clock, from which an action's cut-off is taken
-- Rounded up to a client's microseconds, so that a push within the same tick counts as before.
SELECT CAST(DATEADD(nanosecond, 400, SYSUTCDATETIME()) AS datetime2(6)) AS moment;

-- name: lock_rows
-- a row for each chosen row that exists: its location and its state (lock=yes: locked now, without those that others hold)
-- Without lock=yes nothing is skipped: a locked row is waited for and never seems to be missing.
{chosen_keys}
SELECT
    {row_location} AS location,
    CAST({own_id} AS nvarchar(450)) AS id,
    {state_held} AS state,
    CAST(m.[{attempts}] AS bigint) AS attempts, -- when role attempts
    CAST(NULL AS bigint) AS attempts, -- when no role attempts
    -- when hashed=yes
    -- when role error
    CONVERT(nvarchar(64), HASHBYTES(N'SHA2_256', COALESCE(CAST(m.[{error}] AS nvarchar(max)), N'')), 2) AS error_hash
    -- end
    CAST(NULL AS nvarchar(64)) AS error_hash -- when no role error
    -- end
    CAST(NULL AS nvarchar(64)) AS error_hash -- when hashed=no
{chosen_rows};

-- name: lock_chosen
-- one row: how many of the chosen rows are as they were chosen, and their locations; these are locked now
-- They are `chosen` of common.sql: each with its id and attempts as a mark. Those that others hold are not among them.
SET NOCOUNT ON;
DECLARE @state nvarchar(20) = :state;
DECLARE @marks nvarchar(max) = :marks;
DECLARE @wanted TABLE (mark nvarchar(450) NOT NULL PRIMARY KEY);
DECLARE @held TABLE (location nvarchar(450) NOT NULL, mark nvarchar(450) NOT NULL, [state] nvarchar(20) NULL);
{chosen_keys}
INSERT INTO @wanted (mark) SELECT w.[value] FROM OPENJSON(@marks) AS w;
INSERT INTO @held (location, mark, [state])
SELECT
    CAST({row_location} AS nvarchar(450)),
    CONCAT(CAST({own_id} AS nvarchar(400)), N' ', CAST(m.[{attempts}] AS bigint)), -- when role attempts
    CONCAT(CAST({own_id} AS nvarchar(400)), N' '), -- when no role attempts
    {state_held}
{chosen_rows};
SELECT
    COUNT_BIG(*) AS locked,
    COALESCE(N'[' + STRING_AGG(CAST(N'"' + STRING_ESCAPE(h.location, N'json') + N'"' AS nvarchar(max)), N',') + N']', N'[]') AS locations
FROM @held AS h
INNER JOIN @wanted AS w ON h.mark = w.mark
WHERE h.[state] = @state OR h.[state] IS NULL;

-- name: unpack_chosen
-- a row for each of the chosen
DECLARE @keys nvarchar(max) = :keys;
DECLARE @marks nvarchar(max) = :marks;
DECLARE @due nvarchar(max) = :due;
SELECT
    k.[value] AS [key],
    LEFT(w.[value], LEN(w.[value] + N'.') - CHARINDEX(N' ', REVERSE(w.[value])) - 1) AS id,
    TRY_CAST(NULLIF(RIGHT(w.[value], CHARINDEX(N' ', REVERSE(w.[value])) - 1), N'') AS bigint) AS attempts,
    d.[value] AS due
FROM OPENJSON(@keys) AS k
LEFT JOIN OPENJSON(@marks) AS w ON k.[key] = w.[key]
LEFT JOIN OPENJSON(@due) AS d ON k.[key] = d.[key];

-- name: archive_end
-- one row: the highest number in the archive
SELECT COALESCE(MAX(a.archive_id), 0) AS archive_id FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK);

-- name: archived_after
-- a row for each of these that entered the archive after that number: its state
SELECT
    CAST(a.id AS nvarchar(450)) AS id,
    a.state AS state
FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK)
WHERE a.archive_id > CAST(:archive_id AS bigint)
AND EXISTS (
    SELECT 1 FROM OPENJSON(CAST(:ids AS nvarchar(max))) AS k
    WHERE k.[value] COLLATE DATABASE_DEFAULT = CAST(a.id AS nvarchar(450))
)
ORDER BY a.archive_id;

-- name: archive_rows
-- one row: how many messages left the queue, and how many entered its archive
-- Not OUTPUT ... INTO, which has no order: the archive numbers messages in the order of their pushes, which is the order
-- in which they are pushed back.
{batch_begins}
INSERT INTO [{schema}].[{queue}_archive] (
    id,
    payload,
    title, -- when defined title
    pushed_at, -- when role pushed_at
    due_at, -- when role due_at
    claimed_at, -- when role claimed_at
    claimed_by, -- when role claimed_by
    done_at, -- when role done_at
    error, -- when role error
    state,
    attempts,
    reason,
    action_id
)
SELECT
    {own_id},
    {joined_payload},
    {title}, -- when defined title
    m.[{pushed_at}], -- when role pushed_at
    m.[{due_at}], -- when role due_at
    m.[{claimed_at}], -- when role claimed_at
    m.[{claimed_by}], -- when role claimed_by
    m.[{done_at}], -- when role done_at
    m.[{error}], -- when role error
    @state,
    m.[{attempts}], -- when role attempts
    0, -- when no role attempts
    @reason,
    @action_id
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
INNER JOIN {beside} AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON m.id = d.id -- when defined beside
ORDER BY {push_order}
OPTION (LOOP JOIN, FORCE ORDER);
{payloads_taken_out}
{remove_rows}
{batch_ends}

-- name: delete_rows
-- one row: how many messages were deleted
-- For a split queue both rows are counted.
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @taken_out bigint = 0, @put_in bigint;
{chosen_locations}
-- when defined beside
{payloads_taken_out}
SET @put_in = @@ROWCOUNT;
-- end
{remove_rows}
SELECT
    @taken_out AS taken_out,
    COALESCE(@put_in, @taken_out) AS put_in;

-- name: cascades
-- a row for each foreign key by which the server changes further rows with a message that it deletes: how, and whether these are messages too
-- through: the table to whose rows they refer, where it is another one, whose rows it deletes with a message. The keys that
-- act form a tree: the server refuses any other (error 1785). A disabled one does nothing.
DECLARE @table int = OBJECT_ID(N'[{schema}].[{table}]');
WITH followed AS (
    SELECT
        k.object_id,
        k.parent_object_id,
        k.delete_referential_action
    FROM sys.foreign_keys AS k
    WHERE k.referenced_object_id = @table AND k.delete_referential_action > 0 AND k.is_disabled = 0
    UNION ALL
    SELECT
        k.object_id,
        k.parent_object_id,
        k.delete_referential_action
    FROM followed AS f
    INNER JOIN sys.foreign_keys AS k ON f.parent_object_id = k.referenced_object_id AND f.delete_referential_action = 1
    WHERE k.delete_referential_action > 0 AND k.is_disabled = 0
)

SELECT
    CAST(k.name AS nvarchar(128)) AS name,
    CONCAT(OBJECT_SCHEMA_NAME(k.parent_object_id), N'.', OBJECT_NAME(k.parent_object_id)) AS of_table,
    CASE k.delete_referential_action WHEN 1 THEN N'delete' WHEN 2 THEN N'null' ELSE N'default' END AS effect,
    CASE
        WHEN k.referenced_object_id <> @table
            THEN CONCAT(OBJECT_SCHEMA_NAME(k.referenced_object_id), N'.', OBJECT_NAME(k.referenced_object_id))
    END AS through,
    CAST(CASE WHEN k.parent_object_id = @table THEN 1 ELSE 0 END AS bit) AS of_messages
FROM followed AS f
INNER JOIN sys.foreign_keys AS k ON f.object_id = k.object_id
ORDER BY of_table, name;

-- name: delete_triggers
-- a row for each trigger that the server runs when messages are deleted: its name, and whether it runs instead
SELECT
    CAST(t.name AS nvarchar(128)) AS name,
    t.is_instead_of_trigger AS instead
FROM sys.triggers AS t
INNER JOIN sys.trigger_events AS e ON t.object_id = e.object_id
WHERE t.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND t.is_disabled = 0 AND e.type_desc = N'DELETE'
ORDER BY t.name;

-- name: make_ready
-- one row: how many claimed or failed messages are ready again; their attempts stay counted
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @taken_out bigint = 0;
DECLARE @now datetime2(7) = SYSUTCDATETIME(); -- when to_back=yes
DECLARE @chosen TABLE (position int NOT NULL, location {location_type} NOT NULL PRIMARY KEY); -- when installed=yes
DECLARE @chosen TABLE (position int NOT NULL, location {location_type} NOT NULL); -- when installed=no
INSERT INTO @chosen (position, location)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS {location_type})
FROM OPENJSON(@locations) AS p;
UPDATE m
SET
    -- when keeps_history=yes
    -- A released claim is kept in the history too, without an error.
    history = CASE WHEN m.[{error}] IS NOT NULL THEN m.history ELSE (
        SELECT TOP (CAST(N'{history}' AS int))
            e.[at],
            e.[by],
            e.attempt,
            e.error
        FROM (
            SELECT
                0 AS position,
                SYSUTCDATETIME() AS [at],
                m.[{claimed_by}] COLLATE DATABASE_DEFAULT AS [by],
                m.[{attempts}] AS attempt,
                CAST(NULL AS nvarchar(1000)) COLLATE DATABASE_DEFAULT AS error
            UNION ALL
            SELECT
                1 + CAST(p.[key] AS int),
                CAST(JSON_VALUE(p.[value], N'$.at') AS datetime2(7)),
                JSON_VALUE(p.[value], N'$.by') COLLATE DATABASE_DEFAULT,
                CAST(JSON_VALUE(p.[value], N'$.attempt') AS int),
                JSON_VALUE(p.[value], N'$.error') COLLATE DATABASE_DEFAULT
            FROM OPENJSON(m.history) AS p
        ) AS e
        ORDER BY e.position
        FOR JSON PATH, INCLUDE_NULL_VALUES
    ) END,
    -- end
    [{error}] = NULL, -- when role error
    [{done_at}] = NULL, -- when role done_at
    [{claimed_by}] = NULL, -- when role claimed_by
    -- when to_back=yes
    -- A microsecond apart, in the chosen order.
    [{pushed_at}] = DATEADD(microsecond, c.position, @now),
    -- end
    -- when role status
    [{claimed_at}] = NULL, -- when role claimed_at
    [{status}] = 0
    -- end
    [{claimed_at}] = NULL -- when no role status
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
{seek_by_key};
SET @taken_out = @@ROWCOUNT;
SELECT
    @taken_out AS taken_out,
    COUNT_BIG(*) AS put_in
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON {by_location}
WHERE {is_ready_again}
{seek_by_key};

-- define: judged_archived
-- the next :read_limit rows of the archive as rows l, and whether each matches (t.matches)
-- READPAST: rows that others are moving are skipped without waiting. Texts are compared as in `matching` of common.sql.
FROM (
    SELECT TOP (CAST(:read_limit AS bigint))
        ROW_NUMBER() OVER (ORDER BY a.archive_id) AS position,
        a.archive_id,
        a.id,
        a.state,
        a.pushed_at,
        a.due_at, -- when role due_at
        CAST(NULL AS datetime2(7)) AS due_at, -- when no role due_at
        a.attempts,
        a.claimed_at,
        a.claimed_by,
        a.done_at,
        a.title, -- when defined title
        CAST(NULL AS nvarchar(255)) AS title, -- when not defined title
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
            -- A popped message was delivered: it is selected by its own option only.
            WHEN l.reason <> N'pop' THEN 0 -- when popped=yes
            WHEN l.reason = N'pop' THEN 0 -- when popped=no
            WHEN l.state <> CAST(:state AS nvarchar(20)) THEN 0 -- when by_state=yes
            WHEN l.action_id <> CAST(:action AS bigint) OR l.action_id IS NULL THEN 0 -- when by_action=yes
            -- when by_reason=yes
            -- CHARINDEX does not find an empty text in an empty one.
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
            WHEN CAST(l.id AS nvarchar(450)) <> CAST(:id AS nvarchar(450)) THEN 0 -- when by_id=yes
            {is_other}
            ELSE 1
        END AS bit) AS matches
) AS t

-- define: is_reserved
-- for row a of the archive: 1 if a plan of the pipeline has it
-- when lakes=yes
CASE WHEN EXISTS (
    SELECT 1 FROM dbq.lake_row AS r WITH (READCOMMITTEDLOCK)
    INNER JOIN dbq.lake_plan AS p WITH (READCOMMITTEDLOCK) ON r.plan_id = p.plan_id
    WHERE
        p.schema_name = N'{schema}' AND p.queue_name = N'{queue}'
        AND r.archive_id = a.archive_id AND r.archived_at = a.archived_at
) THEN 1 ELSE 0 END
-- end
0 -- when lakes=no

-- define: is_too_long
-- for row a of the archive: 1 if it is
CASE WHEN DATALENGTH(a.payload) > CAST(N'{max_bytes}' AS bigint) THEN 1 ELSE 0 END -- when limited=yes
0 -- when limited=no

-- define: comes_back_as_it_was
-- for row a of the archive: 1 if it does; a ring's popped messages were in in_hand, whatever their state there
1 -- when rows=kept
CASE WHEN a.[state] IN (N'claimed', N'error') OR a.attempts > 0 THEN 1 ELSE 0 END -- when rows=popped
0 -- when rows=pushed

-- define: id_is_free
-- for row a of the archive: 1 if it is. READUNCOMMITTED: an id that somebody is just writing is not free, and there is no
-- waiting for them.
CASE
    WHEN EXISTS (SELECT 1 FROM [{schema}].[{table}] AS m WITH (READUNCOMMITTED) WHERE m.id = a.id) THEN 0
    WHEN COALESCE({may_insert_ids}, 0) = 0 THEN 0 -- when defined may_insert_ids
    ELSE 1
END

-- define: restored_as
-- for row a of the archive: what restore would do with it
CASE
    WHEN {is_reserved} = 1 THEN N'reserved' -- when lakes=yes
    WHEN {is_too_long} = 1 THEN N'too_long' -- when limited=yes
    WHEN {comes_back_as_it_was} = 0 THEN N'pushed' -- when rows=popped
    WHEN {id_is_free} = 1 THEN N'own_id' -- when rows=kept|popped
    WHEN a.archive_id IS NOT NULL THEN N'pushed' -- when rows=pushed
    ELSE N'new_id'
END

-- name: matching_archived
-- of the next :read_limit rows of the archive: at most :n that match, and the last row whether it matches or not
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
{judged_archived}
WHERE t.matches = 1 OR l.position = CAST(:read_limit AS bigint)
ORDER BY l.archive_id;

-- name: counted_archived
-- of the next :read_limit rows of the archive, by state and what restore would do with them: how many match, bytes and ages
-- A row for each, also for rows that do not match, with 0. position, key: of the last row. bytes: NULL unless that of each is
-- known.
DECLARE @moment datetime2(7) = :moment;
SELECT
    MAX(f.last_position) AS position,
    CAST(NULL AS nvarchar(27)) AS key_time,
    CAST(MAX(f.last_id) AS nvarchar(450)) AS key_id,
    f.[state] AS [state],
    f.label AS label,
    0 AS side,
    COUNT_BIG(f.label) AS matching,
    CASE
        WHEN COUNT_BIG(CASE WHEN f.label IS NOT NULL AND f.payload_bytes IS NULL THEN 1 END) = 0
            THEN SUM(CASE WHEN f.label IS NOT NULL THEN f.payload_bytes ELSE 0 END)
    END AS payload_bytes,
    MAX(CASE WHEN f.label IS NOT NULL THEN f.age_seconds END) AS oldest_seconds,
    MIN(CASE WHEN f.label IS NOT NULL THEN f.age_seconds END) AS newest_seconds
FROM (
    SELECT
        MAX(r.position) OVER () AS last_position,
        MAX(r.archive_id) OVER () AS last_id,
        r.[state],
        r.label,
        r.payload_bytes,
        r.age_seconds
    FROM (
        SELECT
            l.position,
            l.archive_id,
            l.[state],
            CAST(DATALENGTH(l.payload) AS bigint) AS payload_bytes,
            CAST(DATEDIFF_BIG(microsecond, l.archived_at, @moment) / 1e6 AS float) AS age_seconds,
            CASE WHEN t.matches = 1 THEN b.label END AS label
        {judged_archived}
        OUTER APPLY (
            SELECT {restored_as} AS label
            FROM (SELECT l.archive_id, l.archived_at, l.id, l.[state], l.attempts, l.payload) AS a
            WHERE t.matches = 1
        ) AS b
    ) AS r
) AS f
GROUP BY f.[state], f.label;

-- name: chosen_archived
-- one row: of the next :read_limit rows of the archive, the first :n that match, as an array for `lock_archived`
-- position, key: of the last row that was considered. No row if there are none.
DECLARE @moment datetime2(7) = :moment;
SELECT
    MAX(r.position) AS position,
    CAST(NULL AS nvarchar(27)) AS key_time,
    CAST(MAX(r.archive_id) AS nvarchar(450)) AS key_id,
    CAST(NULL AS nvarchar(max)) AS label,
    0 AS side,
    COUNT_BIG(CASE WHEN r.matches = 1 THEN 1 END) AS matching,
    N'[' + STRING_AGG(CASE WHEN r.matches = 1 THEN CAST(r.archive_id AS nvarchar(max)) END, N',') + N']' AS keys,
    CAST(NULL AS nvarchar(max)) AS marks,
    CAST(NULL AS nvarchar(max)) AS due
FROM (
    SELECT
        l.position,
        l.archive_id,
        t.matches,
        SUM(CASE WHEN t.matches = 1 THEN 1 ELSE 0 END) OVER (ORDER BY l.position ROWS UNBOUNDED PRECEDING) AS until_here
    {judged_archived}
) AS r
WHERE r.until_here <= CAST(:n AS bigint)
HAVING COUNT_BIG(*) > 0;

-- name: last_purge
-- one row: of the :read_limit archived rows before a number: how many there are, the lowest, and the last purge among them
DECLARE @moment datetime2(7) = :moment;
SELECT
    COUNT_BIG(*) AS rows_read,
    MIN(l.archive_id) AS lowest,
    MAX(l.purge_id) AS action_id
FROM (
    SELECT TOP (CAST(:read_limit AS bigint))
        a.archive_id,
        CASE WHEN (a.reason = N'purge' OR a.reason LIKE N'purge: %') AND a.archived_at <= @moment THEN a.action_id END AS purge_id
    FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    WHERE a.archive_id < COALESCE(CAST(:before AS bigint), CAST(9223372036854775807 AS bigint))
    ORDER BY a.archive_id DESC
) AS l;

-- name: lock_lake_plan
-- one row at most: how far the archive is on its way into a lake; no plan reserves rows until the transaction ends
SELECT p.[state] AS [state] FROM dbq.lake_plan AS p WITH (UPDLOCK, HOLDLOCK)
WHERE p.schema_name = N'{schema}' AND p.queue_name = N'{queue}';

-- define: chosen_archive_ids
DECLARE @keys nvarchar(max) = :keys;
DECLARE @chosen TABLE (archive_id bigint NOT NULL PRIMARY KEY);
INSERT INTO @chosen (archive_id) SELECT CAST(k.[value] AS bigint) FROM OPENJSON(@keys) AS k;

-- name: labelled_archived
-- a row for each chosen row of the archive that exists: what restore would do with it
{chosen_archive_ids}
SELECT
    a.archive_id AS archive_id,
    {restored_as} AS label
FROM @chosen AS c
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON c.archive_id = a.archive_id
OPTION (LOOP JOIN, FORCE ORDER);

-- name: lock_archived
-- one row: how many of the chosen rows of the archive exist and nobody holds, and what restore does with them; locked now
-- kept_keys, pushed_keys: of those that come back as they were, and of those that are pushed again.
SET NOCOUNT ON;
{chosen_archive_ids}
DECLARE @held TABLE (archive_id bigint NOT NULL, reserved bit NOT NULL, too_long bit NOT NULL, kept bit NOT NULL);
INSERT INTO @held (archive_id, reserved, too_long, kept)
SELECT
    a.archive_id,
    {is_reserved},
    {is_too_long},
    {comes_back_as_it_was}
FROM @chosen AS c
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) ON c.archive_id = a.archive_id
OPTION (LOOP JOIN, FORCE ORDER);
SELECT
    COUNT_BIG(*) AS locked,
    COUNT_BIG(CASE WHEN h.reserved = 1 THEN 1 END) AS reserved,
    COUNT_BIG(CASE WHEN h.reserved = 0 AND h.too_long = 1 THEN 1 END) AS too_long,
    COUNT_BIG(CASE WHEN h.reserved = 0 AND h.too_long = 0 AND h.kept = 1 THEN 1 END) AS kept,
    COALESCE(N'[' + STRING_AGG(
        CASE WHEN h.reserved = 0 AND h.too_long = 0 AND h.kept = 1 THEN CAST(h.archive_id AS nvarchar(max)) END, N','
    ) + N']', N'[]') AS kept_keys,
    COUNT_BIG(CASE WHEN h.reserved = 0 AND h.too_long = 0 AND h.kept = 0 THEN 1 END) AS pushed,
    COALESCE(N'[' + STRING_AGG(
        CASE WHEN h.reserved = 0 AND h.too_long = 0 AND h.kept = 0 THEN CAST(h.archive_id AS nvarchar(max)) END, N','
    ) + N']', N'[]') AS pushed_keys
FROM @held AS h;

-- name: restore_rows
-- one row: how many rows left the archive, and how many messages are back in the queue, in their former state
-- ids=kept: a row whose id is taken, by a message or in the same batch, stays; ids=new gives it a new one. An id taken at
-- this very moment is an error that undoes the batch; the next try sees it.
SET NOCOUNT ON;
DECLARE @keys nvarchar(max) = :keys;
DECLARE @taken_out bigint = 0;
DECLARE @wanted TABLE (archive_id bigint NOT NULL PRIMARY KEY, id {location_type} NULL);
DECLARE @kept TABLE (archive_id bigint NOT NULL PRIMARY KEY, id {location_type} NOT NULL);
-- when ids=kept
INSERT INTO @wanted (archive_id, id)
SELECT
    MIN(a.archive_id),
    a.id
FROM OPENJSON(@keys) AS k
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON a.archive_id = CAST(k.[value] AS bigint)
WHERE NOT EXISTS (SELECT 1 FROM [{schema}].[{table}] AS m WITH (READUNCOMMITTED) WHERE m.id = a.id)
-- when defined beside
-- An id of which only one of the two rows is left is taken, too.
AND NOT EXISTS (SELECT 1 FROM {beside} AS d WITH (READUNCOMMITTED) WHERE d.id = a.id)
-- end
AND {may_insert_ids} = 1 -- when defined may_insert_ids
GROUP BY a.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when ids=new
INSERT INTO @wanted (archive_id, id)
SELECT
    a.archive_id,
    {new_id}
FROM OPENJSON(@keys) AS k
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON a.archive_id = CAST(k.[value] AS bigint)
OPTION (LOOP JOIN, FORCE ORDER);
{void_new_ids}
-- end
IF EXISTS (SELECT 1 FROM @wanted)
BEGIN
    -- when ids=kept
    -- when defined may_insert_ids
    SET IDENTITY_INSERT [{schema}].[{table}] ON;
    BEGIN TRY
    -- end
    -- end
    -- A MERGE that only inserts: no other insert's OUTPUT tells the source row.
    MERGE INTO [{schema}].[{table}] WITH (ROWLOCK) AS m
    USING (
        SELECT
            w.archive_id,
            w.id,
            a.payload,
            CAST(COALESCE(a.title, N'') AS nvarchar(255)) AS title, -- when defined title
            CASE a.state WHEN N'ready' THEN 0 WHEN N'done' THEN 2 ELSE 4 END AS status, -- when role status
            COALESCE(a.pushed_at, SYSUTCDATETIME()) AS pushed_at,
            a.attempts,
            -- A claim is restored as an error: its owner does not know, and nobody should process it unasked.
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
        id, -- when ids=kept
        -- when ids=new
        id, -- when not defined may_insert_ids
        -- end
        [{payload}], -- when not defined beside
        title, -- when defined title
        [{status}], -- when role status
        [{pushed_at}],
        [{attempts}],
        [{error}],
        [{claimed_at}],
        [{claimed_by}],
        [{done_at}]
    )
    VALUES (
        s.id, -- when ids=kept
        -- when ids=new
        s.id, -- when not defined may_insert_ids
        -- end
        s.payload, -- when not defined beside
        s.title, -- when defined title
        s.status, -- when role status
        s.pushed_at,
        s.attempts,
        s.error,
        s.claimed_at,
        s.claimed_by,
        s.done_at
    )
    OUTPUT s.archive_id, inserted.id INTO @kept (archive_id, id);
    -- when ids=kept
    -- when defined may_insert_ids
    END TRY
    BEGIN CATCH
        -- A rollback undoes everything but this session setting.
        SET IDENTITY_INSERT [{schema}].[{table}] OFF;
        THROW;
    END CATCH;
    SET IDENTITY_INSERT [{schema}].[{table}] OFF;
    -- end
    -- end
    -- when defined beside
    INSERT INTO {beside} WITH (ROWLOCK) (id, text_data)
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
INNER JOIN {beside} AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON k.id = d.id -- when defined beside
OPTION (LOOP JOIN, FORCE ORDER);

-- name: restore_by_push
-- one row: how many rows left the archive, and how many the queue's push accepted; the others stay
-- One push after the other: an array would hold all payloads of a batch in memory, and before SQL Server 2022 rows cannot
-- be turned into one cleanly.
SET NOCOUNT ON;
DECLARE @keys nvarchar(max) = :keys;
DECLARE @archive_id bigint = 0, @put_in bigint = 0, @taken_out bigint;
DECLARE @payload {payload_type};
DECLARE @due_time datetime2(7); -- when role due_at
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
        @due_time = a.due_at, -- when role due_at
        @payload = a.payload
    FROM [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) WHERE a.archive_id = @archive_id;
    IF @payload IS NULL
    BEGIN
        CONTINUE;
    END;
    DELETE FROM @answer;
    -- when role due_at
    INSERT INTO @answer (id) EXEC [{schema}].[{queue}_push] @payload = @payload, @due_time = @due_time;
    -- end
    INSERT INTO @answer (id) EXEC [{schema}].[{queue}_push] @payload = @payload; -- when no role due_at
    IF NOT EXISTS (SELECT 1 FROM @answer AS r WHERE r.id IS NOT NULL)
    BEGIN
        -- The ring is full. Later rows of the archive must not overtake the row that it refused.
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

-- name: target_state
-- one row: how many messages are ready (counted to 10,001) and, for a ring, how many more fit, and how many after a relay
SELECT
    COUNT_BIG(*) AS ready,
    CAST(NULL AS bigint) AS room,
    CAST(NULL AS bigint) AS voids
FROM (
    SELECT TOP (10001) 1 AS one
    FROM [{schema}].[{table}] AS m {reading}
    WHERE {is_live} -- when defined is_live
) AS bounded;

-- name: oversized
-- a row for each of the chosen: whether its payload is over the target queue's limit, NULL where it is not of its kind
-- An error would undo the whole transaction, so no conversion here can fail.
DECLARE @keys nvarchar(max) = :keys;
SELECT
    CAST(m.[{id}] AS nvarchar(450)) AS id,
    CAST(CASE
        WHEN b.payload IS NULL THEN NULL
        -- when target_payload=json
        -- As the one element of an array: ISJSON takes no scalars before SQL Server 2022.
        WHEN ISJSON(N'[' + b.payload + N']') = 0 THEN NULL
        WHEN (SELECT COUNT(*) FROM OPENJSON(CASE WHEN ISJSON(N'[' + b.payload + N']') = 1 THEN N'[' + b.payload + N']' END)) <> 1 THEN NULL
        -- end
        WHEN DATALENGTH(b.payload) > CAST(N'{target_max_bytes}' AS bigint) THEN 1
        ELSE 0
    END AS bit) AS too_long
FROM OPENJSON(@keys) AS k
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ON m.[{id}] = CAST(k.[value] COLLATE DATABASE_DEFAULT AS {location_type}) {and_mine}
INNER JOIN {beside} AS d WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK) ON m.id = d.id -- when defined beside
CROSS APPLY (SELECT CAST({joined_payload} AS {target_payload_type}) AS payload) AS b;

-- name: push_to
-- one row: how many messages left the queue, and how many the target queue's push accepted; the others stay
-- One push after the other, as in restore_by_push.
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @at int = 0, @count int, @taken_out bigint = 0, @put_in bigint = 0;
DECLARE @payload {target_payload_type};
DECLARE @title nvarchar(max); -- when titles=yes
DECLARE @location {location_type};
DECLARE @chosen TABLE (position int NOT NULL PRIMARY KEY, location {location_type} NOT NULL);
INSERT INTO @chosen (position, location)
SELECT
    CAST(p.[key] AS int),
    CAST(p.[value] AS {location_type})
FROM OPENJSON(@locations) AS p;
DECLARE @answer TABLE (id nvarchar(36) NULL);
SET @count = (SELECT COUNT(*) FROM @chosen);
WHILE @at < @count
BEGIN
    SET @location = (SELECT c.location FROM @chosen AS c WHERE c.position = @at);
    SET @payload = NULL;
    SELECT
        @title = {title}, -- when titles=yes
        @payload = CAST({joined_payload} AS {target_payload_type})
    FROM [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK)
    INNER JOIN {beside} AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON m.id = d.id -- when defined beside
    WHERE m.[{id}] = @location {and_mine};
    DELETE FROM @answer;
    -- when titles=yes
    INSERT INTO @answer (id) EXEC [{target_schema}].[{target}_push] @payload = @payload, @title = @title;
    -- end
    INSERT INTO @answer (id) EXEC [{target_schema}].[{target}_push] @payload = @payload; -- when titles=no
    IF NOT EXISTS (SELECT 1 FROM @answer AS r WHERE r.id IS NOT NULL)
    BEGIN
        -- The ring is full.
        BREAK;
    END;
    SET @put_in += 1;
    DELETE FROM {beside} WITH (ROWLOCK) WHERE id = @location; -- when defined beside
    DELETE m FROM [{schema}].[{table}] AS m WITH (ROWLOCK) WHERE m.[{id}] = @location {and_mine};
    SET @taken_out += @@ROWCOUNT;
    SET @at += 1;
END;
SELECT
    @taken_out AS taken_out,
    @put_in AS put_in;

-- name: live_sessions
-- a row for each of the sessions (as in claimed_by) that is still connected: user, program, address
-- The host name that the client gave: its address needs more rights.
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
        requested.[value] COLLATE DATABASE_DEFAULT AS session,
        -- ABS: a text without a blank must not cause an error, whatever is evaluated first.
        CASE WHEN requested.[value] LIKE N'session=[0-9]% login=%'
            THEN TRY_CAST(SUBSTRING(requested.[value], 9, ABS(CHARINDEX(N' ', requested.[value]) - 9)) AS int)
        END AS session_id
    FROM OPENJSON(@sessions) AS requested
) AS w
INNER JOIN sys.dm_exec_sessions AS s ON w.session_id = s.session_id
ORDER BY s.session_id;
