-- Rows on their way into the lake, and whether a run may still work.
--
-- source=archive  rows of the queue's archive: popped ones up to the cut-off, all others only before an earlier moment,
--                 because restore may need them
-- source=done     done rows of status and split, in their own table, up to such a moment
-- What a task sends contains its values as literals: PostgreSQL's COPY binds none.

-- name: working
-- one row: whether a run's action is not finished and its lease is its own
SELECT EXISTS(
    SELECT FROM dbq.action AS a
    INNER JOIN dbq.lease AS l ON l.name = '{lease}' AND l.holder = '{holder}' AND l.until > clock_timestamp()
    WHERE a.action_id = CAST('{action_id}' AS bigint) AND a.ended_at IS NULL
) AS working;

-- name: plan_actions
-- the actions that carried out a plan, by its cut-off: how many rows each deleted, and whether it is finished
SELECT
    a.action_id AS action_id,
    a.done AS done,
    a.ended_at IS NOT NULL AS ended
FROM dbq.action AS a
WHERE a.schema_name = CAST(:schema AS text) AND a.queue_name = CAST(:queue AS text)
AND a.verb = 'pipeline archive' AND a.cutoff = CAST(:cutoff AS timestamptz)
ORDER BY a.action_id;

-- name: taken_by_others
-- one row: at most how many rows other actions can have taken out of the queue's tables since a plan was made
SELECT CAST(coalesce(sum(a.done), 0) AS bigint) AS rows
FROM dbq.action AS a
WHERE a.schema_name = CAST(:schema AS text) AND a.queue_name = CAST(:queue AS text)
AND (a.verb <> 'pipeline archive' OR a.cutoff IS DISTINCT FROM CAST(:cutoff AS timestamptz))
AND (a.ended_at IS NULL OR a.last_at >= CAST(:made_at AS timestamptz));

-- name: server_time
-- one row: the server's clock
SELECT statement_timestamp() AS moment;

-- name: step
-- one row: of the next :read_limit keys: the last, how many there are, how many are to be exported, and the range of their times
SELECT
    max(l.key) AS last,
    count(*) AS rows_read,
    count(*) FILTER (WHERE l.included) AS rows,
    min(l.moment) FILTER (WHERE l.included) AS oldest,
    max(l.moment) FILTER (WHERE l.included) AS newest
FROM (
    -- when source=archive
    SELECT
        a.archive_id AS key,
        a.archived_at AS moment,
        a.archived_at <= CAST('{before} UTC' AS timestamptz)
        OR (a.reason = 'pop' AND a.archived_at <= CAST('{cutoff} UTC' AS timestamptz)) AS included
    FROM "{schema}"."{queue}_archive" AS a
    WHERE a.archive_id > CAST(:after AS bigint)
    ORDER BY a.archive_id
    -- end
    -- when source=done
    SELECT
        m.id AS key,
        m.done_at AS moment,
        true AS included
    FROM "{schema}"."{table}" AS m
    WHERE {is_done} AND m.done_at <= CAST('{before} UTC' AS timestamptz) AND m.id > CAST(:after AS bigint)
    ORDER BY m.id
    -- end
    LIMIT CAST(:read_limit AS bigint)
) AS l;

-- name: rows
-- the rows to export of the keys after '{after}' up to '{last}', in their order; a missing column is null in the lake
-- No file can hold "infinity" or years of more than four digits: both become its bounds.
-- when source=archive
SELECT
    a.archive_id AS archive_id,
    CAST(a.id AS text) AS id,
    CAST(a.payload AS text) AS payload, -- when payload=text|json
    a.payload AS payload, -- when payload=bytes
    CASE
        WHEN a.pushed_at > timestamptz '9999-12-31 23:59:59.999999+00' THEN timestamptz '9999-12-31 23:59:59.999999+00'
        WHEN a.pushed_at < timestamptz '0001-01-01 00:00:00+00' THEN timestamptz '0001-01-01 00:00:00+00'
        ELSE a.pushed_at
    END AS pushed_at,
    a.done_at AS done_at,
    a.state AS state,
    a.attempts AS attempts,
    a.error AS error,
    a.reason AS reason,
    a.title AS title, -- when defined title
    -- when role due_at
    CASE
        WHEN a.due_at > timestamptz '9999-12-31 23:59:59.999999+00' THEN timestamptz '9999-12-31 23:59:59.999999+00'
        WHEN a.due_at < timestamptz '0001-01-01 00:00:00+00' THEN timestamptz '0001-01-01 00:00:00+00'
        ELSE a.due_at
    END AS due_at,
    -- end
    a.archived_at AS archived_at
FROM "{schema}"."{queue}_archive" AS a
WHERE
    a.archive_id > CAST('{after}' AS bigint) AND a.archive_id <= CAST('{last}' AS bigint)
    AND (
        a.archived_at <= CAST('{before} UTC' AS timestamptz)
        OR (a.reason = 'pop' AND a.archived_at <= CAST('{cutoff} UTC' AS timestamptz))
    )
ORDER BY a.archive_id;
-- end
-- when source=done
SELECT
    CAST(m.id AS text) AS id,
    CAST({joined_payload} AS text) AS payload, -- when payload=text|json
    {joined_payload} AS payload, -- when payload=bytes
    CASE
        WHEN m."{pushed_at}" > timestamptz '9999-12-31 23:59:59.999999+00'
            THEN timestamptz '9999-12-31 23:59:59.999999+00'
        WHEN m."{pushed_at}" < timestamptz '0001-01-01 00:00:00+00' THEN timestamptz '0001-01-01 00:00:00+00'
        ELSE m."{pushed_at}"
    END AS pushed_at,
    m.done_at AS done_at,
    'done' AS state,
    m.attempts AS attempts,
    m.errors AS error,
    m.title AS title
FROM "{schema}"."{table}" AS m
{payload_join} -- when defined payload_join
WHERE
    m.id > CAST('{after}' AS bigint) AND m.id <= CAST('{last}' AS bigint)
    AND {is_done} AND m.done_at <= CAST('{before} UTC' AS timestamptz)
ORDER BY m.id;
-- end

-- name: lock_rows
-- a row for each exported row that exists, is still to be deleted, and nobody holds; lock=yes: locked now
-- :keys alone finds them by the index; :marks, a row's archived_at or attempts, shows that it is the one exported.
-- when source=archive
SELECT a.archive_id AS key
FROM "{schema}"."{queue}_archive" AS a
INNER JOIN UNNEST(CAST(:keys AS bigint[]), CAST(:marks AS timestamp[])) AS k (key, moment)
    ON a.archive_id = k.key AND a.archived_at = k.moment AT TIME ZONE 'UTC'
WHERE
    a.archive_id = ANY(CAST(:keys AS bigint[]))
    AND (
        a.archived_at <= CAST('{before} UTC' AS timestamptz)
        OR (a.reason = 'pop' AND a.archived_at <= CAST('{cutoff} UTC' AS timestamptz))
    )
ORDER BY a.archive_id
FOR UPDATE OF a SKIP LOCKED -- when lock=yes
-- end
-- when source=done
SELECT m.id AS key
FROM "{schema}"."{table}" AS m
INNER JOIN UNNEST(CAST(:keys AS bigint[]), CAST(:marks AS integer[])) AS k (key, attempts)
    ON m.id = k.key AND m.attempts = k.attempts
WHERE {is_done} AND m.done_at <= CAST('{before} UTC' AS timestamptz)
ORDER BY m.id
FOR UPDATE OF m SKIP LOCKED -- when lock=yes
-- end

-- name: present_rows
-- a row for each exported row that the database still has, whoever holds it and whatever its state
-- when source=archive
SELECT a.archive_id AS key
FROM "{schema}"."{queue}_archive" AS a
INNER JOIN UNNEST(CAST(:keys AS bigint[]), CAST(:marks AS timestamp[])) AS k (key, moment)
    ON a.archive_id = k.key AND a.archived_at = k.moment AT TIME ZONE 'UTC'
WHERE a.archive_id = ANY(CAST(:keys AS bigint[]));
-- end
-- when source=done
SELECT m.id AS key
FROM "{schema}"."{table}" AS m
WHERE m.id = ANY(CAST(:keys AS bigint[]));
-- end

-- name: delete_rows
-- one row: how many of the rows locked by this transaction are deleted now
WITH gone AS (
    -- when source=archive
    DELETE FROM "{schema}"."{queue}_archive" AS a
    USING unnest(CAST(:keys AS bigint[]), CAST(:marks AS timestamp[])) AS k (key, moment)
    WHERE
        a.archive_id = ANY(CAST(:keys AS bigint[]))
        AND a.archive_id = k.key AND a.archived_at = k.moment AT TIME ZONE 'UTC'
        AND (
            a.archived_at <= CAST('{before} UTC' AS timestamptz)
            OR (a.reason = 'pop' AND a.archived_at <= CAST('{cutoff} UTC' AS timestamptz))
        )
    RETURNING a.archive_id AS key
    -- end
    -- when source=done
    DELETE FROM "{schema}"."{table}" AS m
    USING unnest(CAST(:keys AS bigint[]), CAST(:marks AS integer[])) AS k (key, attempts)
    WHERE m.id = k.key AND m.attempts = k.attempts AND {is_done} AND m.done_at <= CAST('{before} UTC' AS timestamptz)
    RETURNING m.id AS key
    -- end
)

-- when source=done
-- when defined beside
, data_gone AS (
    DELETE FROM {beside} AS d USING gone WHERE d.id = gone.key
)

-- end
-- end
SELECT count(*) AS deleted FROM gone;
