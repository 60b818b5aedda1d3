-- Notifications: what was sent to each receiver. Only the holder of the lease "notifications" writes dbq.notification.

-- name: exists
-- one row: whether the catalog has notifications (a damaged one does not)
SELECT CAST(CASE WHEN OBJECT_ID(N'dbq.notification', N'U') IS NULL THEN 0 ELSE 1 END AS bit) AS present;

-- name: unfinished
-- what a receiver has not fully received: findings that continue, and what has not been sent; at most :n
SELECT TOP (CAST(:n AS bigint))
    m.notification_id AS notification_id,
    m.event_key AS event_key,
    m.target AS target,
    m.schema_name AS [schema],
    m.queue_name AS queue,
    m.code AS code,
    m.which AS which,
    m.severity AS severity,
    m.summary AS summary,
    TODATETIMEOFFSET(m.begun_at, 0) AS begun_at,
    TODATETIMEOFFSET(m.ended_at, 0) AS ended_at,
    TODATETIMEOFFSET(m.sent_at, 0) AS sent_at,
    m.tries AS tries
FROM dbq.notification AS m
WHERE m.end_sent_at IS NULL
ORDER BY m.notification_id;

-- name: begin
-- one row: the number of the notification of a finding that began; none if it has one already
DECLARE @event_key nvarchar(64) = :event_key;
DECLARE @target nvarchar(128) = :target;
DECLARE @schema nvarchar(128) = :schema;
DECLARE @queue nvarchar(128) = :queue;
DECLARE @code nvarchar(128) = :code;
DECLARE @which nvarchar(128) = :which;
DECLARE @severity nvarchar(20) = :severity;
DECLARE @summary nvarchar(max) = :summary;
DECLARE @begun_at datetimeoffset(7) = :begun_at;
INSERT INTO dbq.notification (
    event_key, target, schema_name, queue_name, code, which, severity, summary, begun_at
)
OUTPUT inserted.notification_id AS notification_id
SELECT
    @event_key,
    @target,
    @schema,
    @queue,
    @code,
    @which,
    @severity,
    @summary,
    CAST(SWITCHOFFSET(@begun_at, 0) AS datetime2(7))
WHERE NOT EXISTS (
    SELECT 1 FROM dbq.notification AS m WITH (UPDLOCK, HOLDLOCK)
    WHERE m.target = @target AND m.schema_name = @schema AND m.queue_name = @queue
    AND m.code = @code AND m.which = @which AND m.ended_at IS NULL
);

-- name: end
-- one row: when the finding ended
DECLARE @notification_id bigint = :notification_id;
UPDATE m
SET m.ended_at = SYSUTCDATETIME()
OUTPUT TODATETIMEOFFSET(inserted.ended_at, 0) AS ended_at
FROM dbq.notification AS m
WHERE m.notification_id = @notification_id AND m.ended_at IS NULL;

-- name: try
-- one row: the number of attempts to send it, including the one that begins now
DECLARE @notification_id bigint = :notification_id;
UPDATE m
SET m.tries = m.tries + 1
OUTPUT inserted.tries AS tries
FROM dbq.notification AS m
WHERE m.notification_id = @notification_id;

-- name: sent
-- one row: when it was first sent; with :ended its end was sent, too
DECLARE @notification_id bigint = :notification_id;
DECLARE @ended bit = :ended;
UPDATE m
SET
    m.sent_at = COALESCE(m.sent_at, SYSUTCDATETIME()),
    m.end_sent_at = CASE WHEN @ended = 1 THEN SYSUTCDATETIME() END
OUTPUT TODATETIMEOFFSET(inserted.sent_at, 0) AS sent_at
FROM dbq.notification AS m
WHERE m.notification_id = @notification_id;

-- name: withdraw
-- one row: the number of a notification that is withdrawn: somebody silenced the finding before it was tried
DECLARE @notification_id bigint = :notification_id;
DELETE m
OUTPUT deleted.notification_id AS notification_id
FROM dbq.notification AS m
WHERE m.notification_id = @notification_id AND m.tries = 0;

-- name: delete_old
-- the numbers of the notifications deleted: ended more than :seconds ago, sent or not
DECLARE @seconds float = :seconds;
DELETE m
OUTPUT deleted.notification_id AS notification_id
FROM dbq.notification AS m
WHERE m.ended_at < DATEADD(SECOND, -CAST(@seconds AS int), SYSUTCDATETIME());
