-- An archive's rows on their way into the lake: reserved, exported, deleted.
--
-- A plan takes exact rows, never a range of keys: a pop that drew a low archive_id may commit after the export. Whoever
-- reserves rows, or restores them, locks the queue's row of dbq.lake_plan first and looks only then.
-- What a task sends contains its values as literals, as on the other engine.

-- define: may_leave
-- popped rows up to the cut-off, all others only before an earlier moment, because restore may need them
(a.archived_at <= @before OR (a.reason = N'pop' AND a.archived_at <= @cutoff))

-- name: add_plan
-- script: adds the row of a queue's plans if it never had one
-- The lock on the key, or on the gap where it will be, lasts to the end of the transaction: two that add it do so one after
-- the other.
IF NOT EXISTS (
    SELECT 1 FROM dbq.lake_plan AS p WITH (UPDLOCK, HOLDLOCK)
    WHERE p.schema_name = N'{schema}' AND p.queue_name = N'{queue}'
)
    INSERT INTO dbq.lake_plan (schema_name, queue_name)
    SELECT
        q.schema_name,
        q.queue_name
    FROM dbq.[queue] AS q
    WHERE q.schema_name = N'{schema}' AND q.queue_name = N'{queue}';

-- name: plan
-- the row of a queue's plans, if it ever had one; lock=yes: locked until the transaction ends
SELECT
    p.plan_id AS plan_id,
    p.serial AS serial,
    p.[committed] AS [committed],
    p.[state] AS [state],
    p.run AS run,
    p.lake AS lake,
    p.table_id AS table_id,
    p.[database] AS [database],
    p.[connection] AS label,
    TODATETIMEOFFSET(COALESCE(p.made_at, CAST(N'1970-01-01' AS datetime2(7))), 0) AS made_at,
    COALESCE(p.action_id, 0) AS action_id
FROM dbq.lake_plan AS p WITH (UPDLOCK, HOLDLOCK) -- when lock=yes
FROM dbq.lake_plan AS p WITH (READCOMMITTEDLOCK) -- when lock=no
WHERE p.schema_name = N'{schema}' AND p.queue_name = N'{queue}';

-- name: set_plan
-- one row if the plan has these values now; none where another run is in charge of it
DECLARE @plan_id bigint = :plan_id;
DECLARE @earlier nvarchar(400) = :earlier;
DECLARE @serial bigint = :serial;
DECLARE @committed bigint = :committed;
DECLARE @state nvarchar(20) = :state;
DECLARE @run nvarchar(400) = :run;
DECLARE @lake nvarchar(max) = :lake;
DECLARE @table_id nvarchar(100) = :table_id;
DECLARE @database nvarchar(400) = :database;
DECLARE @label nvarchar(max) = :label;
DECLARE @made_at datetime2(7) = :made_at;
DECLARE @action_id bigint = :action_id;
UPDATE p
SET
    p.serial = @serial,
    p.[committed] = @committed,
    p.[state] = @state,
    p.run = @run,
    p.lake = @lake,
    p.table_id = @table_id,
    p.[database] = @database,
    p.[connection] = @label,
    p.made_at = @made_at,
    p.action_id = @action_id
OUTPUT inserted.plan_id AS plan_id
FROM dbq.lake_plan AS p
WHERE p.plan_id = @plan_id AND p.run = @earlier;

-- name: in_charge
-- one row if this run is in charge of the plan; so it stays until the transaction ends
DECLARE @plan_id bigint = :plan_id;
DECLARE @run nvarchar(400) = :run;
SELECT p.plan_id AS plan_id
FROM dbq.lake_plan AS p WITH (HOLDLOCK, ROWLOCK)
WHERE p.plan_id = @plan_id AND p.run = @run;

-- name: server_time
-- one row: the server's clock
SELECT SYSUTCDATETIME() AS moment;

-- name: others
-- one row: yes or no, whether others added columns to the archive
SELECT CASE WHEN EXISTS (
    SELECT 1 FROM sys.columns AS c
    WHERE
        c.object_id = OBJECT_ID(N'[{schema}].[{queue}_archive]', N'U')
        AND c.name NOT IN (
            N'archive_id', N'id', N'payload', N'pushed_at', N'claimed_at', N'claimed_by', N'done_at', N'state', N'attempts',
            N'error', N'reason', N'action_id', N'archived_at'
            , N'title' -- when defined title
            , N'due_at' -- when role due_at
        )
) THEN N'yes' ELSE N'no' END AS others;

-- name: step
-- one row: of the next :read_limit rows of the archive: the last key, how many there are, how many may leave, the range of their times
-- READPAST: a locked row is being popped or restored; a later run takes it.
DECLARE @after bigint = :after;
DECLARE @read_limit bigint = :read_limit;
DECLARE @before datetime2(7) = :before;
DECLARE @cutoff datetime2(7) = :cutoff;
SELECT
    MAX(a.archive_id) AS last,
    COUNT_BIG(*) AS rows_read,
    COUNT_BIG(CASE WHEN {may_leave} THEN 1 END) AS rows,
    MIN(CASE WHEN {may_leave} THEN a.archived_at END) AS oldest,
    MAX(CASE WHEN {may_leave} THEN a.archived_at END) AS newest
FROM (
    SELECT TOP (@read_limit)
        n.archive_id,
        n.archived_at,
        n.reason
    FROM [{schema}].[{queue}_archive] AS n WITH (READPAST, READCOMMITTEDLOCK)
    WHERE n.archive_id > @after
    ORDER BY n.archive_id
) AS a;

-- name: forget
-- script: drops the reservations of queues that are gone
DELETE r
FROM dbq.lake_row AS r
WHERE NOT EXISTS (SELECT 1 FROM dbq.lake_plan AS p WHERE p.plan_id = r.plan_id);

-- name: reserve
-- one row: the same as `step`; the rows that may leave are reserved for the plan
SET NOCOUNT ON;
DECLARE @plan_id bigint = :plan_id;
DECLARE @after bigint = :after;
DECLARE @read_limit bigint = :read_limit;
DECLARE @before datetime2(7) = :before;
DECLARE @cutoff datetime2(7) = :cutoff;
DECLARE @next TABLE (archive_id bigint NOT NULL PRIMARY KEY, archived_at datetime2(7) NOT NULL, leaves bit NOT NULL);
INSERT INTO @next (archive_id, archived_at, leaves)
SELECT TOP (@read_limit)
    a.archive_id,
    a.archived_at,
    CASE WHEN {may_leave} THEN 1 ELSE 0 END
FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
WHERE a.archive_id > @after
ORDER BY a.archive_id;
INSERT INTO dbq.lake_row (plan_id, archive_id, archived_at)
SELECT
    @plan_id,
    n.archive_id,
    n.archived_at
FROM @next AS n
WHERE n.leaves = 1;
SELECT
    MAX(n.archive_id) AS last,
    COUNT_BIG(*) AS rows_read,
    COUNT_BIG(CASE WHEN n.leaves = 1 THEN 1 END) AS rows,
    MIN(CASE WHEN n.leaves = 1 THEN n.archived_at END) AS oldest,
    MAX(CASE WHEN n.leaves = 1 THEN n.archived_at END) AS newest
FROM @next AS n;

-- name: reserved
-- one row: how many rows a plan has reserved, and the range of their times
DECLARE @plan_id bigint = :plan_id;
SELECT
    COUNT_BIG(*) AS rows,
    MIN(r.archived_at) AS oldest,
    MAX(r.archived_at) AS newest
FROM dbq.lake_row AS r WITH (READCOMMITTEDLOCK)
WHERE r.plan_id = @plan_id;

-- name: part
-- one row: of a plan's next :rows reserved rows: the last key, and how many there are
DECLARE @plan_id bigint = :plan_id;
DECLARE @after bigint = :after;
DECLARE @rows bigint = :rows;
SELECT
    MAX(r.archive_id) AS last,
    COUNT_BIG(*) AS rows
FROM (
    SELECT TOP (@rows) n.archive_id
    FROM dbq.lake_row AS n WITH (READCOMMITTEDLOCK)
    WHERE n.plan_id = @plan_id AND n.archive_id > @after
    ORDER BY n.archive_id
) AS r;

-- name: rows
-- the reserved rows after N'{after}' up to N'{last}' that are there, in order; a column that is missing here is null in the lake
-- `row_json`: the row as JSON where others added columns (others=yes).
SELECT
    a.archive_id AS archive_id,
    CAST(a.id AS nvarchar(36)) AS id,
    a.payload AS payload, -- when payload=text|json
    a.payload AS payload_bytes, -- when payload=bytes
    a.pushed_at AS pushed_at,
    a.due_at AS due_at, -- when role due_at
    a.claimed_at AS claimed_at,
    a.claimed_by AS claimed_by,
    a.done_at AS done_at,
    a.state AS state,
    a.attempts AS attempts,
    a.error AS error,
    a.reason AS reason,
    a.title AS title, -- when defined title
    a.action_id AS action_id,
    -- when others=yes
    a.archived_at AS archived_at,
    j.row_json AS row_json
    -- end
    a.archived_at AS archived_at -- when others=no
FROM dbq.lake_row AS r WITH (READCOMMITTEDLOCK)
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (READCOMMITTEDLOCK)
    ON r.archive_id = a.archive_id AND r.archived_at = a.archived_at
CROSS APPLY (SELECT (SELECT a.* FOR JSON PATH, WITHOUT_ARRAY_WRAPPER, INCLUDE_NULL_VALUES) AS row_json) AS j -- when others=yes
WHERE
    r.plan_id = CAST(N'{plan_id}' AS bigint)
    AND r.archive_id > CAST(N'{after}' AS bigint) AND r.archive_id <= CAST(N'{last}' AS bigint)
ORDER BY a.archive_id;

-- name: keys
-- the keys of a plan's reserved rows after :after up to :last, in order
DECLARE @plan_id bigint = :plan_id;
DECLARE @after bigint = :after;
DECLARE @last bigint = :last;
SELECT r.archive_id AS archive_id
FROM dbq.lake_row AS r WITH (READCOMMITTEDLOCK)
WHERE r.plan_id = @plan_id AND r.archive_id > @after AND r.archive_id <= @last
ORDER BY r.archive_id;

-- name: release
-- one row: how many of these reserved rows the plan gives back, as nothing was committed of them
SET NOCOUNT ON;
DECLARE @plan_id bigint = :plan_id;
DECLARE @keys nvarchar(max) = :keys;
DELETE r
FROM OPENJSON(@keys) AS k
INNER JOIN dbq.lake_row AS r ON r.archive_id = CAST(k.[value] AS bigint)
WHERE r.plan_id = @plan_id;
SELECT CAST(@@ROWCOUNT AS bigint) AS rows;

-- name: release_all
-- one row: how many rows the plan gives back
SET NOCOUNT ON;
DECLARE @plan_id bigint = :plan_id;
DELETE r
FROM dbq.lake_row AS r
WHERE r.plan_id = @plan_id;
SELECT CAST(@@ROWCOUNT AS bigint) AS rows;

-- name: delete_rows
-- one row: how many of the reserved rows after :after up to :last are deleted, and how many there were: others are gone already
SET NOCOUNT ON;
DECLARE @plan_id bigint = :plan_id;
DECLARE @after bigint = :after;
DECLARE @last bigint = :last;
DECLARE @deleted bigint;
DELETE a
FROM dbq.lake_row AS r
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK)
    ON r.archive_id = a.archive_id AND r.archived_at = a.archived_at
WHERE r.plan_id = @plan_id AND r.archive_id > @after AND r.archive_id <= @last
OPTION (LOOP JOIN, FORCE ORDER);
SET @deleted = @@ROWCOUNT;
DELETE r
FROM dbq.lake_row AS r WITH (ROWLOCK, READCOMMITTEDLOCK)
WHERE r.plan_id = @plan_id AND r.archive_id > @after AND r.archive_id <= @last;
SELECT
    @deleted AS deleted,
    CAST(@@ROWCOUNT AS bigint) AS reserved;
