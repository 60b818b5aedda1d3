-- What all designs share: the archive, and the calls of a queue's public interface.
--
-- A procedure's argument cannot be an expression, so bound values are declared first. WITH RESULT SETS gives all designs
-- the same columns: an id is returned as text, whether it is a number or a uuid.

-- define: payload_type
nvarchar(max) -- when payload=text|json
varbinary(max) -- when payload=bytes

-- define: read_committed_only
-- refuses a caller at a higher isolation level
IF EXISTS (
    SELECT 1 FROM sys.dm_exec_sessions AS s
    WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
)
    THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;

-- define: in_shared_tier
-- whether this is a database of Azure that shares its server: a condition
CAST(DATABASEPROPERTYEX(DB_NAME(), N'ServiceObjective') AS nvarchar(64)) IN (N'Basic', N'S0', N'S1', N'ElasticPool')

-- define: sees_sessions_of_database
-- 1 or 0
CASE
    -- There the right on the database shows nothing (Microsoft's manual, sys.dm_exec_sessions, Permissions).
    WHEN {in_shared_tier}
        THEN
            CASE
                WHEN IS_SRVROLEMEMBER(N'##MS_ServerStateReader##') = 1 THEN 1
                WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE') = 1 THEN 1
                ELSE 0
            END
    WHEN HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'VIEW DATABASE STATE') = 1 THEN 1
    ELSE 0
END

-- define: sees_database_state
-- 1 or 0: its counters
CASE
    WHEN {sees_sessions_of_database} = 1 THEN 1
    WHEN {in_shared_tier}
        THEN 0
    -- From SQL Server 2022; older ones answer NULL.
    WHEN HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'VIEW DATABASE PERFORMANCE STATE') = 1 THEN 1
    ELSE 0
END

-- define: sees_server_state
-- 1 or 0; in Azure SQL Database and Fabric only the database's sessions are visible, not the server
CASE
    WHEN CAST(SERVERPROPERTY(N'EngineEdition') AS int) IN (5, 12) THEN {sees_sessions_of_database}
    WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE') = 1 THEN 1
    WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE') = 1 THEN 1
    ELSE 0
END

-- define: requests
-- of each session the one in place 1: with MARS it may have several, and then it is the blocked one, else the oldest
(
    SELECT
        q.session_id,
        q.status,
        q.command,
        q.start_time,
        q.wait_type,
        q.wait_time,
        q.blocking_session_id,
        q.sql_handle,
        q.statement_start_offset,
        q.statement_end_offset,
        ROW_NUMBER() OVER (
            PARTITION BY q.session_id ORDER BY CASE WHEN q.blocking_session_id <> 0 THEN 0 ELSE 1 END, q.start_time
        ) AS place
    FROM sys.dm_exec_requests AS q
)

-- define: owner_exists
-- The procedures run as dbq_owner, a user without login, rather than AS OWNER: that would require the right to impersonate
-- the owner, is not possible in a schema owned by a role, and after a restore without that owner every call fails (15517).
-- No schema changes its owner. See Microsoft's manual, "EXECUTE AS Clause".
IF DATABASE_PRINCIPAL_ID(N'dbq_owner') IS NULL
BEGIN
    CREATE USER dbq_owner WITHOUT LOGIN;
    IF DATABASE_PRINCIPAL_ID(N'dbq_admin') IS NOT NULL
        GRANT IMPERSONATE ON USER::dbq_owner TO dbq_admin;
END;

-- define: owned_already
-- The schema is that user's, and so is all in it: a grant to an owner is an error.
EXISTS (SELECT 1 FROM sys.schemas AS s WHERE s.name = N'{schema}' AND s.principal_id = DATABASE_PRINCIPAL_ID(N'dbq_owner'))

-- define: make_schema
-- Not in dbo: who may create procedures in a schema of dbo's reads all that dbo owns, by its ownership chains.
IF SCHEMA_ID(N'{schema}') IS NULL
    EXEC (N'CREATE SCHEMA [{schema}] AUTHORIZATION dbq_owner');

-- name: schema
-- script: the usual schema of queues, where it is missing; its owner is the user that procedures run as
{owner_exists}
{make_schema}

-- define: payload_in_bounds
-- refuses a @payload that is NULL, too long or no JSON
IF @payload IS NULL
    THROW 51002, N'The payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
-- when limited=yes
-- In bytes as stored: two for each UTF-16 unit of a text.
IF DATALENGTH(@payload) > CAST(N'{max_bytes}' AS bigint)
    THROW 51002, N'The payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
-- end
-- when payload=json
-- As the one element of an array: ISJSON alone takes no scalars before SQL Server 2022.
IF ISJSON(N'[' + @payload + N']') = 0
    THROW 51002, N'The payload is not valid JSON.||Send one JSON value as the payload.', 1;
IF (SELECT COUNT(*) FROM OPENJSON(N'[' + @payload + N']')) <> 1
    THROW 51002, N'The payload is not one JSON value.||Send one JSON value as the payload.', 1;
-- end

-- define: payloads_as_rows
-- @payloads, a JSON array, becomes the table @rows
IF ISJSON(@payloads) = 0
    THROW 51002, N'The payloads are not a JSON array.||Send an array of strings, one for each payload.', 1;
DECLARE @rows TABLE (
    position int NOT NULL PRIMARY KEY,
    payload {payload_type} NULL
);

-- define: rows_in_bounds
-- fills @rows and refuses payloads that are NULL, too long or no JSON
INSERT INTO @rows (position, payload)
SELECT CAST(j.[key] AS int), j.value FROM OPENJSON(@payloads) AS j; -- when payload=text|json
-- when payload=bytes
-- Hexadecimal digits; anything else becomes NULL, which is refused below.
SELECT CAST(j.[key] AS int), TRY_CONVERT(varbinary(max), j.value, 2) FROM OPENJSON(@payloads) AS j;
-- end
IF EXISTS (SELECT 1 FROM @rows AS r WHERE r.payload IS NULL)
    -- when payload=text|json
    THROW 51002, N'A payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
    -- end
    -- when payload=bytes
    THROW 51002, N'A payload is NULL or not hexadecimal digits.|A message needs a payload.|Send an empty payload instead.', 1;
    -- end
-- when limited=yes
IF EXISTS (SELECT 1 FROM @rows AS r WHERE DATALENGTH(r.payload) > CAST(N'{max_bytes}' AS bigint))
    THROW 51002, N'A payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
-- end
-- when payload=json
IF EXISTS (SELECT 1 FROM @rows AS r WHERE ISJSON(N'[' + r.payload + N']') = 0)
    THROW 51002, N'A payload is not valid JSON.||Send one JSON value as each payload.', 1;
IF EXISTS (SELECT 1 FROM @rows AS r WHERE (SELECT COUNT(*) FROM OPENJSON(N'[' + r.payload + N']')) <> 1)
    THROW 51002, N'A payload is not one JSON value.||Send one JSON value as each payload.', 1;
-- end

-- define: identify_claimant
-- sets @session, the claimant: session id and login time (converted from the server's local time); requires READ COMMITTED
DECLARE @isolation smallint, @session nvarchar(256) = CONCAT(N'session=', @@SPID);
SELECT
    @isolation = s.transaction_isolation_level,
    @session = CONCAT(@session, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
        minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
    ) AS datetime2(3)), 126), N'Z')
FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
IF @isolation IN (4, 5)
    THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
SET @session = CONCAT(@session, CASE WHEN @bound = 1 THEN N' bound' END, N' consumer=' + @consumer);

-- define: locked
-- for lock_all: each table that callers read from or write to
SELECT TOP (1) @held = 1 FROM [{schema}].[{table}] AS m WITH (TABLOCKX, HOLDLOCK);

-- define: lacks_payload
-- whether a claimed message has lost its payload
CAST(0 AS bit)

-- define: is_other
-- in a CASE over row l: an error, claimant or payload that the filters do not want
-- when by_error=yes
WHEN l.error IS NULL OR EXISTS (
    SELECT 1 FROM OPENJSON(CAST(:errors AS nvarchar(max))) AS e
    WHERE CHARINDEX(e.[value] COLLATE Latin1_General_100_CI_AS_SC, l.error COLLATE Latin1_General_100_CI_AS_SC) = 0
) THEN 0
-- end
-- when by_claimed_by=yes
-- The whole text, its session, or the consumer's name: "session=55 login=... bound consumer=worker-1".
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

-- define: payload_size
-- for row l: the column payload_bytes
CAST(DATALENGTH(l.payload) AS bigint) AS payload_bytes, -- when with_payload=yes
CAST(NULL AS bigint) AS payload_bytes, -- when with_payload=no

-- define: seconds_in_state
-- for row l, judged: how long it has been in its state
CAST(DATEDIFF_BIG(microsecond, s.since, COALESCE(CAST(:moment AS datetime2(7)), SYSUTCDATETIME())) / 1e6 AS float)

-- define: judged
-- the chunk as rows l, with the time since which a message is in its state (s.since), and whether it matches (t.matches)
FROM chunk AS l
CROSS APPLY (
    SELECT
        CASE
            WHEN l.state = N'ready' AND l.due_at > l.pushed_at THEN l.due_at
            WHEN l.state IN (N'ready', N'scheduled') THEN l.pushed_at
            WHEN l.state = N'claimed' THEN l.claimed_at
            ELSE l.done_at
        END AS since
) AS s
CROSS APPLY (
    SELECT
        CAST(CASE
            WHEN l.state IS NULL THEN 0
            -- when by_age=row
            -- What was pushed before the cut-off belongs to a plan, whenever it becomes due.
            -- when by_cutoff=yes
            WHEN CASE WHEN l.state = N'ready' THEN l.pushed_at ELSE s.since END > CAST(:moment AS datetime2(7))
                AND CASE WHEN l.state = N'ready' THEN l.pushed_at ELSE s.since END <= DATEADD(day, 1, SYSUTCDATETIME()) THEN 0
            -- end
            -- when by_older=yes
            WHEN s.since >= DATEADD(microsecond, 0 - CAST(:older_us AS int), DATEADD(second, 0 - CAST(:older_s AS int), COALESCE(CAST(:moment AS datetime2(7)), SYSUTCDATETIME())))
                OR s.since IS NULL THEN 0
            -- end
            -- when by_newer=yes
            WHEN s.since < DATEADD(microsecond, 0 - CAST(:newer_us AS int), DATEADD(second, 0 - CAST(:newer_s AS int), COALESCE(CAST(:moment AS datetime2(7)), SYSUTCDATETIME())))
                OR s.since IS NULL THEN 0
            -- end
            -- end
            WHEN l.id <> CAST(:id AS nvarchar(450)) OR l.id IS NULL THEN 0 -- when by_id=yes
            {is_other}
            ELSE 1
        END AS bit) AS matches
) AS t

-- define: key_time_text
-- for row l: the time in its key, from which the next chunk continues
CONVERT(nvarchar(27), l.key_time, 126) -- when sorted=time_up|time_down
CAST(NULL AS nvarchar(27)) -- when sorted=id_up|id_down|undated_up|undated_down|no

-- define: history_with_this_error
-- the message's history of errors and releases with this one, newest first
(
    SELECT TOP (CAST(N'{history}' AS int))
        e.[at],
        e.[by],
        e.attempt,
        e.error
    FROM (
        SELECT
            0 AS place,
            SYSUTCDATETIME() AS [at],
            claimed_by COLLATE DATABASE_DEFAULT AS [by],
            attempts AS attempt,
            LEFT(COALESCE(@error, N''), 1000) COLLATE DATABASE_DEFAULT AS error
        UNION ALL
        SELECT
            1 + CAST(p.[key] AS int),
            CAST(JSON_VALUE(p.[value], N'$.at') AS datetime2(7)),
            JSON_VALUE(p.[value], N'$.by') COLLATE DATABASE_DEFAULT,
            CAST(JSON_VALUE(p.[value], N'$.attempt') AS int),
            JSON_VALUE(p.[value], N'$.error') COLLATE DATABASE_DEFAULT
        FROM OPENJSON(history) AS p
    ) AS e
    ORDER BY e.place
    FOR JSON PATH, INCLUDE_NULL_VALUES
)

-- name: archive
-- script: the archive, for purged and archived messages, and popped ones with archive_at_pop=on
CREATE TABLE [{schema}].[{queue}_archive] (
    archive_id bigint IDENTITY(1, 1) NOT NULL,
    id {id_type} NOT NULL,
    payload {payload_type} NOT NULL,
    title nvarchar(max) NULL, -- when defined title
    pushed_at datetime2(7) NULL,
    due_at datetime2(7) NULL, -- when role due_at
    claimed_at datetime2(7) NULL,
    claimed_by nvarchar(max) NULL,
    done_at datetime2(7) NULL,
    state nvarchar(20) NOT NULL,
    attempts int NOT NULL,
    error nvarchar(max) NULL,
    reason nvarchar(400) NOT NULL,
    action_id bigint NULL,
    archived_at datetime2(7) NOT NULL CONSTRAINT [{queue}_archive_time] DEFAULT SYSUTCDATETIME(),
    CONSTRAINT [{queue}_archive_key] PRIMARY KEY CLUSTERED (archive_id) WITH (ALLOW_PAGE_LOCKS = OFF)
);

-- With archive_at_pop=on pops write here, and must not wait.
ALTER TABLE [{schema}].[{queue}_archive] SET (LOCK_ESCALATION = DISABLE);

-- name: drop_archive
-- script: removes the archive with all that is in it
DROP TABLE [{schema}].[{queue}_archive];

-- name: push
-- one row: the message's id as text, null where the queue is full
DECLARE @payload nvarchar(max) = :payload; -- when payload=text|json
-- when payload=bytes
-- The cast is for NULL, which drivers send as text.
DECLARE @payload varbinary(max) = CAST(:payload AS varbinary(max));
-- end
EXEC [{schema}].[{queue}_push] @payload = @payload
WITH RESULT SETS ((id nvarchar(36)));

-- name: push_many
-- a row for each payload in order: its id as text, null where it was not stored
-- :payloads is a JSON array of strings; for payload=bytes, hexadecimal digits.
DECLARE @payloads nvarchar(max) = :payloads;
EXEC [{schema}].[{queue}_push_many] @payloads = @payloads
WITH RESULT SETS ((id nvarchar(36)));

-- name: push_many_with
-- a row for each payload in order: its id as text; with this design's further arguments, null for the default
-- pending: due at :due_at, else in :due_in_seconds by the server's clock.
DECLARE @payloads nvarchar(max) = :payloads;
{push_values} -- when defined push_values
EXEC [{schema}].[{queue}_push_many] @payloads = @payloads
{push_with} -- when defined push_with
WITH RESULT SETS ((id nvarchar(36) NULL));

-- name: pop
-- at most :n rows in the design's order: the messages just popped
DECLARE @n int = :n;
DECLARE @consumer nvarchar(128) = :consumer; -- when finishes=yes
{pop_values} -- when defined pop_values
EXEC [{schema}].[{queue}_pop_many]
    @n = @n
    , @subscriber = N'{subscriber}' -- when subscribed=yes
    , @consumer = @consumer -- when finishes=yes
    {pop_with} -- when defined pop_with
WITH RESULT SETS ((id nvarchar(36), payload {payload_type}, pushed_at datetime2(7), attempts int));

-- name: complete
-- one row: whether the claim was still valid and is finished now
DECLARE @id nvarchar(36) = :id;
DECLARE @attempts int = :attempts;
EXEC [{schema}].[{queue}_complete]
    @subscriber = N'{subscriber}', -- when subscribed=yes
    @id = @id, @attempts = @attempts
WITH RESULT SETS ((acted bit));

-- name: fail
-- one row: whether the claim was still valid and is an error now
DECLARE @id nvarchar(36) = :id;
DECLARE @error nvarchar(max) = :error;
DECLARE @attempts int = :attempts;
EXEC [{schema}].[{queue}_fail]
    @subscriber = N'{subscriber}', -- when subscribed=yes
    @id = @id, @error = @error, @attempts = @attempts
WITH RESULT SETS ((acted bit));

-- name: lock_all
-- script: locks the queue exclusively until the transaction ends
DECLARE @held int;
{locked}

-- name: contents
-- one row: exact counts of the queue's messages, by a scan; for verbs, never for monitoring
-- Rows that others hold are skipped; after lock_all there are none.
SELECT
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK)
        WHERE {is_live} -- when defined is_live
    ) AS live,
    -- when defined is_claimed
    (SELECT COUNT_BIG(*) FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK) WHERE {is_claimed}) AS claimed,
    (SELECT COUNT_BIG(*) FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK) WHERE {is_finished}) AS finished,
    -- else
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- end
    (SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)) AS archived;

-- name: archive_times
-- archive_at_pop=on: the waiting times of those of the latest 100 archived messages that were popped in the last 5 minutes
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    CAST(l.archive_id AS nvarchar(450)) AS id,
    CAST(DATEDIFF_BIG(microsecond, l.ready_since, l.archived_at) / 1e6 AS float) AS waiting_seconds,
    CAST(DATEDIFF_BIG(microsecond, l.archived_at, SYSUTCDATETIME()) / 1e6 AS float) AS popped_seconds_ago,
    CAST(NULL AS float) AS processing_seconds,
    CAST(NULL AS float) AS ended_seconds_ago
FROM (
    SELECT TOP (100)
        a.archive_id,
        a.archived_at,
        a.reason,
        CASE WHEN a.due_at > a.pushed_at THEN a.due_at ELSE a.pushed_at END AS ready_since -- when role due_at
        a.pushed_at AS ready_since -- when no role due_at
    FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
    ORDER BY a.archive_id DESC
) AS l
WHERE l.reason = N'pop' AND l.archived_at > DATEADD(minute, -5, SYSUTCDATETIME())

-- name: archived
-- one row: how many messages the archive holds, exactly
SELECT COUNT_BIG(*) AS archived FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK);

-- define: after_id
:after_id -- when narrow=no
-- In the order of a varchar, which is not that of an nvarchar, and by its index.
CAST(:after_id AS varchar(900)) -- when narrow=yes

-- name: chunk
-- the next :read_limit of the rows that the design's `messages` returns, from a key on, numbered in order
-- Sent as part of one statement: WITH scanned AS (messages), chunk AS (chunk), then matching or another of the statements
-- below. A message is found by its key in an index, never by counting rows, and at most :read_limit are read. T-SQL compares
-- no pairs: >= seeks the index, and what follows excludes what was seen.
SELECT TOP (:read_limit)
    ROW_NUMBER() OVER (ORDER BY (SELECT NULL)) AS position, -- when sorted=no
    ROW_NUMBER() OVER (ORDER BY w.key_id) AS position, -- when sorted=id_up
    ROW_NUMBER() OVER (ORDER BY w.key_id DESC) AS position, -- when sorted=id_down
    ROW_NUMBER() OVER (ORDER BY w.key_time, w.key_id) AS position, -- when sorted=time_up|undated_up
    ROW_NUMBER() OVER (ORDER BY w.key_time DESC, w.key_id DESC) AS position, -- when sorted=time_down|undated_down
    w.key_time AS key_time, -- when sorted=time_up|time_down
    w.id AS id,
    w.state AS state,
    CAST(w.pushed_at AS datetime2(7)) AS pushed_at, -- when role pushed_at
    CAST(NULL AS datetime2(7)) AS pushed_at, -- when no role pushed_at
    CAST(w.due_at AS datetime2(7)) AS due_at, -- when role due_at
    CAST(NULL AS datetime2(7)) AS due_at, -- when no role due_at
    CAST(w.attempts AS bigint) AS attempts, -- when role attempts
    CAST(NULL AS bigint) AS attempts, -- when no role attempts
    CAST(w.claimed_at AS datetime2(7)) AS claimed_at, -- when role claimed_at
    CAST(NULL AS datetime2(7)) AS claimed_at, -- when no role claimed_at
    CAST(w.claimed_by AS nvarchar(max)) AS claimed_by, -- when role claimed_by
    CAST(NULL AS nvarchar(max)) AS claimed_by, -- when no role claimed_by
    CAST(w.done_at AS datetime2(7)) AS done_at, -- when role done_at
    CAST(NULL AS datetime2(7)) AS done_at, -- when no role done_at
    CAST(w.error AS nvarchar(max)) AS error, -- when role error
    CAST(NULL AS nvarchar(max)) AS error, -- when no role error
    w.title AS title, -- when defined title
    -- when defined slot
    CAST(w.slot AS bigint) AS slot,
    CAST(w.number AS bigint) AS number,
    -- end
    w.payload AS payload, -- when with_payload=yes
    w.key_id AS key_id
FROM scanned AS w
WHERE w.key_id IS NOT NULL
AND w.key_time IS NOT NULL -- when sorted=time_up|time_down
-- A state set by hand may lack its time: such messages are a scan of their own, sorted by that NULL too, because only then
-- is the index used.
AND w.key_time IS NULL -- when sorted=undated_up|undated_down
-- when start=after
AND w.key_id > {after_id} -- when sorted=id_up|undated_up
AND w.key_id < {after_id} -- when sorted=id_down|undated_down
-- when sorted=time_up
AND w.key_time >= CAST(:after_time AS datetime2(7))
AND (w.key_time > CAST(:after_time AS datetime2(7)) OR w.key_id > {after_id})
-- end
-- when sorted=time_down
AND w.key_time <= CAST(:after_time AS datetime2(7))
AND (w.key_time < CAST(:after_time AS datetime2(7)) OR w.key_id < {after_id})
-- end
-- end
-- when start=exactly
AND w.key_id = {after_id}
AND w.key_time = CAST(:after_time AS datetime2(7)) -- when sorted=time_up|time_down
-- end
-- A filter by age ends the scan only where the index is in order of age. An action's ages are relative to its cut-off,
-- however long it runs. DATEADD takes whole numbers.
-- when by_age=scan
-- What is dated days ahead was not pushed since: its time is wrong, and is no reason to leave it.
-- when by_cutoff=yes
AND (w.key_time <= CAST(:moment AS datetime2(7)) OR w.key_time > DATEADD(day, 1, SYSUTCDATETIME()))
-- end
-- when by_older=yes
AND w.key_time < DATEADD(microsecond, 0 - CAST(:older_us AS int), DATEADD(second, 0 - CAST(:older_s AS int), COALESCE(CAST(:moment AS datetime2(7)), SYSUTCDATETIME())))
-- end
-- when by_newer=yes
AND w.key_time >= DATEADD(microsecond, 0 - CAST(:newer_us AS int), DATEADD(second, 0 - CAST(:newer_s AS int), COALESCE(CAST(:moment AS datetime2(7)), SYSUTCDATETIME())))
-- end
-- end
ORDER BY w.key_id -- when sorted=id_up
ORDER BY w.key_id DESC -- when sorted=id_down
ORDER BY w.key_time, w.key_id -- when sorted=time_up|undated_up
ORDER BY w.key_time DESC, w.key_id DESC -- when sorted=time_down|undated_down

-- name: matching
-- of the chunk: at most :n rows that match the filters, in order, and the last row whether it matches or not
-- Texts are cut and compared under one collation, whatever the database's is; _SC never splits a character. The bar at
-- their ends is for = and <>, which ignore trailing blanks. Before SQL Server 2017 JSON_VALUE takes no path from a
-- variable.
SELECT TOP (:n)
    l.position AS position,
    t.matches AS matches,
    {key_time_text} AS key_time,
    CAST(l.key_id AS nvarchar(450)) AS key_id,
    l.id AS id,
    l.state AS state,
    l.pushed_at AS pushed_at,
    {seconds_in_state} AS age_seconds,
    l.due_at AS due_at,
    l.attempts AS attempts,
    l.claimed_at AS claimed_at,
    l.claimed_by AS claimed_by,
    l.done_at AS done_at,
    l.title AS title, -- when defined title
    CAST(NULL AS nvarchar(255)) AS title, -- when not defined title
    -- when defined slot
    l.slot AS slot,
    l.number AS number,
    -- else
    CAST(NULL AS bigint) AS slot,
    CAST(NULL AS bigint) AS number,
    -- end
    {payload_size}
    -- when body=yes
    -- when payload=text|json
    LEFT(CAST(l.payload AS nvarchar(max)) COLLATE Latin1_General_100_CI_AS_SC, CAST(:payload_length AS int)) AS payload,
    -- end
    SUBSTRING(l.payload, 1, CAST(:payload_length AS int)) AS payload, -- when payload=bytes
    -- end
    CAST(NULL AS nvarchar(1)) AS payload, -- when body=no
    LEFT(l.error COLLATE Latin1_General_100_CI_AS_SC, CAST(:error_length AS int)) AS error,
    -- Of the whole text: it distinguishes a message's failures.
    CONVERT(nvarchar(64), HASHBYTES(N'SHA2_256', COALESCE(l.error, N'')), 2) AS error_hash -- when hashed=yes
    CAST(NULL AS nvarchar(64)) AS error_hash -- when hashed=no
{judged}
WHERE t.matches = 1 OR l.position = :read_limit
ORDER BY l.key_id -- when sorted=id_up|undated_up
ORDER BY l.key_id DESC -- when sorted=id_down|undated_down
ORDER BY l.key_time, l.key_id -- when sorted=time_up
ORDER BY l.key_time DESC, l.key_id DESC -- when sorted=time_down

-- define: chosen_key
-- for row l: what `lock_chosen` finds it by
l.id

-- define: due_in_key
-- for row l: its due time, where the key begins with that
CAST(NULL AS nvarchar(27))

-- define: claimant
-- for row l: whose claims a verb leaves alone or takes together
l.claimed_by -- when grouped=by_claimant
CAST(NULL AS nvarchar(max)) -- when not grouped=by_claimant

-- define: side
-- for row l, judged: on which side of a limit it is: -1 below, 1 above, 0 at it; null: not known
-- when grouped=by_claimant
-- Claimed for less than :stuck_after seconds, or longer.
CASE
    WHEN {seconds_in_state} < 0 - CAST(:ahead AS float) THEN NULL
    WHEN {seconds_in_state} < CAST(:stuck_after AS float) THEN -1
    WHEN {seconds_in_state} IS NOT NULL THEN 1
END
-- end
-- when grouped=by_due
CASE
    WHEN l.due_at < CAST(:due_time AS datetime2(7)) THEN -1
    WHEN l.due_at > CAST(:due_time AS datetime2(7)) THEN 1
    WHEN l.due_at IS NOT NULL THEN 0
END
-- end
0 -- when not grouped=by_claimant|by_due

-- define: whole_frame
-- of a window in the order of a scan
ORDER BY r.position ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING

-- name: counted
-- of the chunk, by claimant and side: how many rows match the filters and have the filters' state, their bytes and ages
-- A row for each, also for rows that do not match, with 0. position, key: of the chunk's last row. bytes: NULL unless that of
-- each is known. ages: without those of the future, which are not known. bounded=yes: of the first :n of them.
SELECT
    MAX(f.last_position) AS position,
    MAX(f.last_key_time) AS key_time,
    MAX(f.last_key_id) AS key_id,
    CAST(:state AS nvarchar(20)) AS state,
    f.label AS label,
    f.side AS side,
    COUNT_BIG(CASE WHEN f.counts = 1 THEN 1 END) AS matching,
    CASE
        WHEN COUNT_BIG(CASE WHEN f.counts = 1 AND f.payload_bytes IS NULL THEN 1 END) = 0
            THEN SUM(CASE WHEN f.counts = 1 THEN f.payload_bytes ELSE 0 END)
    END AS payload_bytes,
    MAX(CASE WHEN f.counts = 1 AND f.age_seconds >= 0 - CAST(:ahead AS float) THEN f.age_seconds END) AS oldest_seconds,
    MIN(CASE WHEN f.counts = 1 AND f.age_seconds >= 0 - CAST(:ahead AS float) THEN f.age_seconds END) AS newest_seconds
FROM (
    SELECT
        LAST_VALUE(r.position) OVER ({whole_frame}) AS last_position,
        LAST_VALUE(r.key_time) OVER ({whole_frame}) AS last_key_time,
        LAST_VALUE(r.key_id) OVER ({whole_frame}) AS last_key_id,
        r.label,
        r.side,
        r.payload_bytes,
        r.age_seconds,
        -- when bounded=yes
        CASE WHEN SUM(r.counts) OVER (ORDER BY r.position ROWS UNBOUNDED PRECEDING) <= CAST(:n AS bigint) THEN r.counts ELSE 0 END AS counts
        -- else
        r.counts
        -- end
    FROM (
        SELECT
            l.position AS position,
            {key_time_text} AS key_time,
            CAST(l.key_id AS nvarchar(450)) AS key_id,
            {payload_size}
            {claimant} AS label,
            {side} AS side,
            CASE WHEN t.matches = 1 AND l.state = :state THEN 1 ELSE 0 END AS counts,
            {seconds_in_state} AS age_seconds
        {judged}
    ) AS r
) AS f
GROUP BY f.label, f.side

-- name: chosen
-- the first :n rows of the chunk that match and have the filters' state, by claimant and side, as arrays for `lock_chosen`
-- A row for each, also for rows that do not match, with 0 and nulls. position, key: of its last row that was considered.
SELECT
    MAX(f.position) AS position,
    MAX(f.last_key_time) AS key_time,
    MAX(f.last_key_id) AS key_id,
    f.label AS label,
    f.side AS side,
    COUNT_BIG(CASE WHEN f.counts = 1 THEN 1 END) AS matching,
    N'[' + STRING_AGG(CASE WHEN f.counts = 1 THEN CAST(N'"' + STRING_ESCAPE(f.[key], N'json') + N'"' AS nvarchar(max)) END, N',') + N']' AS keys,
    N'[' + STRING_AGG(CASE WHEN f.counts = 1 THEN CAST(N'"' + STRING_ESCAPE(f.mark, N'json') + N'"' AS nvarchar(max)) END, N',') + N']' AS marks,
    N'[' + STRING_AGG(CASE WHEN f.counts = 1 THEN CAST(COALESCE(N'"' + f.due + N'"', N'null') AS nvarchar(max)) END, N',') + N']' AS due
FROM (
    SELECT
        r.position,
        LAST_VALUE(r.key_time) OVER (PARTITION BY r.label, r.side {whole_frame}) AS last_key_time,
        LAST_VALUE(r.key_id) OVER (PARTITION BY r.label, r.side {whole_frame}) AS last_key_id,
        r.label,
        r.side,
        r.counts,
        r.[key],
        r.mark,
        r.due
    FROM (
        SELECT
            c.*,
            SUM(c.counts) OVER (ORDER BY c.position ROWS UNBOUNDED PRECEDING) AS until_here
        FROM (
            SELECT
                l.position AS position,
                {key_time_text} AS key_time,
                CAST(l.key_id AS nvarchar(450)) AS key_id,
                {chosen_key} AS [key],
                CONCAT(l.id, N' ', l.attempts) AS mark,
                {due_in_key} AS due,
                {claimant} AS label,
                {side} AS side,
                CASE WHEN t.matches = 1 AND l.state = :state THEN 1 ELSE 0 END AS counts
            {judged}
        ) AS c
    ) AS r
    WHERE r.until_here <= CAST(:n AS bigint)
) AS f
GROUP BY f.label, f.side

-- name: error_texts
-- of the chunk, unordered: the beginning of each error's text, its time and its attempts
SELECT
    {key_time_text} AS key_time,
    CAST(l.key_id AS nvarchar(450)) AS key_id,
    l.position AS position,
    l.id AS id,
    LEFT(l.error COLLATE Latin1_General_100_CI_AS_SC, CAST(:error_length AS int)) AS error,
    l.done_at AS done_at,
    l.attempts AS attempts
FROM chunk AS l

-- name: retried
-- of the chunk, unordered: the rows with :least attempts or more, and the last row; with the number of rows read
SELECT
    CONVERT(nvarchar(27), t.key_time, 126) AS key_time, -- when sorted=time_up|time_down
    CAST(NULL AS nvarchar(27)) AS key_time, -- when sorted=id_up|id_down|undated_up|undated_down
    CAST(t.key_id AS nvarchar(450)) AS key_id,
    t.position AS position,
    t.rows_read AS rows_read,
    t.id AS id,
    t.attempts AS attempts
FROM (
    SELECT
        l.key_time, -- when sorted=time_up|time_down
        l.key_id,
        l.position,
        l.id,
        l.attempts,
        COUNT_BIG(*) OVER () AS rows_read
    FROM chunk AS l
) AS t
WHERE t.attempts >= CAST(:least AS bigint) OR t.position = t.rows_read

-- name: claimed
-- of the chunk, unordered: each claim's owner and age, and whether its payload is missing; with the number of rows read
SELECT
    {key_time_text} AS key_time,
    CAST(l.key_id AS nvarchar(450)) AS key_id,
    l.position AS position,
    COUNT_BIG(*) OVER () AS rows_read,
    l.id AS id,
    l.claimed_by AS claimed_by,
    {lacks_payload} AS half,
    CAST(DATEDIFF_BIG(microsecond, l.claimed_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
FROM chunk AS l

-- name: contradictions
-- of the chunk, unordered: the rows that contradict their state, and the last row; with the number of rows read
-- A missing time is a contradiction itself, so all of those are returned.
SELECT
    CONVERT(nvarchar(27), t.key_time, 126) AS key_time, -- when sorted=time_up|time_down
    CAST(NULL AS nvarchar(27)) AS key_time, -- when sorted=id_up|id_down|undated_up|undated_down
    CAST(t.key_id AS nvarchar(450)) AS key_id,
    t.position AS position,
    t.rows_read AS rows_read,
    t.id AS id,
    CAST(t.contradicts AS bit) AS contradicts
FROM (
    SELECT
        l.key_time, -- when sorted=time_up|time_down
        l.key_id,
        l.position,
        l.id,
        {contradicts} AS contradicts, -- when defined contradicts
        COUNT_BIG(*) OVER () AS rows_read
    FROM chunk AS l
) AS t
WHERE t.contradicts = 1 OR t.position = t.rows_read -- when sorted=time_up|time_down|id_up|id_down
