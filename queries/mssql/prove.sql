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
