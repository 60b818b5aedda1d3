-- Sessions, locks and waits of the queues, observed from outside: these statements read the server's
-- views of itself and its catalog, never a queue, so nothing that a queue's sessions do can block them.
-- They do not show a session that has used a queue and holds none of its locks any more. Between two
-- transactions a session holds none.
-- They require VIEW SERVER STATE (from SQL Server 2022 VIEW SERVER PERFORMANCE STATE, in Azure SQL Database
-- VIEW DATABASE STATE); without it the server shows nothing of other sessions.

-- name: objects
-- a row for each object of the queues that sessions lock: tables, sequences, broker queues, application locks
-- :schemas, :queues and :names are JSON arrays of equal length: each object's schema, queue and name.
DECLARE @schemas nvarchar(max) = :schemas;
DECLARE @queues nvarchar(max) = :queues;
DECLARE @names nvarchar(max) = :names;
SELECT
    s.[value] COLLATE DATABASE_DEFAULT AS [schema],
    q.[value] COLLATE DATABASE_DEFAULT AS queue,
    n.[value] COLLATE DATABASE_DEFAULT AS name,
    CASE RTRIM(o.type) WHEN N'SO' THEN N'sequence' WHEN N'SQ' THEN N'queue' ELSE N'table' END AS kind,
    -- Of a broker queue, sessions lock its internal table.
    CAST(COALESCE(i.object_id, o.object_id) AS bigint) AS id
FROM OPENJSON(@schemas) AS s
INNER JOIN OPENJSON(@queues) AS q ON s.[key] = q.[key]
INNER JOIN OPENJSON(@names) AS n ON s.[key] = n.[key]
INNER JOIN sys.objects AS o ON o.object_id = OBJECT_ID(CONCAT(QUOTENAME(s.[value]), N'.', QUOTENAME(n.[value])))
LEFT JOIN sys.internal_tables AS i ON o.object_id = i.parent_id AND i.internal_type_desc = N'QUEUE_MESSAGES'
WHERE o.type IN (N'U', N'V', N'SO', N'SQ')
UNION
-- order=strict: see fifo.sql. The lock views only show the first 32 characters of an application lock's
-- name; the id is made from these.
SELECT
    s.[value] COLLATE DATABASE_DEFAULT,
    q.[value] COLLATE DATABASE_DEFAULT,
    N'push',
    N'advisory',
    CAST(
        SUBSTRING(HASHBYTES(N'SHA2_256', LEFT(CONCAT(N'dbq ', s.[value], N'.', q.[value]), 32)), 1, 8) AS bigint
    )
FROM OPENJSON(@schemas) AS s
INNER JOIN OPENJSON(@queues) AS q ON s.[key] = q.[key];

-- name: sessions
-- a row for each session (or transaction of a distributed one that has lost its session) that locks something of the queues, waits for a lock, blocks one that does, or works in this database
-- :relations and :advisory_locks are JSON arrays of ids, from the statement above. The server's views are
-- read one after the other, not at one moment: what begins or ends between two reads shows up in only one of
-- them. blocked_by: [session id, ...]; locks: [[id of the object, kind of lock, mode, granted], ...].
-- Three waits are not in the server's words: a session that sleeps in a transaction is idle, and an active
-- one without a wait is running, or runnable and without a processor yet. Only these have a wait_kind.
-- held_at_...: how long it has held the rows that it locked, if any; see `holders` of server.sql.
DECLARE @relations nvarchar(max) = :relations;
DECLARE @advisory_locks nvarchar(max) = :advisory_locks;
DECLARE @locks TABLE (
    session_id int NOT NULL,
    unit nvarchar(36) COLLATE DATABASE_DEFAULT NULL,
    id bigint NULL,
    lock nvarchar(60) COLLATE DATABASE_DEFAULT NOT NULL,
    entity bigint NULL,
    detail nvarchar(256) COLLATE DATABASE_DEFAULT NULL,
    mode nvarchar(60) COLLATE DATABASE_DEFAULT NOT NULL,
    granted bit NOT NULL,
    ours bit NOT NULL
);
DECLARE @edges TABLE (session_id int NOT NULL, blocker int NOT NULL, unit nvarchar(36) COLLATE DATABASE_DEFAULT NULL);
-- Read once: this view is the expensive one. Who locks a row has an intent lock on its table; of a
-- session's row locks only that there are some is kept, in one row.
INSERT INTO @locks (session_id, unit, id, lock, entity, detail, mode, granted, ours)
SELECT DISTINCT
    found.session_id,
    found.unit,
    found.id,
    found.lock,
    CASE WHEN found.is_row = 0 THEN found.entity END,
    CASE WHEN found.is_row = 0 THEN found.detail END,
    found.mode,
    found.granted,
    CASE
        WHEN
            found.lock = N'APPLICATION'
            AND found.id IN (SELECT CAST(given.[value] AS bigint) FROM OPENJSON(@advisory_locks) AS given)
            THEN 1
        WHEN
            found.lock <> N'APPLICATION'
            AND found.id IN (SELECT CAST(given.[value] AS bigint) FROM OPENJSON(@relations) AS given)
            THEN 1
        ELSE 0
    END
FROM (
    SELECT
        l.request_session_id AS session_id,
        -- -2: a distributed transaction whose coordinator has not decided its outcome yet.
        CASE WHEN l.request_session_id = -2 THEN CAST(l.request_owner_guid AS nvarchar(36)) END AS unit,
        CASE
            WHEN l.resource_type = N'OBJECT' THEN l.resource_associated_entity_id
            WHEN l.resource_type <> N'APPLICATION' THEN p.object_id
            -- 0:[the name's beginning]:(a hash)
            WHEN d.description LIKE N'%:[[]%]:%'
                THEN CAST(
                    SUBSTRING(
                        HASHBYTES(
                            N'SHA2_256',
                            SUBSTRING(
                                d.description,
                                CHARINDEX(N'[', d.description) + 1,
                                LEN(d.description) - CHARINDEX(N'[', d.description) - CHARINDEX(N']', REVERSE(d.description))
                            )
                        ), 1, 8
                    ) AS bigint
                )
        END AS id,
        l.resource_type AS lock,
        l.resource_associated_entity_id AS entity,
        d.description AS detail,
        l.request_mode AS mode,
        CASE l.request_status WHEN N'GRANT' THEN 1 ELSE 0 END AS granted,
        CASE
            WHEN l.resource_type IN (N'KEY', N'RID') AND l.request_status = N'GRANT' AND l.request_session_id <> -2 THEN 1
            ELSE 0
        END AS is_row
    FROM sys.dm_tran_locks AS l
    -- The view pads it with blanks to 256 characters, which LEN does not count and REVERSE puts first.
    CROSS APPLY (SELECT RTRIM(l.resource_description) AS description) AS d
    -- READUNCOMMITTED: never waits for somebody's DDL.
    LEFT JOIN sys.partitions AS p WITH (READUNCOMMITTED)
        ON
            l.resource_type IN (N'KEY', N'RID', N'PAGE', N'HOBT') AND l.request_status <> N'GRANT'
            AND l.resource_associated_entity_id = p.hobt_id
    WHERE
        l.resource_database_id = DB_ID() AND l.request_session_id <> @@SPID
        AND (
            l.resource_type IN (N'OBJECT', N'APPLICATION') OR l.request_status <> N'GRANT' OR l.request_session_id = -2
            OR (l.resource_type IN (N'KEY', N'RID') AND l.request_mode IN (N'X', N'U', N'RangeX-X', N'RangeS-U'))
        )
) AS found;
-- Below zero, except for -2, are unknown owners (-4, -5: of a latch).
INSERT INTO @edges (session_id, blocker, unit)
SELECT DISTINCT
    w.session_id,
    w.blocking_session_id,
    u.unit
FROM sys.dm_os_waiting_tasks AS w
LEFT JOIN @locks AS own ON w.blocking_session_id = -2 AND w.session_id = own.session_id AND own.granted = 0
LEFT JOIN @locks AS u
    ON
        own.lock = u.lock AND own.entity = u.entity AND own.detail = u.detail
        AND u.session_id = -2 AND u.granted = 1
WHERE
    w.session_id IS NOT NULL AND w.session_id <> w.blocking_session_id
    AND (w.blocking_session_id > 0 OR u.unit IS NOT NULL);
SELECT
    CAST(s.session_id AS int) AS session_id,
    CAST(NULL AS nvarchar(36)) AS prepared_transaction,
    CASE s.is_user_process WHEN 1 THEN N'client' ELSE N'system' END AS kind,
    DB_NAME(s.database_id) AS [database],
    s.login_name AS user_name,
    s.program_name AS application_name,
    COALESCE(s.host_name, c.client_net_address COLLATE DATABASE_DEFAULT) AS client_address,
    CASE
        WHEN r.status = N'rollback' THEN N'rolling back'
        WHEN r.session_id IS NOT NULL THEN N'active'
        WHEN s.open_transaction_count > 0 THEN N'idle in transaction'
        ELSE s.status
    END AS state,
    CASE
        WHEN r.session_id IS NULL AND s.open_transaction_count > 0 THEN N'Client'
        WHEN r.session_id IS NULL THEN NULL
        WHEN r.wait_type IS NULL THEN N'CPU'
    END AS wait_kind,
    CASE
        WHEN r.session_id IS NULL AND s.open_transaction_count > 0 THEN N'idle in transaction'
        WHEN r.session_id IS NULL THEN NULL
        WHEN r.wait_type IS NOT NULL THEN r.wait_type
        WHEN r.status = N'runnable' THEN N'runnable'
        ELSE N'running'
    END AS wait,
    t.seconds AS transaction_seconds,
    CAST(DATEDIFF_BIG(MILLISECOND, r.start_time, GETDATE()) AS float) / 1000 AS statement_seconds,
    CAST(DATEDIFF_BIG(MILLISECOND, COALESCE(r.start_time, s.last_request_end_time), GETDATE()) AS float) / 1000 AS state_seconds,
    a.lock AS awaited_lock,
    a.mode AS awaited_mode,
    CAST(NULL AS nvarchar(128)) AS awaited_object,
    CAST(r.wait_time AS float) / 1000 AS wait_seconds,
    -- The statement that runs, else the whole batch that ran last.
    CASE WHEN r.session_id IS NULL THEN LEFT(x.text, 1000)
        ELSE LEFT(SUBSTRING(x.text, r.statement_start_offset / 2 + 1, 1000), CASE
            WHEN r.statement_end_offset > r.statement_start_offset
                AND (r.statement_end_offset - r.statement_start_offset) / 2 < 1000
                THEN (r.statement_end_offset - r.statement_start_offset) / 2 + 1
            ELSE 1000
        END)
    END AS query,
    N'[' + STUFF((
        SELECT CONCAT(N',', COALESCE(N'"' + e.unit + N'"', CAST(e.blocker AS nvarchar(11)))) AS [text()]
        FROM @edges AS e WHERE e.session_id = s.session_id
        FOR XML PATH('')
    ), 1, 1, N'') + N']' AS blocked_by,
    N'[' + STUFF((
        SELECT DISTINCT CONCAT(
            N',[', l.id, N',"', CASE l.lock WHEN N'APPLICATION' THEN N'advisory' ELSE l.lock END, N'","', l.mode,
            CASE l.granted WHEN 1 THEN N'",true]' ELSE N'",false]' END
        ) AS [text()]
        FROM @locks AS l WHERE l.session_id = s.session_id AND l.ours = 1
        FOR XML PATH('')
    ), 1, 1, N'') + N']' AS locks,
    CAST(
        CASE
            WHEN t.wrote_seconds IS NOT NULL THEN 1
            WHEN EXISTS (
                SELECT 1 FROM @locks AS l
                WHERE l.session_id = s.session_id AND l.lock IN (N'KEY', N'RID') AND l.granted = 1
            ) THEN 1
            ELSE 0
        END AS bit
    ) AS has_locked_rows,
    CASE
        WHEN r.session_id IS NULL AND s.open_transaction_count > 0
            THEN CAST(DATEDIFF_BIG(MILLISECOND, s.last_request_end_time, GETDATE()) AS float) / 1000
    END AS held_at_least_seconds,
    COALESCE(t.wrote_seconds, t.seconds) AS held_at_most_seconds
FROM sys.dm_exec_sessions AS s
LEFT JOIN {requests} AS r ON s.session_id = r.session_id AND r.place = 1
LEFT JOIN sys.dm_exec_connections AS c ON s.session_id = c.session_id AND c.parent_connection_id IS NULL
OUTER APPLY (
    SELECT
        CAST(DATEDIFF_BIG(MILLISECOND, MIN(b.transaction_begin_time), GETDATE()) AS float) / 1000 AS seconds,
        CAST(DATEDIFF_BIG(MILLISECOND, MIN(d.database_transaction_begin_time), GETDATE()) AS float) / 1000 AS wrote_seconds
    FROM sys.dm_tran_session_transactions AS o
    INNER JOIN sys.dm_tran_active_transactions AS b ON o.transaction_id = b.transaction_id
    LEFT JOIN sys.dm_tran_database_transactions AS d ON o.transaction_id = d.transaction_id AND d.database_id = DB_ID()
    WHERE o.session_id = s.session_id
) AS t
OUTER APPLY (
    SELECT TOP (1)
        l.lock AS lock,
        l.mode AS mode
    FROM @locks AS l WHERE l.session_id = s.session_id AND l.granted = 0
    ORDER BY l.ours DESC
) AS a
OUTER APPLY sys.dm_exec_sql_text(COALESCE(r.sql_handle, c.most_recent_sql_handle)) AS x
WHERE
    s.session_id <> @@SPID
    AND (
        s.session_id IN (SELECT l.session_id FROM @locks AS l WHERE l.ours = 1 OR l.granted = 0)
        OR s.session_id IN (SELECT e.session_id FROM @edges AS e)
        OR s.session_id IN (SELECT e.blocker FROM @edges AS e)
        OR (
            s.is_user_process = 1 AND s.database_id = DB_ID()
            AND (r.session_id IS NOT NULL OR s.open_transaction_count > 0)
        )
    )
UNION ALL
SELECT
    NULL,
    d.unit,
    N'distributed transaction',
    DB_NAME(),
    NULL,
    NULL,
    NULL,
    N'prepared',
    N'Client',
    N'prepared transaction',
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    N'[' + STUFF((
        SELECT DISTINCT CONCAT(
            N',[', l.id, N',"', CASE l.lock WHEN N'APPLICATION' THEN N'advisory' ELSE l.lock END, N'","', l.mode,
            CASE l.granted WHEN 1 THEN N'",true]' ELSE N'",false]' END
        ) AS [text()]
        FROM @locks AS l WHERE l.unit = d.unit AND l.ours = 1
        FOR XML PATH('')
    ), 1, 1, N'') + N']',
    CAST(1 AS bit),
    NULL,
    NULL
FROM (SELECT DISTINCT l.unit FROM @locks AS l WHERE l.unit IS NOT NULL AND l.ours = 1) AS d;

-- name: clients
-- a row for each client's session in this database that locks rows of :relations, is one of :sessions, or whose last statement has one of :names in it; at most 1,000
-- :relations, :sessions and :names are JSON arrays. session: as claimed_by names it. query: the last statement, where
-- it has such a name; statement_seconds: since when. relations: [id of a table, ...].
DECLARE @relations nvarchar(max) = :relations;
DECLARE @sessions nvarchar(max) = :sessions;
DECLARE @names nvarchar(max) = :names;
DECLARE @locks TABLE (session_id int NOT NULL, id bigint NOT NULL);
INSERT INTO @locks (session_id, id)
SELECT DISTINCT
    l.request_session_id,
    l.resource_associated_entity_id
FROM sys.dm_tran_locks AS l
INNER JOIN OPENJSON(@relations) AS given ON l.resource_associated_entity_id = CAST(given.[value] AS bigint)
WHERE
    l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT' AND l.request_status = N'GRANT'
    AND l.request_mode IN (N'IX', N'IU', N'SIX', N'UIX');
SELECT TOP (1000)
    CAST(c.session_id AS int) AS session_id,
    c.session AS session,
    c.login_name AS user_name,
    NULLIF(c.program_name, N'') AS application_name,
    c.host AS host,
    c.connected_seconds AS connected_seconds,
    c.statement_seconds AS statement_seconds,
    CASE WHEN n.named = 1 THEN c.query END AS query,
    w.relations AS relations
FROM (
    SELECT
        s.session_id,
        -- As the procedures write claimed_by: the login time in UTC (the server keeps local time).
        CONCAT(N'session=', s.session_id, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
            minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
        ) AS datetime2(3)), 126), N'Z') AS session,
        s.login_name,
        s.program_name,
        COALESCE(s.host_name, k.client_net_address COLLATE DATABASE_DEFAULT) AS host,
        CAST(DATEDIFF_BIG(MILLISECOND, s.login_time, GETDATE()) AS float) / 1000 AS connected_seconds,
        CAST(DATEDIFF_BIG(MILLISECOND, COALESCE(r.start_time, s.last_request_start_time), GETDATE()) AS float) / 1000 AS statement_seconds,
        LEFT(x.text, 1000) AS query
    FROM sys.dm_exec_sessions AS s
    LEFT JOIN {requests} AS r ON s.session_id = r.session_id AND r.place = 1
    LEFT JOIN sys.dm_exec_connections AS k ON s.session_id = k.session_id AND k.parent_connection_id IS NULL
    OUTER APPLY sys.dm_exec_sql_text(COALESCE(r.sql_handle, k.most_recent_sql_handle)) AS x
    WHERE s.is_user_process = 1 AND s.database_id = DB_ID() AND s.session_id <> @@SPID
) AS c
CROSS APPLY (
    SELECT
        CASE
            WHEN EXISTS (
                SELECT 1 FROM OPENJSON(@names) AS requested
                WHERE CHARINDEX(requested.[value] COLLATE DATABASE_DEFAULT, LOWER(c.query) COLLATE DATABASE_DEFAULT) > 0
            ) THEN 1
            ELSE 0
        END AS named
) AS n
CROSS APPLY (
    SELECT N'[' + STUFF((
        SELECT CONCAT(N',', l.id) AS [text()] FROM @locks AS l WHERE l.session_id = c.session_id
        FOR XML PATH('')
    ), 1, 1, N'') + N']' AS relations
) AS w
WHERE
    w.relations IS NOT NULL OR n.named = 1
    OR EXISTS (
        SELECT 1 FROM OPENJSON(@sessions) AS requested WHERE requested.[value] COLLATE DATABASE_DEFAULT = c.session COLLATE DATABASE_DEFAULT
    );

-- name: counters
-- the cumulative waits of the server (in Azure SQL Database: of the database) without the benign ones, and those at the indexes of :relations, a JSON array
-- Benign: waits of threads that have nothing to do, or that are supposed to wait.
-- Source: Paul Randal, "SQL Server Wait Statistics (or please tell me where it hurts)". This is his list,
-- except for the last 10, which sp_BlitzFirst of the First Responder Kit omits too (background tasks, most
-- of them of availability groups).
-- An index's counters restart when its table leaves the metadata cache, the server's when somebody clears
-- them: a decrease is a gap, not a zero. An escalation takes no time; if there is one, somebody has enabled
-- it again.
DECLARE @relations nvarchar(max) = :relations;
WITH indexes AS (
    SELECT
        o.object_id,
        SUM(o.row_lock_wait_count) AS row_locks,
        SUM(o.row_lock_wait_in_ms) AS row_lock_ms,
        SUM(o.page_lock_wait_count) AS page_locks,
        SUM(o.page_lock_wait_in_ms) AS page_lock_ms,
        SUM(o.index_lock_promotion_count) AS escalations,
        SUM(o.page_latch_wait_count) AS latches,
        SUM(o.page_latch_wait_in_ms) AS latch_ms,
        SUM(o.tree_page_latch_wait_count) AS tree_latches,
        SUM(o.tree_page_latch_wait_in_ms) AS tree_latch_ms,
        SUM(o.page_io_latch_wait_count) AS reads,
        SUM(o.page_io_latch_wait_in_ms) AS read_ms
    -- CROSS APPLY: for these only; otherwise the function reads the whole database.
    FROM (SELECT DISTINCT CAST(given.[value] AS int) AS object_id FROM OPENJSON(@relations) AS given) AS relation
    CROSS APPLY sys.dm_db_index_operational_stats(DB_ID(), relation.object_id, NULL, NULL) AS o
    GROUP BY o.object_id
)

SELECT
    CAST(NULL AS bigint) AS id,
    CAST(NULL AS nvarchar(20)) AS kind,
    CAST(w.wait_type AS nvarchar(60)) COLLATE DATABASE_DEFAULT AS wait,
    w.waiting_tasks_count AS count,
    w.wait_time_ms AS ms
FROM sys.dm_db_wait_stats AS w -- when waits_of=database
FROM sys.dm_os_wait_stats AS w -- when waits_of=server
WHERE w.waiting_tasks_count > 0
AND w.wait_type NOT IN (
    SELECT b.wait_type COLLATE DATABASE_DEFAULT
    FROM (
        VALUES
        (N'BROKER_EVENTHANDLER'), (N'BROKER_RECEIVE_WAITFOR'), (N'BROKER_TASK_STOP'), (N'BROKER_TO_FLUSH'),
        (N'BROKER_TRANSMITTER'), (N'CHECKPOINT_QUEUE'), (N'CHKPT'), (N'CLR_AUTO_EVENT'), (N'CLR_MANUAL_EVENT'),
        (N'CLR_SEMAPHORE'), (N'CXCONSUMER'), (N'DBMIRROR_DBM_EVENT'), (N'DBMIRROR_EVENTS_QUEUE'),
        (N'DBMIRROR_WORKER_QUEUE'), (N'DBMIRRORING_CMD'), (N'DIRTY_PAGE_POLL'), (N'DISPATCHER_QUEUE_SEMAPHORE'),
        (N'EXECSYNC'), (N'FSAGENT'), (N'FT_IFTS_SCHEDULER_IDLE_WAIT'), (N'FT_IFTSHC_MUTEX'), (N'HADR_CLUSAPI_CALL'),
        (N'HADR_FILESTREAM_IOMGR_IOCOMPLETION'), (N'HADR_LOGCAPTURE_WAIT'), (N'HADR_NOTIFICATION_DEQUEUE'),
        (N'HADR_TIMER_TASK'), (N'HADR_WORK_QUEUE'), (N'KSOURCE_WAKEUP'), (N'LAZYWRITER_SLEEP'), (N'LOGMGR_QUEUE'),
        (N'MEMORY_ALLOCATION_EXT'), (N'ONDEMAND_TASK_QUEUE'), (N'PARALLEL_REDO_DRAIN_WORKER'),
        (N'PARALLEL_REDO_LOG_CACHE'), (N'PARALLEL_REDO_TRAN_LIST'), (N'PARALLEL_REDO_WORKER_SYNC'),
        (N'PARALLEL_REDO_WORKER_WAIT_WORK'), (N'PREEMPTIVE_OS_FLUSHFILEBUFFERS'), (N'PREEMPTIVE_XE_GETTARGETSTATE'),
        (N'PVS_PREALLOCATE'), (N'PWAIT_ALL_COMPONENTS_INITIALIZED'), (N'PWAIT_DIRECTLOGCONSUMER_GETNEXT'),
        (N'PWAIT_EXTENSIBILITY_CLEANUP_TASK'), (N'QDS_ASYNC_QUEUE'), (N'QDS_CLEANUP_STALE_QUERIES_TASK_MAIN_LOOP_SLEEP'),
        (N'QDS_PERSIST_TASK_MAIN_LOOP_SLEEP'), (N'QDS_SHUTDOWN_QUEUE'), (N'REDO_THREAD_PENDING_WORK'),
        (N'REQUEST_FOR_DEADLOCK_SEARCH'), (N'RESOURCE_QUEUE'), (N'SERVER_IDLE_CHECK'), (N'SLEEP_BPOOL_FLUSH'),
        (N'SLEEP_DBSTARTUP'), (N'SLEEP_DCOMSTARTUP'), (N'SLEEP_MASTERDBREADY'), (N'SLEEP_MASTERMDREADY'),
        (N'SLEEP_MASTERUPGRADED'), (N'SLEEP_MSDBSTARTUP'), (N'SLEEP_SYSTEMTASK'), (N'SLEEP_TASK'),
        (N'SLEEP_TEMPDBSTARTUP'), (N'SNI_HTTP_ACCEPT'), (N'SOS_WORK_DISPATCHER'), (N'SP_SERVER_DIAGNOSTICS_SLEEP'),
        (N'SQLTRACE_BUFFER_FLUSH'), (N'SQLTRACE_INCREMENTAL_FLUSH_SLEEP'), (N'SQLTRACE_WAIT_ENTRIES'),
        (N'VDI_CLIENT_OTHER'), (N'WAIT_FOR_RESULTS'), (N'WAITFOR'), (N'WAITFOR_TASKSHUTDOWN'), (N'WAIT_XTP_CKPT_CLOSE'),
        (N'WAIT_XTP_HOST_WAIT'), (N'WAIT_XTP_OFFLINE_CKPT_NEW_LOG'), (N'WAIT_XTP_RECOVERY'),
        (N'XE_DISPATCHER_JOIN'), (N'XE_DISPATCHER_WAIT'), (N'XE_TIMER_EVENT'),
        (N'DBMIRROR_DBM_MUTEX'), (N'FT_IFTSISM_MUTEX'), (N'HADR_FABRIC_CALLBACK'),
        (N'PARALLEL_REDO_TRAN_TURN'), (N'POPULATE_LOCK_ORDINALS'), (N'PREEMPTIVE_HADR_LEASE_MECHANISM'),
        (N'PREEMPTIVE_SP_SERVER_DIAGNOSTICS'), (N'PREEMPTIVE_XE_DISPATCHER'), (N'UCS_SESSION_REGISTRATION'),
        (N'XE_LIVE_TARGET_TVF')
    ) AS b (wait_type)
)
UNION ALL
SELECT
    CAST(i.object_id AS bigint),
    v.kind,
    v.wait,
    v.count,
    v.ms
FROM indexes AS i
CROSS APPLY (
    VALUES
    (N'Lock', N'row lock', i.row_locks, i.row_lock_ms),
    (N'Lock', N'page lock', i.page_locks, i.page_lock_ms),
    (N'Lock', N'escalation', i.escalations, CAST(0 AS bigint)),
    (N'Buffer Latch', N'page latch', i.latches, i.latch_ms),
    (N'Buffer Latch', N'tree page latch', i.tree_latches, i.tree_latch_ms),
    (N'Buffer IO', N'page read', i.reads, i.read_ms)
) AS v (kind, wait, count, ms);

-- name: horizon
-- at most 5 rows, the oldest first: the transactions whose row versions keep deleted rows of this database from being cleared away
-- transactions: how many with a snapshot or a row version have begun since; NULL: not counted.
SELECT TOP (5)
    CASE a.is_snapshot WHEN 1 THEN N'snapshot' ELSE N'row versions' END AS kind,
    COALESCE(s.login_name, N'') AS name,
    CAST(a.session_id AS int) AS session_id,
    CAST(NULL AS bigint) AS transactions,
    CAST(a.elapsed_time_seconds AS float) AS seconds
FROM sys.dm_tran_active_snapshot_database_transactions AS a
LEFT JOIN sys.dm_exec_sessions AS s ON a.session_id = s.session_id
WHERE a.session_id <> @@SPID
ORDER BY a.elapsed_time_seconds DESC;
