-- The console's own schema: which queues this database holds.
--
-- Names are kept and compared exactly, whatever the database's collation: Orders and orders are two.
-- SQL Server itself compares the names of its objects by the collation of its catalog, where they may be
-- one; so what is taken there (relations) is asked by its own rule.

-- name: lock
-- script: one installer at a time, until the transaction ends
DECLARE @got int;
EXEC @got = sys.sp_getapplock @Resource = N'dbq catalog', @LockMode = N'Exclusive', @LockOwner = N'Transaction';
IF @got < 0
    THROW 51003, N'Another console installs or adopts something in this database.||Nothing was changed. Try again.', 1;

-- name: bootstrap
-- script: makes schema dbq and its tables where they are missing; wants their owner, or nobody's yet
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
-- CREATE SCHEMA has to be alone in its batch, and this one is made where it is missing.
IF SCHEMA_ID(N'dbq') IS NULL
    EXEC (N'CREATE SCHEMA dbq');
GO
-- kind: installed by the console; adopted: somebody else's table; archive: only the archive of an
-- uninstalled queue is left.
IF OBJECT_ID(N'dbq.queue', N'U') IS NULL
    CREATE TABLE dbq.[queue] (
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        design nvarchar(30) NOT NULL,
        kind nvarchar(10) NOT NULL CONSTRAINT queue_kind CHECK (kind IN (N'installed', N'adopted', N'archive')),
        options nvarchar(max) NOT NULL CONSTRAINT queue_options CHECK (ISJSON(options) = 1),
        roles nvarchar(max) NOT NULL CONSTRAINT queue_roles CHECK (ISJSON(roles) = 1),
        version int NOT NULL,
        installed_by nvarchar(128) NOT NULL CONSTRAINT queue_installed_by DEFAULT ORIGINAL_LOGIN(),
        installed_from nvarchar(400) NOT NULL CONSTRAINT queue_installed_from DEFAULT N'',
        installed_at datetime2(7) NOT NULL CONSTRAINT queue_installed_at DEFAULT SYSUTCDATETIME(),
        CONSTRAINT queue_key PRIMARY KEY CLUSTERED (schema_name, queue_name)
    );

-- production = on: every console honours it on every connection.
IF OBJECT_ID(N'dbq.setting', N'U') IS NULL
    CREATE TABLE dbq.setting (
        name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        value nvarchar(max) NOT NULL,
        CONSTRAINT setting_key PRIMARY KEY CLUSTERED (name)
    );

-- What operators did by the console: counted in the transactions that did it; never a payload. session:
-- who acts, as claimed_by has it; an action that is running ends with its session.
IF OBJECT_ID(N'dbq.action', N'U') IS NULL
    CREATE TABLE dbq.[action] (
        action_id bigint IDENTITY(1, 1) NOT NULL,
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        verb nvarchar(30) NOT NULL,
        started_at datetime2(7) NOT NULL CONSTRAINT action_started_at DEFAULT SYSUTCDATETIME(),
        last_at datetime2(7) NOT NULL CONSTRAINT action_last_at DEFAULT SYSUTCDATETIME(),
        ended_at datetime2(7) NULL,
        operator nvarchar(400) NOT NULL,
        database_user nvarchar(128) NOT NULL CONSTRAINT action_database_user DEFAULT ORIGINAL_LOGIN(),
        session nvarchar(256) NOT NULL,
        connection nvarchar(max) NOT NULL,
        filters nvarchar(max) NOT NULL CONSTRAINT action_filters DEFAULT N'',
        cutoff datetime2(7) NULL,
        planned bigint NOT NULL CONSTRAINT action_planned DEFAULT 0,
        selected bigint NOT NULL CONSTRAINT action_selected DEFAULT 0,
        done bigint NOT NULL CONSTRAINT action_done DEFAULT 0,
        skipped bigint NOT NULL CONSTRAINT action_skipped DEFAULT 0,
        failed bigint NOT NULL CONSTRAINT action_failed DEFAULT 0,
        outcome nvarchar(20) NOT NULL CONSTRAINT action_outcome DEFAULT N'running',
        detail nvarchar(max) NOT NULL CONSTRAINT action_detail DEFAULT N'',
        CONSTRAINT action_key PRIMARY KEY CLUSTERED (action_id) WITH (ALLOW_PAGE_LOCKS = OFF),
        -- No key but an order: a queue's actions, its newest last. It spares a filtered index, which asks
        -- more of a session's settings than every client has on.
        INDEX action_queue NONCLUSTERED (queue_name, schema_name, action_id) WITH (ALLOW_PAGE_LOCKS = OFF)
    );

-- name: exists
-- one row: whether this database has a catalog at all (or one that this login may know of), and whether that
-- keeps an audit
SELECT
    CAST(CASE WHEN OBJECT_ID(N'dbq.queue', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS present,
    CAST(CASE WHEN OBJECT_ID(N'dbq.action', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS audited;

-- name: may_act
-- one row: whether this login may write the audit
SELECT
    CAST(
        CASE
            WHEN HAS_PERMS_BY_NAME(N'dbq.action', N'OBJECT', N'INSERT') = 1
                AND HAS_PERMS_BY_NAME(N'dbq.action', N'OBJECT', N'UPDATE') = 1 THEN 1
            ELSE 0
        END AS bit
    ) AS present;

-- name: action_begin
-- one row: the number of an action that begins now
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @verb nvarchar(30) = :verb;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @place nvarchar(max) = :place;
DECLARE @filters nvarchar(max) = :filters;
DECLARE @cutoff datetime2(7) = :cutoff;
DECLARE @planned bigint = :planned;
DECLARE @detail nvarchar(max) = :detail;
INSERT INTO dbq.[action] (
    schema_name, queue_name, verb, operator, session, connection, filters, cutoff, planned, detail
)
OUTPUT inserted.action_id
SELECT
    @schema,
    @queue,
    @verb,
    @operator,
    -- As the procedures write claimed_by: the login time in UTC, which the server keeps in local time.
    CONCAT(N'session=', s.session_id, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
        minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
    ) AS datetime2(3)), 126), N'Z'),
    @place,
    @filters,
    @cutoff,
    @planned,
    @detail
FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;

-- name: action_batch
-- one row: the action's number, its counts raised by one batch; none where it is no longer running
DECLARE @action_id bigint = :action_id;
DECLARE @selected bigint = :selected;
DECLARE @done bigint = :done;
DECLARE @skipped bigint = :skipped;
DECLARE @failed bigint = :failed;
UPDATE dbq.[action]
SET
    last_at = SYSUTCDATETIME(),
    selected = selected + @selected,
    done = done + @done,
    skipped = skipped + @skipped,
    failed = failed + @failed
OUTPUT inserted.action_id
WHERE action_id = @action_id AND ended_at IS NULL;

-- name: action_end
-- one row: the action's number and what it has done; its outcome is kept. None where it had ended before
DECLARE @action_id bigint = :action_id;
DECLARE @outcome nvarchar(20) = :outcome;
DECLARE @detail nvarchar(max) = :detail;
UPDATE dbq.[action]
SET last_at = SYSUTCDATETIME(), ended_at = SYSUTCDATETIME(), outcome = @outcome, detail = @detail
OUTPUT inserted.action_id, inserted.done
WHERE action_id = @action_id AND ended_at IS NULL;

-- name: running
-- what operators are doing now: each action that has not ended, unless its last batch is a day old
-- READPAST: a batch that is not committed has its row locked, and shows in the next look.
SELECT TOP (100)
    a.schema_name AS [schema],
    a.queue_name AS queue,
    a.verb AS verb,
    a.operator AS operator,
    a.database_user AS database_user,
    a.session AS session,
    CAST(DATEDIFF_BIG(millisecond, a.started_at, SYSUTCDATETIME()) / 1e3 AS float) AS since_seconds,
    a.planned AS planned,
    a.done AS done
FROM dbq.[action] AS a WITH (READPAST, READCOMMITTEDLOCK)
WHERE a.ended_at IS NULL AND a.last_at > DATEADD(day, -1, SYSUTCDATETIME())
ORDER BY a.last_at DESC;

-- name: actions
-- what operators did, the newest first, at most :n
-- An action that is one transaction shows once it is committed: a look at the audit waits for nobody.
DECLARE @n bigint = :n;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @verb nvarchar(30) = :verb;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @since float = :since;
DECLARE @running bit = :running;
SELECT TOP (@n)
    a.action_id AS action_id,
    a.schema_name AS [schema],
    a.queue_name AS queue,
    a.verb AS verb,
    a.started_at AS started_at,
    a.last_at AS last_at,
    a.ended_at AS ended_at,
    a.operator AS operator,
    a.database_user AS database_user,
    a.session AS session,
    a.connection AS connection,
    a.filters AS filters,
    a.cutoff AS cutoff,
    a.planned AS planned,
    a.selected AS selected,
    a.done AS done,
    a.skipped AS skipped,
    a.failed AS failed,
    a.outcome AS outcome,
    a.detail AS detail
FROM dbq.[action] AS a WITH (READPAST, READCOMMITTEDLOCK)
WHERE (@schema IS NULL OR a.schema_name = @schema)
AND (@queue IS NULL OR a.queue_name = @queue)
AND (@verb IS NULL OR a.verb = @verb)
AND (@operator IS NULL OR CHARINDEX(@operator, a.operator) > 0 OR a.database_user = @operator)
AND (@since IS NULL OR a.started_at >= DATEADD(second, 0 - CAST(@since AS int), SYSUTCDATETIME()))
AND (COALESCE(@running, 0) = 0 OR a.ended_at IS NULL)
ORDER BY a.action_id DESC;

-- name: queues
-- all queues that the database holds, by schema and name; options and roles as JSON text
SELECT
    q.schema_name AS [schema],
    q.queue_name AS name,
    q.design AS design,
    q.kind AS kind,
    q.options AS options,
    q.roles AS roles,
    q.version AS version,
    q.installed_by AS installed_by,
    q.installed_from AS installed_from,
    q.installed_at AS installed_at
FROM dbq.[queue] AS q
ORDER BY q.schema_name, q.queue_name;

-- name: settings
-- the settings kept in this database
SELECT
    s.name AS name,
    s.value AS value
FROM dbq.setting AS s;

-- name: record
-- script: one line of the catalog, of a queue that is installed or adopted in the same transaction
INSERT INTO dbq.[queue] (schema_name, queue_name, design, kind, options, roles, version, installed_from)
VALUES (
    N'{schema}', N'{queue}', N'{design}', N'{kind}', N'{options_json}', N'{roles_json}',
    CAST(N'{version}' AS int), N'{installed_from}'
);

-- name: erase
-- script: takes a queue out of the catalog
DELETE FROM dbq.[queue] WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: keep_archive
-- script: of this queue only the archive is left
UPDATE dbq.[queue] SET kind = N'archive' WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: renew
-- script: the queue has what this console installs; the catalog says so
UPDATE dbq.[queue] SET version = CAST(N'{version}' AS int) WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: schema_exists
-- one row: whether the schema is there (compared exactly; "=" alone does not see blanks at the end)
DECLARE @schema nvarchar(max) = :schema;
SELECT
    CAST(
        CASE WHEN EXISTS (
            SELECT 1 FROM sys.schemas AS s
            WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND DATALENGTH(s.name) = DATALENGTH(@schema)
        ) THEN 1 ELSE 0 END AS bit
    ) AS present;

-- name: relations
-- those of the given names (:names, a JSON array) that are already in use in the schema, with what they are
-- Looked up as the server itself looks names up, by the collation of its catalog. Message types, contracts
-- and services of Service Broker belong to the database and to no schema: ours bear its name before their
-- own (broker.sql), and Service Broker compares such names exactly.
DECLARE @schema nvarchar(128) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT
    taken.name AS name,
    taken.kind AS kind
FROM (
    SELECT
        o.name COLLATE DATABASE_DEFAULT AS name,
        CASE RTRIM(o.type)
            WHEN N'U' THEN N'a table'
            WHEN N'V' THEN N'a view'
            WHEN N'SO' THEN N'a sequence'
            WHEN N'SQ' THEN N'a Service Broker queue'
            WHEN N'SN' THEN N'a synonym'
            WHEN N'TR' THEN N'a trigger'
            WHEN N'PK' THEN N'a constraint'
            WHEN N'UQ' THEN N'a constraint'
            WHEN N'C' THEN N'a constraint'
            WHEN N'D' THEN N'a constraint'
            WHEN N'F' THEN N'a constraint'
            WHEN N'P' THEN N'a procedure'
            WHEN N'PC' THEN N'a procedure'
            WHEN N'X' THEN N'a procedure'
            WHEN N'FN' THEN N'a function'
            WHEN N'IF' THEN N'a function'
            WHEN N'TF' THEN N'a function'
            ELSE N'an object'
        END AS kind
    FROM OPENJSON(@names) AS given
    INNER JOIN sys.objects AS o ON o.object_id = OBJECT_ID(CONCAT(QUOTENAME(@schema), N'.', QUOTENAME(given.[value])))
    UNION
    SELECT
        m.name COLLATE DATABASE_DEFAULT,
        N'a message type'
    FROM sys.service_message_types AS m
    INNER JOIN OPENJSON(@names) AS given ON m.name = CONCAT(@schema, N'.', given.[value]) COLLATE Latin1_General_BIN
    UNION
    SELECT
        c.name COLLATE DATABASE_DEFAULT,
        N'a contract'
    FROM sys.service_contracts AS c
    INNER JOIN OPENJSON(@names) AS given ON c.name = CONCAT(@schema, N'.', given.[value]) COLLATE Latin1_General_BIN
    UNION
    SELECT
        s.name COLLATE DATABASE_DEFAULT,
        N'a service'
    FROM sys.services AS s
    INNER JOIN OPENJSON(@names) AS given ON s.name = CONCAT(@schema, N'.', given.[value]) COLLATE Latin1_General_BIN
) AS taken
ORDER BY taken.name, taken.kind;

-- name: columns
-- the columns of one table or view (its name compared exactly), with their types; none: it is not there
DECLARE @schema nvarchar(max) = :schema;
DECLARE @table nvarchar(max) = :table;
SELECT
    c.name AS name,
    CASE
        WHEN t.name IN (N'nvarchar', N'nchar', N'varchar', N'char', N'varbinary', N'binary') AND c.max_length = -1
            THEN CONCAT(t.name, N'(max)')
        WHEN t.name IN (N'nvarchar', N'nchar') THEN CONCAT(t.name, N'(', c.max_length / 2, N')')
        WHEN t.name IN (N'varchar', N'char', N'varbinary', N'binary') THEN CONCAT(t.name, N'(', c.max_length, N')')
        WHEN t.name IN (N'decimal', N'numeric') THEN CONCAT(t.name, N'(', c.[precision], N', ', c.scale, N')')
        WHEN t.name IN (N'datetime2', N'datetimeoffset', N'time') THEN CONCAT(t.name, N'(', c.scale, N')')
        ELSE t.name
    END AS type
FROM sys.columns AS c
INNER JOIN sys.types AS t ON c.user_type_id = t.user_type_id
INNER JOIN sys.objects AS o ON c.object_id = o.object_id
INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND DATALENGTH(s.name) = DATALENGTH(@schema)
AND o.name = @table COLLATE Latin1_General_100_BIN2 AND DATALENGTH(o.name) = DATALENGTH(@table)
AND o.type IN (N'U', N'V')
ORDER BY c.column_id;

-- name: tables
-- the tables that this login may see, by schema and name, at most :n; rows as the metadata have them, null: not known
DECLARE @n bigint = :n;
SELECT TOP (@n)
    s.name AS [schema],
    t.name AS name,
    (
        SELECT CAST(SUM(p.[rows]) AS bigint) FROM sys.partitions AS p
        WHERE p.object_id = t.object_id AND p.index_id IN (0, 1)
    ) AS rows_estimated
FROM sys.tables AS t
INNER JOIN sys.schemas AS s ON t.schema_id = s.schema_id
WHERE t.is_ms_shipped = 0 AND s.name <> N'dbq'
ORDER BY s.name, t.name;
