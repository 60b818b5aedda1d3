-- How use has degraded a queue's tables and indexes, and the repairs. Nothing here rewrites a table: VACUUM FULL would lock
-- it, and a queue reuses its space.

-- name: tables
-- a row for each table of the given names, for its partitions and what inherits from it: its size, its dead rows, and how much its statistics have missed
WITH RECURSIVE heirs (oid, relnamespace) AS (
    SELECT
        w.oid,
        w.relnamespace
    FROM pg_class AS w INNER JOIN pg_namespace AS n ON w.relnamespace = n.oid
    WHERE n.nspname = CAST(:schema AS text) AND w.relname = ANY(CAST(:names AS text[])) AND w.relkind IN ('r', 'm', 'p')
    UNION
    SELECT
        i.inhrelid,
        h.relnamespace
    FROM heirs AS h INNER JOIN pg_inherits AS i ON h.oid = i.inhparent AND NOT i.inhdetachpending
)

SELECT
    CAST(c.oid AS bigint) AS id,
    CAST(c.relname AS text) AS name,
    pg_relation_size(c.oid) / CAST(current_setting('block_size') AS bigint) AS pages,
    -- A crash loses the counters: then the last VACUUM's or ANALYZE's figures are used.
    CASE
        WHEN pg_stat_get_tuples_inserted(c.oid) > 0 OR pg_stat_get_mod_since_analyze(c.oid) > 0
            OR pg_stat_get_last_analyze_time(c.oid) IS NOT NULL OR pg_stat_get_last_autoanalyze_time(c.oid) IS NOT NULL
            THEN pg_stat_get_live_tuples(c.oid)
        ELSE CAST(greatest(c.reltuples, 0) AS bigint)
    END AS live_rows,
    pg_stat_get_dead_tuples(c.oid) AS dead_rows,
    pg_stat_get_mod_since_analyze(c.oid) AS changed_rows,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - greatest(
        pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)
    )) AS double precision) AS vacuumed_seconds,
    CAST(EXTRACT(EPOCH FROM clock_timestamp() - greatest(
        pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)
    )) AS double precision) AS analyzed_seconds,
    CAST(NULL AS double precision) AS fragmentation
FROM heirs AS h
INNER JOIN pg_class AS c ON h.oid = c.oid AND h.relnamespace = c.relnamespace
WHERE c.relkind IN ('r', 'm')
ORDER BY c.relname;

-- name: indexes
-- a row for each index of the given tables (:tables, their ids as text): its size and what its live entries need
-- An entry's size is its columns' mean width, rounded up to 8 bytes, plus 8 of its own and 4 for its pointer.
-- The entries of a partial index were counted by the last VACUUM or ANALYZE, at most the table's rows.
SELECT
    CAST(i.indexrelid AS bigint) AS id,
    CAST(c.relname AS text) AS name,
    CAST(t.relname AS text) AS table_name,
    pg_relation_size(i.indexrelid) / CAST(current_setting('block_size') AS bigint) AS pages,
    i.indisvalid AS valid,
    -- What an interrupted REINDEX CONCURRENTLY leaves: the new index, or the old one that it had replaced.
    NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$' AS leftover,
    {being_built} AS being_built,
    false AS frozen,
    CASE WHEN i.indpred IS NULL THEN CAST(NULL AS bigint) ELSE CAST(greatest(c.reltuples, 0) AS bigint) END AS entries,
    (
        SELECT CAST(ceil(sum(coalesce(s.avg_width, nullif(a.attlen, -1), 32)) / 8.0) * 8 + 12 AS bigint)
        FROM pg_attribute AS a
        -- An expression's width is in the index's statistics, a column's in the table's.
        LEFT JOIN pg_stats AS s
            ON n.nspname = s.schemaname
            AND (
                (c.relname = s.tablename AND a.attname = s.attname)
                OR (
                    t.relname = s.tablename
                    AND s.attname = (
                        SELECT o.attname FROM pg_attribute AS o
                        WHERE o.attrelid = t.oid AND o.attnum = i.indkey[a.attnum - 1] AND o.attnum > 0
                    )
                )
            )
        WHERE a.attrelid = i.indexrelid AND a.attnum > 0
    ) AS entry_bytes,
    CAST(NULL AS double precision) AS fragmentation
FROM pg_index AS i
INNER JOIN pg_class AS c ON i.indexrelid = c.oid
INNER JOIN pg_class AS t ON i.indrelid = t.oid
INNER JOIN pg_namespace AS n ON t.relnamespace = n.oid
CROSS JOIN {sessions_anew} AS anew
WHERE i.indrelid = ANY(CAST(CAST(:tables AS text[]) AS oid[]))
ORDER BY t.relname, c.relname;

-- name: disable_timeout
-- one row: no statement timeout for this session, whose work takes its time; the lock timeout stays
SELECT set_config('statement_timeout', '0', false) AS before;

-- name: restore_timeout
-- script: restores the session's timeout
RESET statement_timeout;

-- name: drop_leftover
-- script: drops what an interrupted REINDEX CONCURRENTLY left, without a lock that blocks callers
DROP INDEX CONCURRENTLY IF EXISTS "{schema}"."{index}";

-- name: vacuum
-- script: removes dead rows; callers continue
VACUUM "{schema}"."{relation}";

-- name: analyze
-- script: updates statistics
ANALYZE "{schema}"."{relation}";

-- name: reindex
-- script: builds a new index that replaces the old one; callers continue
REINDEX INDEX CONCURRENTLY "{schema}"."{index}";

-- name: make_unique
-- script: builds a unique index, from which a key can be made; callers continue
CREATE UNIQUE INDEX CONCURRENTLY "{index}" ON "{schema}"."{relation}" (
    "{column}"
    , "{second}" -- when columns=2
);

-- name: make_key
-- script: makes a unique index the table's key; callers wait for its lock, a second at most
-- Sent as one text: a transaction of its own, so that the timeouts end with it.
SET LOCAL lock_timeout = '1s';
SET LOCAL statement_timeout = '5s';
ALTER TABLE "{schema}"."{relation}" ADD CONSTRAINT "{constraint}" PRIMARY KEY USING INDEX "{index}"; -- when key=primary
ALTER TABLE "{schema}"."{relation}" ADD CONSTRAINT "{constraint}" UNIQUE USING INDEX "{index}"; -- when key=unique

-- name: make_check
-- script: restores a missing CHECK for new rows; callers wait for a moment
ALTER TABLE "{schema}"."{relation}" ADD CONSTRAINT "{constraint}"
CHECK (status BETWEEN 0 AND 4) NOT VALID; -- when check=status
CHECK (size > 0) NOT VALID; -- when check=size
CHECK (only_row) NOT VALID; -- when check=only_row

-- name: validate_check
-- script: validates that CHECK for all rows; callers continue; it fails if a row violates it
ALTER TABLE "{schema}"."{relation}" VALIDATE CONSTRAINT "{constraint}";

-- name: lock_sequence
-- script: keeps writers out of a table and draws out of its sequence; an uncommitted row is waited for
-- OWNER TO the present owner only locks: a draw outside an INSERT does not hold the table's lock.
LOCK TABLE "{relation_schema}"."{relation}" IN SHARE ROW EXCLUSIVE MODE;
ALTER SEQUENCE "{sequence_schema}"."{sequence}" OWNER TO "{sequence_owner}";

-- name: set_sequence
-- one row: the last value of a sequence that was set behind :highest, or left where it was if it is beyond that
SELECT setval(
    CAST('"{sequence_schema}"."{sequence}"' AS regclass), greatest(s.last_value, CAST(:highest AS bigint)),
    s.is_called OR s.last_value <= CAST(:highest AS bigint)
) AS last_value
FROM "{sequence_schema}"."{sequence}" AS s;
