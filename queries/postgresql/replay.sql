-- `pipeline replay`: which messages of a lake were replayed, and pushing more of them.

-- name: has_list
-- one row: whether this database has the list of replayed messages
SELECT to_regclass('dbq.replayed') IS NOT NULL AS present;

-- name: create_list
-- script: creates that list: a message of a lake is replayed once into a database
CREATE TABLE IF NOT EXISTS dbq.replayed (
    lake text NOT NULL,
    source text NOT NULL,
    message text NOT NULL,
    action_id bigint NOT NULL,
    replayed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (lake, source, message)
);

COMMENT ON TABLE dbq.replayed IS
'messages that the console pushed out of a lake''s archive, each once: never a payload';

-- name: replayed
-- a row for each of these messages of a lake that was replayed before
SELECT r.message AS message
FROM dbq.replayed AS r
WHERE r.lake = :lake AND r.source = :source AND r.message = ANY(CAST(:messages AS text[]));

-- name: record_replayed
-- one row: how many of these messages were added to the list
WITH remembered AS (
    INSERT INTO dbq.replayed (lake, source, message, action_id)
    SELECT :lake, :source, m.message, CAST(:action_id AS bigint)
    FROM unnest(CAST(:messages AS text[])) AS m (message)
    RETURNING message
)

SELECT count(*) AS count FROM remembered;

-- name: push
-- a row for each payload in order: its id as text, null where it was not stored
SELECT CAST(pushed.id AS text) AS id
FROM "{schema}"."{queue}_push_many"(
    CAST(:payloads AS "{payload_type}"[])
    , CAST(:due_at AS timestamptz) -- when role due_at
    , title => CAST(:title AS text) -- when defined title
) AS pushed (id)
