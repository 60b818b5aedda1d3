-- The console's own schema: which queues this database holds.
--
-- Names are stored and compared exactly, whatever the database's collation: Orders and orders differ.
-- SQL Server compares the names of its objects by the collation of its catalog, where they may be equal;
-- so `relations` checks by that rule which names are taken.

-- name: lock
-- script: one installer at a time, until the transaction ends
DECLARE @got int;
EXEC @got = sys.sp_getapplock @Resource = N'dbq catalog', @LockMode = N'Exclusive', @LockOwner = N'Transaction';
IF @got < 0
    THROW 51003, N'Another console installs or adopts something in this database.||Nothing was changed. Try again.', 1;

-- name: bootstrap
-- script: creates schema dbq and its tables where they are missing; requires their owner, if they exist
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
-- CREATE SCHEMA must be alone in its batch; this one is created only if missing. dbo's, not its creator's, who may leave; nor
-- dbq_owner's, whom dbq_admin may impersonate: only its owner deletes from the audit.
IF SCHEMA_ID(N'dbq') IS NULL AND HAS_PERMS_BY_NAME(N'dbo', N'USER', N'IMPERSONATE') = 1
    EXEC (N'CREATE SCHEMA dbq AUTHORIZATION dbo');
IF SCHEMA_ID(N'dbq') IS NULL
    EXEC (N'CREATE SCHEMA dbq');
GO
IF NOT EXISTS (
    SELECT 1 FROM sys.extended_properties AS p
    WHERE p.class = 3 AND p.major_id = SCHEMA_ID(N'dbq') AND p.name = N'dbq-console catalog'
)
    EXEC sys.sp_addextendedproperty
        @name = N'dbq-console catalog', @value = 1, @level0type = N'SCHEMA', @level0name = N'dbq';
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

-- What operators did with the console, counted in the same transactions; never a payload. session: who
-- acts, in the format of claimed_by; an action that is running ends with its session.
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
        -- Not unique, only an order: a queue's actions, the newest last. It avoids a filtered index, which
        -- requires session settings that not every client has on.
        INDEX action_queue NONCLUSTERED (queue_name, schema_name, action_id) WITH (ALLOW_PAGE_LOCKS = OFF)
    );

-- Operators' decisions about a queue, in force until revoked. Both end with the queue.
-- functions: what resume restores: the definition of each replaced procedure, by name.
-- until: the intended end; a pause that lasts longer is a finding, and stays in force.
IF OBJECT_ID(N'dbq.pause', N'U') IS NULL
    CREATE TABLE dbq.pause (
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        paused_at datetime2(7) NOT NULL CONSTRAINT pause_paused_at DEFAULT SYSUTCDATETIME(),
        operator nvarchar(400) NOT NULL,
        database_user nvarchar(128) NOT NULL CONSTRAINT pause_database_user DEFAULT ORIGINAL_LOGIN(),
        reason nvarchar(max) NOT NULL CONSTRAINT pause_reason DEFAULT N'',
        until datetime2(7) NULL,
        push bit NOT NULL CONSTRAINT pause_push DEFAULT 0,
        functions nvarchar(max) NOT NULL CONSTRAINT pause_functions CHECK (ISJSON(functions) = 1),
        CONSTRAINT pause_key PRIMARY KEY CLUSTERED (schema_name, queue_name),
        CONSTRAINT pause_queue FOREIGN KEY (schema_name, queue_name)
        REFERENCES dbq.[queue] (schema_name, queue_name) ON DELETE CASCADE
    );

IF OBJECT_ID(N'dbq.protection', N'U') IS NULL
    CREATE TABLE dbq.protection (
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        protected_at datetime2(7) NOT NULL CONSTRAINT protection_protected_at DEFAULT SYSUTCDATETIME(),
        operator nvarchar(400) NOT NULL,
        database_user nvarchar(128) NOT NULL CONSTRAINT protection_database_user DEFAULT ORIGINAL_LOGIN(),
        reason nvarchar(max) NOT NULL CONSTRAINT protection_reason DEFAULT N'',
        CONSTRAINT protection_key PRIMARY KEY CLUSTERED (schema_name, queue_name),
        CONSTRAINT protection_queue FOREIGN KEY (schema_name, queue_name)
        REFERENCES dbq.[queue] (schema_name, queue_name) ON DELETE CASCADE
    );

-- Silenced findings: an ended silence is kept, with who ended it. No queue's name: every queue.
-- severity: of an acknowledged finding; the acknowledgement ends when that worsens.
IF OBJECT_ID(N'dbq.silence', N'U') IS NULL
    CREATE TABLE dbq.silence (
        silence_id bigint IDENTITY(1, 1) NOT NULL,
        kind nvarchar(20) NOT NULL CONSTRAINT silence_kind CHECK (kind IN (N'silence', N'acknowledge')),
        code nvarchar(128) NOT NULL,
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT silence_schema DEFAULT N'',
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT silence_queue DEFAULT N'',
        severity nvarchar(20) NOT NULL CONSTRAINT silence_severity DEFAULT N'',
        silenced_at datetime2(7) NOT NULL CONSTRAINT silence_silenced_at DEFAULT SYSUTCDATETIME(),
        operator nvarchar(400) NOT NULL,
        database_user nvarchar(128) NOT NULL CONSTRAINT silence_database_user DEFAULT ORIGINAL_LOGIN(),
        reason nvarchar(max) NOT NULL CONSTRAINT silence_reason DEFAULT N'',
        until datetime2(7) NULL,
        ended_at datetime2(7) NULL,
        ended_by nvarchar(400) NOT NULL CONSTRAINT silence_ended_by DEFAULT N'',
        CONSTRAINT silence_key PRIMARY KEY CLUSTERED (silence_id)
    );

-- What happened outside (a release, a fail-over), as a mark on charts.
IF OBJECT_ID(N'dbq.note', N'U') IS NULL
    CREATE TABLE dbq.note (
        note_id bigint IDENTITY(1, 1) NOT NULL,
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT note_schema DEFAULT N'',
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT note_queue DEFAULT N'',
        noted_at datetime2(7) NOT NULL CONSTRAINT note_noted_at DEFAULT SYSUTCDATETIME(),
        operator nvarchar(400) NOT NULL,
        database_user nvarchar(128) NOT NULL CONSTRAINT note_database_user DEFAULT ORIGINAL_LOGIN(),
        note nvarchar(max) NOT NULL,
        CONSTRAINT note_key PRIMARY KEY CLUSTERED (note_id)
    );

-- Which of several recorders sends the notifications, which run of the pipeline works.
IF OBJECT_ID(N'dbq.lease', N'U') IS NULL
    CREATE TABLE dbq.lease (
        name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        holder nvarchar(400) NOT NULL,
        until datetime2(7) NOT NULL,
        CONSTRAINT lease_key PRIMARY KEY CLUSTERED (name)
    );

-- Findings sent to a receiver when they begin and when they end; never a payload. target: the receiver's
-- name in the recorders' configuration. event_key: lets the receiver recognise duplicates.
IF OBJECT_ID(N'dbq.notification', N'U') IS NULL
    CREATE TABLE dbq.notification (
        notification_id bigint IDENTITY(1, 1) NOT NULL,
        event_key nvarchar(64) COLLATE Latin1_General_100_BIN2 NOT NULL,
        target nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        code nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        which nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT notification_which DEFAULT N'',
        severity nvarchar(20) NOT NULL,
        summary nvarchar(max) NOT NULL,
        begun_at datetime2(7) NOT NULL,
        ended_at datetime2(7) NULL,
        tries int NOT NULL CONSTRAINT notification_tries DEFAULT 0,
        sent_at datetime2(7) NULL,
        end_sent_at datetime2(7) NULL,
        CONSTRAINT notification_key PRIMARY KEY CLUSTERED (notification_id)
    );

-- How far the archive of a queue is on its way into a lake: whoever reserves its rows, or restores them, locks its row first.
-- serial: of its last plan, the version of its application transaction in the table. committed: the last one that the table
-- got. state: reserved: the rows in dbq.lake_row go into the lake; committed: they are there, and are still to be deleted
-- here. run: the process in charge.
IF OBJECT_ID(N'dbq.lake_plan', N'U') IS NULL
    CREATE TABLE dbq.lake_plan (
        plan_id bigint IDENTITY(1, 1) NOT NULL,
        schema_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        queue_name nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
        serial bigint NOT NULL CONSTRAINT lake_plan_serial DEFAULT 0,
        [committed] bigint NOT NULL CONSTRAINT lake_plan_committed DEFAULT 0,
        [state] nvarchar(20) NOT NULL CONSTRAINT lake_plan_state DEFAULT N'none'
        CONSTRAINT lake_plan_states CHECK ([state] IN (N'none', N'reserved', N'committed')),
        run nvarchar(400) COLLATE Latin1_General_100_BIN2 NOT NULL CONSTRAINT lake_plan_run DEFAULT N'',
        lake nvarchar(max) NOT NULL CONSTRAINT lake_plan_lake DEFAULT N'',
        table_id nvarchar(100) NOT NULL CONSTRAINT lake_plan_table DEFAULT N'',
        [database] nvarchar(400) NOT NULL CONSTRAINT lake_plan_database DEFAULT N'',
        [connection] nvarchar(max) NOT NULL CONSTRAINT lake_plan_connection DEFAULT N'',
        made_at datetime2(7) NULL,
        action_id bigint NULL,
        CONSTRAINT lake_plan_key PRIMARY KEY CLUSTERED (schema_name, queue_name),
        CONSTRAINT lake_plan_id UNIQUE (plan_id),
        CONSTRAINT lake_plan_queue FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.[queue] ON DELETE CASCADE
    );

-- The rows of an archive that a plan has reserved: restore leaves them alone.
IF OBJECT_ID(N'dbq.lake_row', N'U') IS NULL
    CREATE TABLE dbq.lake_row (
        plan_id bigint NOT NULL,
        archive_id bigint NOT NULL,
        archived_at datetime2(7) NOT NULL,
        CONSTRAINT lake_row_key PRIMARY KEY CLUSTERED (plan_id, archive_id)
    );
GO
-- Whoever writes a row of a queue may alter its schema, or read the table that it adopts: the roles are granted rights on it.
CREATE OR ALTER TRIGGER dbq.check_queue ON dbq.[queue] AFTER INSERT, UPDATE AS
BEGIN
    SET NOCOUNT ON;
    IF NOT (UPDATE(schema_name) OR UPDATE(queue_name) OR UPDATE(design) OR UPDATE(kind) OR UPDATE(options) OR UPDATE(roles))
        RETURN;
    IF EXISTS (
        SELECT 1
        FROM inserted AS q
        WHERE COALESCE(
            CASE
                WHEN q.kind <> N'adopted' THEN HAS_PERMS_BY_NAME(QUOTENAME(q.schema_name), N'SCHEMA', N'ALTER')
                -- NULL: there is no such table.
                ELSE COALESCE(HAS_PERMS_BY_NAME(
                    CONCAT(QUOTENAME(q.schema_name), N'.', QUOTENAME(COALESCE(JSON_VALUE(q.options, N'$.table') COLLATE Latin1_General_100_BIN2, q.queue_name))),
                    N'OBJECT', N'SELECT'
                ), 1)
            END, 0
        ) = 0
    )
        THROW 51004, N'A queue in dbq.queue names what this login has no rights on.||Let its owner do it, or choose another name.', 1;
END;
GO
-- An entry of the audit is its login's own, and is not changed once it has ended.
CREATE OR ALTER TRIGGER dbq.check_action ON dbq.[action] AFTER INSERT, UPDATE AS
BEGIN
    SET NOCOUNT ON;
    IF IS_ROLEMEMBER(N'db_owner') = 1
        RETURN;
    IF EXISTS (SELECT 1 FROM inserted AS i WHERE i.database_user <> ORIGINAL_LOGIN())
        OR EXISTS (SELECT 1 FROM deleted AS d WHERE d.ended_at IS NOT NULL OR d.database_user <> ORIGINAL_LOGIN())
        THROW 51004, N'An action in dbq.action has ended, or is not yours.||See: dbq-console audit', 1;
    IF EXISTS (
        SELECT 1 FROM inserted AS i
        LEFT JOIN deleted AS d ON i.action_id = d.action_id
        CROSS APPLY (VALUES (i.last_at), (i.ended_at), (CASE WHEN d.action_id IS NULL THEN i.started_at END)) AS t (moment)
        WHERE t.moment NOT BETWEEN DATEADD(MINUTE, -1, SYSUTCDATETIME()) AND DATEADD(MINUTE, 1, SYSUTCDATETIME())
    )
        THROW 51004, N'The times in dbq.action are those of the server.||See: dbq-console audit', 1;
END;
GO
-- One row, made with the catalog: by it a database differs from another at the same address.
IF OBJECT_ID(N'dbq.catalog_id', N'U') IS NULL
BEGIN
    CREATE TABLE dbq.catalog_id (
        id uniqueidentifier NOT NULL CONSTRAINT catalog_id_id DEFAULT NEWID(),
        CONSTRAINT catalog_id_key PRIMARY KEY CLUSTERED (id)
    );
    INSERT INTO dbq.catalog_id (id) VALUES (NEWID());
END;

-- name: exists
-- one row: whether this database has a catalog (that this login may see), and of which version (null: before the first);
-- whether it lacks none of the tables of the audit, decisions, its id, lakes; whether this login may read decisions, and
-- whether triggers check who writes
SELECT
    CAST(CASE WHEN OBJECT_ID(N'dbq.queue', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS present,
    (
        SELECT CAST(p.value AS int) FROM sys.extended_properties AS p
        WHERE p.class = 3 AND p.major_id = SCHEMA_ID(N'dbq') AND p.name = N'dbq-console catalog'
    ) AS version,
    CAST(CASE WHEN OBJECT_ID(N'dbq.action', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS audited,
    CAST(
        CASE
            WHEN OBJECT_ID(N'dbq.pause', N'U') IS NULL OR OBJECT_ID(N'dbq.protection', N'U') IS NULL OR OBJECT_ID(N'dbq.silence', N'U') IS NULL
                OR OBJECT_ID(N'dbq.note', N'U') IS NULL OR OBJECT_ID(N'dbq.lease', N'U') IS NULL THEN 0
            ELSE 1
        END AS bit
    ) AS decided,
    CAST(CASE WHEN OBJECT_ID(N'dbq.catalog_id', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS identified,
    CAST(
        CASE WHEN OBJECT_ID(N'dbq.lake_plan', N'U') IS NULL OR OBJECT_ID(N'dbq.lake_row', N'U') IS NULL THEN 0 ELSE 1 END AS bit
    ) AS lakes,
    CAST(
        CASE
            WHEN HAS_PERMS_BY_NAME(N'dbq.pause', N'OBJECT', N'SELECT') = 1
                AND HAS_PERMS_BY_NAME(N'dbq.protection', N'OBJECT', N'SELECT') = 1
                AND HAS_PERMS_BY_NAME(N'dbq.silence', N'OBJECT', N'SELECT') = 1
                AND HAS_PERMS_BY_NAME(N'dbq.note', N'OBJECT', N'SELECT') = 1 THEN 1
            ELSE 0
        END AS bit
    ) AS decisions_readable,
    CAST(
        CASE WHEN OBJECT_ID(N'dbq.check_queue', N'TR') IS NULL OR OBJECT_ID(N'dbq.check_action', N'TR') IS NULL THEN 0 ELSE 1 END AS bit
    ) AS guarded,
    CAST(NULL AS nvarchar(128)) AS runs;

-- name: identity
-- one row: which database this is: its broker's id, which a restored copy keeps unless it is given a new one, and
-- the id of its catalog
SELECT CONCAT(d.service_broker_guid, N'/', i.id) AS [identity]
FROM sys.databases AS d
CROSS JOIN dbq.catalog_id AS i
WHERE d.name = DB_NAME();

-- name: may_act
-- one row: whether this login may write the audit
SELECT
    CAST(
        CASE
            WHEN HAS_PERMS_BY_NAME(N'dbq.action', N'OBJECT', N'INSERT') = 1
                AND HAS_PERMS_BY_NAME(N'dbq.action', N'OBJECT', N'UPDATE', N'outcome', N'COLUMN') = 1 THEN 1
            ELSE 0
        END AS bit
    ) AS present;

-- name: action_begin
-- one row: the number of an action that begins now
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @verb nvarchar(30) = :verb;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @connection nvarchar(max) = :connection;
DECLARE @filters nvarchar(max) = :filters;
DECLARE @cutoff datetime2(7) = :cutoff;
DECLARE @planned bigint = :planned;
DECLARE @detail nvarchar(max) = :detail;
DECLARE @begun table (action_id bigint NOT NULL);
INSERT INTO dbq.[action] (
    schema_name, queue_name, verb, operator, session, connection, filters, cutoff, planned, detail
)
OUTPUT inserted.action_id INTO @begun
SELECT
    @schema,
    @queue,
    @verb,
    @operator,
    -- As the procedures write claimed_by: the login time in UTC (the server keeps local time).
    CONCAT(N'session=', s.session_id, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
        minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
    ) AS datetime2(3)), 126), N'Z'),
    @connection,
    @filters,
    @cutoff,
    @planned,
    @detail
FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
SELECT b.action_id FROM @begun AS b;

-- name: action_batch
-- one row: the action's number, after its counts were increased by one batch; none if it is not running
DECLARE @action_id bigint = :action_id;
DECLARE @selected bigint = :selected;
DECLARE @done bigint = :done;
DECLARE @skipped bigint = :skipped;
DECLARE @failed bigint = :failed;
DECLARE @counted table (action_id bigint NOT NULL);
UPDATE dbq.[action]
SET
    last_at = SYSUTCDATETIME(),
    selected = selected + @selected,
    done = done + @done,
    skipped = skipped + @skipped,
    failed = failed + @failed
OUTPUT inserted.action_id INTO @counted
WHERE action_id = @action_id AND ended_at IS NULL;
SELECT c.action_id FROM @counted AS c;

-- name: action_end
-- one row: the action's number and what it has done, with its outcome recorded; none if it had finished before
DECLARE @action_id bigint = :action_id;
DECLARE @outcome nvarchar(20) = :outcome;
DECLARE @detail nvarchar(max) = :detail;
DECLARE @ended table (action_id bigint NOT NULL, done bigint NOT NULL);
UPDATE dbq.[action]
SET last_at = SYSUTCDATETIME(), ended_at = SYSUTCDATETIME(), outcome = @outcome, detail = @detail
OUTPUT inserted.action_id, inserted.done INTO @ended
WHERE action_id = @action_id AND ended_at IS NULL;
SELECT
    e.action_id,
    e.done
FROM @ended AS e;

-- name: lease_take
-- one row: the present holder of a lease, and until when: this one if it was free; if another one has it, that one
-- :gone: a holder that is known to have ended
SET NOCOUNT ON;
DECLARE @name nvarchar(128) = :name;
DECLARE @holder nvarchar(400) = :holder;
DECLARE @gone nvarchar(400) = :gone;
DECLARE @seconds float = :seconds;
DECLARE @until datetime2(7) = DATEADD(MILLISECOND, CAST(@seconds * 1000 AS int), SYSUTCDATETIME());
-- The lock on the key, or on the gap where it will be, lasts to the end of the transaction, so two
-- that take the lease at the same time do so one after the other.
IF NOT EXISTS (SELECT 1 FROM dbq.lease AS l WITH (UPDLOCK, HOLDLOCK) WHERE l.name = @name)
    INSERT INTO dbq.lease (name, holder, until) VALUES (@name, @holder, @until);
ELSE
    UPDATE l
    SET l.holder = @holder, l.until = @until
    FROM dbq.lease AS l
    WHERE l.name = @name AND (l.holder IN (@holder, @gone) OR l.until < SYSUTCDATETIME());
SELECT
    l.holder AS holder,
    TODATETIMEOFFSET(l.until, 0) AS until
FROM dbq.lease AS l
WHERE l.name = @name;

-- name: lease_renew
-- one row: who holds the lease, which is renewed; none if another one has taken it since
DECLARE @name nvarchar(128) = :name;
DECLARE @holder nvarchar(400) = :holder;
DECLARE @seconds float = :seconds;
UPDATE l
SET l.until = DATEADD(MILLISECOND, CAST(@seconds * 1000 AS int), SYSUTCDATETIME())
OUTPUT inserted.holder AS holder
FROM dbq.lease AS l
WHERE l.name = @name AND l.holder = @holder;

-- name: lease_end
-- one row: who held the lease, which is released; none if another one holds it
DECLARE @name nvarchar(128) = :name;
DECLARE @holder nvarchar(400) = :holder;
UPDATE l
SET l.until = SYSUTCDATETIME()
OUTPUT inserted.holder AS holder
FROM dbq.lease AS l
WHERE l.name = @name AND l.holder = @holder;

-- name: running
-- the running actions of operators, unless the last batch is a day old
-- READPAST: the row of an uncommitted batch is locked, and appears next time.
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
-- the actions of operators, newest first, at most :n
-- An action that is a single transaction appears once it is committed: reading the audit waits for nobody.
DECLARE @n bigint = :n;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @verb nvarchar(30) = :verb;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @by_agent bit = :by_agent;
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
AND (@by_agent IS NULL OR CASE WHEN a.operator LIKE N'unattended %' THEN 1 ELSE 0 END = @by_agent)
AND (@since IS NULL OR a.started_at >= DATEADD(second, 0 - CAST(@since AS int), SYSUTCDATETIME()))
AND (COALESCE(@running, 0) = 0 OR a.ended_at IS NULL)
ORDER BY a.action_id DESC;

-- name: queues
-- all queues that the database holds, by schema and name; options and roles as JSON text
-- runs: a view runs functions with its reader's rights, but those of SQL Server change nothing and run nothing outside.
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
    q.installed_at AS installed_at,
    CAST(NULL AS nvarchar(128)) AS runs
FROM dbq.[queue] AS q
ORDER BY q.schema_name, q.queue_name;

-- name: row_filters
-- a row for each table, and each view of one, of which an enabled security policy may hide rows from anybody, its owner too
-- Whether it hides rows from this login only the policy's function knows. A login without VIEW DEFINITION, or the right to
-- alter any security policy, sees no policy. READUNCOMMITTED: never waits for somebody's DDL.
WITH used AS (
    SELECT DISTINCT
        d.object_id,
        d.referenced_major_id AS used_id
    FROM sys.sql_dependencies AS d WITH (READUNCOMMITTED)
    INNER JOIN sys.views AS v WITH (READUNCOMMITTED) ON d.object_id = v.object_id
    WHERE d.class IN (0, 1)
),

filtered AS (
    SELECT
        f.target_object_id AS object_id,
        p.object_id AS policy_id
    FROM sys.security_policies AS p WITH (READUNCOMMITTED)
    INNER JOIN sys.security_predicates AS f WITH (READUNCOMMITTED) ON p.object_id = f.object_id
    WHERE p.is_enabled = 1 AND f.predicate_type = 0
    UNION ALL
    SELECT
        u.object_id,
        f.policy_id
    FROM filtered AS f INNER JOIN used AS u ON f.object_id = u.used_id
)

SELECT
    SCHEMA_NAME(o.schema_id) AS [schema],
    CAST(o.name AS nvarchar(128)) AS [table],
    CONCAT(SCHEMA_NAME(p.schema_id), N'.', p.name) AS policy
FROM filtered AS f
INNER JOIN sys.objects AS o WITH (READUNCOMMITTED) ON f.object_id = o.object_id
INNER JOIN sys.security_policies AS p WITH (READUNCOMMITTED) ON f.policy_id = p.object_id;

-- name: decisions
-- operators' decisions on queues and findings that are in force: pause, protection, silence, acknowledge
SELECT
    N'pause' AS kind,
    N'' AS code,
    p.schema_name AS [schema],
    p.queue_name AS queue,
    p.operator AS operator,
    p.database_user AS database_user,
    p.reason AS reason,
    TODATETIMEOFFSET(p.paused_at, 0) AS since,
    TODATETIMEOFFSET(p.until, 0) AS until,
    p.push AS push,
    N'' AS severity
FROM dbq.pause AS p
UNION ALL
SELECT
    N'protection' AS kind,
    N'' AS code,
    p.schema_name AS [schema],
    p.queue_name AS queue,
    p.operator AS operator,
    p.database_user AS database_user,
    p.reason AS reason,
    TODATETIMEOFFSET(p.protected_at, 0) AS since,
    CAST(NULL AS datetimeoffset(7)) AS until,
    CAST(0 AS bit) AS push,
    N'' AS severity
FROM dbq.protection AS p
UNION ALL
SELECT
    s.kind AS kind,
    s.code AS code,
    s.schema_name AS [schema],
    s.queue_name AS queue,
    s.operator AS operator,
    s.database_user AS database_user,
    s.reason AS reason,
    TODATETIMEOFFSET(s.silenced_at, 0) AS since,
    TODATETIMEOFFSET(s.until, 0) AS until,
    CAST(0 AS bit) AS push,
    s.severity AS severity
FROM dbq.silence AS s
WHERE s.ended_at IS NULL AND (s.until IS NULL OR s.until > SYSUTCDATETIME());

-- name: protect
-- one row: since when the queue is protected, which it was not before
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @reason nvarchar(max) = :reason;
INSERT INTO dbq.protection (schema_name, queue_name, operator, reason)
OUTPUT TODATETIMEOFFSET(inserted.protected_at, 0) AS since
SELECT
    @schema,
    @queue,
    @operator,
    @reason
WHERE NOT EXISTS (
    SELECT 1 FROM dbq.protection AS p WITH (UPDLOCK, HOLDLOCK)
    WHERE p.schema_name = @schema AND p.queue_name = @queue
);

-- name: unprotect
-- one row: since when the queue had been protected, which ends now
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DELETE p
OUTPUT TODATETIMEOFFSET(deleted.protected_at, 0) AS since
FROM dbq.protection AS p
WHERE p.schema_name = @schema AND p.queue_name = @queue;

-- name: note
-- one row: the time of the note, on a queue or (empty names) on the whole database
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @note nvarchar(max) = :note;
INSERT INTO dbq.note (schema_name, queue_name, operator, note)
OUTPUT TODATETIMEOFFSET(inserted.noted_at, 0) AS noted_at
VALUES (@schema, @queue, @operator, @note);

-- name: notes
-- the notes on a queue or on the whole database, newest first, at most :n
DECLARE @n bigint = :n;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
SELECT TOP (@n)
    n.schema_name AS [schema],
    n.queue_name AS queue,
    n.noted_at AS noted_at,
    n.operator AS operator,
    n.note AS note
FROM dbq.note AS n
WHERE n.queue_name = N'' OR (n.schema_name = @schema AND n.queue_name = @queue)
ORDER BY n.note_id DESC;

-- name: silence_begin
-- one row: since when a finding is silenced or acknowledged
DECLARE @kind nvarchar(20) = :kind;
DECLARE @code nvarchar(128) = :code;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @severity nvarchar(20) = :severity;
DECLARE @operator nvarchar(400) = :operator;
DECLARE @reason nvarchar(max) = :reason;
DECLARE @seconds float = :seconds;
INSERT INTO dbq.silence (kind, code, schema_name, queue_name, severity, operator, reason, until)
OUTPUT TODATETIMEOFFSET(inserted.silenced_at, 0) AS since
VALUES (
    @kind, @code, @schema, @queue, @severity, @operator, @reason,
    DATEADD(SECOND, CAST(@seconds AS int), SYSUTCDATETIME())
);

-- name: silence_end
-- since when the findings had been silenced or acknowledged whose silence ends now; any code, any queue where none is given
DECLARE @by nvarchar(400) = :by;
DECLARE @code nvarchar(128) = :code;
DECLARE @kind nvarchar(20) = :kind;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
UPDATE s
SET s.ended_at = SYSUTCDATETIME(), s.ended_by = @by
OUTPUT TODATETIMEOFFSET(inserted.silenced_at, 0) AS since
FROM dbq.silence AS s
WHERE s.ended_at IS NULL AND (s.until IS NULL OR s.until > SYSUTCDATETIME())
AND s.code = @code
AND (@kind IS NULL OR s.kind = @kind)
AND (@queue IS NULL OR (s.schema_name = @schema AND s.queue_name = @queue));

-- name: settings
-- the settings kept in this database
SELECT
    s.name AS name,
    s.value AS value
FROM dbq.setting AS s;

-- name: record
-- script: adds a queue to the catalog, in the transaction that installs or adopts it
INSERT INTO dbq.[queue] (schema_name, queue_name, design, kind, options, roles, version, installed_from)
VALUES (
    N'{schema}', N'{queue}', N'{design}', N'{kind}', N'{options_json}', N'{roles_json}',
    CAST(N'{version}' AS int), N'{installed_from}'
);

-- name: erase
-- script: removes a queue from the catalog
DELETE FROM dbq.[queue] WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: keep_archive
-- script: marks a queue of which only the archive is left
UPDATE dbq.[queue] SET kind = N'archive' WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: renew
-- script: records that the queue has this console's version
UPDATE dbq.[queue] SET version = CAST(N'{version}' AS int) WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: set_options
-- script: records the queue's changed options
UPDATE dbq.[queue] SET options = N'{options_json}' WHERE schema_name = N'{schema}' AND queue_name = N'{queue}';

-- name: schema_exists
-- one row: whether the schema exists (compared exactly; "=" alone ignores trailing blanks)
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
-- Compared as the server does, by the collation of its catalog. Message types, contracts and services of
-- Service Broker belong to the database, not to a schema: the schema's name is a prefix of ours (broker.sql),
-- and Service Broker compares such names exactly.
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
-- the columns of tables and views of a schema (:tables, a JSON array; compared exactly), by these, with their types, for an
-- alias the type below it, whether they are computed or NOT NULL, and their default, empty without one, null where this
-- login may not see it; none of those that do not exist
DECLARE @schema nvarchar(max) = :schema;
DECLARE @tables nvarchar(max) = :tables;
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
    END AS type,
    COALESCE(TYPE_NAME(c.system_type_id), t.name) AS base_type,
    c.is_computed AS computed,
    CAST(1 - c.is_nullable AS bit) AS required,
    CASE WHEN c.default_object_id = 0 THEN N'' ELSE OBJECT_DEFINITION(c.default_object_id) END AS default_text,
    o.name AS table_name
FROM sys.columns AS c
INNER JOIN sys.types AS t ON c.user_type_id = t.user_type_id
INNER JOIN sys.objects AS o ON c.object_id = o.object_id
INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
INNER JOIN OPENJSON(@tables) AS given
    ON o.name = given.[value] COLLATE Latin1_General_100_BIN2 AND DATALENGTH(o.name) = DATALENGTH(given.[value])
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND DATALENGTH(s.name) = DATALENGTH(@schema)
AND o.type IN (N'U', N'V')
ORDER BY o.object_id, c.column_id;

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
