-- The tables of a database.

-- name: tables
-- a row per table of the schemas of the installed queues, with its size on disk
SELECT
    n.nspname AS schema,
    c.relname AS name,
    pg_table_size(c.oid) AS bytes
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE
    c.relkind = 'r'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'dbq')
    AND (CAST(:queue AS text) IS NULL OR c.relname = CAST(:queue AS text))
ORDER BY n.nspname, c.relname;
