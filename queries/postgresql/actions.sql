-- What an operator does with messages that lie in a queue: each statement is one batch of one action, in a
-- transaction that begins with `hold`. Who chose the rows saw them a moment ago; only what is still in the
-- same state, and not in anybody's hands, is held and acted on.
--
-- Rows lie on a shelf: the queue's table, a ring's slots, or its in_hand. They are found by their keys and
-- then by their places: a locked row neither moves nor changes, and the place needs no index.
-- Every batch tells its ledger: how many rows went out of the source, and how many came into the target.

-- name: moment
-- one row: the server's clock, which an action's cut-off is taken from
SELECT clock_timestamp() AS moment;

-- name: gate
-- no row: read before anything else of a ring, it waits while a relay runs
SELECT p.number AS number FROM "{schema}"."{queue}_parked" AS p LIMIT 0;

-- name: hold
-- a row for each of the chosen that is there and in nobody's hands: locked now, with its place and its state
SELECT
    CAST(m.ctid AS text) AS place,
    -- when shelf=table|in_hand
    -- when role id
    CAST(m."{id}" AS text) AS id,
    -- end
    -- when no role id
    CAST(NULL AS text) AS id,
    -- end
    -- when design=naive|heap|fifo|stack|pending
    CAST(NULL AS text) AS state,
    -- end
    -- when design=claim|ring
    CASE
        -- when role done_at
        WHEN m."{done_at}" IS NOT NULL THEN 'error'
        -- end
        -- when role error
        WHEN m."{error}" IS NOT NULL THEN 'error'
        -- end
        WHEN m."{claimed_at}" IS NULL THEN 'ready'
        ELSE 'claimed'
    END AS state,
    -- end
    -- when design=status|split
    CASE m."{status}"
        WHEN 0 THEN 'ready'
        WHEN 1 THEN 'claimed'
        WHEN 2 THEN 'done'
        WHEN 4 THEN 'error'
    END AS state,
    -- end
    -- when role attempts
    CAST(m."{attempts}" AS bigint) AS attempts
    -- end
    -- when no role attempts
    CAST(NULL AS bigint) AS attempts
    -- end
FROM "{schema}"."{table}" AS m
-- when design=heap
WHERE m.ctid = ANY(CAST(:keys AS tid[]))
-- end
-- when design=naive|fifo|stack|pending|claim|status|split|ring
WHERE m."{id}" = ANY(CAST(:keys AS "{key_type}"[]))
-- end
-- when payload_beside=yes
-- One half of a message is no message: the doctor looks for those.
AND EXISTS (SELECT FROM "{schema}"."{queue}_data" AS d WHERE d.id = m.id)
-- end
-- end
-- when shelf=slots
    CAST(m.first_id AS text) AS id,
    CAST('ready' AS text) AS state,
    CAST(NULL AS bigint) AS attempts
FROM "{schema}"."{queue}_config" AS c
CROSS JOIN unnest(CAST(:keys AS bigint[])) AS chosen (number)
INNER JOIN "{schema}"."{queue}" AS m ON m.slot = chosen.number % c.size AND m.message_id = chosen.number
WHERE m.reference_count > 0
-- end
FOR UPDATE OF m SKIP LOCKED;

-- name: put_away
-- one row: how many messages left the queue, and how many came into its archive
WITH kept AS (
    INSERT INTO "{schema}"."{queue}_archive" (
        id, payload,
        -- when titled=yes
        title,
        -- end
        -- when role pushed_at
        pushed_at,
        -- end
        -- when role due_at
        due_at,
        -- end
        -- when role claimed_at
        claimed_at,
        -- end
        -- when role claimed_by
        claimed_by,
        -- end
        -- when role done_at
        done_at,
        -- end
        -- when role error
        error,
        -- end
        state, attempts, reason, action_id
    )
    SELECT
        -- when shelf=slots
        m.first_id,
        -- end
        -- when shelf=table|in_hand
        m."{id}",
        -- end
        -- when payload_beside=yes
        d.text_data,
        -- end
        -- when payload_beside=no
        m."{payload}",
        -- end
        -- when titled=yes
        m.title,
        -- end
        -- when role pushed_at
        m."{pushed_at}",
        -- end
        -- when role due_at
        m."{due_at}",
        -- end
        -- when role claimed_at
        m."{claimed_at}",
        -- end
        -- when role claimed_by
        m."{claimed_by}",
        -- end
        -- when role done_at
        m."{done_at}",
        -- end
        -- when role error
        m."{error}",
        -- end
        CAST(:state AS text),
        -- when role attempts
        m."{attempts}",
        -- end
        -- when no role attempts
        0,
        -- end
        CAST(:reason AS text),
        CAST(:action_id AS bigint)
    FROM "{schema}"."{table}" AS m
    -- when payload_beside=yes
    INNER JOIN "{schema}"."{queue}_data" AS d ON m.id = d.id
    -- end
    WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING archive_id
),

-- when payload_beside=yes
data_gone AS (
    DELETE FROM "{schema}"."{queue}_data" AS d USING "{schema}"."{table}" AS m
    WHERE d.id = m.id AND m.ctid = ANY(CAST(:places AS tid[]))
),

-- end
-- when shelf=slots
-- The pop that draws the number of a slot that was emptied here drops it: the number is void.
void AS (
    INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
    SELECT
        r.message_id,
        true,
        clock_timestamp()
    FROM "{schema}"."{table}" AS r WHERE r.ctid = ANY(CAST(:places AS tid[]))
    ON CONFLICT DO NOTHING
),

gone AS (
    UPDATE "{schema}"."{table}" AS m
    SET message_id = NULL, first_id = NULL, time = clock_timestamp(), message = NULL, reference_count = 0
    WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING m.slot
)
-- end
-- when shelf=table|in_hand
gone AS (
    DELETE FROM "{schema}"."{table}" AS m WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING 1 AS one
)
-- end

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM kept) AS put_in;

-- name: destroy
-- one row: how many messages left the queue for good
WITH
-- when payload_beside=yes
data_gone AS (
    DELETE FROM "{schema}"."{queue}_data" AS d USING "{schema}"."{table}" AS m
    WHERE d.id = m.id AND m.ctid = ANY(CAST(:places AS tid[]))
),

-- end
-- when shelf=slots
void AS (
    INSERT INTO "{schema}"."{queue}_parked" (number, void, parked_at)
    SELECT
        r.message_id,
        true,
        clock_timestamp()
    FROM "{schema}"."{table}" AS r WHERE r.ctid = ANY(CAST(:places AS tid[]))
    ON CONFLICT DO NOTHING
),

gone AS (
    UPDATE "{schema}"."{table}" AS m
    SET message_id = NULL, first_id = NULL, time = clock_timestamp(), message = NULL, reference_count = 0
    WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING m.slot
)
-- end
-- when shelf=table|in_hand
gone AS (
    DELETE FROM "{schema}"."{table}" AS m WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING 1 AS one
)
-- end

SELECT
    (SELECT count(*) FROM gone) AS taken_out,
    (SELECT count(*) FROM gone) AS put_in;

-- name: make_ready
-- one row: how many messages, claimed or in error, can be popped again; their attempts stay counted
WITH freed AS (
    UPDATE "{schema}"."{table}" AS m
    SET
        -- when role status
        "{status}" = 0,
        -- end
        -- when role error
        "{error}" = NULL,
        -- end
        -- when role done_at
        "{done_at}" = NULL,
        -- end
        -- when role claimed_by
        "{claimed_by}" = NULL,
        -- end
        -- when to_back=yes
        "{pushed_at}" = clock_timestamp(),
        -- end
        -- when role claimed_at
        "{claimed_at}" = NULL
        -- end
        -- when no role claimed_at
        "{id}" = m."{id}"
        -- end
    WHERE m.ctid = ANY(CAST(:places AS tid[]))
    RETURNING 1 AS one
)

SELECT
    (SELECT count(*) FROM freed) AS taken_out,
    (SELECT count(*) FROM freed) AS put_in;

-- name: living
-- a row for each of the sessions, as claimed_by names them, that is there: who, and from where
SELECT
    w.session AS session,
    a.pid AS session_id,
    CAST(a.usename AS text) AS user_name,
    a.application_name AS application_name,
    CAST(a.client_addr AS text) AS client_address,
    a.state AS state
FROM (
    SELECT
        asked.session,
        CAST(substring(asked.session FROM '^pid=([0-9]{1,9}) start=') AS integer) AS pid
    FROM unnest(CAST(:sessions AS text[])) AS asked (session)
) AS w
INNER JOIN pg_stat_activity AS a ON w.pid = a.pid
ORDER BY a.pid;
