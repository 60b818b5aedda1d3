-- An archive's rows on their way into the lake: reserved, exported, deleted.
--
-- A plan takes exact rows, never a range of keys: a pop that drew a low archive_id may commit after the export. Whoever
-- reserves rows, or restores them, locks the queue's row of dbq.lake_plan first and looks only then.
-- What a task sends contains its values as literals: PostgreSQL's COPY binds none.

-- define: may_leave
-- popped rows up to the cut-off, all others only before an earlier moment, because restore may need them
(
    a.archived_at <= CAST(:before AS timestamptz)
    OR (a.reason = 'pop' AND a.archived_at <= CAST(:cutoff AS timestamptz))
)

-- define: dated_at
-- the moment whose day a row is under in the lake: somebody may have written one that no file can hold
CASE WHEN a.archived_at >= timestamptz '0001-01-01 00:00:00+00' THEN a.archived_at ELSE timestamptz 'epoch' END

-- define: next_rows
-- the next :read_limit rows of the archive, in the order of their keys
SELECT
    n.archive_id,
    n.archived_at,
    n.reason
FROM "{schema}"."{queue}_archive" AS n
WHERE n.archive_id > CAST(:after AS bigint)
ORDER BY n.archive_id
LIMIT CAST(:read_limit AS bigint)

-- define: pushed_at_fits
-- whether a file can hold it
(a.pushed_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00') IS NOT FALSE

-- define: due_at_fits
-- whether a file can hold it
(a.due_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00') IS NOT FALSE

-- define: claimed_at_fits
-- whether a file can hold it
(a.claimed_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00') IS NOT FALSE

-- define: done_at_fits
-- whether a file can hold it
(a.done_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00') IS NOT FALSE

-- define: archived_at_fits
-- whether a file can hold it
(a.archived_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00') IS NOT FALSE

-- name: add_plan
-- script: adds the row of a queue's plans if it never had one
INSERT INTO dbq.lake_plan (schema_name, queue_name)
SELECT
    q.schema_name,
    q.queue_name
FROM dbq.queue AS q
WHERE q.schema_name = '{schema}' AND q.queue_name = '{queue}'
ON CONFLICT DO NOTHING;

-- name: plan
-- the row of a queue's plans, if it ever had one; lock=yes: locked until the transaction ends
SELECT
    p.plan_id AS plan_id,
    p.serial AS serial,
    p.committed AS committed,
    p.state AS state,
    p.run AS run,
    p.lake AS lake,
    p.table_id AS table_id,
    p.database AS database,
    p.connection AS label,
    coalesce(p.made_at, timestamptz 'epoch') AS made_at,
    coalesce(p.action_id, 0) AS action_id
FROM dbq.lake_plan AS p
WHERE p.schema_name = '{schema}' AND p.queue_name = '{queue}'
FOR UPDATE; -- when lock=yes

-- name: set_plan
-- one row if the plan has these values now; none where another run is in charge of it
UPDATE dbq.lake_plan AS p
SET
    serial = CAST(:serial AS bigint),
    committed = CAST(:committed AS bigint),
    state = CAST(:state AS text),
    run = CAST(:run AS text),
    lake = CAST(:lake AS text),
    table_id = CAST(:table_id AS text),
    database = CAST(:database AS text),
    connection = CAST(:label AS text),
    made_at = CAST(:made_at AS timestamptz),
    action_id = CAST(:action_id AS bigint)
WHERE p.plan_id = CAST(:plan_id AS bigint) AND p.run = CAST(:earlier AS text)
RETURNING p.plan_id AS plan_id;

-- name: in_charge
-- one row if this run is in charge of the plan; so it stays until the transaction ends
SELECT p.plan_id AS plan_id FROM dbq.lake_plan AS p
WHERE p.plan_id = CAST(:plan_id AS bigint) AND p.run = CAST(:run AS text)
FOR SHARE;

-- name: server_time
-- one row: the server's clock
SELECT statement_timestamp() AS moment;

-- name: others
-- one row: yes or no, whether others added columns to the archive
SELECT CASE WHEN EXISTS (
    SELECT FROM pg_attribute AS c
    WHERE
        c.attrelid = to_regclass('"{schema}"."{queue}_archive"') AND c.attnum > 0 AND NOT c.attisdropped
        AND c.attname NOT IN (
            'archive_id', 'id', 'payload', 'pushed_at', 'claimed_at', 'claimed_by', 'done_at', 'state', 'attempts', 'error', 'reason',
            'action_id', 'archived_at'
            , 'title' -- when defined title
            , 'due_at' -- when role due_at
        )
) THEN 'yes' ELSE 'no' END AS others;

-- name: step
-- one row: of the next :read_limit rows of the archive: the last key, how many there are, how many may leave, the range of their times
SELECT
    max(a.archive_id) AS last,
    count(*) AS rows_read,
    count(*) FILTER (WHERE {may_leave}) AS rows,
    min({dated_at}) FILTER (WHERE {may_leave}) AS oldest,
    max({dated_at}) FILTER (WHERE {may_leave}) AS newest
FROM (
    {next_rows}
) AS a;

-- name: forget
-- script: drops the reservations of queues that are gone
DELETE FROM dbq.lake_row AS r WHERE NOT EXISTS (SELECT FROM dbq.lake_plan AS p WHERE p.plan_id = r.plan_id);

-- name: reserve
-- one row: the same as `step`; the rows that may leave are reserved for the plan
WITH next AS MATERIALIZED (
    {next_rows}
),

reserved AS (
    INSERT INTO dbq.lake_row (plan_id, archive_id, archived_at)
    SELECT
        CAST(:plan_id AS bigint),
        a.archive_id,
        a.archived_at
    FROM next AS a
    WHERE {may_leave}
    RETURNING archived_at
)

SELECT
    (SELECT max(n.archive_id) FROM next AS n) AS last,
    (SELECT count(*) FROM next) AS rows_read,
    count(*) AS rows,
    min({dated_at}) AS oldest,
    max({dated_at}) AS newest
FROM reserved AS a;

-- name: reserved
-- one row: how many rows a plan has reserved, and the range of their times
SELECT
    count(*) AS rows,
    min({dated_at}) AS oldest,
    max({dated_at}) AS newest
FROM dbq.lake_row AS a
WHERE a.plan_id = CAST(:plan_id AS bigint);

-- name: part
-- one row: of a plan's next :rows reserved rows: the last key, and how many there are
SELECT
    max(r.archive_id) AS last,
    count(*) AS rows
FROM (
    SELECT n.archive_id
    FROM dbq.lake_row AS n
    WHERE n.plan_id = CAST(:plan_id AS bigint) AND n.archive_id > CAST(:after AS bigint)
    ORDER BY n.archive_id
    LIMIT CAST(:rows AS bigint)
) AS r;

-- name: rows
-- the reserved rows after '{after}' up to '{last}' that are there, in order; a column that is missing here is null in the lake
-- No file can hold "infinity" or years outside 1 to 9999: such a time is null here. `row_json`: the row as JSON where it has
-- such a time, or columns that others added (others=yes).
SELECT
    a.archive_id AS archive_id,
    CAST(a.id AS text) AS id,
    CAST(a.payload AS text) AS payload, -- when payload=text|json
    a.payload AS payload_bytes, -- when payload=bytes
    CASE WHEN {pushed_at_fits} THEN a.pushed_at END AS pushed_at,
    CASE WHEN {due_at_fits} THEN a.due_at END AS due_at, -- when role due_at
    CASE WHEN {claimed_at_fits} THEN a.claimed_at END AS claimed_at,
    a.claimed_by AS claimed_by,
    CASE WHEN {done_at_fits} THEN a.done_at END AS done_at,
    a.state AS state,
    a.attempts AS attempts,
    a.error AS error,
    a.reason AS reason,
    a.title AS title, -- when defined title
    a.action_id AS action_id,
    CASE WHEN {archived_at_fits} THEN a.archived_at END AS archived_at,
    CAST(to_json(a) AS text) AS row_json -- when others=yes
    -- when others=no
    CASE
        WHEN
            NOT ({pushed_at_fits} AND {claimed_at_fits} AND {done_at_fits} AND {archived_at_fits})
            OR NOT ({due_at_fits}) -- when role due_at
            THEN CAST(to_json(a) AS text)
    END AS row_json
    -- end
FROM dbq.lake_row AS r
INNER JOIN "{schema}"."{queue}_archive" AS a ON r.archive_id = a.archive_id AND r.archived_at = a.archived_at
WHERE
    r.plan_id = CAST('{plan_id}' AS bigint)
    AND r.archive_id > CAST('{after}' AS bigint) AND r.archive_id <= CAST('{last}' AS bigint)
    AND a.archive_id > CAST('{after}' AS bigint) AND a.archive_id <= CAST('{last}' AS bigint)
ORDER BY a.archive_id;

-- name: keys
-- the keys of a plan's reserved rows after :after up to :last, in order
SELECT r.archive_id AS archive_id
FROM dbq.lake_row AS r
WHERE
    r.plan_id = CAST(:plan_id AS bigint)
    AND r.archive_id > CAST(:after AS bigint) AND r.archive_id <= CAST(:last AS bigint)
ORDER BY r.archive_id;

-- name: release
-- one row: how many of these reserved rows the plan gives back, as nothing was committed of them
WITH given_back AS (
    DELETE FROM dbq.lake_row AS r
    WHERE r.plan_id = CAST(:plan_id AS bigint) AND r.archive_id = ANY(CAST(:keys AS bigint[]))
    RETURNING 1 AS one
)

SELECT count(*) AS rows FROM given_back;

-- name: release_all
-- one row: how many rows the plan gives back
WITH given_back AS (
    DELETE FROM dbq.lake_row AS r WHERE r.plan_id = CAST(:plan_id AS bigint)
    RETURNING 1 AS one
)

SELECT count(*) AS rows FROM given_back;

-- name: delete_rows
-- one row: how many of the reserved rows after :after up to :last are deleted, and how many there were: others are gone already
WITH gone AS (
    DELETE FROM "{schema}"."{queue}_archive" AS a
    USING dbq.lake_row AS r
    WHERE
        r.plan_id = CAST(:plan_id AS bigint)
        AND r.archive_id > CAST(:after AS bigint) AND r.archive_id <= CAST(:last AS bigint)
        AND a.archive_id > CAST(:after AS bigint) AND a.archive_id <= CAST(:last AS bigint)
        AND a.archive_id = r.archive_id AND a.archived_at = r.archived_at
    RETURNING 1 AS one
),

done AS (
    DELETE FROM dbq.lake_row AS r
    WHERE
        r.plan_id = CAST(:plan_id AS bigint)
        AND r.archive_id > CAST(:after AS bigint) AND r.archive_id <= CAST(:last AS bigint)
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM gone) AS deleted,
    (SELECT count(*) FROM done) AS reserved;
