-- What all presets have. A preset is one file: its head describes the library and how its tables are
-- recognised, then an expression for each role that is no column, a predicate for each state, and its own rules.
-- Keys of the head, each in a line `-- key: text` (`--   ` goes on), up to a line `--`:
--
-- preset: the library and its version, the first line; like: preset; summary, advice: texts about it
-- older: of a file for an older version, the preset of the present one; `like` may name that too: then the head has only
--   what differs, besides `columns` and `verbs`
-- table, schema: the names of its tables (q_*), and where they are; without: any name, any schema
-- columns: what a table must have to be the library's; beside: another table that must exist
-- roles: role=column, of its newest version
-- verbs: which of requeue, release, pause (with resume) it has; no VERB: why it lacks another; claims: expire, where they end by themselves
-- left claims, requeued, paused, stays: what the library does with a dead worker's claims, what becomes of a message that is
--   made ready, what a pause does, and why a chosen one may stay
-- prunes: what of the library deletes finished jobs, and when: the definition prunable says which
-- errors: where the library keeps its errors, if not in this table: then their number is unknown
-- takes due, overdue: what of the library takes, or makes ready, a message that is due; what to do if it does not
--
-- Definitions: is_ready, is_scheduled, is_claimed, is_error, is_done (as far as they exist), other_state of a row in none;
-- queue_column, with queue_index where an index begins with it, or part: which rows are the queue's of a table with several,
-- used by `AND {in_part}` in each predicate; is_waiting, was_tried, failing_since: what is tried again; own_function: what
-- make_ready calls; writes_into: the table into which it inserts, and lacks: why a version cannot do it; last_beat: the
-- last heartbeat of requested.session, with silent_seconds, after which its library considers it dead;
-- installed_version: of its tables, where it keeps one. is_overdue with overdue_since, where the usual rule does not do;
-- stager: who makes due messages ready, if its own table says so. is_finished, finished_at, finished_table, finished_state:
-- what a copy into the lake reads, where it is not what is done.
-- owners_path: the search path that its functions and triggers need, if not that of the table's owner.
-- Statements: queues, where no queue_column has them (none: a table each, and found_queue), make_ready, not_requeued, hidden;
-- rule and owners, where they are not made of these definitions; with the verb pause: may_pause, paused, pause, resume.

-- define: in_part
-- restricts the table to one of the library's queues
-- when defined part
{part} -- when part=one
true -- when part=all
-- end

-- define: part
{queue_column} = '{only}' -- when defined queue_column

-- define: silent_before
-- an owner with an older last heartbeat is gone: by its library's own limit, or by the threshold if that is longer
statement_timestamp() - make_interval(secs => greatest({silent_seconds}, CAST('{stuck_after_seconds}' AS double precision)))

-- define: owner_without_heartbeat
-- the verdict on an owner without any heartbeat
'gone'

-- define: other_state
CAST(m."{status}" AS text)

-- define: state
CASE
    WHEN {is_ready} THEN 'ready'
    WHEN {is_scheduled} THEN 'scheduled' -- when defined is_scheduled
    WHEN {is_claimed} THEN 'claimed' -- when defined is_claimed
    WHEN {is_error} THEN 'error' -- when defined is_error
    WHEN {is_done} THEN 'done' -- when defined is_done
    ELSE {other_state}
END

-- define: state_held
{state}

-- define: chosen_rows
{rows_by_id}
AND {in_part} -- when defined in_part

-- define: json_string
-- a pattern: a string of JSON that any version casts, once the {escapes} are replaced
'"(?:[^"\\\u0001-\u001f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4,4})*"'

-- define: time_of_text
-- for a row t: the time in ISO 8601 that t.text is; null if it is none
CASE
    WHEN t.text ~ '^(?!0000)[0-9]{4,4}-(0[1-9]|1[0-2])-[0-3][0-9][T ]([01][0-9]|2[0-3])(:[0-5][0-9]){2,2}([.][0-9]{1,9})?(Z|[+-](0[0-9]|1[0-4])(:?[0-5][0-9])?)?$'
        THEN CASE
            WHEN to_char(CAST(substr(t.text, 1, 8) || '01' AS date) + CAST(substr(t.text, 9, 2) AS integer) - 1, 'YYYY-MM-DD') = left(t.text, 10)
                THEN CAST(t.text AS timestamptz)
        END
END

-- define: oldest_first
m."{id}" -- when defined pushed_at

-- define: is_overdue
-- due, and not taken: it was to run later than it was pushed, or its library should have made it ready
(
    false
    OR {is_ready} AND {overdue_since} > least({pushed_at}, '9999-12-31Z') + interval '1 second' -- when defined pushed_at
    OR {is_scheduled} AND {overdue_since} <= statement_timestamp() -- when defined is_scheduled
)

-- define: pages
64

-- define: joined_table
(
    SELECT CAST(b.relname AS text) FROM pg_class AS b
    WHERE b.relnamespace = c.relnamespace AND b.relname = CAST(:beside AS text)
)

-- define: found_queue
CAST(NULL AS text)

-- define: is_finished
-- its library is done with it, and keeps it: nothing but an operator makes it ready again
{is_done} -- when defined is_done
false -- when not defined is_done

-- define: finished_at
{done_at} -- when defined done_at
CAST(NULL AS timestamptz) -- when not defined done_at

-- define: finished_table
"{schema}"."{table}"

-- define: finished_state
{state}

-- define: in_files
-- whether a file can hold the time
BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-12-31 23:59:59.999999+00'

-- define: and_chosen
-- of finished jobs, those since '{since}', and those without a time of finishing that a file can hold; pruned=yes: those that
-- the library's own rule deletes, up to '{before}'
-- when pruned=no
AND ({finished_at} {in_files} IS NOT TRUE OR {finished_at} >= CAST('{since}' AS timestamptz))
-- else
AND {finished_at} <= CAST('{before}' AS timestamptz)
AND {prunable} -- when defined prunable
-- end

-- name: recognised
-- a row for each table with the name and the columns of a preset, by one pass over the columns of all tables
-- Candidates are found by one of the preset's rarer columns (:rarest_columns); only theirs are compared in full. Compared as
-- hashed text: by the index on names the pass would take four times as long.
SELECT
    p.name AS name,
    CAST(n.nspname AS text) AS schema,
    CAST(c.relname AS text) AS "table"
FROM pg_attribute AS a
INNER JOIN pg_class AS c ON a.attrelid = c.oid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
INNER JOIN jsonb_to_recordset(CAST(:presets AS jsonb)) AS p (name text, schema text, "table" text, columns text[], rarest_column text)
    ON CAST(a.attname AS text) = p.rarest_column
    AND c.relname LIKE replace(replace(p."table", '_', '\_'), '*', '%') AND n.nspname = coalesce(p.schema, n.nspname)
WHERE CAST(a.attname AS text) = ANY(CAST(:rarest_columns AS text[])) AND a.attnum > 0 AND NOT a.attisdropped
AND c.relkind IN ('r', 'p') AND NOT c.relispartition
AND (
    SELECT count(*) FROM pg_attribute AS b
    WHERE b.attrelid = c.oid AND b.attnum > 0 AND NOT b.attisdropped AND b.attname = ANY(p.columns)
) = cardinality(p.columns)
ORDER BY p.name, n.nspname, c.relname;

-- name: find
-- the library's tables that this login may read, each with its payload table, and its queue if it has only one
-- Not those that would run others' code with the rights of a superuser: anybody can create such a table.
SELECT
    f.schema,
    f."table",
    f.beside,
    f.queue
FROM (
    SELECT
        n.nspname AS schema,
        c.relname AS "table",
        {joined_table} AS beside,
        {found_queue} AS queue
    FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    LEFT JOIN {code_of_others} AS o ON c.oid = o.oid
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
    AND n.nspname = coalesce(CAST(:schema AS text), n.nspname)
    AND c.relname LIKE replace(replace(CAST(:table AS text), '_', '\_'), '*', '%')
    AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
    AND (
        SELECT count(*) FROM pg_attribute AS a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(CAST(:columns AS text[]))
    ) = cardinality(CAST(:columns AS text[]))
    AND o.runs IS NULL
) AS f
WHERE CAST(:beside AS text) IS NULL OR f.beside IS NOT NULL
ORDER BY f.schema, f."table";

-- name: queues
-- the names of at most 100 queues with jobs in the table: by a skip scan of their index, else among 100,000 jobs
WITH RECURSIVE jobs AS NOT MATERIALIZED (SELECT {queue_column} AS name FROM "{schema}"."{table}" AS m),

met AS (
    -- when defined queue_index
    (SELECT j.name FROM jobs AS j ORDER BY j.name LIMIT 1)
    UNION ALL
    SELECT (SELECT j.name FROM jobs AS j WHERE j.name > f.name ORDER BY j.name LIMIT 1) AS name
    FROM met AS f WHERE f.name IS NOT NULL
    -- else
    SELECT DISTINCT j.name FROM (SELECT t.name FROM jobs AS t LIMIT 100000) AS j ORDER BY j.name
    -- end
)

SELECT CAST(f.name AS text) AS name FROM met AS f WHERE f.name IS NOT NULL LIMIT 100;

-- name: payload_kind
-- one row: what its payloads are: text, json or bytes
SELECT
    CASE
        WHEN t.type IN ('json', 'jsonb') THEN 'json'
        WHEN t.type = 'bytea' THEN 'bytes'
        ELSE 'text'
    END AS kind
FROM (SELECT CAST(pg_typeof((SELECT {payload} AS payload FROM {finished_table} AS m LIMIT 0)) AS text) AS type) AS t;

-- name: finished_columns
-- the columns of the table of finished jobs, in order
SELECT CAST(a.attname AS text) AS name
FROM pg_attribute AS a
INNER JOIN pg_type AS t ON a.attrelid = t.typrelid
WHERE t.oid = CAST(pg_typeof((SELECT m FROM {finished_table} AS m LIMIT 0)) AS oid) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;

-- name: detached
-- tables that were partitions of the table of finished jobs, by what they have for the {only} of its name; it has none
SELECT CAST(NULL AS text) AS name WHERE false;

-- name: finished_count
-- one row: how many jobs `finished_rows` has
SELECT count(*) AS rows
FROM {finished_table} AS m
WHERE
    {is_finished}
    {and_chosen};

-- name: finished_rows
-- finished jobs as the lake has them, or only their keys (what=keys); pruned=yes: of those that may be deleted also where they are
-- Without such a time archived_at is 1970-01-01. `more` is an object of the :columns that are not null. A job that was retried, and
-- finished again, has another attempt or another time: `id`, `attempts` and `archived_at` tell its rows apart.
SELECT
    r.id AS id,
    CAST(r.attempts AS integer) AS attempts, -- when defined attempts
    -- when what=rows
    r.payload AS payload, -- when payload=text|json
    r.payload AS payload_bytes, -- when payload=bytes
    CASE WHEN r.pushed_at {in_files} THEN r.pushed_at END AS pushed_at, -- when defined pushed_at
    CASE WHEN r.due_at {in_files} THEN r.due_at END AS due_at, -- when defined due_at
    CASE WHEN r.finished_at {in_files} THEN r.finished_at END AS done_at,
    r.state AS state,
    r.error AS error, -- when defined error
    r.title AS title, -- when defined title
    'copy' AS reason,
    r.more AS more,
    -- end
    -- when pruned=yes
    r.place AS place,
    r.version AS version,
    -- end
    CASE WHEN r.finished_at {in_files} THEN r.finished_at ELSE timestamptz 'epoch' END AS archived_at
FROM (
    SELECT
        {id} AS id,
        {attempts} AS attempts, -- when defined attempts
        -- when what=rows
        CAST({payload} AS text) AS payload, -- when payload=text|json
        {payload} AS payload, -- when payload=bytes
        CAST({pushed_at} AS timestamptz) AS pushed_at, -- when defined pushed_at
        CAST({due_at} AS timestamptz) AS due_at, -- when defined due_at
        CAST({finished_state} AS text) AS state,
        CAST({error} AS text) AS error, -- when defined error
        CAST({title} AS text) AS title, -- when defined title
        '{' || array_to_string(ARRAY[
            CAST(NULL AS text)
            -- each column
            , CAST(to_json(CAST('{column}' AS text)) AS text) || ': ' || CAST(to_json(m."{column}") AS text)
            -- end
        ], ', ') || '}' AS more,
        -- end
        -- when pruned=yes
        concat(m.tableoid, m.ctid) AS place,
        CAST(m.xmin AS text) AS version,
        -- end
        CAST({finished_at} AS timestamptz) AS finished_at
    FROM {finished_table} AS m
    WHERE
        {is_finished}
        {and_chosen}
    LIMIT CAST('{most}' AS bigint) -- when pruned=yes
) AS r;

-- name: prune
-- one row: how many of the jobs at :locations are deleted: those that are still in the version that was read (:versions)
WITH gone AS (
    DELETE FROM {finished_table} AS m
    WHERE {at_locations}
    AND concat(m.tableoid, m.ctid, ' ', m.xmin) = ANY(CAST(:versions AS text[]))
    AND {prunable} -- when defined prunable
    RETURNING 1 AS one
)

SELECT (SELECT count(*) FROM gone) AS rows
{under_declared_path}

-- name: owners
-- a row for each of the owners, as in claimed_by: gone, alive or unknown, by its last heartbeat
SELECT
    requested.session AS session,
    CASE
        WHEN o.last_beat IS NULL THEN {owner_without_heartbeat}
        WHEN o.last_beat >= statement_timestamp() - make_interval(secs => {silent_seconds}) THEN 'alive'
        WHEN o.last_beat < {silent_before} THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS requested (session)
CROSS JOIN LATERAL (SELECT {last_beat} AS last_beat) AS o;

-- name: stager
-- one row: who makes due jobs ready now, by the library's own table; null: nobody
SELECT CAST({stager} AS text) AS stager;

-- name: retrying
-- one row: of the first 100,000 open jobs: how many have been retried for longer than :seconds, and the one that failed first
SELECT
    count(*) AS jobs,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM min(j.failing_since)) AS double precision) AS oldest_seconds,
    CAST(max(j.attempts) AS integer) AS attempts,
    CAST((array_agg(j.id ORDER BY j.failing_since, j.id))[1] AS text) AS id
FROM (
    SELECT
        m."{id}" AS id,
        {attempts} AS attempts, -- when defined attempts
        CAST(NULL AS integer) AS attempts, -- when not defined attempts
        {failing_since} AS failing_since
    FROM (
        SELECT m.* FROM "{schema}"."{table}" AS m
        WHERE {is_waiting}
        LIMIT 100000
    ) AS m
    WHERE {was_tried}
) AS j
WHERE j.failing_since < statement_timestamp() - make_interval(secs => CAST(:seconds AS double precision));

-- name: rule
-- one row: why the library's own function cannot be called; null: it can, or there is none
SELECT
    -- when defined own_function
    CASE
        WHEN to_regprocedure({own_function}) IS NULL
            THEN concat('this version of {design} has no function ', {own_function})
    END AS problem;
    -- end
    -- when defined writes_into
    CASE
        WHEN NOT has_table_privilege(CAST({writes_into} AS regclass), 'INSERT')
            THEN concat('this login may not write into ', {writes_into}, ', as its own rule does')
        ELSE {lacks} -- when defined lacks
    END AS problem;
    -- end
    -- when not defined own_function
    CAST(NULL AS text) AS problem; -- when not defined writes_into
    -- end

-- name: version
-- one row: the installed version, as the library records it; null: it does not
SELECT
    {installed_version} AS version; -- when defined installed_version
    CAST(NULL AS text) AS version; -- when not defined installed_version
