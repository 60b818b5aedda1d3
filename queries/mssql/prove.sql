-- What `prove` does to its own scratch queues, and to nothing else. Roles and members are created in transactions that are
-- rolled back: none is ever committed.

-- define: readable_table
-- a table that every reader may read
[{schema}].[{table}]

-- name: session
-- one value: this session, as `end-session` takes it
SELECT CAST(@@SPID AS nvarchar(10)) AS session;

-- name: drop_pop
-- script: drops a procedure, as a fault
DROP PROCEDURE [{schema}].[{queue}_pop];

-- name: drop_payloads
-- script: deletes all payloads of a split queue, as a fault
DELETE FROM {beside}; -- when defined beside
-- each partition
DELETE FROM [{schema}].[{queue}_content_{partition}];
-- end

-- name: roles_exist
-- one value: whether the three roles exist in this database
SELECT CAST(CASE WHEN DATABASE_PRINCIPAL_ID(N'dbq_reader') IS NULL THEN 0 ELSE 1 END AS bit) AS roles_exist;

-- name: make_member
-- script: creates a member of one of the roles that this login may impersonate
CREATE USER [{member}] WITHOUT LOGIN;
ALTER ROLE [{role}] ADD MEMBER [{member}];

-- name: impersonate
-- script: the session has that member's rights only, until it reverts
EXECUTE AS USER = N'{member}';

-- name: revert
-- script: the session has its own rights again, if it did not already
REVERT;

-- name: count_rows
-- one value: how many rows the queue's table has; for Service Broker, its archive
SELECT COUNT_BIG(*) AS held FROM {readable_table};

-- name: delete_directly
-- script: deletes rows directly, not by a pop
DELETE FROM [{schema}].[{queue}_archive];

-- name: started
-- one value: when the server was started, by its tempdb, which every login may see
SELECT d.create_date AS started FROM sys.databases AS d WHERE d.name = N'tempdb';

-- name: own_row
-- one value: how many rows about itself a session sees in sys.dm_exec_sessions, from which claimed_by is made
SELECT COUNT_BIG(*) AS rows_seen FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;

-- name: physical_stats
-- one row: how many rows the function returns for index id 0 of a table with a clustered index, and for its index
SELECT
    (
        SELECT COUNT_BIG(*)
        FROM sys.dm_db_index_physical_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{table}]'), 0, NULL, N'LIMITED') AS f
    ) AS of_zero,
    (
        SELECT COUNT_BIG(*)
        FROM sys.dm_db_index_physical_stats(DB_ID(), OBJECT_ID(N'[{schema}].[{table}]'), 1, NULL, N'LIMITED') AS f
    ) AS of_index;

-- name: optimized_locking
-- one value: whether optimized locking is on; null: this server has no such thing
SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS bit) AS switched_on;

-- name: databases
-- the databases of proofs on this server
SELECT d.name AS name FROM sys.databases AS d WHERE d.name LIKE N'dbq[_]prove[_]%' ORDER BY d.name;

-- name: make_database
-- script: a database of the proof's own; sent outside a transaction, like all that sets it
CREATE DATABASE [{database}];

-- name: make_case_sensitive
-- script: the same, in which names and texts differ by case
CREATE DATABASE [{database}] COLLATE Latin1_General_100_CS_AS_SC;

-- name: set_database
-- script: Service Broker on, snapshots allowed, no row versions: whatever the server's model database has
ALTER DATABASE [{database}] SET READ_COMMITTED_SNAPSHOT OFF WITH ROLLBACK IMMEDIATE;
ALTER DATABASE [{database}] SET ALLOW_SNAPSHOT_ISOLATION ON;
IF EXISTS (SELECT 1 FROM sys.databases AS d WHERE d.name = N'{database}' AND d.is_broker_enabled = 0)
    ALTER DATABASE [{database}] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;

-- name: set_row_versions
-- script: READ COMMITTED reads row versions, as it does in Azure
ALTER DATABASE [{database}] SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE;

-- name: set_optimized_locking
-- script: from SQL Server 2025: a transaction holds one lock instead of one for each row; with row versions it takes those late
ALTER DATABASE [{database}] SET ACCELERATED_DATABASE_RECOVERY = ON;
ALTER DATABASE [{database}] SET OPTIMIZED_LOCKING = ON;

-- name: drop_database
-- script: drops that database with all sessions in it, if it is there
IF DB_ID(N'{database}') IS NOT NULL
BEGIN
    ALTER DATABASE [{database}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE;
    DROP DATABASE [{database}];
END;

-- name: become
-- script: the session is that member until it ends
EXECUTE AS USER = N'{member}' WITH NO REVERT;

-- name: forget_member
-- script: removes a member, if it is there
DROP USER IF EXISTS [{member}];

-- name: hold_lock
-- script: an application lock until the transaction ends; of its name the server shows 32 characters
DECLARE @held int;
EXEC @held = sys.sp_getapplock
    @Resource = N'dbq {schema}.{queue}, and with this the name is longer than 32 characters',
    @LockMode = N'Exclusive',
    @LockOwner = N'Transaction';

-- name: draw
-- one value: the next number of a sequence
SELECT NEXT VALUE FOR [{schema}].[{sequence}] AS drawn;

-- name: draw_range
-- one value: the first of the next three numbers of a sequence
DECLARE @first sql_variant;
EXEC sys.sp_sequence_get_range
    @sequence_name = N'[{schema}].[{sequence}]', @range_size = 3, @range_first_value = @first OUTPUT;
SELECT CAST(@first AS bigint) AS drawn;

-- name: restart_sequence
-- script: as `maintain` and a relay do, here to be rolled back
ALTER SEQUENCE [{schema}].[{sequence}] RESTART WITH 1000000;

-- name: shrink_cache
-- script: as `upgrade` does
ALTER SEQUENCE [{schema}].[{sequence}] CACHE 10;

-- name: make_caller
-- script: creates a member of no role, who may call a queue's procedures and nothing else
CREATE USER [{member}] WITHOUT LOGIN;
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_push] TO [{member}];
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_push_many] TO [{member}];
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_pop] TO [{member}];
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_pop_many] TO [{member}];

-- name: make_watcher
-- script: from SQL Server 2022: creates a login that may see the server's performance state and nothing else
-- Nobody can log in as it: it exists in this transaction alone. A server's rights are granted in master; the session stays here.
CREATE LOGIN [{member}] WITH PASSWORD = N'{secret}', CHECK_POLICY = OFF;
EXEC master.sys.sp_executesql N'GRANT VIEW SERVER PERFORMANCE STATE TO [{member}]';
CREATE USER [{member}] FOR LOGIN [{member}];

-- name: impersonate_login
-- script: the session has that login's rights only, until it reverts
EXECUTE AS LOGIN = N'{member}';

-- name: visible
-- one row: what this login sees of another session: the session, its connection, its last text, its locks; and any requests
DECLARE @session int = :session;
SELECT
    (SELECT COUNT_BIG(*) FROM sys.dm_exec_sessions AS s WHERE s.session_id = @session) AS sessions,
    (SELECT COUNT_BIG(*) FROM sys.dm_exec_connections AS c WHERE c.session_id = @session) AS connections,
    (
        SELECT COUNT_BIG(x.text)
        FROM sys.dm_exec_connections AS c
        CROSS APPLY sys.dm_exec_sql_text(c.most_recent_sql_handle) AS x
        WHERE c.session_id = @session
    ) AS texts,
    (SELECT COUNT_BIG(*) FROM sys.dm_tran_locks AS l WHERE l.request_session_id = @session) AS locks,
    (SELECT COUNT_BIG(*) FROM sys.dm_exec_requests AS r WHERE r.session_id <> @@SPID) AS requests;

-- name: allow_escalation
-- script: a table as others make them: from 5,000 locks on one statement may take a lock on all of it
-- And with a second index, whose keys are locked too.
ALTER TABLE [{schema}].[{relation}] SET (LOCK_ESCALATION = TABLE);
CREATE INDEX [{relation}_attempts] ON [{schema}].[{relation}] (attempts);

-- name: delete_most
-- script: as many rows as an action takes at once
DELETE TOP (4000) FROM [{schema}].[{relation}] WITH (ROWLOCK);

-- name: table_locks
-- one value: whether this session has a lock on all of a table, which no other writer can pass
SELECT COUNT_BIG(*) AS locks
FROM sys.dm_tran_locks AS l
WHERE
    l.request_session_id = @@SPID AND l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT'
    AND l.resource_associated_entity_id = OBJECT_ID(N'[{schema}].[{relation}]') AND l.request_mode IN (N'S', N'U', N'X', N'SIX');

-- name: settings
-- one row: what the session is set to, and which it is
SELECT
    CAST(s.session_id AS nvarchar(10)) AS session,
    CAST(s.transaction_isolation_level AS nvarchar(10)) AS isolation,
    CAST(@@LOCK_TIMEOUT AS nvarchar(20)) AS lock_timeout
FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;

-- name: identity_then_wait
-- script: as a restore sets it, and then so long that the statement is cancelled
SET IDENTITY_INSERT [{schema}].[{relation}] ON;
WAITFOR DELAY '00:00:30';
SET IDENTITY_INSERT [{schema}].[{relation}] OFF;

-- name: identity_of_another
-- script: fails (8107) in a session that has it on for another table
SET IDENTITY_INSERT [{schema}].[{relation}] ON;
SET IDENTITY_INSERT [{schema}].[{relation}] OFF;

-- name: alter_table
-- script: DDL, here to be rolled back: until then it keeps all others away from the table
ALTER TABLE [{schema}].[{relation}] ADD proved int NULL;

-- name: login_times
-- one row: how many sessions of clients are seen, and of how many the login is later than their connection
SELECT
    COUNT_BIG(*) AS seen,
    COALESCE(SUM(CASE WHEN s.login_time > DATEADD(second, 2, c.connect_time) THEN 1 ELSE 0 END), 0) AS later
FROM sys.dm_exec_sessions AS s
INNER JOIN sys.dm_exec_connections AS c ON s.session_id = c.session_id
WHERE s.is_user_process = 1 AND c.parent_connection_id IS NULL;

-- name: does_not_compile
-- script: a batch that fails before its first statement
SELECT m.no_such_column AS nothing FROM [{schema}].[{relation}] AS m;

-- name: error_state
-- one row: the last error's number, and how many transactions are open
SELECT
    @@ERROR AS error,
    @@TRANCOUNT AS transactions;

-- name: lock_table
-- script: keeps all others away from a table until the transaction ends
DECLARE @held int;
SELECT TOP (1) @held = 1 FROM [{schema}].[{relation}] AS m WITH (TABLOCKX, HOLDLOCK);

-- name: lock_partitions
-- one row: on how many of its partitions this session has that lock, and how many schedulers the server has
SELECT
    COUNT_BIG(DISTINCT l.resource_lock_partition) AS partitions,
    (SELECT CAST(i.scheduler_count AS bigint) FROM sys.dm_os_sys_info AS i) AS schedulers
FROM sys.dm_tran_locks AS l
WHERE
    l.request_session_id = @@SPID AND l.resource_database_id = DB_ID() AND l.resource_type = N'OBJECT'
    AND l.resource_associated_entity_id = OBJECT_ID(N'[{schema}].[{relation}]') AND l.request_mode = N'X';

-- name: lock_configuration
-- script: as a relay locks a ring's configuration
DECLARE @size bigint;
SELECT @size = c.size FROM [{schema}].[{relation}] AS c WITH (XLOCK, ROWLOCK, HOLDLOCK);

-- name: release_unheld
-- script: releases an application lock that this transaction does not hold
EXEC sys.sp_releaseapplock @Resource = N'dbq {schema}.{queue}, which is not held', @LockOwner = N'Transaction';

-- name: described
-- one value: the error with which the server refuses to describe a procedure's first result; 0: it describes it
SELECT COALESCE(MAX(f.error_number), 0) AS error
FROM sys.dm_exec_describe_first_result_set_for_object(OBJECT_ID(N'[{schema}].[{function}]'), 0) AS f;

-- name: conversation
-- one value: the conversation of the first message of a broker queue
SELECT TOP (1) CAST(m.conversation_handle AS nvarchar(36)) AS conversation
FROM [{schema}].[{relation}] AS m
ORDER BY m.queuing_order;

-- name: conversation_states
-- a row for each conversation of a broker queue: its side and its state
SELECT
    CASE WHEN e.is_initiator = 1 THEN N'initiator' ELSE N'target' END AS side,
    CAST(e.state AS nvarchar(2)) AS state
FROM sys.conversation_endpoints AS e INNER JOIN sys.services AS s ON e.service_id = s.service_id
WHERE s.name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator');

-- name: activate
-- script: the engine starts the registered procedure of a broker queue from now on
ALTER QUEUE [{schema}].[{queue}] WITH ACTIVATION (STATUS = ON);

-- name: deactivate
-- script: it starts none any more
ALTER QUEUE [{schema}].[{queue}] WITH ACTIVATION (STATUS = OFF);

-- name: pop_one
-- script: the procedure that pops one message
EXEC [{schema}].[{queue}_pop];

-- name: end_conversation
-- one value: 1, after it was ended by the procedure of its owner
DECLARE @conversation uniqueidentifier = :conversation;
EXEC [{schema}].[{function}] @conversation = @conversation;
SELECT 1 AS ended;

-- name: roles_made
-- one value: 1: in a database of the proof's own the roles are the proof's own too
SELECT CAST(1 AS bit) AS made;
