-- The server itself, whatever queues it holds.

-- name: capabilities
-- one row: the server, the login, and what it may do
-- version_number: major * 10,000,000 + minor * 100,000 + build, so 160004125 for 16.0.4125.3. In Azure it
-- stays at 12.0, whatever the server's features; engine_edition distinguishes those.
SELECT
    v.version AS server_version,
    CAST(PARSENAME(v.version, 4) AS int) * 10000000
    + CAST(PARSENAME(v.version, 3) AS int) * 100000
    + CAST(PARSENAME(v.version, 2) AS int) AS version_number,
    CAST(SERVERPROPERTY(N'Edition') AS nvarchar(128)) AS edition,
    v.engine_edition AS engine_edition,
    DB_NAME() AS [database],
    USER_NAME() AS database_user,
    CAST(
        CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY' THEN 1 ELSE 0 END
        AS bit
    ) AS read_only,
    CAST({sees_server_state} AS bit) AS sees_all_sessions,
    CAST(v.sees_database AS bit) AS sees_counters,
    CAST(
        CASE
            WHEN HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CREATE TABLE') = 1
                AND HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CREATE PROCEDURE') = 1
                AND (
                    HAS_PERMS_BY_NAME(N'queues', N'SCHEMA', N'ALTER') = 1
                    OR (SCHEMA_ID(N'queues') IS NULL AND HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CREATE SCHEMA') = 1)
                    OR HAS_PERMS_BY_NAME(QUOTENAME(SCHEMA_NAME()), N'SCHEMA', N'ALTER') = 1
                )
                -- Installing a database's first queue creates the catalog's schema.
                AND (SCHEMA_ID(N'dbq') IS NOT NULL OR HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CREATE SCHEMA') = 1)
                THEN 1
            ELSE 0
        END AS bit
    ) AS may_create,
    -- The user as whom the procedures of ring and broker run. If it does not exist yet: a login that may create
    -- it may not impersonate it, unless it owns the database.
    CAST(
        CASE
            WHEN DATABASE_PRINCIPAL_ID(N'dbq_owner') IS NULL THEN HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CONTROL')
            ELSE HAS_PERMS_BY_NAME(N'dbq_owner', N'USER', N'IMPERSONATE')
        END AS bit
    ) AS impersonates_owner,
    CAST(v.sees_database AS bit) AS counts_rows,
    CAST(COALESCE(d.is_read_committed_snapshot_on, 0) AS bit) AS read_committed_snapshot,
    CAST(COALESCE(d.is_broker_enabled, 0) AS bit) AS broker_enabled,
    -- Enterprise (with Developer and Evaluation), Azure SQL Database, Managed Instance, Fabric.
    CAST(CASE WHEN v.engine_edition IN (3, 5, 8, 12) THEN 1 ELSE 0 END AS bit) AS online_rebuild,
    -- NULL on SQL Server, which knows no such property.
    CAST(COALESCE(CAST(SERVERPROPERTY(N'Babelfish') AS int), 0) AS bit) AS babelfish,
    N'UTF-16' AS encoding,
    CAST(COALESCE(d.compatibility_level, 0) AS int) AS compatibility_level
FROM (
    SELECT
        CAST(SERVERPROPERTY(N'ProductVersion') AS nvarchar(128)) AS version,
        CAST(SERVERPROPERTY(N'EngineEdition') AS int) AS engine_edition,
        {sees_database_state} AS sees_database
) AS v
LEFT JOIN sys.databases AS d ON d.name = DB_NAME();

-- name: server_state
-- one row: what the server is, at the beginning of a sample's transaction
-- The counters last from one start to the next. tempdb is created at each start, and everybody may see its
-- date, except in Azure SQL Database: there only a counter that decreases shows it. Writers are visible in
-- sys.dm_tran_locks, to those with the right to read it, and not on a readable secondary.
SELECT
    CONCAT(
        CONVERT(nvarchar(23), d.create_date, 126), N' ', CAST(SERVERPROPERTY(N'ServerName') AS nvarchar(128)), N' ', u.updateability
    ) AS incarnation,
    CAST(CASE u.updateability WHEN N'READ_ONLY' THEN 0 ELSE {sees_server_state} END AS bit) AS sees_writers,
    SYSUTCDATETIME() AS now
FROM (SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) AS updateability) AS u
LEFT JOIN sys.databases AS d ON d.name = N'tempdb';

-- name: standby
-- no row on a primary; on a readable secondary one row: whether it applies and receives, how long ago the moment was that it shows, and its primary
-- With an empty redo queue nothing is behind, however old the last commit is: an idle primary writes nothing. The
-- server keeps its own times in local time. A database restored WITH STANDBY shows the end of its last restored log. The
-- states of replicas require the right to read the server's state; in Azure SQL Database they have another view.
IF CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) <> N'READ_ONLY'
    OR NOT EXISTS (
        SELECT 1 FROM sys.databases AS d WHERE d.name = DB_NAME() AND (d.replica_id IS NOT NULL OR d.is_in_standby = 1)
    )
    SELECT
        CAST(0 AS bit) AS paused,
        CAST(NULL AS bit) AS receives,
        CAST(NULL AS float) AS lag_seconds,
        CAST(NULL AS nvarchar(256)) AS upstream,
        SYSUTCDATETIME() AS now,
        CAST(NULL AS bigint) AS received,
        CAST(NULL AS bigint) AS replayed,
        CAST(NULL AS nvarchar(128)) AS subscription
    WHERE 1 = 0;
ELSE IF CAST(SERVERPROPERTY(N'EngineEdition') AS int) NOT IN (5, 12) AND {sees_server_state} = 1
    SELECT
        CAST(COALESCE(r.is_suspended, 0) AS bit) AS paused,
        CAST(CASE WHEN r.synchronization_state IN (1, 2) THEN 1 ELSE 0 END AS bit) AS receives,
        CASE
            WHEN r.synchronization_state IN (1, 2) AND r.redo_queue_size = 0 THEN CAST(0 AS float)
            ELSE CAST(DATEDIFF_BIG(millisecond, r.last_commit_time, GETDATE()) AS float) / 1000
        END AS lag_seconds,
        g.primary_replica AS upstream,
        SYSUTCDATETIME() AS now,
        CAST(NULL AS bigint) AS received,
        CAST(NULL AS bigint) AS replayed,
        CAST(NULL AS nvarchar(128)) AS subscription
    FROM (SELECT DB_ID() AS database_id) AS d
    LEFT JOIN sys.dm_hadr_database_replica_states AS r ON d.database_id = r.database_id AND r.is_local = 1
    LEFT JOIN sys.dm_hadr_availability_group_states AS g ON r.group_id = g.group_id;
ELSE
    SELECT
        CAST(0 AS bit) AS paused,
        CAST(NULL AS bit) AS receives,
        CAST(NULL AS float) AS lag_seconds,
        CAST(NULL AS nvarchar(256)) AS upstream,
        SYSUTCDATETIME() AS now,
        CAST(NULL AS bigint) AS received,
        CAST(NULL AS bigint) AS replayed,
        CAST(NULL AS nvarchar(128)) AS subscription;

-- name: sessions_used
-- one row: how many sessions users have (NULL where this login sees only its own), and how many they may have
IF {sees_server_state} = 1
    SELECT
        (SELECT COUNT(*) FROM sys.dm_exec_sessions AS s WHERE s.is_user_process = 1) AS used,
        @@MAX_CONNECTIONS AS most;
ELSE
    SELECT
        CAST(NULL AS int) AS used,
        @@MAX_CONNECTIONS AS most;

-- name: holders
-- a row for each table in which an open transaction of more than a second holds rows: the holder, and the minimum and maximum time held
-- The view of locks has those of the whole instance, millions of them if somebody holds so many. So it is read only where
-- such a transaction is open in this database, by a sampler at most every ten seconds, and of it only locks on objects: who
-- locks a row has an intent lock on its table. A holder has written here; one that has only read WITH (UPDLOCK) is not
-- shown. A session that waits for a lock of the table, or for another writer there, does not count: only the root of the
-- waits is a holder. It locked its rows not before its first log record here, and before it became idle. Of a broker queue
-- it is the internal table. Requires the same right as `server_state`.
-- READUNCOMMITTED: never waits for somebody's DDL.
DECLARE @open TABLE (
    transaction_id bigint NOT NULL PRIMARY KEY,
    session_id int NULL,
    began datetime NOT NULL,
    wrote datetime NULL
);
DECLARE @locks TABLE (
    object_id bigint NOT NULL,
    transaction_id bigint NOT NULL,
    session_id int NOT NULL,
    -- -2: it has no session any more; its coordinator has not decided its outcome yet.
    unit nvarchar(36) COLLATE DATABASE_DEFAULT NULL,
    holds int NOT NULL,
    waits int NOT NULL
);
INSERT INTO @open (transaction_id, session_id, began, wrote)
SELECT
    d.transaction_id,
    MAX(s.session_id),
    MIN(a.transaction_begin_time),
    MIN(d.database_transaction_begin_time)
FROM sys.dm_tran_database_transactions AS d
INNER JOIN sys.dm_tran_active_transactions AS a ON d.transaction_id = a.transaction_id
LEFT JOIN sys.dm_tran_session_transactions AS s ON d.transaction_id = s.transaction_id
WHERE
    d.database_id = DB_ID() AND a.transaction_begin_time < DATEADD(second, -1, GETDATE())
    -- Without a session: a distributed one, or the engine's own work.
    AND COALESCE(s.session_id, CASE a.transaction_type WHEN 4 THEN -2 ELSE @@SPID END) <> @@SPID
GROUP BY d.transaction_id;
IF EXISTS (SELECT 1 FROM @open)
    INSERT INTO @locks (object_id, transaction_id, session_id, unit, holds, waits)
    SELECT
        l.resource_associated_entity_id,
        o.transaction_id,
        MAX(l.request_session_id),
        MAX(CASE WHEN l.request_session_id = -2 THEN CAST(l.request_owner_guid AS nvarchar(36)) END),
        MAX(CASE WHEN l.request_status = N'GRANT' AND l.request_mode IN (N'SIX', N'UIX', N'X', N'U', N'BU') THEN 1 ELSE 0 END),
        MAX(CASE l.request_status WHEN N'GRANT' THEN 0 ELSE 1 END)
    FROM sys.dm_tran_locks AS l
    INNER JOIN @open AS o ON l.request_owner_id = o.transaction_id
    WHERE
        l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT' AND l.request_owner_type = N'TRANSACTION'
        AND l.request_mode IN (N'IX', N'SIX', N'UIX', N'X', N'U', N'BU')
    GROUP BY l.resource_associated_entity_id, o.transaction_id;
SELECT
    SCHEMA_NAME(o.schema_id) AS [schema],
    CAST(o.name AS nvarchar(128)) AS relation,
    CASE WHEN l.session_id > 0 THEN l.session_id END AS session_id,
    l.unit AS prepared_transaction,
    s.login_name AS user_name,
    s.program_name AS application_name,
    CASE
        WHEN s.session_id IS NULL THEN N'prepared'
        WHEN r.status = N'rollback' THEN N'rolling back'
        WHEN r.session_id IS NOT NULL THEN N'active'
        ELSE N'idle in transaction'
    END AS state,
    -- The server keeps its own times in local time.
    CAST(DATEDIFF_BIG(millisecond, t.began, GETDATE()) AS float) / 1000 AS transaction_seconds,
    CASE
        WHEN r.session_id IS NULL
            THEN CAST(DATEDIFF_BIG(millisecond, s.last_request_end_time, GETDATE()) AS float) / 1000
    END AS held_at_least_seconds,
    CAST(DATEDIFF_BIG(millisecond, COALESCE(t.wrote, t.began), GETDATE()) AS float) / 1000 AS held_at_most_seconds
FROM @locks AS l
INNER JOIN @open AS t ON l.transaction_id = t.transaction_id
LEFT JOIN sys.internal_tables AS i WITH (READUNCOMMITTED)
    ON l.object_id = i.object_id AND i.internal_type_desc = N'QUEUE_MESSAGES'
INNER JOIN sys.objects AS o WITH (READUNCOMMITTED) ON o.object_id = COALESCE(i.parent_id, l.object_id)
LEFT JOIN sys.dm_exec_sessions AS s ON l.session_id = s.session_id
LEFT JOIN {requests} AS r ON l.session_id = r.session_id AND r.place = 1
WHERE
    l.waits = 0 AND (l.holds = 1 OR t.wrote IS NOT NULL)
    AND NOT EXISTS (
        SELECT 1 FROM @locks AS b
        WHERE b.object_id = l.object_id AND b.session_id = r.blocking_session_id AND b.session_id <> l.session_id
    )
    AND o.type IN (N'U', N'SQ')
    -- The engine's ghost cleanup.
    AND COALESCE(r.command, N'') <> N'GHOST CLEANUP';

-- name: owners
-- a row for each of the sessions (as in claimed_by): gone, alive, or unknown
-- :sessions is a JSON array. The procedures write a login time in UTC, converted from the server's local time
-- by its offset at that moment. The offset may have changed since: a difference of whole half hours, up to two
-- hours and exact to the millisecond, is the same login.
DECLARE @sessions nvarchar(max) = :sessions;
SELECT
    w.session AS session,
    CASE
        WHEN w.session_id IS NULL OR w.login_time IS NULL THEN N'unknown' -- not ours
        -- A primary's session, when queried on its secondary.
        WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY' THEN N'unknown'
        WHEN s.session_id IS NULL AND v.sees_all = 1 THEN N'gone'
        WHEN s.session_id IS NULL THEN N'unknown' -- hidden for lack of VIEW SERVER STATE
        WHEN ABS(s.differs) <= 7200000 AND s.differs % 1800000 = 0 THEN N'alive'
        ELSE N'gone' -- another one has its id now
    END AS owner
FROM (
    SELECT
        requested.[value] COLLATE DATABASE_DEFAULT AS session,
        -- ABS: a text without a blank must not cause an error, whatever is evaluated first.
        CASE WHEN requested.[value] LIKE N'session=[0-9]% login=%'
            THEN TRY_CAST(SUBSTRING(requested.[value], 9, ABS(CHARINDEX(N' ', requested.[value]) - 9)) AS int)
        END AS session_id,
        CASE WHEN requested.[value] LIKE N'session=[0-9]% login=%'
            THEN TRY_CONVERT(datetime2(3), SUBSTRING(requested.[value], CHARINDEX(N' login=', requested.[value]) + 7, 30), 127)
        END AS login_time
    FROM OPENJSON(@sessions) AS requested
) AS w
CROSS JOIN (SELECT {sees_server_state} AS sees_all) AS v
OUTER APPLY (
    SELECT
        e.session_id,
        DATEDIFF_BIG(
            millisecond,
            w.login_time,
            CAST(DATEADD(minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), e.login_time) AS datetime2(3))
        ) AS differs
    FROM sys.dm_exec_sessions AS e WHERE e.session_id = w.session_id
) AS s;

-- name: babelfish
-- one row: 1 on Babelfish, which lacks some of what the first statement reads; NULL on SQL Server
SELECT CAST(SERVERPROPERTY(N'Babelfish') AS int) AS babelfish;

-- name: login_rights
-- one row: what this login may do beyond reading, on any of these queues and on the server
-- :schemas, :tables and :queues are JSON arrays of equal length. A right on an invisible object is NULL: none.
DECLARE @schemas nvarchar(max) = :schemas;
DECLARE @tables nvarchar(max) = :tables;
DECLARE @queues nvarchar(max) = :queues;
SELECT
    CAST(CASE WHEN IS_SRVROLEMEMBER(N'sysadmin') = 1 THEN 1 ELSE 0 END AS bit) AS superuser,
    CAST(COALESCE(MAX(HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'CONTROL')), 0) AS bit) AS owns,
    CAST(MAX(
        CASE
            WHEN HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'INSERT') = 1 THEN 1
            WHEN HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'UPDATE') = 1 THEN 1
            WHEN HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'DELETE') = 1 THEN 1
            ELSE 0
        END
    ) AS bit) AS writes,
    -- A procedure reaches its tables through their common owner: EXECUTE is all that a caller needs.
    CAST(MAX(
        CASE
            WHEN HAS_PERMS_BY_NAME(requested.push, N'OBJECT', N'EXECUTE') = 1 THEN 1
            WHEN HAS_PERMS_BY_NAME(requested.pop, N'OBJECT', N'EXECUTE') = 1 THEN 1
            WHEN HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'RECEIVE') = 1 THEN 1
            ELSE 0
        END
    ) AS bit) AS calls,
    CAST(
        CASE
            -- In Azure SQL Database, and only there, KILL asks for a right on the database.
            WHEN CAST(SERVERPROPERTY(N'EngineEdition') AS int) = 5
                THEN COALESCE(HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'KILL DATABASE CONNECTION'), 0)
            WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'ALTER ANY CONNECTION') = 1 THEN 1
            ELSE 0
        END AS bit
    ) AS ends_sessions,
    CAST(COALESCE(MAX(HAS_PERMS_BY_NAME(requested.relation, N'OBJECT', N'ALTER')), 0) AS bit) AS maintains,
    CAST(CASE WHEN HAS_PERMS_BY_NAME(NULL, N'DATABASE', N'CREATE TABLE') = 1 THEN 1 ELSE 0 END AS bit) AS creates
FROM (
    -- An additional empty row, so that the server's rights are read without any queue too.
    SELECT CAST(NULL AS nvarchar(600)) AS relation, CAST(NULL AS nvarchar(600)) AS push, CAST(NULL AS nvarchar(600)) AS pop
    UNION ALL
    SELECT
        CONCAT(QUOTENAME(s.[value]), N'.', QUOTENAME(t.[value])),
        CONCAT(QUOTENAME(s.[value]), N'.', QUOTENAME(CONCAT(q.[value], N'_push'))),
        CONCAT(QUOTENAME(s.[value]), N'.', QUOTENAME(CONCAT(q.[value], N'_pop')))
    FROM OPENJSON(@schemas) AS s
    INNER JOIN OPENJSON(@tables) AS t ON s.[key] = t.[key]
    INNER JOIN OPENJSON(@queues) AS q ON s.[key] = q.[key]
) AS requested;
