-- The console's own schema: which queues this database holds.

-- name: lock
-- script: one installer at a time, until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('dbq catalog', 0));

-- name: bootstrap
-- script: makes schema dbq and its tables where they are missing; wants their owner, or nobody's yet
CREATE SCHEMA IF NOT EXISTS dbq;

CREATE TABLE IF NOT EXISTS dbq.queue (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    design text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('installed', 'adopted', 'archive')),
    options jsonb NOT NULL,
    roles jsonb NOT NULL,
    version integer NOT NULL,
    installed_by text NOT NULL DEFAULT session_user,
    installed_from text NOT NULL DEFAULT '',
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schema_name, queue_name)
);

COMMENT ON COLUMN dbq.queue.kind IS
'installed by the console; adopted: somebody else''s table; archive: only the archive of an uninstalled queue is left';

CREATE TABLE IF NOT EXISTS dbq.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

COMMENT ON TABLE dbq.setting IS 'production = on: every console honours it on every connection';

-- name: exists
-- one row: whether this database has a catalog at all
SELECT to_regclass('dbq.queue') IS NOT NULL AS present;

-- name: queues
-- all queues that the database holds, by schema and name
SELECT
    q.schema_name AS schema,
    q.queue_name AS name,
    q.design AS design,
    q.kind AS kind,
    q.options AS options,
    q.roles AS roles,
    q.version AS version,
    q.installed_by AS installed_by,
    q.installed_from AS installed_from,
    q.installed_at AS installed_at
FROM dbq.queue AS q
ORDER BY q.schema_name, q.queue_name;

-- name: settings
-- the settings kept in this database
SELECT
    s.name AS name,
    s.value AS value
FROM dbq.setting AS s;

-- name: record
-- script: one line of the catalog, of a queue that is installed or adopted in the same transaction
INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version, installed_from)
VALUES (
    '{schema}', '{queue}', '{design}', '{kind}', '{options_json}', '{roles_json}',
    CAST('{version}' AS integer), '{installed_from}'
);

-- name: erase
-- script: takes a queue out of the catalog
DELETE FROM dbq.queue WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: keep_archive
-- script: of this queue only the archive is left
UPDATE dbq.queue SET kind = 'archive' WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: schema_exists
-- one row: whether the schema is there (compared as text: a longer name is not cut off to fit)
SELECT EXISTS(SELECT FROM pg_namespace AS n WHERE n.nspname = CAST(:schema AS text)) AS present;

-- name: relations
-- those of the given names that are already in use in the schema, with what they are
SELECT
    taken.name AS name,
    taken.kind AS kind
FROM (
    SELECT
        c.relname AS name,
        CASE c.relkind WHEN 'S' THEN 'a sequence' WHEN 'v' THEN 'a view' WHEN 'i' THEN 'an index' ELSE 'a table' END AS kind
    FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE n.nspname = CAST(:schema AS text) AND c.relname = ANY(CAST(:names AS text[]))
    UNION
    SELECT
        p.proname AS name,
        'a function' AS kind
    FROM pg_proc AS p
    INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
    WHERE n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[]))
) AS taken
ORDER BY taken.name, taken.kind;

-- name: columns
-- the columns of one table or view, with their types; none: it is not there
SELECT
    a.attname AS name,
    format_type(a.atttypid, a.atttypmod) AS type
FROM pg_attribute AS a
INNER JOIN pg_class AS c ON a.attrelid = c.oid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE n.nspname = CAST(:schema AS text) AND c.relname = CAST(:table AS text)
AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum;
