-- preset: pg-boss 9 and earlier
-- like: pg-boss
-- older: pg-boss
-- columns: id name data state retrylimit retrycount startafter createdon startedon completedon output singletonkey
-- beside: version
-- roles: id=id pushed_at=createdon due_at=startafter claimed_at=startedon status=state error=output attempts=retrycount
--   payload=data done_at=completedon
-- left claims: pg-boss expires them itself, expireInSeconds (15 minutes unless set) after they began
--
-- Read from pg-boss 9.0 (src/plans.js, whose names have no quotes and so are in lower case): as pg-boss.sql, but no flow
-- blocks a job, queues are not recorded, and expired is an error too. What ended goes into `archive` after a while, of
-- which nothing is counted here.

-- define: is_ready
m.state < 'active' AND m.startafter <= statement_timestamp() AND {in_part}

-- define: is_scheduled
m.state < 'active' AND m.startafter > statement_timestamp() AND {in_part}

-- define: is_stuck
m.startedon < statement_timestamp() - make_interval(secs => CAST('{stuck_after_seconds}' AS double precision)) AND {is_claimed}

-- define: is_overdue
{is_ready} AND m.startafter > least(m.createdon, '9999-12-31') + interval '1 second'

-- define: is_error
m.state IN ('failed', 'expired') AND {in_part}

-- define: claimed_at
CASE WHEN m.state = 'active' THEN m.startedon END

-- define: finished_at
m.completedon

-- define: error
CASE
    WHEN m.state IN ('failed', 'expired')
        THEN coalesce(m.output ->> 'message', m.output -> 'value' ->> 'message', CAST(m.output AS text), CAST(m.state AS text))
END

-- define: is_first_pop
m.retrycount = 0

-- define: oldest_first
m.createdon -- when defined pushed_at

-- define: failing_since
m.createdon

-- name: queues
-- the names of at most 100 queues, among 100,000 jobs
SELECT DISTINCT j.name FROM (SELECT t.name FROM "{schema}"."{table}" AS t LIMIT 100000) AS j ORDER BY j.name LIMIT 100;
