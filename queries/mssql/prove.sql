-- What `prove` does to its own scratch queues, and to nothing else. Roles and members are made in
-- transactions that are rolled back: nothing of them is ever committed.

-- define: readable_table
-- what every reader may look into
[{schema}].[{table}]

-- name: session
-- one value: the session that asks, as `end-session` takes it
SELECT CAST(@@SPID AS nvarchar(10)) AS session;

-- name: drop_pop
-- script: a procedure that somebody dropped
DROP PROCEDURE [{schema}].[{queue}_pop];

-- name: drop_payloads
-- script: the payloads of all messages that lie apart from them are lost
DELETE FROM {beside}; -- when defined beside
-- each partition
DELETE FROM [{schema}].[{queue}_content_{partition}];
-- end

-- name: roles_there
-- one value: whether the three roles have been made in this database already
SELECT CAST(CASE WHEN DATABASE_PRINCIPAL_ID(N'dbq_reader') IS NULL THEN 0 ELSE 1 END AS bit) AS there;

-- name: make_member
-- script: somebody who has one of the roles, whom this login may become
CREATE USER [{member}] WITHOUT LOGIN;
ALTER ROLE [{role}] ADD MEMBER [{member}];

-- name: become
-- script: the session has that member's rights and no others, until it reverts
EXECUTE AS USER = N'{member}';

-- name: revert
-- script: the session is itself again; nothing where it is so already
REVERT;

-- name: count_rows
-- one value: how many rows the queue's table holds; of Service Broker's queue, its archive
SELECT COUNT_BIG(*) AS held FROM {readable_table};

-- name: delete_directly
-- script: rows are deleted past the queue's procedures
DELETE FROM [{schema}].[{queue}_archive];

-- name: started
-- one value: when the server was started: its tempdb is made anew then, and every login may see that
SELECT d.create_date AS started FROM sys.databases AS d WHERE d.name = N'tempdb';

-- name: own_row
-- one value: how many rows of itself a session sees among the sessions: what claimed_by is made of
SELECT COUNT_BIG(*) AS rows_seen FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;

-- name: physical_stats
-- one row: how many rows the function gives for index id 0 of a table with a clustered index, and for its index
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
-- one value: whether locks are kept on transactions and not on rows; null: this server has no such thing
SELECT CAST(DATABASEPROPERTYEX(DB_NAME(), 'IsOptimizedLockingOn') AS bit) AS switched_on;
