-- like: preset
-- Shared by users' own presets: files that define expressions and predicates, and have no statement
-- (console/features/presets/designs/own_file.py, `dbq-console help presets`). Each definition is
-- inserted here in brackets. SQL of a file that its user has not trusted is run between
-- set_reader_role and reset_role.

-- define: fragment
-- the definition of the file that is examined
true

-- define: joined_table
-- a user's preset may have no second table
CASE
    WHEN CAST(:beside AS text) IS NULL THEN CAST(c.relname AS text)
    ELSE (
        SELECT CAST(b.relname AS text) FROM pg_class AS b
        WHERE b.relnamespace = c.relnamespace AND b.relname = CAST(:beside AS text)
    )
END

-- define: is_stuck
-- when defined is_claimed
-- when defined claimed_at
{is_claimed} AND {claimed_at} < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision))
-- end
-- end

-- name: reader
-- one row: whether this login may SET ROLE to the reader; and if not, whether it may do more than read itself
SELECT
    r.takes_role AS takes_role,
    CASE
        WHEN r.takes_role THEN false
        WHEN (SELECT l.rolsuper OR l.rolcreaterole FROM pg_roles AS l WHERE l.rolname = current_user) THEN true
        WHEN has_database_privilege(current_database(), 'CREATE') THEN true
        WHEN EXISTS (
            SELECT FROM pg_roles AS p
            WHERE p.rolname IN ('pg_signal_backend', 'pg_write_server_files', 'pg_execute_server_program', 'pg_write_all_data')
            AND pg_has_role(p.oid, 'MEMBER')
        ) THEN true
        ELSE EXISTS (
            SELECT FROM pg_class AS c
            INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
            WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\_temp%'
            AND (pg_has_role(c.relowner, 'USAGE') OR has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE'))
        )
    END AS may_more
FROM (
    SELECT count(*) > 0 AS takes_role FROM pg_roles AS d
    WHERE d.rolname = 'dbq_reader'
    AND pg_has_role(d.oid, CASE WHEN CAST(current_setting('server_version_num') AS integer) >= 160000 THEN 'SET' ELSE 'MEMBER' END)
) AS r;

-- name: set_reader_role
-- script: from here on the transaction has the reader's rights
SET LOCAL ROLE dbq_reader;

-- name: reset_role
-- script: from here on it has the login's rights again
RESET ROLE;

-- name: queues
-- the names of at most 100 queues, among the first 100,000 rows of the table
-- when defined queue_column
SELECT DISTINCT CAST({queue_column} AS text) AS name
FROM (SELECT t.* FROM "{schema}"."{table}" AS t LIMIT 100000) AS m
WHERE {queue_column} IS NOT NULL
ORDER BY name LIMIT 100;
-- end
SELECT CAST(NULL AS text) AS name WHERE false; -- when not defined queue_column

-- name: make_ready
-- one row: how many rows were updated by the preset's rule, and how many of these can be popped now or later
-- They differ if the preset is wrong: then its ledger does not balance, and the batch is undone.
WITH freed AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        {requeue} -- when verb=requeue
        {release} -- when verb=release
    WHERE {at_locations}
    AND {is_error} -- when verb=requeue
    AND {is_claimed} -- when verb=release
    RETURNING
        {is_ready}
        OR {is_scheduled} -- when defined is_scheduled
        AS ready
)

SELECT
    (SELECT count(*) FROM freed) AS taken_out,
    (SELECT count(*) FROM freed AS f WHERE f.ready) AS put_in
{under_declared_path}

-- name: nearest
-- the three tables with most of the columns, and the columns that each lacks
SELECT
    CAST(n.nspname AS text) AS schema,
    CAST(c.relname AS text) AS "table",
    ARRAY(
        SELECT w.name FROM unnest(CAST(:columns AS text[])) AS w (name)
        WHERE w.name NOT IN (SELECT CAST(a.attname AS text) FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
        ORDER BY w.name
    ) AS lacking
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
INNER JOIN LATERAL (
    SELECT count(*) AS matching FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(CAST(:columns AS text[]))
) AS has ON 2 * has.matching >= cardinality(CAST(:columns AS text[]))
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema')
ORDER BY has.matching DESC, n.nspname ASC, c.relname ASC
LIMIT 3;

-- name: planned
-- one plan of a query by the fragment; it is not run
EXPLAIN (FORMAT JSON)
SELECT FROM "{schema}"."{table}" AS m
WHERE {fragment} IS NOT NULL;

-- name: nested
-- one plan of the same in a subquery; it is not run
-- The planner pulls a subquery up unless one of its values calls a volatile function, through whatever view, operator or
-- cast.
EXPLAIN (FORMAT JSON)
SELECT FROM (
    SELECT {fragment} AS value FROM "{schema}"."{table}" AS m
) AS dbq_value
WHERE dbq_value.value IS NOT NULL;

-- name: typed
-- one row: the type of the fragment, which is not computed, and the console's name for it
SELECT
    t.type AS type,
    CASE
        WHEN t.type = 'boolean' THEN 'true or false'
        WHEN t.type = 'timestamp with time zone' THEN 'a time'
        WHEN t.type IN ('smallint', 'integer', 'bigint') THEN 'a whole number'
        WHEN t.type IN ('text', 'character varying') THEN 'a text'
        ELSE 'something else'
    END AS kind
FROM (
    SELECT CAST(pg_typeof((SELECT {fragment} AS value FROM "{schema}"."{table}" AS m LIMIT 0)) AS text) AS type
) AS t;

-- name: volatile
-- those of the names that belong to functions that may write
SELECT DISTINCT CAST(p.proname AS text) AS name
FROM pg_proc AS p
WHERE p.provolatile = 'v' AND p.proname = ANY(CAST(:names AS text[]))
ORDER BY name;

-- name: size
-- one row: estimated rows and pages of the table
SELECT
    CAST(sum(greatest(t.reltuples, pg_stat_get_live_tuples(t.oid), 0)) AS bigint) AS rows,
    CAST(sum(pg_relation_size(t.oid) / CAST(current_setting('block_size') AS bigint)) AS bigint) AS pages
FROM ({parts}) AS p
INNER JOIN pg_class AS t ON p.oid = t.oid;

-- name: state_combinations
-- a row for each combination of states that rows are in, and for rows in none, for each status; of the first :n rows
SELECT
    s.states AS states,
    CASE WHEN s.states = '' THEN s.status END AS status,
    count(*) AS rows,
    min(s.id) AS id
FROM (
    SELECT
        concat_ws(
            ' ', CASE WHEN {is_ready} THEN 'ready' END
            , CASE WHEN {is_scheduled} THEN 'scheduled' END -- when defined is_scheduled
            , CASE WHEN {is_claimed} THEN 'claimed' END -- when defined is_claimed
            , CASE WHEN {is_error} THEN 'error' END -- when defined is_error
            , CASE WHEN {is_done} THEN 'done' END -- when defined is_done
        ) AS states,
        CAST(m."{status}" AS text) AS status,
        {id} AS id
    FROM (SELECT t.* FROM "{schema}"."{table}" AS t LIMIT CAST(:n AS bigint)) AS m
) AS s
GROUP BY s.states, CASE WHEN s.states = '' THEN s.status END
ORDER BY count(*) DESC, s.states ASC, min(s.id) ASC
LIMIT 100;

-- name: read_for
-- one plan, which was run: what a sample reads for one figure
EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON)
SELECT FROM "{schema}"."{table}" AS m
WHERE {fragment}
LIMIT 10001;
