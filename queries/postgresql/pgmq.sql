-- preset: pgmq 1
-- like: preset
-- summary: A table for each queue; what was read is invisible until its time is over.
-- advice: pgmq's own table q_NAME: a message that was read stays, invisible until its visibility time-out, and comes
--   back by itself; what is done is deleted or goes into a_NAME. Adopt it to see what is visible, what is in flight,
--   how often messages were read, and what was archived.
-- schema: pgmq
-- table: q_*
-- columns: msg_id read_ct enqueued_at vt message
-- roles: id=msg_id pushed_at=enqueued_at due_at=vt claimed_at=last_read_at status=vt attempts=read_ct payload=message
--   done_at=archived_at
-- verbs: release
-- claims: expire
-- no purge: pgmq empties a queue by its own functions: pgmq.archive, pgmq.delete, pgmq.purge_queue
-- no archive: pgmq archives by its own function: SELECT pgmq.archive(queue, id)
-- no requeue: pgmq has no failed messages: what was read and not deleted is visible again when its time-out is over
--   (release ends that time-out now)
-- no pause: pgmq has no pause: what reads the queue is stopped
-- requeued: as pgmq's own function pgmq.set_vt does it with a time-out of 0: visible now, its reads stay counted
-- takes due: whoever calls pgmq.read gets what is visible
-- overdue: start what reads the queue: pgmq itself has nothing that does
-- stays: pgmq.set_vt found no such message
--
-- Read from the published sources of pgmq 1.13 (pgmq.sql in its Python package): a message is visible, and so ready, once
-- its vt is over; pgmq.read and pgmq.set_vt put vt into the future. One whose vt is in the future and that was
-- read is claimed; one that was never read was sent with a delay, and is scheduled. Its reader is not recorded,
-- and nothing fails: what is not deleted or archived in time is visible again. Its clock is clock_timestamp().
-- What pgmq.archive was called for is done: a row of a_NAME, with the same msg_id.

-- define: is_ready
m.vt <= statement_timestamp()

-- define: is_scheduled
m.vt > statement_timestamp() AND m.read_ct <= 0

-- define: is_claimed
m.vt > statement_timestamp() AND m.read_ct > 0

-- define: is_stuck
-- However long its reader has been working on it: once vt is over it is ready, by itself.
false

-- define: done_at
-- Done messages are in another table, with a time of their own.
CAST(NULL AS timestamptz)

-- define: is_finished
true

-- define: finished_at
m.archived_at

-- define: finished_table
"{schema}"."a_{only}"

-- define: finished_state
'done'

-- define: ready_since
-- It is visible from vt on. Of one that was read, vt is when it comes back: the delay that it was sent with is not known.
CASE WHEN {is_ready} THEN m.vt ELSE m.enqueued_at END

-- define: joined_table
(
    SELECT CAST(a.relname AS text) FROM pg_class AS a
    WHERE a.relnamespace = c.relnamespace AND a.relname = 'a_' || substr(c.relname, 3) AND a.relkind IN ('r', 'p')
)

-- define: found_queue
CAST(substr(c.relname, 3) AS text)

-- define: own_function
'"{schema}".set_vt(text, bigint, integer)'

-- define: installed_version
-- of the extension; as a script, without one, it keeps none
(SELECT e.extversion FROM pg_extension AS e WHERE e.extname = 'pgmq')

-- name: detached
-- former partitions of a_{only}, each by what follows a_ in its name: pg_partman detaches those that are older than its retention
-- Not the archive of another queue, whatever its name; and only with the columns that are read.
SELECT CAST(substr(c.relname, 3) AS text) AS name
FROM pg_class AS a
INNER JOIN pg_namespace AS n ON a.relnamespace = n.oid
INNER JOIN pg_class AS c ON a.relnamespace = c.relnamespace
WHERE n.nspname = '{schema}' AND a.relname = 'a_{only}' AND a.relkind = 'p'
AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND starts_with(CAST(c.relname AS text), 'a_{only}_p')
AND NOT EXISTS (
    SELECT 1 AS one FROM pg_class AS q WHERE q.relnamespace = c.relnamespace AND q.relname = 'q_' || substr(c.relname, 3)
)
AND NOT EXISTS (
    SELECT i.attname FROM pg_attribute AS i WHERE i.attrelid = a.oid AND i.attnum > 0 AND NOT i.attisdropped
    EXCEPT
    SELECT i.attname FROM pg_attribute AS i WHERE i.attrelid = c.oid AND i.attnum > 0 AND NOT i.attisdropped
)
ORDER BY c.relname;

-- name: archived_messages
-- the messages that were archived, without order, each with its key, for `chunk` of common.sql
SELECT
    m.msg_id AS key_id,
    CAST(m.msg_id AS text) AS id,
    'done' AS state,
    m.enqueued_at AS pushed_at,
    m.vt AS due_at,
    CAST(NULL AS timestamptz) AS claimed_at,
    m.read_ct AS attempts,
    m.archived_at AS done_at, -- when role done_at
    CAST(NULL AS text) AS title,
    m.message AS payload
FROM "{schema}"."a_{only}" AS m

-- name: hidden
-- a row for each state whose messages this login cannot see, and why: the archive is a table of its own
SELECT
    'done' AS state,
    CASE
        WHEN to_regclass('"{schema}"."a_{only}"') IS NULL THEN 'there is no table "a_{only}"'
        ELSE 'this login may not read the table "a_{only}"'
    END AS problem
WHERE NOT coalesce(has_table_privilege(to_regclass('"{schema}"."a_{only}"'), 'SELECT'), false);

-- name: archive_estimate
-- one row: about how many messages were archived, by the statistics; null: unknown, or no such table, or not visible to this login
-- pgmq never empties it, so it is not counted. A table without a page has none; of one that has
-- pages, a statistic of 0 (after a crash, before a first ANALYZE) means nothing.
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(
        CASE
            WHEN has_table_privilege(max(t.root), 'SELECT') AND bool_and(t.bytes = 0 OR t.rows > 0)
                THEN sum(CASE WHEN t.bytes = 0 THEN 0 ELSE t.rows END)
        END AS bigint
    ) AS done
FROM (
    SELECT
        r.oid AS root,
        pg_relation_size(c.oid) AS bytes,
        greatest(pg_stat_get_live_tuples(c.oid), CAST(c.reltuples AS bigint)) AS rows
    FROM (SELECT CAST(to_regclass('"{schema}"."a_{only}"') AS oid) AS oid) AS r
    CROSS JOIN LATERAL (
        WITH RECURSIVE heirs (oid) AS (
            SELECT r.oid
            UNION
            SELECT i.inhrelid FROM heirs AS h INNER JOIN pg_inherits AS i ON h.oid = i.inhparent AND NOT i.inhdetachpending
        )

        SELECT h.oid FROM heirs AS h
    ) AS p
    INNER JOIN pg_class AS c ON p.oid = c.oid AND c.relkind <> 'p'
) AS t

-- name: make_ready
-- one row: how many messages its own function has made visible; their reads stay counted
WITH chosen AS MATERIALIZED (
    SELECT m.msg_id FROM "{schema}"."{table}" AS m WHERE {at_locations}
),

shown AS MATERIALIZED (
    SELECT v.msg_id FROM chosen AS c
    CROSS JOIN LATERAL "{schema}".set_vt(CAST('{only}' AS text), c.msg_id, 0) AS v
)

SELECT
    (SELECT count(*) FROM shown) AS taken_out,
    (SELECT count(s.msg_id) FROM shown AS s) AS put_in
{under_declared_path}
