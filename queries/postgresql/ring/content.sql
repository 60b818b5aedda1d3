-- ring, content=apart: where a message is if it is not in its slot, and the proof that each slot has its content and
-- each content its slot.

-- define: content
-- content=apart: the message of slot m, by its first_id
-- when content=apart
CASE m.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT k.content FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = m.first_id)
-- end
END
-- end

-- define: has_content
-- true or null. Not EXISTS, whose plan, made while the table was short, would scan it.
-- when content=apart
CASE m.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT true FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = m.first_id)
-- end
END
-- end

-- define: slot_has_content
-- the same for a slot r, in functions
-- when content=apart
CASE r.first_id % CAST('{partitions}' AS bigint)
-- each partition
    WHEN {partition} THEN (SELECT true FROM "{schema}"."{queue}_content_{partition}" AS k WHERE k.content_id = r.first_id)
-- end
END
-- end

-- define: payload
m."{payload}" -- when content=slot
{content} -- when content=apart

-- define: joined_payload
m."{payload}" -- when content=slot
-- when content=apart
{content} -- when storage=slots
m."{payload}" -- when storage=in_hand
-- end

-- define: contents_without_slot
-- when content=apart
SELECT k.content_id
FROM (
    SELECT CAST(NULL AS bigint) AS content_id WHERE false
    -- each partition
    UNION ALL
    SELECT c.content_id FROM "{schema}"."{queue}_content_{partition}" AS c
    -- end
) AS k
WHERE NOT EXISTS (SELECT FROM "{schema}"."{queue}" AS m WHERE m.first_id = k.content_id)
-- end

-- name: content_mismatches
-- a row for each of the first 20 contents without a slot and slots without content: its id, and how many there are of its kind
-- One snapshot shows both sides of every finished transaction and neither of unfinished ones: a half missing here is
-- missing for good. Reads the ring and the contents' keys.
-- when content=apart
(
    SELECT
        'content' AS kind,
        k.content_id AS id,
        count(*) OVER () AS found
    FROM (
        {contents_without_slot}
    ) AS k
    ORDER BY k.content_id LIMIT 20
)
UNION ALL
(
    SELECT
        'slot' AS kind,
        m.first_id AS id,
        count(*) OVER () AS found
    FROM {visible_ring} AS m
    WHERE m.reference_count > 0 AND m.first_id IS NOT NULL AND {has_content} IS NULL
    ORDER BY m.message_id LIMIT 20
);
-- end

-- name: archive_contents
-- one row: how many contents without a slot there were, and how many are in the archive now
-- Proven in this statement: see content_mismatches.
-- when content=apart
WITH astray AS MATERIALIZED (
    {contents_without_slot}
),

-- each partition
content_{partition} AS (
    DELETE FROM "{schema}"."{queue}_content_{partition}" AS k USING astray AS a
    WHERE k.content_id = a.content_id
    RETURNING k.content_id, k.content
),

-- end
kept AS (
    INSERT INTO "{schema}"."{queue}_archive" (id, payload, state, attempts, error, reason, action_id)
    SELECT
        k.content_id,
        k.content,
        'error',
        0,
        'it had no slot: whether it was popped is not known',
        'content without slot',
        CAST(:action_id AS bigint)
    FROM (
        SELECT
            NULL AS content_id,
            NULL AS content
        WHERE false
        -- each partition
        UNION ALL
        SELECT
            c.content_id,
            c.content
        FROM content_{partition} AS c
        -- end
    ) AS k
    ORDER BY k.content_id
    RETURNING archive_id
)

SELECT
    (SELECT count(*) FROM astray) AS selected,
    (SELECT count(*) FROM kept) AS done;
-- end

-- name: free_slots
-- one row: how many slots had no content, and how many are free now; the pops that draw their numbers drop them
-- They are locked by slot and number: whatever else a slot holds by then is not what was seen without content.
-- when content=apart
WITH astray AS MATERIALIZED (
    SELECT
        m.slot,
        m.message_id AS number
    FROM {visible_ring} AS m
    WHERE m.reference_count > 0 AND m.first_id IS NOT NULL AND {has_content} IS NULL
),

locked AS MATERIALIZED (
    SELECT
        a.slot,
        a.number
    FROM astray AS a INNER JOIN "{schema}"."{queue}" AS r ON a.slot = r.slot AND a.number = r.message_id
    FOR UPDATE OF r SKIP LOCKED
),

void AS (
    INSERT INTO "{schema}"."{queue}_parked" {parked_columns}
    SELECT
        p.subscriber, -- when subscribed=yes
        l.number,
        true,
        clock_timestamp()
    FROM locked AS l
    INNER JOIN "{schema}"."{queue}_popped" AS p ON l.slot = p.slot AND p.message_id < l.number -- when subscribed=yes
    ON CONFLICT DO NOTHING
),

repaired AS (
    UPDATE "{schema}"."{queue}" AS r
    SET {empty_slot}, reference_count = 0
    FROM locked AS l WHERE r.slot = l.slot AND r.message_id = l.number
    RETURNING r.slot
)

SELECT
    (SELECT count(*) FROM astray) AS selected,
    (SELECT count(*) FROM repaired) AS done;
-- end
