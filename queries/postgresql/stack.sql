-- stack: Rusanu's LIFO stack on PostgreSQL: the FIFO queue, popped from the other end.
-- like: fifo
--
-- Pushes and pops meet at one end of the index, so a busy stack is busiest on one page, and the messages at the bottom
-- wait as long as the top is busy. Rows that other consumers hold are skipped.

-- define: pop_direction
 DESC

-- define: pages
128

-- define: first_ready_id
-- none: from pages

-- define: due_when_popped
-- none: a stack promises no order of pops

-- name: bottom
-- one row: the oldest message of a stack, and how many later messages were popped before it, among the newest 10,001 ids
SELECT
    CAST(b.id AS text) AS id,
    b.seconds AS seconds,
    top.overtaking AS overtaking
FROM (
    SELECT
        m.id,
        CAST(EXTRACT(EPOCH FROM clock_timestamp()) - EXTRACT(EPOCH FROM m.pushed_at) AS double precision) AS seconds
    FROM "{schema}"."{queue}" AS m ORDER BY m.id LIMIT 1
) AS b
CROSS JOIN (
    SELECT coalesce(max(n.id) - min(n.id) + 1 - count(*), 0) AS overtaking FROM (
        SELECT m.id FROM "{schema}"."{queue}" AS m ORDER BY m.id DESC LIMIT 10001
    ) AS n
) AS top;
