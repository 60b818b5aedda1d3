-- The doctor's checks of partitioned tables, which are always somebody else's.

-- name: default_partition
-- a row for the default partition of the queue's table, where it is partitioned and has one
SELECT
    CAST(n.nspname AS text) AS schema,
    CAST(d.relname AS text) AS partition
FROM pg_partitioned_table AS p
INNER JOIN pg_class AS d ON p.partdefid = d.oid
INNER JOIN pg_namespace AS n ON d.relnamespace = n.oid
WHERE p.partrelid = CAST('"{schema}"."{table}"' AS regclass) AND d.relkind = 'r';

-- name: partition_rows
-- one row: how many rows a partition has, counted to 10,001
SELECT count(*) AS rows
FROM (SELECT FROM "{partition_schema}"."{partition}" AS m LIMIT 10001) AS bounded;
