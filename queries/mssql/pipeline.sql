-- Rows on their way into the lake, and whether a run may still work.
--
-- source=archive  rows of the queue's archive: popped ones up to the cut-off, all others only before an earlier moment,
--                 because restore may need them
-- source=done     done rows of status and split, in their own table, up to such a moment
-- What a task sends contains its values as literals: PostgreSQL's COPY binds none.

-- define: archived_id
-- the id as stored in the lake
CAST(a.id AS nvarchar(36))

-- define: chosen_marks
-- @chosen: the keys, each with its mark: a row's archived_at or attempts, which shows that it is the one exported
DECLARE @marks nvarchar(max) = :marks;
DECLARE @chosen TABLE (location bigint NOT NULL PRIMARY KEY, mark nvarchar(40) NOT NULL);
INSERT INTO @chosen (location, mark)
SELECT
    CAST(k.[value] AS bigint),
    t.[value]
FROM OPENJSON(@keys) AS k
INNER JOIN OPENJSON(@marks) AS t ON k.[key] = t.[key];

-- define: same_moment
-- the file has microseconds of the column's 100 ns
a.archived_at >= CAST(c.mark AS datetime2(6)) AND a.archived_at < DATEADD(microsecond, 1, CAST(c.mark AS datetime2(6)))

-- name: working
-- one row: whether a run's action is not finished and its lease is its own
-- READCOMMITTEDLOCK: row versions could be slightly behind what others have committed.
SELECT CAST(CASE WHEN EXISTS (
    SELECT 1
    FROM dbq.[action] AS a WITH (READCOMMITTEDLOCK)
    INNER JOIN dbq.lease AS l WITH (READCOMMITTEDLOCK)
        ON l.name = N'{lease}' AND l.holder = N'{holder}' AND l.until > SYSUTCDATETIME()
    WHERE a.action_id = CAST(N'{action_id}' AS bigint) AND a.ended_at IS NULL
) THEN 1 ELSE 0 END AS bit) AS working;

-- name: plan_actions
-- the actions that carried out a plan, by its cut-off: how many rows each deleted, and whether it is finished
-- READCOMMITTEDLOCK: row versions could be slightly behind what others have committed.
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @cutoff datetime2(7) = :cutoff;
SELECT
    a.action_id AS action_id,
    a.done AS done,
    CAST(CASE WHEN a.ended_at IS NULL THEN 0 ELSE 1 END AS bit) AS ended
FROM dbq.[action] AS a WITH (READCOMMITTEDLOCK)
WHERE a.schema_name = @schema AND a.queue_name = @queue AND a.verb = N'pipeline archive' AND a.cutoff = @cutoff
ORDER BY a.action_id;

-- name: taken_by_others
-- one row: at most how many rows other actions can have taken out of the queue's tables since a plan was made
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @cutoff datetime2(7) = :cutoff;
DECLARE @made_at datetime2(7) = :made_at;
SELECT COALESCE(SUM(a.done), 0) AS rows
FROM dbq.[action] AS a WITH (READCOMMITTEDLOCK)
WHERE a.schema_name = @schema AND a.queue_name = @queue
AND (a.verb <> N'pipeline archive' OR a.cutoff IS NULL OR a.cutoff <> @cutoff)
AND (a.ended_at IS NULL OR a.last_at >= @made_at);

-- name: server_time
-- one row: the server's clock
SELECT SYSUTCDATETIME() AS moment;

-- name: step
-- one row: of the next :read_limit keys: the last, how many there are, how many are to be exported, and the range of their times
DECLARE @after bigint = :after;
DECLARE @read_limit bigint = :read_limit;
SELECT
    MAX(l.[key]) AS last,
    COUNT_BIG(*) AS rows_read,
    COALESCE(SUM(CAST(l.included AS bigint)), 0) AS rows,
    MIN(CASE WHEN l.included = 1 THEN l.moment END) AS oldest,
    MAX(CASE WHEN l.included = 1 THEN l.moment END) AS newest
FROM (
    -- when source=archive
    SELECT TOP (@read_limit)
        a.archive_id AS [key],
        a.archived_at AS moment,
        CASE
            WHEN a.archived_at <= CAST(N'{before}' AS datetime2(7)) THEN 1
            WHEN a.reason = N'pop' AND a.archived_at <= CAST(N'{cutoff}' AS datetime2(7)) THEN 1
            ELSE 0
        END AS included
    FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
    WHERE a.archive_id > @after
    ORDER BY a.archive_id
    -- end
    -- when source=done
    SELECT TOP (@read_limit)
        m.id AS [key],
        m.done_at AS moment,
        1 AS included
    FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK)
    WHERE m.status = 2 AND m.done_at <= CAST(N'{before}' AS datetime2(7)) AND m.id > @after
    ORDER BY m.id
    -- end
) AS l;

-- name: rows
-- the rows to export of the keys after N'{after}' up to N'{last}', in their order; a missing column is null in the lake
-- READPAST: a locked row is being restored; otherwise a later run takes it.
-- when source=archive
SELECT
    a.archive_id AS archive_id,
    {archived_id} AS id,
    a.payload AS payload,
    a.pushed_at AS pushed_at,
    a.done_at AS done_at,
    a.state AS state,
    a.attempts AS attempts,
    a.error AS error,
    a.reason AS reason,
    a.title AS title, -- when defined title
    a.due_at AS due_at, -- when role due_at
    a.archived_at AS archived_at
FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)
WHERE
    a.archive_id > CAST(N'{after}' AS bigint) AND a.archive_id <= CAST(N'{last}' AS bigint)
    AND (
        a.archived_at <= CAST(N'{before}' AS datetime2(7))
        OR (a.reason = N'pop' AND a.archived_at <= CAST(N'{cutoff}' AS datetime2(7)))
    )
ORDER BY a.archive_id;
-- end
-- when source=done
SELECT
    CAST(m.id AS nvarchar(36)) AS id,
    {joined_payload} AS payload,
    m.queue_date_time AS pushed_at,
    m.done_at AS done_at,
    N'done' AS state,
    m.attempts AS attempts,
    m.errors AS error,
    m.title AS title
FROM [{schema}].[{table}] AS m WITH (READPAST, READCOMMITTEDLOCK)
INNER JOIN {beside} AS d WITH (READPAST, READCOMMITTEDLOCK) ON m.id = d.id -- when defined beside
WHERE
    m.id > CAST(N'{after}' AS bigint) AND m.id <= CAST(N'{last}' AS bigint)
    AND m.status = 2 AND m.done_at <= CAST(N'{before}' AS datetime2(7))
ORDER BY m.id;
-- end

-- name: lock_rows
-- a row for each exported row that exists, is still to be deleted, and nobody holds; lock=yes: locked now
-- READUNCOMMITTED alone: with any hint that says which locks are taken, the server refuses it (error 1047).
DECLARE @keys nvarchar(max) = :keys;
{chosen_marks}
-- when source=archive
SELECT a.archive_id AS [key]
FROM @chosen AS c
-- when lock=yes
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK) ON c.location = a.archive_id
-- end
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (READUNCOMMITTED) ON c.location = a.archive_id -- when lock=no
WHERE
    {same_moment}
    AND (
        a.archived_at <= CAST(N'{before}' AS datetime2(7))
        OR (a.reason = N'pop' AND a.archived_at <= CAST(N'{cutoff}' AS datetime2(7)))
    )
ORDER BY a.archive_id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when source=done
SELECT m.id AS [key]
FROM @chosen AS c
-- when lock=yes
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK, UPDLOCK)
    ON c.location = m.id
-- end
INNER JOIN [{schema}].[{table}] AS m WITH (READUNCOMMITTED) ON c.location = m.id -- when lock=no
WHERE m.attempts = CAST(c.mark AS int) AND m.status = 2 AND m.done_at <= CAST(N'{before}' AS datetime2(7))
ORDER BY m.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end

-- name: present_rows
-- a row for each exported row that the database still has, whoever holds it and whatever its state
DECLARE @keys nvarchar(max) = :keys;
{chosen_marks}
-- when source=archive
SELECT a.archive_id AS [key]
FROM @chosen AS c
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (READUNCOMMITTED) ON c.location = a.archive_id
WHERE {same_moment}
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- when source=done
SELECT m.id AS [key]
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (READUNCOMMITTED) ON c.location = m.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end

-- name: delete_rows
-- one row: how many of the rows locked by this transaction are deleted now
SET NOCOUNT ON;
DECLARE @keys nvarchar(max) = :keys;
DECLARE @deleted bigint;
{chosen_marks}
-- when source=archive
DELETE a
FROM @chosen AS c
INNER JOIN [{schema}].[{queue}_archive] AS a WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = a.archive_id
WHERE
    {same_moment}
    AND (
        a.archived_at <= CAST(N'{before}' AS datetime2(7))
        OR (a.reason = N'pop' AND a.archived_at <= CAST(N'{cutoff}' AS datetime2(7)))
    )
OPTION (LOOP JOIN, FORCE ORDER);
SET @deleted = @@ROWCOUNT;
-- end
-- when source=done
DECLARE @gone TABLE (location bigint NOT NULL PRIMARY KEY);
DELETE m
OUTPUT deleted.id INTO @gone (location)
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m WITH (ROWLOCK, READCOMMITTEDLOCK) ON c.location = m.id
WHERE m.attempts = CAST(c.mark AS int) AND m.status = 2 AND m.done_at <= CAST(N'{before}' AS datetime2(7))
OPTION (LOOP JOIN, FORCE ORDER);
SET @deleted = @@ROWCOUNT;
-- when defined beside
DELETE d
FROM @gone AS g
INNER JOIN {beside} AS d WITH (ROWLOCK, READCOMMITTEDLOCK) ON g.location = d.id
OPTION (LOOP JOIN, FORCE ORDER);
-- end
-- end
SELECT @deleted AS deleted;
