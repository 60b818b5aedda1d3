-- What `dbq-console bench` sends: the calls of a queue's public interface that its load makes, and queries
-- of what a round leaves behind and of what it cost the server.
--
-- A message of the bench is text: 8 digits that check the head, 4 of its producer, 10 of its number there,
-- 16 of the microsecond in which it was pushed, and a filler that is the same in all of them.

-- define: unfinished_payloads
SELECT {joined_payload} AS payload
FROM "{schema}"."{table}" AS m
{payload_join} -- when defined payload_join
WHERE {is_unfinished}

-- define: subscriber_argument
'{subscriber}' -- when subscribed=yes

-- define: also_subscriber
, '{subscriber}' -- when subscribed=yes

-- define: first_argument_subscriber
'{subscriber}', -- when subscribed=yes

-- name: push
-- one row: the message's id, null where the queue is full
SELECT "{schema}"."{queue}_push"(CAST(:payload AS text)) AS id;

-- name: push_many
-- a row for each payload: its id, null where it was not stored; those are the last ones
SELECT pushed.id AS id
FROM "{schema}"."{queue}_push_many"(CAST(:payloads AS text[])) AS pushed (id);

-- name: push_each
-- one row: the message's id in the first of the rings named {queue}, {queue}1, {queue}2 ...; null: one was full
SELECT CASE WHEN count(e.id) = count(*) THEN min(e.id) END AS id
FROM (
    SELECT CAST(NULL AS bigint) AS id WHERE false
    -- each subscriber
    UNION ALL
    SELECT "{schema}"."{queue}_{subscriber_number}_push"(CAST(:payload AS text)) AS id
    -- end
) AS e;

-- name: push_many_each
-- a row for each payload: its id in the first of those rings, null if it was not stored
WITH each AS MATERIALIZED (
    SELECT
        0 AS ring,
        CAST(NULL AS bigint) AS id
    WHERE false
    -- each subscriber
    UNION ALL
    SELECT
        {subscriber_number} AS ring,
        p.id AS id
    FROM "{schema}"."{queue}_{subscriber_number}_push_many"(CAST(:payloads AS text[])) AS p (id)
    -- end
)

SELECT e.id AS id FROM each AS e WHERE e.ring = 1;

-- name: pop
-- the popped message, or nothing
-- when finishes=yes
SELECT popped.payload AS payload, popped.id AS id, popped.attempts AS attempts
FROM "{schema}"."{queue}_pop"({subscriber_argument}) AS popped;
-- else
SELECT popped.payload AS payload
FROM "{schema}"."{queue}_pop"({subscriber_argument}) AS popped;
-- end

-- name: pop_many
-- at most :n messages, in the design's order
-- when finishes=yes
SELECT popped.payload AS payload, popped.id AS id, popped.attempts AS attempts
FROM "{schema}"."{queue}_pop_many"(CAST(:n AS integer){also_subscriber}) AS popped;
-- else
SELECT popped.payload AS payload
FROM "{schema}"."{queue}_pop_many"(CAST(:n AS integer){also_subscriber}) AS popped;
-- end

-- name: complete
-- one row: how many of these claims were finished
SELECT CAST("{schema}"."{queue}_complete"({first_argument_subscriber}CAST(:id AS "{id_type}"), CAST(:attempts AS integer)) AS integer) AS finished;

-- name: complete_many
-- one row: how many of these claims were finished, in one transaction
SELECT count(*) AS finished
FROM unnest(CAST(:ids AS "{id_type}"[]), CAST(:attempts AS integer[])) AS claimed (id, attempts)
WHERE "{schema}"."{queue}_complete"({first_argument_subscriber}claimed.id, claimed.attempts);

-- name: held
-- the payloads of all messages that are not finished, for `left` and `left_codes`
{unfinished_payloads}

-- name: held_procrastinate
-- the payloads of all jobs of procrastinate that are not finished, for `left` and `left_codes`
SELECT j.args ->> 'p' AS payload FROM "{schema}"."procrastinate_jobs" AS j WHERE j.status IN ('todo', 'doing')

-- name: held_pgqueuer
-- the payloads of all jobs of pgqueuer that are not finished, for `left` and `left_codes`
SELECT encode(j.payload, 'escape') AS payload FROM "{schema}"."pgqueuer" AS j WHERE j.status IN ('queued', 'picked')

-- name: held_pgmq
-- the payloads of all messages of a queue of pgmq that are not deleted, for `left` and `left_codes`
SELECT m.message ->> 'p' AS payload FROM pgmq."q_{queue}" AS m

-- name: codes
-- for the payloads in `held`: producer * 10,000,000,000 + number, or -1 if it is not what was pushed
SELECT
    CASE
        WHEN whole.is_whole THEN CASE
            WHEN (
                CAST(substr(whole.payload, 9, 4) AS bigint) * 7919
                + CAST(substr(whole.payload, 13, 10) AS bigint) * 104729
                + CAST(substr(whole.payload, 23, 16) AS bigint) * 31
            ) % 99999989 = CAST(substr(whole.payload, 1, 8) AS bigint)
                THEN CAST(substr(whole.payload, 9, 14) AS bigint)
            ELSE -1
        END
        ELSE -1
    END AS code
FROM (
    SELECT
        h.payload AS payload,
        substr(h.payload, 1, 38) !~ '[^0-9]' AND substr(h.payload, 39) = CAST(:filler AS text) AS is_whole
    FROM held AS h
) AS whole

-- name: left
-- a row for each producer in `codes` (-1: damaged): how many, how many different, and sums to identify them
SELECT
    CASE WHEN c.code < 0 THEN -1 ELSE c.code / 10000000000 END AS producer,
    count(*) AS messages,
    count(DISTINCT c.code) AS different,
    CAST(sum(c.code % 10000000000) AS text) AS numbers,
    CAST(sum(CAST(c.code % 10000000000 AS numeric) * (c.code % 10000000000)) AS text) AS squares
FROM codes AS c
GROUP BY 1
ORDER BY 1

-- name: left_codes
-- a row for each message of `codes`
SELECT c.code AS code FROM codes AS c ORDER BY c.code

-- name: settings
-- a row for each setting that affects durability or speed
SELECT s.name AS name, current_setting(s.name) AS value
FROM pg_settings AS s
WHERE s.name IN (
    'fsync', 'synchronous_commit', 'full_page_writes', 'wal_level', 'shared_buffers',
    'max_wal_size', 'commit_delay', 'autovacuum', 'max_connections'
)
ORDER BY s.name;

-- name: durable
-- one row: whether commits are flushed to disk (the bench's own sessions wait for that)
SELECT current_setting('fsync') = 'on' AS durable;

-- name: bytes_written
-- one row: bytes of WAL written so far, by the whole server
SELECT CAST(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS bigint) AS log_bytes;

-- name: page_accesses
-- one row: pages read and rows written in relations of these names
SELECT
    CAST((
        SELECT sum(
            coalesce(t.heap_blks_hit, 0) + coalesce(t.heap_blks_read, 0)
            + coalesce(t.idx_blks_hit, 0) + coalesce(t.idx_blks_read, 0)
            + coalesce(t.toast_blks_hit, 0) + coalesce(t.toast_blks_read, 0)
            + coalesce(t.tidx_blks_hit, 0) + coalesce(t.tidx_blks_read, 0)
        )
        FROM pg_statio_all_tables AS t
        WHERE t.schemaname = CAST(:schema AS text) AND t.relname = ANY(CAST(:names AS text[]))
    ) AS bigint) AS pages,
    CAST((
        SELECT sum(u.n_tup_upd) FROM pg_stat_all_tables AS u
        WHERE u.schemaname = CAST(:schema AS text) AND u.relname = ANY(CAST(:names AS text[]))
    ) AS bigint) AS updates,
    CAST((
        SELECT sum(u.n_tup_hot_upd) FROM pg_stat_all_tables AS u
        WHERE u.schemaname = CAST(:schema AS text) AND u.relname = ANY(CAST(:names AS text[]))
    ) AS bigint) AS hot_updates;

-- name: disk
-- one row: bytes of the tables of these names, with their indexes; null where there is none
SELECT CAST(sum(pg_total_relation_size(c.oid)) AS bigint) AS bytes
FROM pg_class AS c INNER JOIN pg_namespace AS s ON c.relnamespace = s.oid
WHERE
    s.nspname = CAST(:schema AS text) AND c.relname = ANY(CAST(:names AS text[]))
    AND c.relkind = 'r';

-- name: waiting
-- the sessions whose names have this prefix: what they are doing, and how many
SELECT
    a.wait_event_type AS kind,
    a.wait_event AS wait,
    count(*) AS sessions
FROM pg_stat_activity AS a
WHERE starts_with(a.application_name, CAST(:name AS text)) AND a.state = 'active' AND a.pid <> pg_backend_pid()
GROUP BY 1, 2;

-- name: live_sessions
-- the names of the sessions of benches and proofs on this server
SELECT DISTINCT a.application_name AS name
FROM pg_stat_activity AS a
WHERE starts_with(a.application_name, 'dbq-bench ') OR starts_with(a.application_name, 'dbq-prove ');

-- name: schemas
-- the schemas created by a bench
SELECT CAST(n.nspname AS text) AS name
FROM pg_namespace AS n
WHERE starts_with(n.nspname, 'dbq_bench_')
ORDER BY n.nspname;

-- name: make_schema
-- script: creates a schema for the bench
CREATE SCHEMA "{schema}";

-- name: drop_schema
-- script: drops such a schema with everything in it
DROP SCHEMA IF EXISTS "{schema}" CASCADE;

-- name: make_rows
-- script: rows to update by their key, as wide and as loosely packed as a ring's
CREATE TABLE "{schema}"."rows" (
    slot bigint PRIMARY KEY,
    message text NOT NULL
)
WITH (fillfactor = '{fillfactor}', autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
INSERT INTO "{schema}"."rows" (slot, message)
SELECT n, repeat('0', CAST('{width}' AS integer)) FROM generate_series(0, CAST('{rows}' AS bigint) - 1) AS n;
ANALYZE "{schema}"."rows";

-- name: update_row
-- no row: updates one row
UPDATE "{schema}"."rows" SET message = CAST(:message AS text) WHERE slot = CAST(:slot AS bigint);

-- name: pgmq_available
-- one row: whether pgmq and its schema are in this database, whether its pop takes a quantity, and whether this login could create the extension
SELECT
    to_regclass('pgmq.meta') IS NOT NULL AS installed,
    to_regprocedure('pgmq.pop(text, integer)') IS NOT NULL AS pops_many,
    to_regnamespace('pgmq') IS NOT NULL AS has_schema,
    EXISTS(
        SELECT 1
        FROM pg_available_extensions AS e
        INNER JOIN pg_available_extension_versions AS v ON e.name = v.name AND e.default_version = v.version
        WHERE
            e.name = 'pgmq' AND (
                (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user)
                OR (
                    (v.trusted OR NOT v.superuser)
                    AND has_database_privilege(current_database(), 'CREATE')
                )
            )
    ) AS creatable;

-- name: create_pgmq
-- script: pgmq, for as long as the bench needs it
CREATE EXTENSION pgmq;

-- name: drop_pgmq
-- script: pgmq, which the bench created
DROP EXTENSION IF EXISTS pgmq CASCADE;

-- name: drop_pgmq_schema
-- script: the schema that came with the extension, and does not go with it
DROP SCHEMA IF EXISTS pgmq;

-- name: create_pgmq_queue
-- script: a queue of pgmq, in a table that is logged
SELECT pgmq.create('{queue}');

-- name: drop_pgmq_queue
-- script: removes such a queue, where it is there
SELECT pgmq.drop_queue(m.queue_name) FROM pgmq.meta AS m WHERE m.queue_name = '{queue}';

-- name: pgmq_queues
-- the queues of pgmq that a bench made
SELECT CAST(m.queue_name AS text) AS name FROM pgmq.meta AS m WHERE starts_with(m.queue_name, 'dbq_bench_');

-- name: pgmq_send
-- one row: the message's id
SELECT sent.id AS id FROM pgmq.send('{queue}', jsonb_build_object('p', CAST(:payload AS text))) AS sent (id);

-- name: pgmq_send_batch
-- a row for each payload: the message's id
SELECT sent.id AS id
FROM pgmq.send_batch(
    '{queue}',
    ARRAY(
        SELECT jsonb_build_object('p', given.payload)
        FROM unnest(CAST(:payloads AS text[])) WITH ORDINALITY AS given (payload, position)
        ORDER BY given.position
    )
) AS sent (id);

-- name: pgmq_pop
-- the message, deleted, or nothing
SELECT popped.message ->> 'p' AS payload FROM pgmq.pop('{queue}', 1) AS popped;

-- name: pgmq_pop_many
-- at most :n messages, deleted
SELECT popped.message ->> 'p' AS payload FROM pgmq.pop('{queue}', CAST(:n AS integer)) AS popped;

-- name: pgmq_read
-- the message that is hidden from others for 30 seconds, or nothing
SELECT
    taken.message ->> 'p' AS payload,
    taken.msg_id AS id,
    taken.read_ct AS attempts
FROM pgmq.read('{queue}', 30, 1) AS taken;

-- name: pgmq_read_many
-- at most :n messages, hidden from others for 30 seconds
SELECT
    taken.message ->> 'p' AS payload,
    taken.msg_id AS id,
    taken.read_ct AS attempts
FROM pgmq.read('{queue}', 30, CAST(:n AS integer)) AS taken;

-- name: pgmq_delete
-- one row: whether it was deleted
SELECT CAST(pgmq.delete('{queue}', CAST(:id AS bigint)) AS integer) AS finished;

-- name: pgmq_delete_many
-- one row: how many of these were deleted, in one transaction
SELECT count(gone.id) AS finished FROM pgmq.delete('{queue}', CAST(:ids AS bigint[])) AS gone (id);

-- name: old_snapshot
-- one row: the oldest transaction whose dead rows this one's snapshot keeps from vacuum
SELECT CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS xmin;

-- name: begin_old
-- script: begins a transaction that keeps its first snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- name: end_old
-- script: ends it
ROLLBACK;
