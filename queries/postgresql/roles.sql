-- Who may do what: three roles for people, enforced by the server itself. Logins become members:
--
--   GRANT dbq_reader TO "the login";      reads everything and changes nothing
--   GRANT dbq_operator TO "the login";    also pushes, pops, finishes, repairs and ends sessions
--   GRANT dbq_admin TO "the login";       also installs; what it installs belongs to that login
--
-- A queue's functions run with their caller's rights, so the rights on its tables decide. To read a
-- queue SELECT is enough: no function, no write, no sequence to draw from.
-- Roles belong to the cluster, their rights to each database: run it in every one that has queues.

-- define: rights
-- the roles' rights on the catalog
GRANT SELECT ON ALL TABLES IN SCHEMA dbq TO dbq_reader;
GRANT SELECT ON ALL SEQUENCES IN SCHEMA dbq TO dbq_reader;
REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dbq FROM dbq_operator, dbq_admin;
GRANT INSERT, UPDATE, DELETE ON dbq.setting TO dbq_admin;
GRANT INSERT (schema_name, queue_name, design, kind, options, roles, version, installed_from),
UPDATE (schema_name, queue_name, design, kind, options, roles, version), DELETE ON dbq.queue TO dbq_admin;
GRANT INSERT (schema_name, queue_name, operator, reason, until, push, functions), UPDATE (functions), DELETE ON dbq.pause TO dbq_admin;
-- Whoever acts writes the audit, not its times and logins; only its owner can delete from it.
GRANT INSERT (schema_name, queue_name, verb, operator, session, connection, filters, cutoff, planned, detail),
UPDATE (last_at, ended_at, selected, done, skipped, failed, outcome, detail) ON dbq.action TO dbq_operator;
GRANT INSERT (kind, code, schema_name, queue_name, severity, operator, reason, until),
UPDATE (ended_at, ended_by) ON dbq.silence TO dbq_operator;
GRANT INSERT (schema_name, queue_name, operator, note) ON dbq.note TO dbq_operator;
GRANT INSERT (schema_name, queue_name, operator, reason), DELETE ON dbq.protection TO dbq_operator;
GRANT INSERT, UPDATE ON dbq.lease TO dbq_operator;
GRANT INSERT, UPDATE, DELETE ON dbq.notification TO dbq_operator;
GRANT INSERT, UPDATE ON dbq.lake_plan TO dbq_operator;
GRANT INSERT, DELETE ON dbq.lake_row TO dbq_operator;

-- name: roles
-- script: creates the three roles where they are missing, and lets them read this database's catalog
DO $dbq$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_reader') THEN
        CREATE ROLE dbq_reader NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_operator') THEN
        CREATE ROLE dbq_operator NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_admin') THEN
        CREATE ROLE dbq_admin NOLOGIN;
    END IF;
    -- The name of a database is no literal, so this one has to be put together.
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO dbq_reader', current_database());
    EXECUTE format('GRANT CREATE ON DATABASE %I TO dbq_admin', current_database());
END
$dbq$;

GRANT dbq_reader TO dbq_operator;
GRANT dbq_operator TO dbq_admin;
-- What other sessions do and wait for; without it most of that is unknown.
GRANT pg_read_all_stats TO dbq_reader;
GRANT pg_signal_backend TO dbq_operator;

GRANT CREATE ON SCHEMA "{schema}" TO dbq_admin;
GRANT USAGE ON SCHEMA dbq TO dbq_reader;
{rights}

-- name: catalog
-- script: the roles' rights on a catalog that has grown, if they exist in this database
DO $dbq$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_reader')
        OR NOT has_schema_privilege('dbq_reader', 'dbq', 'USAGE') THEN
        RETURN;
    END IF;
    {rights}
END
$dbq$;

-- name: others
-- the objects with the names of a queue's that this login does not own, and whose they are
SELECT
    CAST(o.name AS text) AS name,
    CAST(pg_get_userbyid(o.owner) AS text) AS owner
FROM (SELECT '{schema}' AS schema_name, '{queue}' AS queue_name) AS q
CROSS JOIN LATERAL {objects_of} AS o
WHERE pg_get_userbyid(o.owner) <> current_user
ORDER BY o.name;

-- name: owner
-- an adopted table, and whose it is
SELECT
    CAST(c.relname AS text) AS name,
    CAST(pg_get_userbyid(c.relowner) AS text) AS owner
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
WHERE n.nspname = '{schema}' AND c.relname = '{table}';

-- name: adopted
-- script: the roles' rights on an adopted table, for its owner
GRANT USAGE ON SCHEMA "{schema}" TO dbq_reader;
GRANT SELECT ON "{schema}"."{table}" TO dbq_reader;
GRANT UPDATE, DELETE ON "{schema}"."{table}" TO dbq_operator;

-- name: queue
-- script: the roles' rights on one queue, if they exist in this database
DO $dbq$
DECLARE
    kept text;
    ids regclass;
    tables text[] := ARRAY['"{schema}"."{table}"', '"{schema}"."{queue}_archive"'];
    owners text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_reader')
        OR NOT has_schema_privilege('dbq_reader', 'dbq', 'USAGE') THEN
        RETURN;
    END IF;
    -- Who wrote the queue's row into the catalog may have named what belongs to somebody else.
    SELECT string_agg(DISTINCT pg_get_userbyid(o.owner), ', ') INTO owners
    FROM (SELECT '{schema}' AS schema_name, '{queue}' AS queue_name) AS q
    CROSS JOIN LATERAL {objects_of} AS o
    HAVING count(DISTINCT o.owner) > 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the objects of the queue %.% belong to several logins: %', '{schema}', '{queue}', owners
            USING ERRCODE = 'DBQ04', HINT = 'Nothing is granted on them. Give them one owner (ALTER TABLE, ALTER FUNCTION ... OWNER TO).';
    END IF;
    GRANT USAGE ON SCHEMA "{schema}" TO dbq_reader;

    GRANT SELECT ON "{schema}"."{table}", "{schema}"."{queue}_archive" TO dbq_reader;
    GRANT INSERT, UPDATE, DELETE ON "{schema}"."{table}", "{schema}"."{queue}_archive" TO dbq_operator;
    {grants} -- when defined grants
    -- The doctor compares the ids with the sequences from which they are drawn.
    FOR ids IN
        SELECT d.objid FROM pg_depend AS d
        WHERE d.classid = CAST('pg_class' AS regclass) AND d.refclassid = d.classid AND d.refobjsubid > 0 AND d.deptype = 'i'
        AND d.refobjid = ANY(CAST(tables AS regclass[]))
    LOOP
        EXECUTE format('GRANT SELECT ON SEQUENCE %s TO dbq_reader', ids);
    END LOOP;
    -- when notify=on
    GRANT SELECT ON "{schema}"."{queue}_waiting" TO dbq_reader;
    GRANT INSERT, UPDATE, DELETE ON "{schema}"."{queue}_waiting" TO dbq_operator;
    tables := array_append(tables, '"{schema}"."{queue}_waiting"');
    REVOKE EXECUTE ON FUNCTION "{schema}"."{queue}_wait", "{schema}"."{queue}_wait_end" FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION "{schema}"."{queue}_wait", "{schema}"."{queue}_wait_end" TO dbq_operator;
    -- end

    REVOKE EXECUTE ON FUNCTION
        "{schema}"."{queue}_push", "{schema}"."{queue}_push_many", "{schema}"."{queue}_pop", "{schema}"."{queue}_pop_many"
        FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION
        "{schema}"."{queue}_push", "{schema}"."{queue}_push_many", "{schema}"."{queue}_pop", "{schema}"."{queue}_pop_many"
        TO dbq_operator;
    -- when finishes=yes
    REVOKE EXECUTE ON FUNCTION "{schema}"."{queue}_complete", "{schema}"."{queue}_fail" FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION "{schema}"."{queue}_complete", "{schema}"."{queue}_fail" TO dbq_operator;
    -- end

    -- Vacuum, analyze and reindex are the owner's; from PostgreSQL 17 on they can be granted.
    IF CAST(current_setting('server_version_num') AS integer) >= 170000 THEN
        FOREACH kept IN ARRAY tables LOOP
            EXECUTE format('GRANT MAINTAIN ON %s TO dbq_operator', CAST(kept AS regclass));
        END LOOP;
    END IF;
END
$dbq$;
