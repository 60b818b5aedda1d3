-- preset: Hangfire.PostgreSql 1.20 and later
-- like: preset
-- summary: One table of jobs of all queues, one of what became of each; what succeeded stays for a day.
-- advice: Hangfire's own tables: jobs of all queues, each with its state, and the server that processes it. Adopt it to
--   see what is enqueued, what a dead server left in processing, and what failed; only Hangfire itself changes states.
-- table: job
-- columns: id stateid statename invocationdata arguments createdat expireat
-- beside: state
-- roles: id=id pushed_at=createdat due_at=createdat claimed_at=createdat claimed_by=jobid status=statename error=data
--   payload=arguments done_at=createdat
-- no requeue: Hangfire changes states in .NET, where filters take part: its dashboard, or BackgroundJob.Requeue(id)
-- no release: Hangfire takes a job back itself, InvisibilityTimeout (30 minutes unless set) after it was fetched, and
--   changes states in .NET only: its dashboard, or BackgroundJob.Requeue(id)
-- no purge: Hangfire deletes jobs itself: its dashboard, or BackgroundJob.Delete(id)
-- no archive: Hangfire deletes what succeeded itself, when its expireat is there
-- no pause: Hangfire 1.8 keeps no pause in its tables, nor does Hangfire.PostgreSql 1.21: a server that is stopped, or
--   started without the queue, does not take from it
-- takes due: Hangfire's DelayedJobScheduler enqueues scheduled jobs that are due, every 15 seconds in each server; its
--   workers fetch enqueued ones
-- overdue: start a server that has the queue, or see what it logs; one job at once: its dashboard, or
--   BackgroundJob.Requeue(id)
-- left claims: Hangfire's servers take them InvisibilityTimeout (30 minutes unless set) after they were fetched
--
-- Read from Hangfire.PostgreSql 1.21 (Scripts/Install.v3.sql to v23.sql, PostgreSqlMonitoringApi.cs, PostgreSqlJobQueue.cs)
-- and Hangfire 1.8 (Hangfire.Core/States): statename Enqueued is ready; Scheduled, and Awaiting another job, scheduled;
-- Processing is claimed by a server, whose heartbeat is in server; Failed is an error; Succeeded is done. Deleted is
-- in no state. The row of `state` that stateid names has the time, the server, the error. A job is of the queue that it
-- was enqueued in last; one that never was is of none.

-- define: entered
-- the job's current state
(SELECT {data} FROM "{schema}"."{beside}" AS s WHERE s.id = m.stateid)

-- define: data
-- of a state s, an object of texts; null if it is a text that is none: a cast would end the statement
CASE
    WHEN pg_typeof(s.data) = CAST('jsonb' AS regtype) THEN CAST(s.data AS jsonb)
    ELSE (
        SELECT CASE WHEN d.text ~ concat('^{(', p.pair, '(,', p.pair, ')*|\s*)}\s*$') THEN CAST(d.text AS jsonb) END
        FROM
            (SELECT regexp_replace(CAST(s.data AS text), {escapes}, '\1\\\\', 'g') AS text) AS d,
            (SELECT concat('\s*', {json_string}, '\s*:\s*(', {json_string}, '|null)\s*') AS pair) AS p
    )
END

-- define: entered_at
(SELECT CAST(s.createdat AS timestamptz) FROM "{schema}"."{beside}" AS s WHERE s.id = m.stateid)

-- define: part
(
    SELECT {data} ->> 'Queue' FROM "{schema}"."{beside}" AS s
    WHERE s.jobid = m.id AND s.name = 'Enqueued'
    ORDER BY s.id DESC LIMIT 1
) = '{only}'

-- define: is_ready
m.statename = 'Enqueued' AND {in_part}

-- define: is_scheduled
m.statename IN ('Scheduled', 'Awaiting') AND {in_part}

-- define: is_claimed
m.statename = 'Processing' AND {in_part}

-- define: is_stuck
-- Its server is gone, or had no heartbeat for ServerTimeout (5 minutes unless set; a lower threshold does not apply).
{is_claimed} AND coalesce(
    (SELECT CAST(v.lastheartbeat AS timestamptz) FROM "{schema}".server AS v WHERE v.id = {entered} ->> 'ServerId')
    < statement_timestamp() - make_interval(secs => greatest(300, CAST('{stuck_after_seconds}' AS double precision))), true
)

-- define: is_error
m.statename = 'Failed' AND {in_part}

-- define: is_done
m.statename = 'Succeeded' AND {in_part}

-- define: is_finished
m.statename IN ('Succeeded', 'Deleted') AND {in_part}

-- define: finished_at
{entered_at}

-- define: due_at
-- A moment of ISO 8601 or, since its compatibility level 170, milliseconds since 1970 (JobHelper.SerializeDateTime); of a
-- ready job, when it was enqueued.
CASE
    WHEN m.statename = 'Enqueued' THEN {entered_at}
    WHEN m.statename <> 'Scheduled' THEN NULL
    WHEN {entered} ->> 'EnqueueAt' ~ '^[0-9]{1,15}$' THEN to_timestamp(CAST({entered} ->> 'EnqueueAt' AS double precision) / 1000)
    ELSE (SELECT {time_of_text} FROM (SELECT {entered} ->> 'EnqueueAt' AS text) AS t)
END

-- define: claimed_at
CASE WHEN m.statename = 'Processing' THEN {entered_at} END

-- define: claimed_by
CASE WHEN m.statename = 'Processing' THEN {entered} ->> 'ServerId' END

-- define: done_at
CASE WHEN m.statename IN ('Failed', 'Succeeded') THEN {entered_at} END

-- define: error
CASE WHEN m.statename = 'Failed' THEN concat_ws(': ', {entered} ->> 'ExceptionType', {entered} ->> 'ExceptionMessage') END

-- define: title
substring(CAST(m.invocationdata AS text) FROM '"(?:m|Method)": ?"([^"]+)"')

-- define: ready_since
-- from when it was enqueued last
(
    SELECT CAST(s.createdat AS timestamptz) FROM "{schema}"."{beside}" AS s
    WHERE s.jobid = m.id AND s.name = 'Enqueued'
    ORDER BY s.id DESC LIMIT 1
)

-- define: stager
(
    SELECT string_agg(v.id, ', ' ORDER BY v.id) FROM "{schema}".server AS v
    WHERE CAST(v.lastheartbeat AS timestamptz) >= statement_timestamp() - interval '5 minutes'
)

-- define: installed_version
-- of its schema
(SELECT CAST(max(v.version) AS text) FROM "{schema}".schema AS v)

-- name: queues
-- the names of at most 100 queues, among the first 100,000 open jobs
SELECT DISTINCT CAST(j.queue AS text) AS name
FROM (SELECT q.queue FROM "{schema}".jobqueue AS q LIMIT 100000) AS j
ORDER BY name LIMIT 100;

-- name: owners
-- a row for each of the servers, as in claimed_by: gone, alive or unknown, by its heartbeat
-- Its heartbeat is every 30 seconds; after ServerTimeout (5 minutes unless set) the others remove it.
SELECT
    requested.session AS session,
    CASE
        WHEN v.id IS NULL THEN 'gone'
        WHEN CAST(v.lastheartbeat AS timestamptz) >= statement_timestamp() - interval '5 minutes' THEN 'alive'
        WHEN CAST(v.lastheartbeat AS timestamptz) < statement_timestamp() - make_interval(secs => greatest(300, CAST('{stuck_after_seconds}' AS double precision))) THEN 'gone'
        ELSE 'unknown'
    END AS owner
FROM unnest(CAST(:sessions AS text[])) AS requested (session)
LEFT JOIN "{schema}".server AS v ON requested.session = v.id;
