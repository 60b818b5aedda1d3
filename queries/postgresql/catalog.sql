-- The console's own schema: which queues this database holds.
--
-- Times are read within the years 1 to 9999: anybody who may write here could have written "infinity", which no driver's
-- type holds, and one such row would hide all others.

-- name: lock
-- script: one installer at a time, until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('dbq catalog', 0));

-- name: bootstrap
-- script: creates schema dbq and its tables where they are missing; requires their owner, if they exist
CREATE SCHEMA IF NOT EXISTS dbq;
COMMENT ON SCHEMA dbq IS 'catalog 1 of dbq-console';

CREATE TABLE IF NOT EXISTS dbq.queue (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    design text NOT NULL,
    kind text NOT NULL CHECK (kind IN ('installed', 'adopted', 'archive')),
    options jsonb NOT NULL,
    roles jsonb NOT NULL,
    version integer NOT NULL,
    installed_by text NOT NULL DEFAULT session_user,
    installed_from text NOT NULL DEFAULT '',
    installed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schema_name, queue_name)
);

COMMENT ON COLUMN dbq.queue.kind IS
'installed by the console; adopted: somebody else''s table; archive: only the archive of an uninstalled queue is left';

CREATE TABLE IF NOT EXISTS dbq.setting (
    name text PRIMARY KEY,
    value text NOT NULL
);

COMMENT ON TABLE dbq.setting IS 'production = on: every console honours it on every connection';

CREATE TABLE IF NOT EXISTS dbq.action (
    action_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    verb text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at timestamptz,
    operator text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    session text NOT NULL,
    connection text NOT NULL,
    filters text NOT NULL DEFAULT '',
    cutoff timestamptz,
    planned bigint NOT NULL DEFAULT 0,
    selected bigint NOT NULL DEFAULT 0,
    done bigint NOT NULL DEFAULT 0,
    skipped bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    outcome text NOT NULL DEFAULT 'running',
    detail text NOT NULL DEFAULT ''
);

CREATE INDEX IF NOT EXISTS action_running ON dbq.action (last_at) WHERE ended_at IS NULL;
CREATE INDEX IF NOT EXISTS action_queue ON dbq.action (queue_name, schema_name, action_id);

COMMENT ON TABLE dbq.action IS
'what operators did by the console: counted in the transactions that did it; never a payload';
COMMENT ON COLUMN dbq.action.session IS 'who acts, as claimed_by has it: an action that is running ends with its session';

-- Operators' decisions about a queue, in force until revoked. Both end with the queue.
CREATE TABLE IF NOT EXISTS dbq.pause (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    reason text NOT NULL DEFAULT '',
    until timestamptz,
    push boolean NOT NULL DEFAULT false,
    functions jsonb NOT NULL,
    PRIMARY KEY (schema_name, queue_name),
    FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue ON DELETE CASCADE
);

COMMENT ON COLUMN dbq.pause.functions IS 'what resume puts back: the definition of each function that was exchanged, by name';
COMMENT ON COLUMN dbq.pause.until IS 'when it was meant to end: a pause that lasts longer is a finding, and goes on';

CREATE TABLE IF NOT EXISTS dbq.protection (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    protected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    reason text NOT NULL DEFAULT '',
    PRIMARY KEY (schema_name, queue_name),
    FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue ON DELETE CASCADE
);

CREATE TABLE IF NOT EXISTS dbq.silence (
    silence_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('silence', 'acknowledge')),
    code text NOT NULL,
    schema_name text NOT NULL DEFAULT '',
    queue_name text NOT NULL DEFAULT '',
    severity text NOT NULL DEFAULT '',
    silenced_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    reason text NOT NULL DEFAULT '',
    until timestamptz,
    ended_at timestamptz,
    ended_by text NOT NULL DEFAULT ''
);

COMMENT ON TABLE dbq.silence IS 'findings that nobody is to be told of: one that ends is kept, with who ended it';
COMMENT ON COLUMN dbq.silence.queue_name IS 'empty: of every queue';
COMMENT ON COLUMN dbq.silence.severity IS 'of an acknowledged finding: it ends when that worsens';

CREATE TABLE IF NOT EXISTS dbq.note (
    note_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schema_name text NOT NULL DEFAULT '',
    queue_name text NOT NULL DEFAULT '',
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator text NOT NULL,
    database_user text NOT NULL DEFAULT session_user,
    note text NOT NULL
);

COMMENT ON TABLE dbq.note IS 'what happened outside (a release, a fail-over), as a mark on charts';

CREATE TABLE IF NOT EXISTS dbq.lease (
    name text PRIMARY KEY,
    holder text NOT NULL,
    until timestamptz NOT NULL
);

COMMENT ON TABLE dbq.lease IS 'which of several recorders sends the notifications, which run of the pipeline works';

CREATE TABLE IF NOT EXISTS dbq.notification (
    notification_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_key text NOT NULL,
    target text NOT NULL,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    code text NOT NULL,
    which text NOT NULL DEFAULT '',
    severity text NOT NULL,
    summary text NOT NULL,
    begun_at timestamptz NOT NULL,
    ended_at timestamptz,
    tries integer NOT NULL DEFAULT 0,
    sent_at timestamptz,
    end_sent_at timestamptz
);

CREATE UNIQUE INDEX IF NOT EXISTS notification_open
ON dbq.notification (target, schema_name, queue_name, code, which) WHERE ended_at IS NULL;

COMMENT ON TABLE dbq.notification IS
'findings that a receiver is told of, when they begin and when they end; never a payload';
COMMENT ON COLUMN dbq.notification.target IS 'the receiver, as the configuration of the recorders names it';
COMMENT ON COLUMN dbq.notification.event_key IS 'by which the receiver drops doubles';

CREATE TABLE IF NOT EXISTS dbq.catalog_id (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid()
);

COMMENT ON TABLE dbq.catalog_id IS 'one row, made with the catalog: by it a database differs from another at the same address';

INSERT INTO dbq.catalog_id (id) SELECT gen_random_uuid() WHERE NOT EXISTS (SELECT FROM dbq.catalog_id);

CREATE TABLE IF NOT EXISTS dbq.lake_plan (
    plan_id bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    serial bigint NOT NULL DEFAULT 0,
    committed bigint NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'none' CHECK (state IN ('none', 'reserved', 'committed')),
    run text NOT NULL DEFAULT '',
    lake text NOT NULL DEFAULT '',
    table_id text NOT NULL DEFAULT '',
    database text NOT NULL DEFAULT '',
    connection text NOT NULL DEFAULT '',
    made_at timestamptz,
    action_id bigint,
    PRIMARY KEY (schema_name, queue_name),
    FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue ON DELETE CASCADE
);

COMMENT ON TABLE dbq.lake_plan IS
'how far the archive of a queue is on its way into a lake; whoever reserves its rows or restores them locks its row first';
COMMENT ON COLUMN dbq.lake_plan.serial IS 'of the queue''s last plan: the version of its application transaction in the table';
COMMENT ON COLUMN dbq.lake_plan.committed IS 'the last one that the table got';
COMMENT ON COLUMN dbq.lake_plan.state IS
'reserved: the rows in dbq.lake_row go into the lake; committed: they are there, and are still to be deleted here';
COMMENT ON COLUMN dbq.lake_plan.run IS 'the process in charge';

CREATE TABLE IF NOT EXISTS dbq.lake_row (
    plan_id bigint NOT NULL,
    archive_id bigint NOT NULL,
    archived_at timestamptz NOT NULL,
    PRIMARY KEY (plan_id, archive_id)
);

COMMENT ON TABLE dbq.lake_row IS 'the rows of an archive that a plan has reserved: restore leaves them alone';

-- Whoever writes a row of a queue owns what it names: the roles are granted rights on it.
CREATE OR REPLACE FUNCTION dbq.check_queue() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
DECLARE
    q dbq.queue := NEW;
    other record;
BEGIN
    IF q.kind = 'adopted' THEN
        SELECT
            c.relname AS name,
            c.relowner AS owner,
            has_any_column_privilege(session_user, c.oid, 'SELECT') AS readable
        INTO other
        FROM pg_class AS c
        WHERE c.oid = to_regclass(format('%I.%I', q.schema_name, coalesce(q.options ->> 'table', q.queue_name)));
        -- Under this path the triggers of its owner run.
        IF pg_has_role(session_user, other.owner, 'MEMBER') IS NOT TRUE THEN
            NEW.options := q.options - 'search_path';
        END IF;
        IF coalesce(other.readable, true) THEN
            RETURN NEW;
        END IF;
    ELSE
        SELECT o.name, o.owner INTO other FROM {objects_of} AS o WHERE NOT pg_has_role(session_user, o.owner, 'MEMBER') LIMIT 1;
        IF NOT FOUND THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '%.% belongs to %', q.schema_name, other.name, pg_get_userbyid(other.owner)
        USING ERRCODE = 'DBQ04', HINT = 'Let its owner do it, or choose another name.';
END
$dbq$;

CREATE OR REPLACE TRIGGER check_queue BEFORE INSERT OR UPDATE OF schema_name, queue_name, design, kind, options, roles
ON dbq.queue FOR EACH ROW EXECUTE FUNCTION dbq.check_queue();

-- An entry of the audit is its login's own, with the server's times, and is not changed once it has ended.
CREATE OR REPLACE FUNCTION dbq.check_action() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $dbq$
BEGIN
    IF pg_has_role(session_user, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = TG_RELID), 'MEMBER') THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'INSERT' THEN
        NEW.database_user := session_user;
    ELSIF OLD.ended_at IS NOT NULL OR OLD.database_user <> session_user THEN
        RAISE EXCEPTION 'action % of % has ended, or is not yours', OLD.action_id, OLD.database_user
            USING ERRCODE = 'DBQ04', HINT = 'See: dbq-console audit';
    END IF;
    NEW.last_at := clock_timestamp();
    NEW.ended_at := CASE WHEN NEW.ended_at IS NOT NULL THEN NEW.last_at END;
    RETURN NEW;
END
$dbq$;

CREATE OR REPLACE TRIGGER check_action BEFORE INSERT OR UPDATE
ON dbq.action FOR EACH ROW EXECUTE FUNCTION dbq.check_action();

-- name: exists
-- one row: whether this database has a catalog, and of which version (null: before the first); whether it lacks none of the
-- tables of the audit, decisions, its id, lakes; whether this login may read decisions, whether triggers check who writes;
-- and to a superuser, what of others reading it would run: asked without `others`, whether there is anything to look for
-- Read from the tables: to_regclass would answer from the session's cache, where a table that another
-- session has created since the first check is still missing, even after waiting for that session's lock.
SELECT
    coalesce(bool_or(c.relname = 'queue'), false) AS present,
    max(CAST(substring(obj_description(n.oid, 'pg_namespace') FROM '^catalog ([0-9]+) ') AS integer)) AS version,
    coalesce(bool_or(c.relname = 'action'), false) AS audited,
    count(DISTINCT c.relname) FILTER (WHERE c.relname IN ('pause', 'protection', 'silence', 'note', 'lease')) = 5 AS decided,
    coalesce(bool_or(c.relname = 'catalog_id'), false) AS identified,
    count(DISTINCT c.relname) FILTER (WHERE c.relname IN ('lake_plan', 'lake_row')) = 2 AS lakes,
    count(DISTINCT c.relname) FILTER (
        WHERE c.relname IN ('pause', 'protection', 'silence', 'note') AND has_table_privilege(c.oid, 'SELECT')
    ) = 4 AS decisions_readable,
    count(t.oid) = 2 AS guarded,
    -- when others=yes
    min(o.runs) AS runs
    -- else
    CASE WHEN {has_code_of_others} THEN 'code of others' END AS runs
    -- end
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
LEFT JOIN {code_of_others} AS o ON c.oid = o.oid AND NOT o.own -- when others=yes
LEFT JOIN pg_trigger AS t ON c.oid = t.tgrelid AND t.tgname = concat('check_', c.relname)
WHERE n.nspname = 'dbq' AND c.relname IN (
    'queue', 'action', 'pause', 'protection', 'silence', 'note', 'lease', 'catalog_id', 'setting', 'notification', 'lake_plan',
    'lake_row'
);

-- name: identity
-- one row: which database this is: its cluster, its number there, and the id of its catalog
SELECT
    CAST(s.system_identifier AS text) || '/' || CAST(d.oid AS text) || '/' || CAST(i.id AS text) AS identity
FROM pg_control_system() AS s
CROSS JOIN dbq.catalog_id AS i
INNER JOIN pg_database AS d ON d.datname = current_database();

-- name: may_act
-- one row: whether this login may write the audit
SELECT
    has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'INSERT')
    AND has_any_column_privilege(c.oid, 'UPDATE') AS present
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE n.nspname = 'dbq' AND c.relname = 'action';

-- name: action_begin
-- one row: the number of an action that begins now
INSERT INTO dbq.action (schema_name, queue_name, verb, operator, session, connection, filters, cutoff, planned, detail)
SELECT
    CAST(:schema AS text),
    CAST(:queue AS text),
    CAST(:verb AS text),
    CAST(:operator AS text),
    -- Behind a pooler its end says nothing about the action.
    CASE WHEN current_setting('dbq.pooled', true) = 'on' THEN 'pooled ' ELSE '' END
    || format('pid=%s start=%s', a.pid, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')),
    CAST(:connection AS text),
    CAST(:filters AS text),
    CAST(:cutoff AS timestamptz),
    CAST(:planned AS bigint),
    CAST(:detail AS text)
FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()
RETURNING action_id;

-- name: action_batch
-- one row: the action's number, after its counts were increased by one batch; none if it is not running
UPDATE dbq.action AS a
SET
    last_at = clock_timestamp(),
    selected = a.selected + CAST(:selected AS bigint),
    done = a.done + CAST(:done AS bigint),
    skipped = a.skipped + CAST(:skipped AS bigint),
    failed = a.failed + CAST(:failed AS bigint)
WHERE a.action_id = CAST(:action_id AS bigint) AND a.ended_at IS NULL
RETURNING a.action_id AS action_id;

-- name: action_end
-- one row: the action's number and what it has done, with its outcome recorded; none if it had finished before
UPDATE dbq.action AS a
SET last_at = clock_timestamp(), ended_at = clock_timestamp(), outcome = CAST(:outcome AS text), detail = CAST(:detail AS text)
WHERE a.action_id = CAST(:action_id AS bigint) AND a.ended_at IS NULL
RETURNING a.action_id AS action_id, a.done AS done;

-- name: lease_take
-- one row: the present holder of a lease, and until when: this one if it was free; if another one has it, that one
-- :gone: a holder that is known to have ended
WITH taken AS (
    INSERT INTO dbq.lease AS l (name, holder, until)
    VALUES (
        CAST(:name AS text), CAST(:holder AS text),
        clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision))
    )
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
    WHERE l.holder IN (excluded.holder, CAST(:gone AS text)) OR l.until < clock_timestamp()
    RETURNING l.holder AS holder, l.until AS until
)

SELECT
    coalesce(t.holder, l.holder, '') AS holder,
    coalesce(t.until, l.until, clock_timestamp()) AS until
FROM (VALUES (CAST(:name AS text))) AS v (name)
LEFT JOIN taken AS t ON true
LEFT JOIN dbq.lease AS l ON v.name = l.name;

-- name: lease_renew
-- one row: who holds the lease, which is renewed; none if another one has taken it since
UPDATE dbq.lease AS l
SET until = clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision))
WHERE l.name = CAST(:name AS text) AND l.holder = CAST(:holder AS text)
RETURNING l.holder AS holder;

-- name: lease_end
-- one row: who held the lease, which is released; none if another one holds it
UPDATE dbq.lease AS l
SET until = clock_timestamp()
WHERE l.name = CAST(:name AS text) AND l.holder = CAST(:holder AS text)
RETURNING l.holder AS holder;

-- name: running
-- the running actions of operators, unless the last batch is a day old
-- READPAST: the row of an uncommitted batch is locked, and appears next time.
SELECT
    a.schema_name AS schema,
    a.queue_name AS queue,
    a.verb AS verb,
    a.operator AS operator,
    a.database_user AS database_user,
    a.session AS session,
    CAST(EXTRACT(EPOCH FROM statement_timestamp() - least(greatest(a.started_at, '0001-01-02Z'), '9999-12-30Z')) AS double precision) AS since_seconds,
    a.planned AS planned,
    a.done AS done
FROM dbq.action AS a
WHERE a.ended_at IS NULL AND a.last_at > statement_timestamp() - interval '1 day'
ORDER BY a.last_at DESC
LIMIT 100;

-- name: actions
-- the actions of operators, newest first, at most :n
SELECT
    a.action_id AS action_id,
    a.schema_name AS schema,
    a.queue_name AS queue,
    a.verb AS verb,
    least(greatest(a.started_at, '0001-01-02Z'), '9999-12-30Z') AS started_at,
    least(greatest(a.last_at, '0001-01-02Z'), '9999-12-30Z') AS last_at,
    CASE WHEN a.ended_at IS NOT NULL THEN least(greatest(a.ended_at, '0001-01-02Z'), '9999-12-30Z') END AS ended_at,
    a.operator AS operator,
    a.database_user AS database_user,
    a.session AS session,
    a.connection AS connection,
    a.filters AS filters,
    CASE WHEN a.cutoff IS NOT NULL THEN least(greatest(a.cutoff, '0001-01-02Z'), '9999-12-30Z') END AS cutoff,
    a.planned AS planned,
    a.selected AS selected,
    a.done AS done,
    a.skipped AS skipped,
    a.failed AS failed,
    a.outcome AS outcome,
    a.detail AS detail
FROM dbq.action AS a
WHERE (CAST(:schema AS text) IS NULL OR a.schema_name = :schema)
AND (CAST(:queue AS text) IS NULL OR a.queue_name = :queue)
AND (CAST(:verb AS text) IS NULL OR a.verb = :verb)
AND (CAST(:operator AS text) IS NULL OR strpos(a.operator, :operator) > 0 OR a.database_user = :operator)
AND (CAST(:by_agent AS boolean) IS NULL OR starts_with(a.operator, 'unattended ') = :by_agent)
AND (CAST(:since AS double precision) IS NULL OR a.started_at >= statement_timestamp() - make_interval(secs => CAST(:since AS double precision)))
AND (CAST(:running AS boolean) IS NOT TRUE OR a.ended_at IS NULL)
ORDER BY a.action_id DESC
LIMIT CAST(:n AS bigint);

-- name: queues
-- all queues that the database holds, by schema and name; to a superuser, also what of others reading it would run: asked
-- without `others`, whether there is anything to look for
-- A view that has taken a table's place runs what its owner wrote with the rights of whoever reads it.
WITH code AS MATERIALIZED {code_of_others} -- when others=yes

SELECT
    q.schema_name AS schema,
    q.queue_name AS name,
    q.design AS design,
    q.kind AS kind,
    q.options AS options,
    q.roles AS roles,
    q.version AS version,
    q.installed_by AS installed_by,
    q.installed_from AS installed_from,
    least(greatest(q.installed_at, '0001-01-02Z'), '9999-12-30Z') AS installed_at,
    -- when others=yes
    (
        SELECT min(o.runs)
        FROM code AS o
        INNER JOIN pg_class AS c ON o.oid = c.oid
        INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
        WHERE n.nspname = q.schema_name
        -- A superuser's own view was one when it was adopted, or took a table's place.
        AND NOT (o.own AND coalesce(q.options ->> 'view', '') = 'yes')
        AND c.relname = ANY(
            CASE q.kind WHEN 'adopted' THEN ARRAY[coalesce(q.options ->> 'table', q.queue_name), q.options ->> 'beside'] ELSE ARRAY(
                SELECT q.queue_name || s.suffix FROM unnest(CAST(
                    '{"",_meta,_data,_archive,_in_hand,_waiting,_parked,_config,_subscribers,_popped,_swept}' AS text[]
                )) AS s (suffix)
                UNION ALL
                SELECT q.queue_name || '_content_' || CAST(g.number AS text) FROM generate_series(0, 63) AS g (number)
                WHERE q.options ->> 'content' = 'apart'
            ) END
        )
    ) AS runs
    -- else
    CASE WHEN {has_code_of_others} THEN 'code of others' END AS runs
    -- end
FROM dbq.queue AS q
ORDER BY q.schema_name, q.queue_name;

-- name: decisions
-- operators' decisions on queues and findings that are in force: pause, protection, silence, acknowledge
SELECT
    'pause' AS kind,
    '' AS code,
    p.schema_name AS schema,
    p.queue_name AS queue,
    p.operator AS operator,
    p.database_user AS database_user,
    p.reason AS reason,
    least(greatest(p.paused_at, '0001-01-02Z'), '9999-12-30Z') AS since,
    CASE WHEN p.until IS NOT NULL THEN least(greatest(p.until, '0001-01-02Z'), '9999-12-30Z') END AS until,
    p.push AS push,
    '' AS severity
FROM dbq.pause AS p
UNION ALL
SELECT
    'protection' AS kind,
    '' AS code,
    p.schema_name AS schema,
    p.queue_name AS queue,
    p.operator AS operator,
    p.database_user AS database_user,
    p.reason AS reason,
    least(greatest(p.protected_at, '0001-01-02Z'), '9999-12-30Z') AS since,
    NULL AS until,
    false AS push,
    '' AS severity
FROM dbq.protection AS p
UNION ALL
SELECT
    s.kind AS kind,
    s.code AS code,
    s.schema_name AS schema,
    s.queue_name AS queue,
    s.operator AS operator,
    s.database_user AS database_user,
    s.reason AS reason,
    least(greatest(s.silenced_at, '0001-01-02Z'), '9999-12-30Z') AS since,
    CASE WHEN s.until IS NOT NULL THEN least(greatest(s.until, '0001-01-02Z'), '9999-12-30Z') END AS until,
    false AS push,
    s.severity AS severity
FROM dbq.silence AS s
WHERE s.ended_at IS NULL AND (s.until IS NULL OR s.until > statement_timestamp());

-- name: protect
-- one row: since when the queue is protected, which it was not before
INSERT INTO dbq.protection (schema_name, queue_name, operator, reason)
VALUES (CAST(:schema AS text), CAST(:queue AS text), CAST(:operator AS text), CAST(:reason AS text))
ON CONFLICT DO NOTHING
RETURNING protected_at AS since;

-- name: unprotect
-- one row: since when the queue had been protected, which ends now
DELETE FROM dbq.protection AS p
WHERE p.schema_name = CAST(:schema AS text) AND p.queue_name = CAST(:queue AS text)
RETURNING p.protected_at AS since;

-- name: note
-- one row: the time of the note, on a queue or (empty names) on the whole database
INSERT INTO dbq.note (schema_name, queue_name, operator, note)
VALUES (CAST(:schema AS text), CAST(:queue AS text), CAST(:operator AS text), CAST(:note AS text))
RETURNING noted_at AS noted_at;

-- name: notes
-- the notes on a queue or on the whole database, newest first, at most :n
SELECT
    n.schema_name AS schema,
    n.queue_name AS queue,
    least(greatest(n.noted_at, '0001-01-02Z'), '9999-12-30Z') AS noted_at,
    n.operator AS operator,
    n.note AS note
FROM dbq.note AS n
WHERE n.queue_name = '' OR (n.schema_name = CAST(:schema AS text) AND n.queue_name = CAST(:queue AS text))
ORDER BY n.note_id DESC
LIMIT CAST(:n AS bigint);

-- name: silence_begin
-- one row: since when a finding is silenced or acknowledged
INSERT INTO dbq.silence (kind, code, schema_name, queue_name, severity, operator, reason, until)
VALUES (
    CAST(:kind AS text), CAST(:code AS text), CAST(:schema AS text), CAST(:queue AS text), CAST(:severity AS text),
    CAST(:operator AS text), CAST(:reason AS text),
    clock_timestamp() + make_interval(secs => CAST(:seconds AS double precision))
)
RETURNING silenced_at AS since;

-- name: silence_end
-- since when the findings had been silenced or acknowledged whose silence ends now; any code, any queue where none is given
UPDATE dbq.silence AS s
SET ended_at = clock_timestamp(), ended_by = CAST(:by AS text)
WHERE s.ended_at IS NULL AND (s.until IS NULL OR s.until > statement_timestamp())
AND s.code = CAST(:code AS text)
AND (CAST(:kind AS text) IS NULL OR s.kind = :kind)
AND (CAST(:queue AS text) IS NULL OR (s.schema_name = CAST(:schema AS text) AND s.queue_name = :queue))
RETURNING s.silenced_at AS since;

-- name: settings
-- the settings kept in this database
SELECT
    s.name AS name,
    s.value AS value
FROM dbq.setting AS s;

-- name: whole
-- one row: as one text, all that the steps before it return, so that an unchanged text is an unchanged catalog; whether an action is running
-- No text where tables may run others' code: then each is examined each time.
SELECT
    CASE WHEN NOT EXISTS (SELECT FROM queues AS c WHERE c.runs IS NOT NULL) THEN CAST((
        (SELECT string_agg(CAST(q AS text), '') FROM queues AS q),
        (SELECT string_agg(CAST(s AS text), '') FROM settings AS s),
        (SELECT string_agg(CAST(d AS text), '') FROM decisions AS d) -- when decisions=yes
        NULL -- when not decisions=yes
    ) AS text) END AS text,
    EXISTS(SELECT FROM running) AS acting -- when running=yes
    false AS acting -- when not running=yes
;

-- name: record
-- script: adds a queue to the catalog, in the transaction that installs or adopts it
INSERT INTO dbq.queue (schema_name, queue_name, design, kind, options, roles, version, installed_from)
VALUES (
    '{schema}', '{queue}', '{design}', '{kind}', '{options_json}', '{roles_json}',
    CAST('{version}' AS integer), '{installed_from}'
);

-- name: erase
-- script: removes a queue from the catalog
DELETE FROM dbq.queue WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: keep_archive
-- script: marks a queue of which only the archive is left
UPDATE dbq.queue SET kind = 'archive' WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: renew
-- script: records that the queue has this console's version
UPDATE dbq.queue SET version = CAST('{version}' AS integer) WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: set_options
-- script: records the queue's changed options
UPDATE dbq.queue SET options = '{options_json}' WHERE schema_name = '{schema}' AND queue_name = '{queue}';

-- name: schema_exists
-- one row: whether the schema exists (compared as text: a longer name is not truncated)
SELECT EXISTS(SELECT FROM pg_namespace AS n WHERE n.nspname = CAST(:schema AS text)) AS present;

-- name: relations
-- those of the given names that are already used in the schema, with their kinds
SELECT
    taken.name AS name,
    taken.kind AS kind
FROM (
    SELECT
        c.relname AS name,
        CASE c.relkind WHEN 'S' THEN 'a sequence' WHEN 'v' THEN 'a view' WHEN 'i' THEN 'an index' ELSE 'a table' END AS kind
    FROM pg_class AS c
    INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
    WHERE n.nspname = CAST(:schema AS text) AND c.relname = ANY(CAST(:names AS text[]))
    UNION
    SELECT
        p.proname AS name,
        'a function' AS kind
    FROM pg_proc AS p
    INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
    WHERE n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[]))
) AS taken
ORDER BY taken.name, taken.kind;

-- name: columns
-- the columns of tables and views of a schema, by these, with their types, for a domain the type below it, whether they are
-- computed or NOT NULL, and their default, empty without one; none of those that do not exist
SELECT
    a.attname AS name,
    format_type(a.atttypid, a.atttypmod) AS type,
    CASE WHEN own.typtype <> 'd' THEN format_type(own.oid, NULL) ELSE (
        WITH RECURSIVE based AS (
            SELECT own.typbasetype AS oid
            UNION ALL
            SELECT t.typbasetype FROM based AS b
            INNER JOIN pg_type AS t ON b.oid = t.oid AND t.typtype = 'd'
        )

        SELECT format_type(t.oid, NULL)
        FROM based AS b
        INNER JOIN pg_type AS t ON b.oid = t.oid AND t.typtype <> 'd'
    ) END AS base_type,
    a.attgenerated <> '' AS computed,
    a.attnotnull AS required,
    CASE WHEN a.attgenerated = '' THEN coalesce(pg_get_expr(d.adbin, d.adrelid), '') ELSE '' END AS default_text,
    c.relname AS table_name
FROM pg_attribute AS a
INNER JOIN pg_type AS own ON a.atttypid = own.oid
INNER JOIN pg_class AS c ON a.attrelid = c.oid
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
LEFT JOIN pg_attrdef AS d ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE n.nspname = CAST(:schema AS text) AND c.relname = ANY(CAST(:tables AS text[]))
AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.oid, a.attnum;

-- name: key_type
-- one row: the type of a column, for a domain that below it, and the schema of the operators by which it is sorted; null: it has none, or is an array, of which there are no lists
WITH RECURSIVE based AS (
    SELECT a.atttypid AS oid
    FROM pg_attribute AS a
    WHERE a.attrelid = CAST('"{schema}"."{table}"' AS regclass) AND a.attname = CAST(:column AS text)
    UNION ALL
    SELECT t.typbasetype FROM based AS b
    INNER JOIN pg_type AS t ON b.oid = t.oid AND t.typtype = 'd'
)

SELECT
    CAST(n.nspname AS text) AS schema,
    CAST(t.typname AS text) AS name,
    CASE
        -- Their operators are those of text and of any enum and range.
        WHEN t.oid = CAST('varchar' AS regtype) OR t.typtype IN ('e', 'r', 'm') THEN 'pg_catalog'
        ELSE (
            SELECT CAST(max(s.nspname) AS text)
            FROM pg_opclass AS c
            INNER JOIN pg_am AS m ON c.opcmethod = m.oid AND m.amname = 'btree'
            INNER JOIN pg_amop AS o ON c.opcfamily = o.amopfamily AND o.amoplefttype = t.oid AND o.amoprighttype = t.oid
            INNER JOIN pg_operator AS p ON o.amopopr = p.oid
            INNER JOIN pg_namespace AS s ON p.oprnamespace = s.oid
            WHERE c.opcintype = t.oid AND c.opcdefault
            AND CAST(p.oprname AS text) = CASE o.amopstrategy WHEN 1 THEN '<' WHEN 3 THEN '=' WHEN 5 THEN '>' END
            HAVING count(*) = 3 AND max(s.nspname) = min(s.nspname)
        )
    END AS operators
FROM based AS b
INNER JOIN pg_type AS t ON b.oid = t.oid AND t.typtype <> 'd'
INNER JOIN pg_namespace AS n ON t.typnamespace = n.oid;

-- name: tables
-- the tables that this login may read, by schema and name, at most :n; rows as the statistics have them, null: not known
SELECT
    n.nspname AS schema,
    c.relname AS name,
    CAST(CASE WHEN c.reltuples >= 0 THEN c.reltuples END AS bigint) AS rows_estimated
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'dbq') AND NOT starts_with(n.nspname, 'pg_')
AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
ORDER BY n.nspname, c.relname
LIMIT CAST(:n AS bigint);
