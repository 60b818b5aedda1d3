-- preset: Symfony Messenger 5 and later
-- like: preset
-- summary: One table for all queues; what was delivered comes back after redeliver_timeout.
-- advice: Symfony Messenger's own table: messages of all queues lie in it until they are handled; what failed for
--   good lies under the queue name of the failure transport. Adopt it, or one queue, to see what waits and what was
--   delivered and since when.
-- columns: id body headers queue_name created_at available_at delivered_at
-- roles: id=id pushed_at=created_at due_at=available_at claimed_at=delivered_at status=delivered_at payload=body
-- takes due: Symfony Messenger's workers get available messages of their transport
-- overdue: start a worker for the transport (bin/console messenger:consume), or see what it logs
-- claims: expire
-- no purge: Symfony Messenger deletes messages itself: bin/console messenger:failed:remove
-- no release: Symfony Messenger delivers it again itself, redeliver_timeout (an hour unless set) after it was
--   delivered, and has no other rule for it
-- no requeue: Symfony Messenger keeps what failed under the queue name of its failure transport, and only its PHP can
--   send it again: bin/console messenger:failed:retry
-- no pause: Symfony Messenger 7.1 keeps no pause in its table, nor anywhere else: its workers are stopped
--   (messenger:stop-workers, which they see in the application's cache)
--
-- Read from Symfony 7.1 (Messenger/Bridge/Doctrine/Transport/Connection.php): available_at is there: ready, else
-- scheduled (what failed waits so for its next try); delivered_at says that a worker (which is not recorded) has it, for
-- redeliver_timeout (an hour unless set): then it is ready again, by itself. What ended is deleted; the failure
-- transport is one more queue_name. Times have no zone, and are UTC (before Symfony 6 PHP's own zone).

-- define: queue_column
m.queue_name

-- define: queue_index
true

-- define: is_undelivered
-- nobody has it, or for longer than redeliver_timeout
(m.delivered_at IS NULL OR m.delivered_at < timezone('UTC', now()) - interval '1 hour')

-- define: is_ready
-- As its own getMessageCount counts.
{is_undelivered} AND m.available_at <= timezone('UTC', now()) AND {in_part}

-- define: is_scheduled
{is_undelivered} AND m.available_at > timezone('UTC', now()) AND {in_part}

-- define: is_claimed
m.delivered_at >= timezone('UTC', now()) - interval '1 hour' AND {in_part}

-- define: is_stuck
-- However long its worker has been working on it: it comes back by itself.
false

-- define: pushed_at
timezone('UTC', m.created_at)

-- define: due_at
-- of one that comes back, when its redeliver_timeout was over
timezone('UTC', CASE WHEN {is_undelivered} THEN greatest(m.available_at, m.delivered_at + interval '1 hour') ELSE m.available_at END)

-- define: claimed_at
timezone('UTC', m.delivered_at)

-- define: title
replace(substring(m.headers FROM '"type":"([^"]+)"'), E'\\\\', E'\\')

-- define: joined_table
-- There is no other table.
CAST(c.relname AS text)
