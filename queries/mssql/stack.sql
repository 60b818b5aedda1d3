-- stack: Rusanu's LIFO stack on SQL Server: the FIFO queue, popped from the other end.
-- like: fifo
--
-- Pushes and pops meet at one end of the index: a busy stack is one page, and its latch (PAGELATCH_EX) is what everybody
-- waits for, as Rusanu says. The messages at the bottom wait as long as the top is busy. Rows that other transactions hold
-- are skipped. For the hints, locks, statistics and ghosts see fifo.sql and monitor.sql.

-- define: pop_direction
 DESC

-- define: due_when_popped
-- none: a stack promises no order of pops

-- name: bottom
-- one row: the oldest message of a stack, and how many later messages were popped before it, among the newest 10,001 ids
SELECT
    CAST(b.id AS nvarchar(20)) AS id,
    b.seconds AS seconds,
    newest.overtaking AS overtaking
FROM (
    SELECT TOP (1)
        m.id,
        CAST(DATEDIFF_BIG(microsecond, m.pushed_at, SYSUTCDATETIME()) / 1e6 AS float) AS seconds
    FROM [{schema}].[{queue}] AS m WITH (ROWLOCK, READPAST, READCOMMITTEDLOCK)
    ORDER BY m.id
) AS b
CROSS JOIN (
    -- NOLOCK: a message that is being popped has not gone before anybody yet.
    SELECT COALESCE(MAX(n.id) - MIN(n.id) + 1 - COUNT_BIG(*), 0) AS overtaking FROM (
        SELECT TOP (10001) m.id FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
        ORDER BY m.id DESC
    ) AS n
) AS newest;
