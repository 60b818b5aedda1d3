-- `pipeline replay`: which messages of a lake were replayed, and pushing more of them.

-- name: has_list
-- one row: whether this database has the list of replayed messages
SELECT CAST(CASE WHEN OBJECT_ID(N'dbq.replayed', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS present;

-- name: create_list
-- script: creates that list: a message of a lake is replayed once into a database
IF OBJECT_ID(N'dbq.replayed', N'U') IS NULL
    CREATE TABLE dbq.replayed (
        lake nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
        source nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
        message nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        action_id bigint NOT NULL,
        replayed_at datetime2(7) NOT NULL CONSTRAINT replayed_replayed_at DEFAULT SYSUTCDATETIME(),
        CONSTRAINT replayed_key PRIMARY KEY CLUSTERED (lake, source, message)
    );

-- name: replayed
-- a row for each of these messages of a lake that was replayed before
DECLARE @lake nvarchar(40) = :lake;
DECLARE @source nvarchar(40) = :source;
DECLARE @messages nvarchar(max) = :messages;
SELECT r.message AS message
FROM OPENJSON(@messages) AS m
INNER JOIN dbq.replayed AS r WITH (READCOMMITTEDLOCK)
    ON r.message = CAST(m.[value] AS nvarchar(200)) COLLATE Latin1_General_100_BIN2
WHERE r.lake = @lake AND r.source = @source;

-- name: record_replayed
-- one row: how many of these messages were added to the list
SET NOCOUNT ON;
DECLARE @lake nvarchar(40) = :lake;
DECLARE @source nvarchar(40) = :source;
DECLARE @action_id bigint = :action_id;
DECLARE @messages nvarchar(max) = :messages;
INSERT INTO dbq.replayed (lake, source, message, action_id)
SELECT
    @lake,
    @source,
    CAST(m.[value] AS nvarchar(200)),
    @action_id
FROM OPENJSON(@messages) AS m;
SELECT CAST(@@ROWCOUNT AS bigint) AS count;

-- name: push
-- a row for each payload in order: its id as text, null where it was not stored
DECLARE @payloads nvarchar(max) = :payloads;
DECLARE @due_at datetime2(7) = :due_at; -- when role due_at
DECLARE @title nvarchar(max) = :title; -- when defined title
EXEC [{schema}].[{queue}_push_many] @payloads = @payloads
, @due_time = @due_at -- when role due_at
, @title = @title -- when defined title
WITH RESULT SETS ((id nvarchar(36) NULL));
