-- What all designs share: the archive, the registration of waiting consumers, and the calls of a queue's public interface.

-- define: payload_in_bounds
-- in all push functions: refuses a payload over the limit
-- when limited=yes
IF octet_length(payload) > '{max_bytes}' THEN -- when payload=text|bytes
IF octet_length(CAST(payload AS text)) > '{max_bytes}' THEN -- when payload=json
    RAISE EXCEPTION 'the payload is over the limit of % bytes', '{max_bytes}'
        USING ERRCODE = 'DBQ02', HINT = 'Send it in parts, or install a queue with a larger max_bytes.';
END IF;
-- end

-- define: payloads_in_bounds
-- when limited=yes
-- when payload=text|bytes
IF EXISTS (SELECT FROM unnest(payloads) AS p (payload) WHERE octet_length(p.payload) > '{max_bytes}') THEN
-- end
-- when payload=json
IF EXISTS (SELECT FROM unnest(payloads) AS p (payload) WHERE octet_length(CAST(p.payload AS text)) > '{max_bytes}') THEN
-- end
    RAISE EXCEPTION 'a payload is over the limit of % bytes', '{max_bytes}'
        USING ERRCODE = 'DBQ02', HINT = 'Send it in parts, or install a queue with a larger max_bytes.';
END IF;
-- end

-- define: wake_waiters
-- in push: wakes a waiting consumer
-- when notify=on
IF EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
    PERFORM pg_notify('{channel}', '');
END IF;
-- end

-- define: wake_waiters_if_found
-- when notify=on
IF FOUND AND EXISTS (SELECT FROM "{schema}"."{queue}_waiting") THEN
    PERFORM pg_notify('{channel}', '');
END IF;
-- end

-- define: identify_claimant
-- the claimant: this backend, by pid and start; read once a session, then kept in a setting
IF coalesce(session, '') = '' THEN
    SELECT set_config('dbq.session', format('pid=%s start=%s', a.pid,
        to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')), false)
    INTO session FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid();
END IF;
session := session || CASE WHEN bound THEN ' bound' ELSE '' END || coalesce(' consumer=' || consumer, '');

-- define: escapes
-- of characters that no text of this database can hold: NUL, half a pair, and what its encoding lacks; \1 is what precedes
-- Of the type json, or in a text that only says it is JSON, they are allowed, and any cast of it would end the statement.
CASE
    WHEN getdatabaseencoding() = 'UTF8'
        THEN '(?<!\\)((?:\\\\)*)\\(?=u(?:0000|[dD][89abAB][0-9a-fA-F]{2,2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2,2}\\u)[dD][c-fC-F]))'
    ELSE '(?<!\\)((?:\\\\)*)\\(?=u(?!00(?:0[1-9a-fA-F]|[1-7])))'
END

-- define: value_at_path
-- for row l: its payload's value at the path f.path, as text; an escape that no text can hold as it is written
CASE
    WHEN pg_typeof(l.payload) = CAST('jsonb' AS regtype) THEN CAST(l.payload AS jsonb) #>> f.path
    ELSE CAST(regexp_replace(CAST(l.payload AS text), {escapes}, '\1\\\\', 'g') AS json) #>> f.path
END

-- define: and_as_filtered
-- for row l: the filters on its error, its claimant and its payload
-- when by_error=yes
AND l.error IS NOT NULL AND NOT EXISTS (
    SELECT FROM unnest(CAST(:errors AS text[])) AS e (text) WHERE strpos(lower(l.error), lower(e.text)) = 0
)
-- end
-- when by_claimed_by=yes
-- The whole text, its session, or the consumer's name: "pid=4711 start=... bound consumer=worker-1".
AND (
    l.claimed_by = :claimed_by
    OR starts_with(l.claimed_by, CAST(:claimed_by AS text) || ' start=')
    OR (
        strpos(l.claimed_by, ' consumer=') > 0
        AND substr(l.claimed_by, strpos(l.claimed_by, ' consumer=') + 10) = :claimed_by
    )
)
-- end
-- when by_payload=yes
AND NOT EXISTS (
    SELECT FROM jsonb_to_recordset(CAST(:payload_equals AS jsonb)) AS f (path text[], value text)
    WHERE {value_at_path} IS DISTINCT FROM f.value
)
-- end

-- define: payload_size
-- for row l: the column payload_bytes; the size of text and bytes is known without reading the payload, that of JSON only
-- after conversion to text
-- when with_payload=yes
CAST(octet_length(CAST(l.payload AS text)) AS bigint) AS payload_bytes, -- when payload=text
CAST(octet_length(l.payload) AS bigint) AS payload_bytes, -- when payload=bytes
-- when payload=json
CAST(octet_length(CAST(l.payload AS text)) AS bigint) AS payload_bytes, -- when body=yes
CAST(NULL AS bigint) AS payload_bytes, -- when body=no
-- end
-- end
CAST(NULL AS bigint) AS payload_bytes, -- when with_payload=no

-- define: counted_until
-- the end of the time that messages have been in their state
coalesce(CAST(:moment AS timestamptz), statement_timestamp())

-- define: seconds_in_state
-- for row l, judged: how long it has been in its state
CAST(EXTRACT(EPOCH FROM coalesce(CAST(:moment AS timestamptz), statement_timestamp())) - EXTRACT(EPOCH FROM s.since) AS double precision)

-- define: judged
-- the chunk as rows l, with the time since which a message is in its state (s.since), and whether it matches (t.matches)
FROM chunk AS l
CROSS JOIN LATERAL (
    SELECT
        CASE
            WHEN l.state = 'ready' THEN greatest(l.pushed_at, l.due_at)
            WHEN l.state = 'scheduled' THEN l.pushed_at
            WHEN l.state = 'claimed' THEN l.claimed_at
            ELSE l.done_at
        END AS since
) AS s
CROSS JOIN LATERAL (
    SELECT
        coalesce(
            l.state IS NOT NULL
            -- when by_age=row
            -- What was pushed before the cut-off belongs to a plan, whenever it becomes due.
            -- when by_cutoff=yes
            AND coalesce(
                CASE WHEN l.state = 'ready' THEN l.pushed_at ELSE s.since END <= CAST(:moment AS timestamptz)
                OR CASE WHEN l.state = 'ready' THEN l.pushed_at ELSE s.since END > statement_timestamp() + interval '1 day',
                true
            )
            -- end
            -- when by_older=yes
            AND s.since < coalesce(CAST(:moment AS timestamptz), statement_timestamp()) - make_interval(secs => CAST(:older AS double precision))
            -- end
            -- when by_newer=yes
            AND s.since >= coalesce(CAST(:moment AS timestamptz), statement_timestamp()) - make_interval(secs => CAST(:newer AS double precision))
            -- end
            -- end
            AND l.id = :id -- when by_id=yes
            {and_as_filtered}
            , false
        ) AS matches
) AS t

-- define: key_time_text
-- for row l: the time in its key, from which the next chunk continues
CAST(l.key_time AS text) -- when sorted=time_up|time_down
CAST(NULL AS text) -- when sorted=id_up|id_down|undated_up|undated_down|no

-- define: lacks_payload
-- whether a row of the chunk has no payload
false

-- define: history_with_this_error
-- the message's history of errors and releases with this one, newest first
jsonb_path_query_array(
    jsonb_build_array(jsonb_build_object(
        'at', clock_timestamp(), 'by', m.claimed_by, 'attempt', m.attempts, 'error', left(coalesce(error, ''), 1000)
    )) || coalesce(m.history, '[]'),
    '$[0 to $last]', jsonb_build_object('last', CAST('{history}' AS integer) - 1)
)

-- define: popped_at
-- for a row l that archive_at_pop wrote; with subscribers, the time of the last pop
l.done_at -- when subscribed=yes
l.archived_at -- when subscribed=no

-- define: objects_of
-- the relations and functions with the names of a queue's, for a row q of dbq.queue, with their owners
(
    SELECT
        c.relowner AS owner,
        c.relname AS name
    FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE n.nspname = q.schema_name AND starts_with(c.relname, q.queue_name) AND c.relkind IN ('r', 'p', 'S', 'v', 'm', 'f')
    AND substr(c.relname, length(q.queue_name) + 1) ~ {suffixes}
    UNION ALL
    SELECT
        p.proowner,
        p.proname
    FROM pg_proc AS p
    INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
    WHERE n.nspname = q.schema_name AND starts_with(p.proname, q.queue_name)
    AND substr(p.proname, length(q.queue_name) + 1) ~ {suffixes}
)

-- define: suffixes
-- of the names of a queue's objects
'^(|_(archive|waiting|meta|data|config|parked|in_hand|popped|subscribers|swept|content_[0-9]+|((push|pop|turn)_)?seq(_[0-9]+)?'
'|(push|pop)(_many)?|complete|fail|wait(_end)?|sweep|relay))$'

-- define: being_built
-- for a table t: whether a session builds an index of it at this moment; `sessions_anew` goes with it
-- By its locks: a REINDEX of several tables is shown with one of them, and the progress of others not to every login.
t.oid IN (
    SELECT l.relation FROM pg_locks AS l
    INNER JOIN pg_stat_progress_create_index AS p ON l.pid = p.pid AND p.datname = current_database()
    WHERE l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock') AND l.granted AND l.relation IS NOT NULL
)

-- define: sessions_anew
-- a row, in the FROM clause: else a transaction shows the sessions, and what they do, of its first reading
(SELECT pg_stat_clear_snapshot() AS forgotten LIMIT 1)

-- define: writing_subscriptions
-- a row `writer` for each subscription that writes this catalog
-- By its name: whoever may not use the schema may ask this.
pg_subscription_rel AS written
INNER JOIN pg_subscription AS writer ON written.srsubid = writer.oid AND writer.subenabled
INNER JOIN pg_class AS its_table ON written.srrelid = its_table.oid AND its_table.relname = 'queue'
INNER JOIN pg_namespace AS its_schema ON its_table.relnamespace = its_schema.oid AND its_schema.nspname = 'dbq'

-- define: is_copy
-- whether a subscription writes this catalog: the database is a copy of another one, without the state of its sequences
(
    SELECT count(*) > 0 FROM {writing_subscriptions}
)

-- define: is_replica
-- whether this is a standby, which shows sequences up to 32 ahead, or such a copy: neither has its primary's sessions
(pg_is_in_recovery() OR {is_copy})

-- define: first_oid
-- the server's own objects have lower ones
16384

-- define: has_code_of_others
-- true: to a superuser, `code_of_others` may have rows. Without a function of another login, a view or a foreign table it has
-- none, and to plan it takes a new session ten times as long as the rest of what a verb reads.
current_setting('is_superuser') = 'on' AND (
    EXISTS (
        SELECT FROM pg_proc AS f
        INNER JOIN pg_roles AS login ON f.proowner = login.oid AND NOT login.rolsuper
        WHERE f.oid >= {first_oid}
    )
    OR EXISTS (SELECT FROM pg_class AS seen WHERE seen.relkind IN ('v', 'f') AND seen.oid >= {first_oid})
)

-- define: code_of_others
-- rows (oid, runs, own): to a superuser, the relations whose reading runs what belongs to a login that is no superuser, and
-- what that is; own: a view of a superuser's
-- For all relations at once, from the functions: hardly one is in an index, a constraint, a statistic or a cast. The planner
-- computes what those call of constants.
(
    WITH RECURSIVE others AS (
        SELECT f.oid AS oid
        FROM pg_proc AS f
        INNER JOIN pg_roles AS login ON f.proowner = login.oid AND NOT login.rolsuper
        WHERE current_setting('is_superuser') = 'on' AND f.oid >= {first_oid}
    ),

    -- Between a superuser's type and another; anybody makes such casts of a type of their own.
    cast_types AS (
        SELECT
            side.oid AS oid,
            own.oid AS called
        FROM others AS own
        INNER JOIN pg_cast AS cast_ ON own.oid = cast_.castfunc
        CROSS JOIN LATERAL (
            VALUES (cast_.castsource, cast_.casttarget), (cast_.casttarget, cast_.castsource)
        ) AS side (oid, other)
        WHERE EXISTS (
            SELECT FROM pg_type AS kind
            INNER JOIN pg_roles AS login ON kind.typowner = login.oid
            WHERE kind.oid = side.other AND login.rolsuper
        )
        UNION
        SELECT
            made.oid,
            inner_.called
        FROM cast_types AS inner_
        INNER JOIN pg_type AS made ON inner_.oid IN (made.typbasetype, made.typelem)
    ),

    used AS (
        SELECT
            by_name.classid,
            by_name.objid,
            own.oid AS called
        FROM others AS own
        INNER JOIN pg_depend AS by_name ON own.oid = by_name.refobjid AND by_name.refclassid = CAST('pg_proc' AS regclass)
        UNION ALL
        SELECT
            by_sign.classid,
            by_sign.objid,
            own.oid
        FROM others AS own
        INNER JOIN pg_operator AS sign ON own.oid = sign.oprcode
        INNER JOIN pg_depend AS by_sign ON sign.oid = by_sign.refobjid AND by_sign.refclassid = CAST('pg_operator' AS regclass)
    ),

    affected AS (
        SELECT
            ix.indrelid AS oid,
            used.called AS called
        FROM used
        INNER JOIN pg_index AS ix ON used.objid = ix.indexrelid AND used.classid = CAST('pg_class' AS regclass)
        UNION
        SELECT
            rule.conrelid,
            used.called
        FROM used
        INNER JOIN pg_constraint AS rule ON used.objid = rule.oid AND used.classid = CAST('pg_constraint' AS regclass)
        -- The planner reads those of children only (constraint_exclusion).
        INNER JOIN pg_inherits AS heir ON rule.conrelid = heir.inhrelid
        UNION
        SELECT
            stat.stxrelid,
            used.called
        FROM used
        INNER JOIN pg_statistic_ext AS stat ON used.objid = stat.oid AND used.classid = CAST('pg_statistic_ext' AS regclass)
        UNION
        SELECT
            field.attrelid,
            cast_types.called
        FROM cast_types
        INNER JOIN pg_attribute AS field ON cast_types.oid = field.atttypid AND field.attnum > 0
        -- Hardly ever; else the columns of all tables are read and sorted before it is known.
        WHERE EXISTS (SELECT FROM cast_types AS any_cast)
        UNION
        SELECT
            seen.oid,
            CAST(NULL AS oid)
        FROM pg_class AS seen
        WHERE seen.relkind IN ('v', 'f') AND seen.oid >= {first_oid} AND current_setting('is_superuser') = 'on'
    ),

    upwards AS (
        SELECT
            affected.oid,
            affected.called,
            affected.oid AS part
        FROM affected
        UNION
        SELECT
            heir.inhparent,
            child.called,
            child.part
        FROM upwards AS child
        INNER JOIN pg_inherits AS heir ON child.oid = heir.inhrelid
    )

    SELECT
        upwards.oid,
        min(CASE
            WHEN called.oid IS NOT NULL THEN 'the function ' || CAST(CAST(called.oid AS regprocedure) AS text)
            ELSE 'the view or foreign table ' || CAST(CAST(upwards.part AS regclass) AS text)
        END || ' of ' || login.rolname) AS runs,
        bool_and(login.rolsuper) AS own
    FROM upwards
    LEFT JOIN pg_proc AS called ON upwards.called = called.oid
    INNER JOIN pg_class AS part ON upwards.part = part.oid
    INNER JOIN pg_roles AS login ON coalesce(called.proowner, part.relowner) = login.oid
    GROUP BY upwards.oid
)

-- name: archive
-- script: the archive, for purged and archived messages, and popped ones with archive_at_pop=on
CREATE TABLE "{schema}"."{queue}_archive" (
    archive_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id "{id_type}" NOT NULL,
    payload "{payload_type}" NOT NULL,
    title text, -- when defined title
    pushed_at timestamptz,
    due_at timestamptz, -- when role due_at
    claimed_at timestamptz,
    claimed_by text,
    done_at timestamptz,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    reason text NOT NULL,
    action_id bigint,
    archived_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: waiting
-- script: notify=on: the table of waiting consumers
-- A registration is a hint and may be lost in a crash: a waiter polls at least once a second.
CREATE UNLOGGED TABLE "{schema}"."{queue}_waiting" (
    pid integer PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: wait_functions
-- script: notify=on: the functions that register a waiter
-- Registers this session and returns the channel to LISTEN on. Call it, commit, LISTEN, pop once more, then wait. The next
-- waiter removes the registrations of closed sessions.
CREATE OR REPLACE FUNCTION "{schema}"."{queue}_wait"() RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
BEGIN
    -- A transaction that has read sessions before sees none that began since.
    PERFORM pg_stat_clear_snapshot();
    DELETE FROM "{schema}"."{queue}_waiting" AS w USING (
        SELECT g.pid FROM "{schema}"."{queue}_waiting" AS g
        WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = g.pid)
        FOR UPDATE SKIP LOCKED
    ) AS gone WHERE w.pid = gone.pid;
    INSERT INTO "{schema}"."{queue}_waiting" (pid) VALUES (pg_backend_pid()) ON CONFLICT DO NOTHING;
    RETURN '{channel}';
END
$dbq$;

CREATE OR REPLACE FUNCTION "{schema}"."{queue}_wait_end"() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
BEGIN
    DELETE FROM "{schema}"."{queue}_waiting" AS w WHERE w.pid = pg_backend_pid();
END
$dbq$;

-- name: drop_archive
-- script: removes the archive with all that is in it
DROP TABLE "{schema}"."{queue}_archive";

-- name: drop_waiting
-- script: removes what notify=on made
DROP FUNCTION "{schema}"."{queue}_wait", "{schema}"."{queue}_wait_end";
DROP TABLE "{schema}"."{queue}_waiting";

-- name: push
-- one row: the message's id as text, null where the queue is full
SELECT CAST("{schema}"."{queue}_push"(CAST(:payload AS "{payload_type}")) AS text) AS id;

-- name: push_many
-- a row for each payload in order: its id as text, null where it was not stored
SELECT CAST(pushed.id AS text) AS id
FROM "{schema}"."{queue}_push_many"(CAST(:payloads AS "{payload_type}"[])) AS pushed (id);

-- name: push_many_with
-- a row for each payload in order: its id as text; with this design's further arguments, null for the default
-- pending: due at :due_at, else in :due_in_seconds by the server's clock.
SELECT CAST(pushed.id AS text) AS id
FROM "{schema}"."{queue}_push_many"(
    CAST(:payloads AS "{payload_type}"[])
    {push_with} -- when defined push_with
) AS pushed (id);

-- name: pop
-- at most :n rows in the design's order: the messages just popped
SELECT
    CAST(popped.id AS text) AS id,
    CAST(popped.payload AS text) AS payload, -- when payload=text|json
    popped.payload AS payload, -- when payload=bytes
    popped.pushed_at AS pushed_at,
    popped.attempts AS attempts
FROM "{schema}"."{queue}_pop_many"(
    CAST(:n AS integer)
    , subscriber => '{subscriber}' -- when subscribed=yes
    , consumer => CAST(:consumer AS text) -- when finishes=yes
) AS popped;

-- name: complete
-- one row: whether the claim was still valid and is finished now
SELECT "{schema}"."{queue}_complete"(
    '{subscriber}', -- when subscribed=yes
    CAST(CAST(:id AS text) AS "{id_type}"), CAST(:attempts AS integer)
) AS acted;

-- name: fail
-- one row: whether the claim was still valid and is an error now
SELECT "{schema}"."{queue}_fail"(
    '{subscriber}', -- when subscribed=yes
    CAST(CAST(:id AS text) AS "{id_type}"), CAST(:error AS text), CAST(:attempts AS integer)
) AS acted;

-- name: wait
-- one row: the channel on which pushes of this queue notify; this session counts as waiting now
SELECT "{schema}"."{queue}_wait"() AS channel;

-- name: listen
-- no row: this session receives the queue's notifications from now on
LISTEN "{channel}";

-- name: wait_end
-- one row: this session no longer counts as waiting
SELECT CAST("{schema}"."{queue}_wait_end"() AS text) AS ended;

-- name: lock_all
-- script: locks the queue exclusively until the transaction ends (a ring's parked first, in its callers' order)
LOCK TABLE {locked_first} IN ACCESS EXCLUSIVE MODE; -- when defined locked_first
LOCK TABLE "{schema}"."{table}" IN ACCESS EXCLUSIVE MODE;

-- name: contents
-- one row: exact counts of the queue's messages, by a scan; for verbs, never for monitoring
SELECT
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE {is_live}) AS live,
    -- when defined is_claimed
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE {is_claimed}) AS claimed,
    (SELECT count(*) FROM "{schema}"."{table}" AS m WHERE {is_finished}) AS finished,
    -- else
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    -- end
    (SELECT count(*) FROM "{schema}"."{queue}_archive") AS archived;

-- name: archive_times
-- archive_at_pop=on: the waiting times of those of the latest 100 archived messages that were popped in the last 5 minutes
SELECT
    CAST('{schema}' AS text) AS schema,
    CAST('{queue}' AS text) AS queue,
    CAST(l.archive_id AS text) AS id,
    -- when role due_at
    CAST(EXTRACT(EPOCH FROM {popped_at}) - EXTRACT(EPOCH FROM greatest(l.pushed_at, l.due_at)) AS double precision) AS waiting_seconds,
    -- end
    CAST(EXTRACT(EPOCH FROM {popped_at}) - EXTRACT(EPOCH FROM l.pushed_at) AS double precision) AS waiting_seconds, -- when no role due_at
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM {popped_at}) AS double precision) AS popped_seconds_ago,
    CAST(NULL AS double precision) AS processing_seconds,
    CAST(NULL AS double precision) AS ended_seconds_ago
FROM (SELECT a.* FROM "{schema}"."{queue}_archive" AS a ORDER BY a.archive_id DESC LIMIT 100) AS l
WHERE l.reason = 'pop' AND {popped_at} > statement_timestamp() - interval '5 minutes'

-- name: archived
-- one row: how many messages the archive holds, exactly
SELECT count(*) AS archived FROM "{schema}"."{queue}_archive";

-- define: whole_attempts
-- in an adopted table's column of any type; null where that is no whole number of at most 18 digits (NaN)
CAST(substring(CAST(w.attempts AS text) FROM '^-?[0-9]{1,18}(?![0-9e])') AS bigint) -- when installed=no
w.attempts -- when installed=yes

-- name: chunk
-- the next :read_limit of the rows that the design's `messages` returns, from a key on, numbered in order
-- Sent as part of one statement: WITH scanned AS (messages), chunk AS (chunk), then matching or another of the statements
-- below. A message is found by its key in an index, never by counting rows, and at most :read_limit are read.
SELECT
    row_number() OVER () AS position, -- when sorted=no
    row_number() OVER (ORDER BY w.key_id) AS position, -- when sorted=id_up
    row_number() OVER (ORDER BY w.key_id DESC) AS position, -- when sorted=id_down
    row_number() OVER (ORDER BY w.key_time, w.key_id) AS position, -- when sorted=time_up|undated_up
    row_number() OVER (ORDER BY w.key_time DESC, w.key_id DESC) AS position, -- when sorted=time_down|undated_down
    w.key_time AS key_time, -- when sorted=time_up|time_down
    w.id AS id,
    CAST(w.state AS text) AS state,
    -- when role pushed_at
    CASE WHEN w.pushed_at < CAST('294277-01-01' AS date) THEN CAST(w.pushed_at AS timestamptz) WHEN w.pushed_at IS NOT NULL THEN 'infinity' END AS pushed_at,
    -- end
    CAST(NULL AS timestamptz) AS pushed_at, -- when no role pushed_at
    -- when role due_at
    CASE WHEN w.due_at < CAST('294277-01-01' AS date) THEN CAST(w.due_at AS timestamptz) WHEN w.due_at IS NOT NULL THEN 'infinity' END AS due_at,
    -- end
    CAST(NULL AS timestamptz) AS due_at, -- when no role due_at
    {whole_attempts} AS attempts, -- when role attempts
    CAST(NULL AS bigint) AS attempts, -- when no role attempts
    -- when role claimed_at
    CASE WHEN w.claimed_at < CAST('294277-01-01' AS date) THEN CAST(w.claimed_at AS timestamptz) WHEN w.claimed_at IS NOT NULL THEN 'infinity' END AS claimed_at,
    -- end
    CAST(NULL AS timestamptz) AS claimed_at, -- when no role claimed_at
    CAST(w.claimed_by AS text) AS claimed_by, -- when role claimed_by
    CAST(NULL AS text) AS claimed_by, -- when no role claimed_by
    -- when role done_at
    CASE WHEN w.done_at < CAST('294277-01-01' AS date) THEN CAST(w.done_at AS timestamptz) WHEN w.done_at IS NOT NULL THEN 'infinity' END AS done_at,
    -- end
    CAST(NULL AS timestamptz) AS done_at, -- when no role done_at
    CAST(w.error AS text) AS error, -- when role error
    CAST(NULL AS text) AS error, -- when no role error
    w.title AS title, -- when defined title
    -- when defined slot
    CAST(w.slot AS bigint) AS slot,
    CAST(w.number AS bigint) AS number,
    -- end
    w.payload AS payload, -- when with_payload=yes
    w.location AS location, -- when located=yes
    w.key_id AS key_id
FROM scanned AS w
WHERE w.key_id IS NOT NULL
AND w.key_time = :after_time AND w.state = :state -- when start=same_time
AND w.key_time IS NOT NULL -- when sorted=time_up|time_down
-- A state set by hand may lack its time: such messages are a scan of their own, sorted by that NULL too, because only then
-- is the index used.
AND w.key_time IS NULL -- when sorted=undated_up|undated_down
-- when start=after
-- when own_operators=no
AND w.key_id > :after_id -- when sorted=id_up|undated_up
AND w.key_id < :after_id -- when sorted=id_down|undated_down
AND (w.key_time, w.key_id) > (:after_time, :after_id) -- when sorted=time_up
AND (w.key_time, w.key_id) < (:after_time, :after_id) -- when sorted=time_down
-- else
AND w.key_id OPERATOR("{key_operators}".>) :after_id -- when sorted=id_up|undated_up
AND w.key_id OPERATOR("{key_operators}".<) :after_id -- when sorted=id_down|undated_down
-- when sorted=time_up
AND w.key_time >= :after_time AND (w.key_time > :after_time OR w.key_id OPERATOR("{key_operators}".>) :after_id)
-- end
-- when sorted=time_down
AND w.key_time <= :after_time AND (w.key_time < :after_time OR w.key_id OPERATOR("{key_operators}".<) :after_id)
-- end
-- end
-- end
-- when start=exactly
AND w.key_id = :after_id -- when own_operators=no
AND w.key_id OPERATOR("{key_operators}".=) :after_id -- when own_operators=yes
AND w.key_time = :after_time -- when sorted=time_up|time_down
-- end
-- when until=yes
AND w.key_id <= :until_id -- when sorted=id_up|undated_up
AND (w.key_time, w.key_id) <= (:until_time, :until_id) -- when sorted=time_up
-- end
-- A filter by age ends the scan only where the index is in order of age. An action's ages are relative to its cut-off,
-- however long it runs.
-- when by_age=scan
-- What is dated days ahead was not pushed since: its time is wrong, and is no reason to leave it.
-- when by_cutoff=yes
AND (w.key_time <= CAST(:moment AS timestamptz) OR w.key_time > statement_timestamp() + interval '1 day')
-- end
-- when by_older=yes
AND w.key_time < coalesce(CAST(:moment AS timestamptz), statement_timestamp()) - make_interval(secs => CAST(:older AS double precision))
-- end
-- when by_newer=yes
AND w.key_time >= coalesce(CAST(:moment AS timestamptz), statement_timestamp()) - make_interval(secs => CAST(:newer AS double precision))
-- end
-- end
ORDER BY w.key_id -- when sorted=id_up
ORDER BY w.key_id DESC -- when sorted=id_down
ORDER BY w.key_time, w.key_id -- when sorted=time_up|undated_up
ORDER BY w.key_time DESC, w.key_id DESC -- when sorted=time_down|undated_down
LIMIT :read_limit

-- name: matching
-- of the chunk: at most :n rows that match the filters, in order, and the last row whether it matches or not
SELECT
    l.position AS position,
    t.matches AS matches,
    {key_time_text} AS key_time,
    CAST(l.key_id AS text) AS key_id,
    l.id AS id,
    l.state AS state,
    l.pushed_at AS pushed_at,
    {seconds_in_state} AS age_seconds,
    l.due_at AS due_at,
    l.attempts AS attempts,
    l.claimed_at AS claimed_at,
    l.claimed_by AS claimed_by,
    l.done_at AS done_at,
    l.title AS title, -- when defined title
    CAST(NULL AS text) AS title, -- when not defined title
    -- when defined slot
    l.slot AS slot,
    l.number AS number,
    -- else
    CAST(NULL AS bigint) AS slot,
    CAST(NULL AS bigint) AS number,
    -- end
    {payload_size}
    -- when body=yes
    left(CAST(l.payload AS text), CAST(:payload_length AS integer)) AS payload, -- when payload=text|json
    substring(l.payload FROM 1 FOR CAST(:payload_length AS integer)) AS payload, -- when payload=bytes
    -- end
    CAST(NULL AS text) AS payload, -- when body=no
    left(l.error, CAST(:error_length AS integer)) AS error,
    -- Of the whole text: it distinguishes a message's failures.
    encode(sha256(convert_to(coalesce(l.error, ''), getdatabaseencoding())), 'hex') AS error_hash -- when hashed=yes
    CAST(NULL AS text) AS error_hash -- when hashed=no
{judged}
WHERE t.matches OR l.position = :read_limit
ORDER BY l.key_id -- when sorted=id_up|undated_up
ORDER BY l.key_id DESC -- when sorted=id_down|undated_down
ORDER BY l.key_time, l.key_id -- when sorted=time_up
ORDER BY l.key_time DESC, l.key_id DESC -- when sorted=time_down
LIMIT :n

-- define: claimant
-- for row l: whose claims a verb leaves alone or takes together
l.claimed_by -- when grouped=by_claimant
CAST(NULL AS text) -- when not grouped=by_claimant

-- define: side
-- for row l, judged: on which side of a limit it is: -1 below, 1 above, 0 at it; null: not known
-- when grouped=by_claimant
-- Claimed for less than :stuck_after seconds, or longer.
CASE
    WHEN NOT isfinite(s.since) OR s.since > {counted_until} + make_interval(secs => CAST(:ahead AS double precision)) THEN CAST(NULL AS integer)
    WHEN s.since > {counted_until} - make_interval(secs => least(CAST(:stuck_after AS double precision), 1e11)) THEN -1
    WHEN s.since IS NOT NULL THEN 1
END
-- end
-- when grouped=by_due
CASE WHEN l.due_at < CAST(:due_time AS timestamptz) THEN -1 WHEN l.due_at > CAST(:due_time AS timestamptz) THEN 1 WHEN l.due_at IS NOT NULL THEN 0 END
-- end
0 -- when not grouped=by_claimant|by_due

-- name: counted
-- of the chunk, by claimant and side: how many rows match the filters and have the filters' state, their bytes and ages
-- A row for each; one with 0 where none matches. position, key: of the chunk's last row. bytes: NULL unless that of each is
-- known. ages: without those of the future, which are not known. bounded=yes: of the first :n of them.
SELECT
    e.position AS position,
    e.key_time AS key_time,
    e.key_id AS key_id,
    CAST(:state AS text) AS state,
    c.label AS label,
    c.side AS side,
    coalesce(c.matching, 0) AS matching,
    CASE WHEN c.unknown_sizes = 0 THEN c.payload_bytes END AS payload_bytes,
    CAST(EXTRACT(EPOCH FROM e.now) - EXTRACT(EPOCH FROM c.oldest) AS double precision) AS oldest_seconds,
    CAST(EXTRACT(EPOCH FROM e.now) - EXTRACT(EPOCH FROM c.newest) AS double precision) AS newest_seconds
FROM (
    SELECT
        coalesce(CAST(:moment AS timestamptz), statement_timestamp()) AS now,
        l.position AS position,
        {key_time_text} AS key_time,
        CAST(l.key_id AS text) AS key_id
    FROM chunk AS l
    ORDER BY l.position DESC
    LIMIT 1
) AS e
LEFT JOIN (
    SELECT
        r.label AS label,
        r.side AS side,
        count(*) AS matching,
        count(*) FILTER (WHERE r.payload_bytes IS NULL) AS unknown_sizes,
        CAST(coalesce(sum(r.payload_bytes), 0) AS bigint) AS payload_bytes,
        min(r.since) FILTER (WHERE r.since <= r.latest) AS oldest,
        max(r.since) FILTER (WHERE r.since <= r.latest) AS newest
    FROM (
        SELECT
            {payload_size}
            {claimant} AS label,
            {side} AS side,
            s.since AS since,
            coalesce(CAST(:moment AS timestamptz), statement_timestamp()) + make_interval(secs => CAST(:ahead AS double precision)) AS latest
        {judged}
        WHERE t.matches AND l.state = :state
        -- when bounded=yes
        ORDER BY l.position
        LIMIT :n
        -- end
    ) AS r
    GROUP BY r.label, r.side
) AS c ON true

-- define: time_in_key
-- for row l: the time with which its key begins
l.key_time AS key_time, -- when sorted=time_up|time_down
CAST(NULL AS text) AS key_time, -- when sorted=id_up|id_down|undated_up|undated_down|no

-- define: is_next
-- for row l, judged: whether a verb takes it
t.matches AND l.state = :state
AND concat({side}, ' ', {claimant}) = ANY(CAST(:groups AS text[])) -- when grouped=by_claimant
-- What a reschedule would not change.
AND l.due_at IS DISTINCT FROM CAST(:due_time AS timestamptz) -- when grouped=by_due

-- name: next_chosen
-- of the chunk: the first :n rows that a verb takes, and those between, which do not match
SELECT
    r.position AS position,
    r.key_time AS key_time,
    r.key_id AS key_id,
    r.location AS location, -- when located=yes
    r.matches AS matches
FROM (
    SELECT
        l.position AS position,
        {time_in_key}
        l.key_id AS key_id,
        l.location AS location, -- when located=yes
        -- when bounded=yes
        count(*) FILTER (WHERE {is_next}) OVER (ORDER BY l.position) AS until_here,
        -- end
        {is_next} AS matches
    {judged}
) AS r
WHERE r.until_here <= :n -- when bounded=yes

-- name: lock_next
-- of `next_chosen`: how many match, how many of these are locked now, as they were chosen, and their locations
-- position, key: of its last row. No row if there is none. Chosen and locked by one statement, a row is the same as long as
-- it is in the same place.
SELECT
    e.position AS position,
    CAST(e.key_time AS text) AS key_time,
    CAST(e.key_id AS text) AS key_id,
    (SELECT count(*) FROM chosen AS c WHERE c.matches) AS matching,
    l.locked AS locked,
    l.locations AS locations
FROM (SELECT c.* FROM chosen AS c ORDER BY c.position DESC LIMIT 1) AS e
CROSS JOIN (
    SELECT
        count(*) AS locked,
        CAST(coalesce(array_agg(h.location), '{}') AS text) AS locations
    FROM held AS h INNER JOIN chosen AS c ON {is_as_chosen}
) AS l

-- define: is_as_chosen
h.location = c.location

-- name: error_texts
-- of the chunk, unordered: the beginning of each error's text, its time and its attempts
SELECT
    {key_time_text} AS key_time,
    CAST(l.key_id AS text) AS key_id,
    l.position AS position,
    l.id AS id,
    left(l.error, CAST(:error_length AS integer)) AS error,
    l.done_at AS done_at,
    l.attempts AS attempts
FROM chunk AS l

-- name: retried
-- of the chunk, unordered: the rows with :least attempts or more, and the last row; with the number of rows read
SELECT
    CAST(t.key_time AS text) AS key_time, -- when sorted=time_up|time_down
    CAST(NULL AS text) AS key_time, -- when sorted=id_up|id_down|undated_up|undated_down|no
    CAST(t.key_id AS text) AS key_id,
    t.position AS position,
    t.rows_read AS rows_read,
    t.id AS id,
    t.attempts AS attempts
FROM (
    SELECT
        l.key_time, -- when sorted=time_up|time_down
        l.key_id,
        l.position,
        l.id,
        l.attempts,
        count(*) OVER () AS rows_read
    FROM chunk AS l
) AS t
WHERE t.attempts >= CAST(:least AS bigint) OR t.position = t.rows_read

-- name: claimed
-- of the chunk, unordered: each claim's owner and age, and whether its payload is missing; with the number of rows read
SELECT
    {key_time_text} AS key_time,
    CAST(l.key_id AS text) AS key_id,
    l.position AS position,
    count(*) OVER () AS rows_read,
    l.id AS id,
    CAST(l.claimed_by AS text) AS claimed_by,
    {lacks_payload} AS half,
    CAST(EXTRACT(EPOCH FROM statement_timestamp()) - EXTRACT(EPOCH FROM l.claimed_at) AS double precision) AS seconds
FROM chunk AS l

-- name: contradictions
-- of the chunk, unordered: the rows that contradict their state, and the last row; with the number of rows read
-- A missing time is a contradiction itself, so all of those are returned.
SELECT
    CAST(t.key_time AS text) AS key_time, -- when sorted=time_up|time_down
    CAST(NULL AS text) AS key_time, -- when sorted=id_up|id_down|undated_up|undated_down|no
    CAST(t.key_id AS text) AS key_id,
    t.position AS position,
    t.rows_read AS rows_read,
    t.id AS id,
    t.contradicts AS contradicts
FROM (
    SELECT
        l.key_time, -- when sorted=time_up|time_down
        l.key_id,
        l.position,
        l.id,
        {contradicts} AS contradicts, -- when defined contradicts
        count(*) OVER () AS rows_read
    FROM chunk AS l
) AS t
WHERE t.contradicts OR t.position = t.rows_read -- when sorted=time_up|time_down|id_up|id_down
