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

-- name: exists
-- one row: whether this database has a catalog at all (or one that this login may know of)
SELECT CAST(CASE WHEN OBJECT_ID(N'dbq.queue', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS present;

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
