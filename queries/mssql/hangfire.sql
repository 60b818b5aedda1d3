-- preset: Hangfire.SqlServer 1.7 and later
-- like: preset
-- summary: One table of jobs of all queues, one of what became of each; what succeeded stays for a day.
-- advice: Hangfire's own tables: jobs of all queues, each with its state, and the server that processes it. Adopt it to
--   see what is enqueued, what a dead server left in processing, and what failed; only Hangfire itself changes states.
-- table: Job
-- columns: Id StateId StateName InvocationData Arguments CreatedAt ExpireAt
-- beside: State
-- roles: id=Id pushed_at=CreatedAt due_at=CreatedAt claimed_at=CreatedAt claimed_by=StateId status=StateName error=StateName
--   payload=Arguments done_at=CreatedAt
-- no requeue: Hangfire changes states in .NET, where filters take part: its dashboard, or BackgroundJob.Requeue(id)
-- no release: Hangfire takes a job back itself, SlidingInvisibilityTimeout (5 minutes unless set) after its FetchedAt was
--   last renewed or, with that option off, when its server's transaction ends; it changes states in .NET only: its
--   dashboard, or BackgroundJob.Requeue(id)
-- no purge: Hangfire deletes jobs itself: its dashboard, or BackgroundJob.Delete(id)
-- no archive: Hangfire deletes what succeeded itself, when its ExpireAt is there
-- no pause: Hangfire 1.8 keeps no pause in its tables: a server that is stopped, or started without the queue, does
--   not take from it
-- takes due: Hangfire's DelayedJobScheduler enqueues scheduled jobs that are due, every 15 seconds in each server; its
--   workers fetch enqueued ones
-- overdue: start a server that has the queue, or see what it logs; one job at once: its dashboard, or
--   BackgroundJob.Requeue(id)
-- left claims: Hangfire's servers take them SlidingInvisibilityTimeout (5 minutes unless set) after their FetchedAt was
--   last renewed
--
-- Read from Hangfire 1.8.24 (src/Hangfire.SqlServer: Install.sql up to schema version 9, SqlServerMonitoringApi.cs,
-- SqlServerJobQueue.cs, SqlServerTimeoutJob.cs, SqlServerConnection.cs; src/Hangfire.Core/States, Common/JobHelper.cs):
-- StateName Enqueued is ready; Scheduled, and Awaiting another job, scheduled; Processing is claimed by a server, whose
-- heartbeat is in Server; Failed is an error; Succeeded is done. Deleted is in no state. The row of State that StateId
-- names has the time, the server, the error. A job is of the queue that it was enqueued in last; one that never was is of
-- none. A server fetches by FetchedAt in JobQueue, renews it every fifth of the timeout, and deletes the row at the end;
-- where the timeout is off it deletes the row at once, in a transaction that lasts as long as the job. Its own figures
-- count by StateName, and so do these. Times have no zone, and are UTC.

-- define: entered
-- the job's current state
(SELECT s.Data FROM [{schema}].[{beside}] AS s {reading} WHERE s.JobId = m.Id AND s.Id = m.StateId)

-- define: entered_at
(SELECT CAST(s.CreatedAt AS datetime2(7)) FROM [{schema}].[{beside}] AS s {reading} WHERE s.JobId = m.Id AND s.Id = m.StateId)

-- define: part
(
    SELECT TOP (1) JSON_VALUE(s.Data, N'$.Queue') FROM [{schema}].[{beside}] AS s {reading}
    WHERE s.JobId = m.Id AND s.Name = N'Enqueued'
    ORDER BY s.Id DESC
) = N'{only}'

-- define: is_ready
m.StateName = N'Enqueued' AND {in_part}

-- define: is_scheduled
m.StateName IN (N'Scheduled', N'Awaiting') AND {in_part}

-- define: is_claimed
m.StateName = N'Processing' AND {in_part}

-- define: silent_since
-- ServerTimeout is 5 minutes unless set; a lower threshold does not apply.
DATEADD(second, -CAST(CEILING(
    CASE WHEN CAST(N'{stuck_after_seconds}' AS float) > 300 THEN CAST(N'{stuck_after_seconds}' AS float) ELSE 300e0 END
) AS int), SYSUTCDATETIME())

-- define: is_stuck
-- Its server is gone, or had no heartbeat for so long. NOLOCK, as its own Servers() has it: a row that READPAST skips,
-- because its heartbeat is just being written, would count as gone.
{is_claimed} AND NOT EXISTS (
    SELECT 1 AS one FROM [{schema}].[Server] AS v WITH (NOLOCK)
    WHERE v.Id = JSON_VALUE({entered}, N'$.ServerId') AND v.LastHeartbeat >= {silent_since}
)

-- define: is_error
m.StateName = N'Failed' AND {in_part}

-- define: is_done
m.StateName = N'Succeeded' AND {in_part}

-- define: due_at
-- A moment of ISO 8601 or, since its compatibility level 170, milliseconds since 1970 (SerializeDateTime); of a ready job,
-- when it was enqueued.
CASE
    WHEN m.StateName = N'Enqueued' THEN {entered_at}
    WHEN m.StateName = N'Scheduled'
        THEN COALESCE(
            TRY_CONVERT(datetime2(7), JSON_VALUE({entered}, N'$.EnqueueAt'), 127),
            DATEADD(
                millisecond,
                TRY_CAST(JSON_VALUE({entered}, N'$.EnqueueAt') AS bigint) % 3600000,
                DATEADD(hour, TRY_CAST(JSON_VALUE({entered}, N'$.EnqueueAt') AS bigint) / 3600000, CAST(N'1970-01-01' AS datetime2(7)))
            )
        )
END

-- define: claimed_at
CASE WHEN m.StateName = N'Processing' THEN {entered_at} END

-- define: claimed_by
CASE WHEN m.StateName = N'Processing' THEN JSON_VALUE({entered}, N'$.ServerId') END

-- define: done_at
CASE WHEN m.StateName IN (N'Failed', N'Succeeded') THEN {entered_at} END

-- define: error
-- JSON_VALUE would leave out a text of more than 4,000 characters.
CASE
    WHEN m.StateName = N'Failed'
        THEN (
            SELECT CONCAT(e.ExceptionType, N': ', e.ExceptionMessage)
            FROM [{schema}].[{beside}] AS s {reading}
            CROSS APPLY OPENJSON(s.Data) WITH (ExceptionType nvarchar(max), ExceptionMessage nvarchar(max)) AS e
            WHERE s.JobId = m.Id AND s.Id = m.StateId
        )
END

-- define: title
COALESCE(JSON_VALUE(m.InvocationData, N'$.m'), JSON_VALUE(m.InvocationData, N'$.Method'))

-- define: ready_since
-- from when it was enqueued last
(
    SELECT TOP (1) CAST(s.CreatedAt AS datetime2(7)) FROM [{schema}].[{beside}] AS s {reading}
    WHERE s.JobId = m.Id AND s.Name = N'Enqueued'
    ORDER BY s.Id DESC
)

-- define: stager
(
    SELECT TOP (1) v.Id FROM [{schema}].[Server] AS v WITH (NOLOCK)
    WHERE v.LastHeartbeat >= DATEADD(second, -300, SYSUTCDATETIME())
    ORDER BY v.LastHeartbeat DESC
)

-- define: installed_version
-- of its schema; 9 since Hangfire 1.8
(SELECT CAST(MAX(v.Version) AS nvarchar(128)) FROM [{schema}].[Schema] AS v WITH (READCOMMITTEDLOCK))

-- name: queues
-- the names of at most 100 queues, among the first 100,000 open jobs
SELECT DISTINCT TOP (100) j.Queue AS name
FROM (SELECT TOP (100000) q.Queue FROM [{schema}].JobQueue AS q {reading}) AS j
ORDER BY name;

-- name: owners
-- a row for each of the servers, as in claimed_by: gone, alive or unknown, by its heartbeat
-- Its heartbeat is every 30 seconds; after ServerTimeout (5 minutes unless set) the others remove it.
DECLARE @sessions nvarchar(max) = :sessions;
SELECT
    requested.[value] AS session,
    CASE
        WHEN v.Id IS NULL THEN N'gone'
        WHEN v.LastHeartbeat >= DATEADD(second, -300, SYSUTCDATETIME()) THEN N'alive'
        WHEN v.LastHeartbeat < {silent_since} THEN N'gone'
        ELSE N'unknown'
    END AS owner
FROM OPENJSON(@sessions) AS requested
LEFT JOIN [{schema}].[Server] AS v WITH (NOLOCK) ON v.Id = requested.[value] COLLATE DATABASE_DEFAULT;
