-- What `dbq-console bench` sends: the calls of a queue's public interface that its load makes, and queries
-- of what a round leaves behind and of what it cost the server.
--
-- A message of the bench is text: 8 digits that check the head, 4 of its producer, 10 of its number there,
-- 16 of the microsecond in which it was pushed, and a filler that is the same in all of them.

-- define: unfinished_payloads
SELECT {joined_payload} AS payload FROM [{schema}].[{table}] AS m
INNER JOIN {beside} AS d ON m.id = d.id -- when defined beside
WHERE {is_unfinished} -- when defined is_unfinished

-- define: subscriber_argument
 @subscriber = N'{subscriber}' -- when subscribed=yes

-- define: also_subscriber
, @subscriber = N'{subscriber}' -- when subscribed=yes

-- name: push
-- one row: the message's id, null where the queue is full
DECLARE @payload nvarchar(max) = :payload;
EXEC [{schema}].[{queue}_push] @payload = @payload
WITH RESULT SETS ((id nvarchar(36)));

-- name: push_many
-- a row for each payload: its id, null where it was not stored; those are the last ones
-- :payloads is a JSON array of strings.
DECLARE @payloads nvarchar(max) = :payloads;
EXEC [{schema}].[{queue}_push_many] @payloads = @payloads
WITH RESULT SETS ((id nvarchar(36)));

-- name: push_each
-- one row: the message's id in the first of the rings named {queue}, {queue}1, {queue}2 ...; null: one was full
DECLARE @payload nvarchar(max) = :payload;
DECLARE @stored TABLE (id nvarchar(36));
BEGIN TRANSACTION;
-- each subscriber
INSERT INTO @stored (id) EXEC [{schema}].[{queue}_{subscriber_number}_push] @payload = @payload;
-- end
COMMIT TRANSACTION;
SELECT CASE WHEN COUNT(s.id) = COUNT(*) THEN MIN(s.id) END AS id FROM @stored AS s;

-- name: push_many_each
-- a row for each payload: its id in the first of those rings, null if it was not stored
DECLARE @payloads nvarchar(max) = :payloads;
DECLARE @stored TABLE (ring int DEFAULT 0, id nvarchar(36));
BEGIN TRANSACTION;
-- each subscriber
INSERT INTO @stored (id) EXEC [{schema}].[{queue}_{subscriber_number}_push_many] @payloads = @payloads;
UPDATE @stored SET ring = {subscriber_number} WHERE ring = 0;
-- end
COMMIT TRANSACTION;
SELECT s.id AS id FROM @stored AS s WHERE s.ring = 1;

-- name: pop
-- the popped message, or nothing
EXEC [{schema}].[{queue}_pop]{subscriber_argument}
WITH RESULT SETS ((id nvarchar(36), payload nvarchar(max), pushed_at datetime2(7), attempts int));

-- name: pop_many
-- at most :n messages, in the design's order
DECLARE @n int = :n;
EXEC [{schema}].[{queue}_pop_many] @n = @n{also_subscriber}
WITH RESULT SETS ((id nvarchar(36), payload nvarchar(max), pushed_at datetime2(7), attempts int));

-- name: complete
-- one row: how many of these claims were finished
DECLARE @id nvarchar(36) = :id;
DECLARE @attempts int = :attempts;
EXEC [{schema}].[{queue}_complete] @id = @id, @attempts = @attempts{also_subscriber}
WITH RESULT SETS ((finished int));

-- name: held
-- the payloads of all messages that are not finished, for `left` and `left_codes`
{unfinished_payloads}

-- name: codes
-- for the payloads in `held`: producer * 10,000,000,000 + number, or -1 if it is not what was pushed
SELECT
    CASE
        WHEN
            whole.is_whole = 1
            AND (
                whole.producer * CAST(7919 AS bigint) + whole.number * CAST(104729 AS bigint) + whole.at_us * CAST(31 AS bigint)
            ) % 99999989 = whole.checked
            THEN whole.producer * CAST(10000000000 AS bigint) + whole.number
        ELSE CAST(-1 AS bigint)
    END AS code
FROM (
    SELECT
        TRY_CAST(SUBSTRING(h.payload, 1, 8) AS bigint) AS checked,
        TRY_CAST(SUBSTRING(h.payload, 9, 4) AS bigint) AS producer,
        TRY_CAST(SUBSTRING(h.payload, 13, 10) AS bigint) AS number,
        TRY_CAST(SUBSTRING(h.payload, 23, 16) AS bigint) AS at_us,
        -- Compared by code point: a collation may treat A and a as equal.
        CASE
            WHEN
                SUBSTRING(h.payload, 1, 38) NOT LIKE N'%[^0-9]%' COLLATE Latin1_General_BIN2
                AND SUBSTRING(h.payload, 39, 2147483647) = CAST(:filler AS nvarchar(max)) COLLATE Latin1_General_BIN2
                THEN 1
            ELSE 0
        END AS is_whole
    FROM held AS h
) AS whole

-- name: left
-- a row for each producer in `codes` (-1: damaged): how many, how many different, and sums to identify them
SELECT
    of_one.producer AS producer,
    COUNT_BIG(*) AS messages,
    COUNT_BIG(DISTINCT of_one.code) AS different,
    CAST(SUM(CAST(of_one.number AS decimal(38, 0))) AS nvarchar(40)) AS numbers,
    CAST(SUM(CAST(of_one.number AS decimal(38, 0)) * of_one.number) AS nvarchar(40)) AS squares
FROM (
    SELECT
        c.code,
        CASE WHEN c.code < 0 THEN CAST(-1 AS bigint) ELSE c.code / CAST(10000000000 AS bigint) END AS producer,
        c.code % CAST(10000000000 AS bigint) AS number
    FROM codes AS c
) AS of_one
GROUP BY of_one.producer
ORDER BY of_one.producer

-- name: left_codes
-- a row for each message of `codes`
SELECT c.code AS code FROM codes AS c ORDER BY c.code

-- name: settings
-- a row for each setting that affects durability or speed
SELECT
    chosen.name AS name,
    chosen.value AS value
FROM sys.databases AS d
CROSS APPLY (
    VALUES
    (N'delayed_durability', d.delayed_durability_desc),
    (N'recovery_model', d.recovery_model_desc),
    (N'read_committed_snapshot', CASE WHEN d.is_read_committed_snapshot_on = 1 THEN N'on' ELSE N'off' END),
    (N'compatibility_level', CAST(d.compatibility_level AS nvarchar(10)))
) AS chosen (name, value)
WHERE d.name = DB_NAME()
ORDER BY chosen.name;

-- name: durable
-- one row: whether commits are flushed to disk (the bench's own sessions wait for that)
SELECT CAST(CASE WHEN d.delayed_durability_desc = N'FORCED' THEN 0 ELSE 1 END AS bit) AS durable
FROM sys.databases AS d
WHERE d.name = DB_NAME();

-- name: bytes_written
-- one row: bytes of this database's log that were written so far
-- Requires VIEW SERVER STATE (in Azure SQL Database VIEW DATABASE STATE).
SELECT CAST(SUM(f.num_of_bytes_written) AS bigint) AS log_bytes
FROM sys.dm_io_virtual_file_stats(DB_ID(), NULL) AS f
INNER JOIN sys.database_files AS d ON f.file_id = d.file_id
WHERE d.type_desc = N'LOG';

-- name: page_accesses
-- one row: rows that were written in tables of these names; the server does not count pages by table
-- :names is a JSON array.
DECLARE @schema nvarchar(128) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT
    CAST(NULL AS bigint) AS pages,
    CAST(SUM(s.leaf_update_count) AS bigint) AS updates,
    CAST(NULL AS bigint) AS hot_updates
FROM OPENJSON(@names) AS n
INNER JOIN sys.tables AS t ON t.object_id = OBJECT_ID(CONCAT(QUOTENAME(@schema), N'.', QUOTENAME(n.[value])))
CROSS APPLY sys.dm_db_index_operational_stats(DB_ID(), t.object_id, NULL, NULL) AS s
WHERE s.index_id IN (0, 1);

-- name: disk
-- one row: bytes of the tables of these names, with their indexes; null where there is none
-- :names is a JSON array.
DECLARE @schema nvarchar(128) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT CAST(SUM(s.used_page_count) * 8192 AS bigint) AS bytes
FROM OPENJSON(@names) AS n
INNER JOIN sys.tables AS t ON t.object_id = OBJECT_ID(CONCAT(QUOTENAME(@schema), N'.', QUOTENAME(n.[value])))
INNER JOIN sys.dm_db_partition_stats AS s ON t.object_id = s.object_id;

-- name: waiting
-- the sessions whose names have this prefix: what they are doing, and how many
DECLARE @name nvarchar(128) = :name;
SELECT
    CAST(NULL AS nvarchar(60)) AS kind,
    r.wait_type AS wait,
    COUNT_BIG(*) AS sessions
FROM sys.dm_exec_sessions AS s
INNER JOIN sys.dm_exec_requests AS r ON s.session_id = r.session_id
WHERE LEFT(s.program_name, LEN(@name)) = @name AND s.session_id <> @@SPID
GROUP BY r.wait_type;

-- name: live_sessions
-- the names of the sessions of benches and proofs on this server
SELECT DISTINCT s.program_name AS name
FROM sys.dm_exec_sessions AS s
WHERE s.program_name LIKE N'dbq-bench %' OR s.program_name LIKE N'dbq-prove %';

-- name: schemas
-- the schemas created by a bench
SELECT s.name AS name
FROM sys.schemas AS s
WHERE s.name LIKE N'dbq[_]bench[_]%'
ORDER BY s.name;

-- name: make_schema
-- script: creates a schema for the bench
CREATE SCHEMA [{schema}];

-- name: drop_schema
-- script: drops such a schema with everything in it
DROP TABLE IF EXISTS [{schema}].[rows];
DROP SCHEMA IF EXISTS [{schema}];

-- name: make_rows
-- script: rows to update by their key
CREATE TABLE [{schema}].[rows] (
    slot bigint NOT NULL PRIMARY KEY CLUSTERED WITH (ALLOW_PAGE_LOCKS = OFF),
    message nvarchar(max) NOT NULL
);
INSERT INTO [{schema}].[rows] (slot, message)
SELECT TOP (CAST(N'{rows}' AS int))
    ROW_NUMBER() OVER (ORDER BY a.object_id) - 1,
    REPLICATE(N'0', CAST(N'{width}' AS int))
FROM sys.all_columns AS a
CROSS JOIN sys.all_columns AS b;

-- name: update_row
-- no row: updates one row
DECLARE @slot bigint = :slot;
DECLARE @message nvarchar(max) = :message;
UPDATE [{schema}].[rows] SET message = @message WHERE slot = @slot;

-- name: begin_old
-- script: begins a transaction that keeps its first snapshot
SET TRANSACTION ISOLATION LEVEL SNAPSHOT;
BEGIN TRANSACTION;

-- name: old_snapshot
-- one row: the first transaction whose row versions this one's snapshot keeps from being cleared
SELECT CAST(MIN(t.transaction_sequence_num) AS nvarchar(20)) AS xmin
FROM sys.dm_tran_active_snapshot_database_transactions AS t
WHERE t.session_id = @@SPID;

-- name: end_old
-- script: ends it
ROLLBACK TRANSACTION;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
