-- Notifications: what was sent to each receiver. Only the holder of the lease "notifications" writes dbq.notification.

-- name: exists
-- one row: whether the catalog has notifications (a damaged one does not)
SELECT EXISTS(
    SELECT FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE n.nspname = 'dbq' AND c.relname = 'notification'
) AS present;

-- name: unfinished
-- what a receiver has not fully received: findings that continue, and what has not been sent; at most :n
SELECT
    m.notification_id AS notification_id,
    m.event_key AS event_key,
    m.target AS target,
    m.schema_name AS schema,
    m.queue_name AS queue,
    m.code AS code,
    m.which AS which,
    m.severity AS severity,
    m.summary AS summary,
    m.begun_at AS begun_at,
    m.ended_at AS ended_at,
    m.sent_at AS sent_at,
    m.tries AS tries
FROM dbq.notification AS m
WHERE m.end_sent_at IS NULL
ORDER BY m.notification_id
LIMIT CAST(:n AS bigint);

-- name: begin
-- one row: the number of the notification of a finding that began; none if it has one already
INSERT INTO dbq.notification (
    event_key, target, schema_name, queue_name, code, which, severity, summary, begun_at
)
VALUES (
    CAST(:event_key AS text), CAST(:target AS text), CAST(:schema AS text), CAST(:queue AS text), CAST(:code AS text),
    CAST(:which AS text), CAST(:severity AS text), CAST(:summary AS text), CAST(:begun_at AS timestamptz)
)
ON CONFLICT DO NOTHING
RETURNING notification_id AS notification_id;

-- name: end
-- one row: when the finding ended
UPDATE dbq.notification AS m
SET ended_at = clock_timestamp()
WHERE m.notification_id = CAST(:notification_id AS bigint) AND m.ended_at IS NULL
RETURNING m.ended_at AS ended_at;

-- name: try
-- one row: the number of attempts to send it, including the one that begins now
UPDATE dbq.notification AS m
SET tries = m.tries + 1
WHERE m.notification_id = CAST(:notification_id AS bigint)
RETURNING m.tries AS tries;

-- name: sent
-- one row: when it was first sent; with :ended its end was sent, too
UPDATE dbq.notification AS m
SET
    sent_at = coalesce(m.sent_at, clock_timestamp()),
    end_sent_at = CASE WHEN CAST(:ended AS boolean) THEN clock_timestamp() END
WHERE m.notification_id = CAST(:notification_id AS bigint)
RETURNING m.sent_at AS sent_at;

-- name: withdraw
-- one row: the number of a notification that is withdrawn: somebody silenced the finding before it was tried
DELETE FROM dbq.notification AS m
WHERE m.notification_id = CAST(:notification_id AS bigint) AND m.tries = 0
RETURNING m.notification_id AS notification_id;

-- name: delete_old
-- the numbers of the notifications deleted: ended more than :seconds ago, sent or not
DELETE FROM dbq.notification AS m
WHERE m.ended_at < clock_timestamp() - make_interval(secs => CAST(:seconds AS double precision))
RETURNING m.notification_id AS notification_id;
