SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA dbq;
COMMENT ON SCHEMA dbq IS 'catalog 1 of dbq-console';
CREATE FUNCTION dbq.check_action() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;
CREATE FUNCTION dbq.check_queue() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
        SELECT o.name, o.owner INTO other FROM (
            SELECT
                c.relowner AS owner,
                c.relname AS name
            FROM pg_class AS c
            INNER JOIN pg_namespace AS n ON c.relnamespace = n.oid
            WHERE n.nspname = q.schema_name AND starts_with(c.relname, q.queue_name) AND c.relkind IN ('r', 'p', 'S', 'v', 'm', 'f')
            AND substr(c.relname, length(q.queue_name) + 1) ~ '^(|_(archive|waiting|meta|data|config|parked|in_hand|popped|subscribers|swept|content_[0-9]+|((push|pop|turn)_)?seq(_[0-9]+)?'
            '|(push|pop)(_many)?|complete|fail|wait(_end)?|sweep|relay))$'
            UNION ALL
            SELECT
                p.proowner,
                p.proname
            FROM pg_proc AS p
            INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
            WHERE n.nspname = q.schema_name AND starts_with(p.proname, q.queue_name)
            AND substr(p.proname, length(q.queue_name) + 1) ~ '^(|_(archive|waiting|meta|data|config|parked|in_hand|popped|subscribers|swept|content_[0-9]+|((push|pop|turn)_)?seq(_[0-9]+)?'
            '|(push|pop)(_many)?|complete|fail|wait(_end)?|sweep|relay))$'
        ) AS o WHERE NOT pg_has_role(session_user, o.owner, 'MEMBER') LIMIT 1;
        IF NOT FOUND THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '%.% belongs to %', q.schema_name, other.name, pg_get_userbyid(other.owner)
        USING ERRCODE = 'DBQ04', HINT = 'Let its owner do it, or choose another name.';
END
$_$;
CREATE FUNCTION public.held_pop() RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    RETURN;
END
$$;
CREATE FUNCTION public.held_pop_many(n integer) RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    RETURN;
END
$$;
CREATE FUNCTION public.held_push(payload text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    pushed bigint;
BEGIN
    INSERT INTO "public"."held" (payload) VALUES (payload) RETURNING id INTO pushed;
    RETURN pushed;
END
$$;
CREATE FUNCTION public.held_push_many(payloads text[]) RETURNS SETOF bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN QUERY INSERT INTO "public"."held" (payload)
        SELECT p.payload FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position
        RETURNING id;
END
$$;
CREATE FUNCTION public.mail_pop() RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    RETURN QUERY WITH popped AS (
        DELETE FROM "public"."mail" AS m
        WHERE m.id = (
            SELECT head.id FROM "public"."mail" AS head
            ORDER BY head.id LIMIT 1 FOR UPDATE SKIP LOCKED
        )
        RETURNING m.id, m.payload, m.pushed_at
    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p;
END
$$;
CREATE FUNCTION public.mail_pop_many(n integer) RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    RETURN QUERY WITH popped AS (
        DELETE FROM "public"."mail" AS m
        -- An array, so that the choice is made once: a join may run it again and take more than n.
        WHERE m.id = ANY(ARRAY(
            SELECT head.id FROM "public"."mail" AS head
            ORDER BY head.id LIMIT greatest(n, 0) FOR UPDATE SKIP LOCKED
        ))
        RETURNING m.id, m.payload, m.pushed_at
    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p ORDER BY p.id;
END
$$;
CREATE FUNCTION public.mail_push(payload text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    pushed bigint;
BEGIN
    INSERT INTO "public"."mail" (payload) VALUES (payload) RETURNING id INTO pushed;
    RETURN pushed;
END
$$;
CREATE FUNCTION public.mail_push_many(payloads text[]) RETURNS SETOF bigint
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN QUERY INSERT INTO "public"."mail" (payload)
        SELECT p.payload FROM unnest(payloads) WITH ORDINALITY AS p (payload, position) ORDER BY p.position
        RETURNING id;
END
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE dbq.action (
    action_id bigint NOT NULL,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    verb text NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    ended_at timestamp with time zone,
    operator text NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    session text NOT NULL,
    connection text NOT NULL,
    filters text DEFAULT ''::text NOT NULL,
    cutoff timestamp with time zone,
    planned bigint DEFAULT 0 NOT NULL,
    selected bigint DEFAULT 0 NOT NULL,
    done bigint DEFAULT 0 NOT NULL,
    skipped bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    outcome text DEFAULT 'running'::text NOT NULL,
    detail text DEFAULT ''::text NOT NULL
);
COMMENT ON TABLE dbq.action IS 'what operators did by the console: counted in the transactions that did it; never a payload';
COMMENT ON COLUMN dbq.action.session IS 'who acts, as claimed_by has it: an action that is running ends with its session';
ALTER TABLE dbq.action ALTER COLUMN action_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dbq.action_action_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dbq.catalog_id (
    id uuid DEFAULT gen_random_uuid() NOT NULL
);
COMMENT ON TABLE dbq.catalog_id IS 'one row, made with the catalog: by it a database differs from another at the same address';
CREATE TABLE dbq.lake_plan (
    plan_id bigint NOT NULL,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    serial bigint DEFAULT 0 NOT NULL,
    committed bigint DEFAULT 0 NOT NULL,
    state text DEFAULT 'none'::text NOT NULL,
    run text DEFAULT ''::text NOT NULL,
    lake text DEFAULT ''::text NOT NULL,
    table_id text DEFAULT ''::text NOT NULL,
    database text DEFAULT ''::text NOT NULL,
    connection text DEFAULT ''::text NOT NULL,
    made_at timestamp with time zone,
    action_id bigint,
    CONSTRAINT lake_plan_state_check CHECK ((state = ANY (ARRAY['none'::text, 'reserved'::text, 'committed'::text])))
);
COMMENT ON TABLE dbq.lake_plan IS 'how far the archive of a queue is on its way into a lake; whoever reserves its rows or restores them locks its row first';
COMMENT ON COLUMN dbq.lake_plan.serial IS 'of the queue''s last plan: the version of its application transaction in the table';
COMMENT ON COLUMN dbq.lake_plan.committed IS 'the last one that the table got';
COMMENT ON COLUMN dbq.lake_plan.state IS 'reserved: the rows in dbq.lake_row go into the lake; committed: they are there, and are still to be deleted here';
COMMENT ON COLUMN dbq.lake_plan.run IS 'the process in charge';
ALTER TABLE dbq.lake_plan ALTER COLUMN plan_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dbq.lake_plan_plan_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dbq.lake_row (
    plan_id bigint NOT NULL,
    archive_id bigint NOT NULL,
    archived_at timestamp with time zone NOT NULL
);
COMMENT ON TABLE dbq.lake_row IS 'the rows of an archive that a plan has reserved: restore leaves them alone';
CREATE TABLE dbq.lease (
    name text NOT NULL,
    holder text NOT NULL,
    until timestamp with time zone NOT NULL
);
COMMENT ON TABLE dbq.lease IS 'which of several recorders sends the notifications, which run of the pipeline works';
CREATE TABLE dbq.note (
    note_id bigint NOT NULL,
    schema_name text DEFAULT ''::text NOT NULL,
    queue_name text DEFAULT ''::text NOT NULL,
    noted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    operator text NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    note text NOT NULL
);
COMMENT ON TABLE dbq.note IS 'what happened outside (a release, a fail-over), as a mark on charts';
ALTER TABLE dbq.note ALTER COLUMN note_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dbq.note_note_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dbq.notification (
    notification_id bigint NOT NULL,
    event_key text NOT NULL,
    target text NOT NULL,
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    code text NOT NULL,
    which text DEFAULT ''::text NOT NULL,
    severity text NOT NULL,
    summary text NOT NULL,
    begun_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    tries integer DEFAULT 0 NOT NULL,
    sent_at timestamp with time zone,
    end_sent_at timestamp with time zone
);
COMMENT ON TABLE dbq.notification IS 'findings that a receiver is told of, when they begin and when they end; never a payload';
COMMENT ON COLUMN dbq.notification.event_key IS 'by which the receiver drops doubles';
COMMENT ON COLUMN dbq.notification.target IS 'the receiver, as the configuration of the recorders names it';
ALTER TABLE dbq.notification ALTER COLUMN notification_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dbq.notification_notification_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE dbq.pause (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    paused_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    operator text NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    until timestamp with time zone,
    push boolean DEFAULT false NOT NULL,
    functions jsonb NOT NULL
);
COMMENT ON COLUMN dbq.pause.until IS 'when it was meant to end: a pause that lasts longer is a finding, and goes on';
COMMENT ON COLUMN dbq.pause.functions IS 'what resume puts back: the definition of each function that was exchanged, by name';
CREATE TABLE dbq.protection (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    protected_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    operator text NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    reason text DEFAULT ''::text NOT NULL
);
CREATE TABLE dbq.queue (
    schema_name text NOT NULL,
    queue_name text NOT NULL,
    design text NOT NULL,
    kind text NOT NULL,
    options jsonb NOT NULL,
    roles jsonb NOT NULL,
    version integer NOT NULL,
    installed_by text DEFAULT SESSION_USER NOT NULL,
    installed_from text DEFAULT ''::text NOT NULL,
    installed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queue_kind_check CHECK ((kind = ANY (ARRAY['installed'::text, 'adopted'::text, 'archive'::text])))
);
COMMENT ON COLUMN dbq.queue.kind IS 'installed by the console; adopted: somebody else''s table; archive: only the archive of an uninstalled queue is left';
CREATE TABLE dbq.setting (
    name text NOT NULL,
    value text NOT NULL
);
COMMENT ON TABLE dbq.setting IS 'production = on: every console honours it on every connection';
CREATE TABLE dbq.silence (
    silence_id bigint NOT NULL,
    kind text NOT NULL,
    code text NOT NULL,
    schema_name text DEFAULT ''::text NOT NULL,
    queue_name text DEFAULT ''::text NOT NULL,
    severity text DEFAULT ''::text NOT NULL,
    silenced_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    operator text NOT NULL,
    database_user text DEFAULT SESSION_USER NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    until timestamp with time zone,
    ended_at timestamp with time zone,
    ended_by text DEFAULT ''::text NOT NULL,
    CONSTRAINT silence_kind_check CHECK ((kind = ANY (ARRAY['silence'::text, 'acknowledge'::text])))
);
COMMENT ON TABLE dbq.silence IS 'findings that nobody is to be told of: one that ends is kept, with who ended it';
COMMENT ON COLUMN dbq.silence.queue_name IS 'empty: of every queue';
COMMENT ON COLUMN dbq.silence.severity IS 'of an acknowledged finding: it ends when that worsens';
ALTER TABLE dbq.silence ALTER COLUMN silence_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME dbq.silence_silence_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.held (
    id bigint NOT NULL,
    payload text NOT NULL,
    pushed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000');
CREATE TABLE public.held_archive (
    archive_id bigint NOT NULL,
    id bigint NOT NULL,
    payload text NOT NULL,
    pushed_at timestamp with time zone,
    claimed_at timestamp with time zone,
    claimed_by text,
    done_at timestamp with time zone,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    reason text NOT NULL,
    action_id bigint,
    archived_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE public.held_archive ALTER COLUMN archive_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.held_archive_archive_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE public.held ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.held_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.mail (
    id bigint NOT NULL,
    payload text NOT NULL,
    pushed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='10000');
CREATE TABLE public.mail_archive (
    archive_id bigint NOT NULL,
    id bigint NOT NULL,
    payload text NOT NULL,
    pushed_at timestamp with time zone,
    claimed_at timestamp with time zone,
    claimed_by text,
    done_at timestamp with time zone,
    state text NOT NULL,
    attempts integer NOT NULL,
    error text,
    reason text NOT NULL,
    action_id bigint,
    archived_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE public.mail_archive ALTER COLUMN archive_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.mail_archive_archive_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE public.mail ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.mail_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (1, 'public', 'mail', 'install', '2026-11-28 14:50:00.441381+00', '2026-11-28 14:50:00.535687+00', '2026-11-28 14:50:00.535687+00', 'root@vm', 'postgres', 'pid=16633 start=2026-11-28T14:50:00.108926Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', 'design fifo');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (2, 'public', 'held', 'install', '2026-11-28 14:50:00.628864+00', '2026-11-28 14:50:00.792928+00', '2026-11-28 14:50:00.792928+00', 'root@vm', 'postgres', 'pid=16641 start=2026-11-28T14:50:00.557747Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', 'design fifo');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (3, 'public', 'mail', 'purge', '2026-11-28 14:50:01.981158+00', '2026-11-28 14:50:02.037686+00', '2026-11-28 14:50:02.037686+00', 'root@vm', 'postgres', 'pid=16672 start=2026-11-28T14:50:01.722676Z', '127.0.0.1:29009/old', 'id=1', '2026-11-28 14:50:01.84986+00', 1, 1, 1, 0, 0, 'done', '');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (4, 'public', 'held', 'pause', '2026-11-28 14:50:02.23931+00', '2026-11-28 14:50:02.300794+00', '2026-11-28 14:50:02.300794+00', 'root@vm', 'postgres', 'pid=16680 start=2026-11-28T14:50:02.110378Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', 'release');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (5, 'public', 'mail', 'protect', '2026-11-28 14:50:02.405054+00', '2026-11-28 14:50:02.431736+00', '2026-11-28 14:50:02.431736+00', 'root@vm', 'postgres', 'pid=16686 start=2026-11-28T14:50:02.318311Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', '');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (6, 'public', 'mail', 'silence', '2026-11-28 14:50:03.237457+00', '2026-11-28 14:50:03.261442+00', '2026-11-28 14:50:03.261442+00', 'root@vm', 'postgres', 'pid=16705 start=2026-11-28T14:50:03.189988Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', 'bloat x');
INSERT INTO dbq.action OVERRIDING SYSTEM VALUE VALUES (7, 'public', 'mail', 'note', '2026-11-28 14:50:03.421344+00', '2026-11-28 14:50:03.458331+00', '2026-11-28 14:50:03.458331+00', 'root@vm', 'postgres', 'pid=16707 start=2026-11-28T14:50:03.298497Z', '127.0.0.1:29009/old', '', NULL, 0, 0, 0, 0, 0, 'done', 'deployed 1.4');
INSERT INTO dbq.catalog_id VALUES ('7f76003d-af57-46f0-a125-77fe1c89ecf0');
INSERT INTO dbq.note OVERRIDING SYSTEM VALUE VALUES (1, 'public', 'mail', '2026-11-28 14:50:03.454268+00', 'root@vm', 'postgres', 'deployed 1.4');
INSERT INTO dbq.pause VALUES ('public', 'held', '2026-11-28 14:50:02.299447+00', 'root@vm', 'postgres', 'release', NULL, false, '[{"id": "public.held_pop()", "body": "\nBEGIN\n    RETURN QUERY WITH popped AS (\n        DELETE FROM \"public\".\"held\" AS m\n        WHERE m.id = (\n            SELECT head.id FROM \"public\".\"held\" AS head\n            ORDER BY head.id LIMIT 1 FOR UPDATE SKIP LOCKED\n        )\n        RETURNING m.id, m.payload, m.pushed_at\n    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p;\nEND\n", "name": "held_pop", "push": false, "intact": true, "settings": "search_path=pg_catalog, pg_temp\nenable_seqscan=off\nenable_bitmapscan=off\njit=off", "signature": "() RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)", "definition": "CREATE OR REPLACE FUNCTION public.held_pop()\n RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)\n LANGUAGE plpgsql\n SET search_path TO ''pg_catalog'', ''pg_temp''\n SET enable_seqscan TO ''off''\n SET enable_bitmapscan TO ''off''\n SET jit TO ''off''\nAS $function$\nBEGIN\n    RETURN QUERY WITH popped AS (\n        DELETE FROM \"public\".\"held\" AS m\n        WHERE m.id = (\n            SELECT head.id FROM \"public\".\"held\" AS head\n            ORDER BY head.id LIMIT 1 FOR UPDATE SKIP LOCKED\n        )\n        RETURNING m.id, m.payload, m.pushed_at\n    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p;\nEND\n$function$\n"}, {"id": "public.held_pop_many(integer)", "body": "\nBEGIN\n    RETURN QUERY WITH popped AS (\n        DELETE FROM \"public\".\"held\" AS m\n        -- An array, so that the choice is made once: a join may run it again and take more than n.\n        WHERE m.id = ANY(ARRAY(\n            SELECT head.id FROM \"public\".\"held\" AS head\n            ORDER BY head.id LIMIT greatest(n, 0) FOR UPDATE SKIP LOCKED\n        ))\n        RETURNING m.id, m.payload, m.pushed_at\n    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p ORDER BY p.id;\nEND\n", "name": "held_pop_many", "push": false, "intact": true, "settings": "search_path=pg_catalog, pg_temp\nenable_seqscan=off\nenable_bitmapscan=off\njit=off", "signature": "(n integer) RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)", "definition": "CREATE OR REPLACE FUNCTION public.held_pop_many(n integer)\n RETURNS TABLE(id bigint, payload text, pushed_at timestamp with time zone, attempts integer)\n LANGUAGE plpgsql\n SET search_path TO ''pg_catalog'', ''pg_temp''\n SET enable_seqscan TO ''off''\n SET enable_bitmapscan TO ''off''\n SET jit TO ''off''\nAS $function$\nBEGIN\n    RETURN QUERY WITH popped AS (\n        DELETE FROM \"public\".\"held\" AS m\n        -- An array, so that the choice is made once: a join may run it again and take more than n.\n        WHERE m.id = ANY(ARRAY(\n            SELECT head.id FROM \"public\".\"held\" AS head\n            ORDER BY head.id LIMIT greatest(n, 0) FOR UPDATE SKIP LOCKED\n        ))\n        RETURNING m.id, m.payload, m.pushed_at\n    ) SELECT p.id, p.payload, p.pushed_at, 1 FROM popped AS p ORDER BY p.id;\nEND\n$function$\n"}]');
INSERT INTO dbq.protection VALUES ('public', 'mail', '2026-11-28 14:50:02.430297+00', 'root@vm', 'postgres', '');
INSERT INTO dbq.queue VALUES ('public', 'mail', 'fifo', 'installed', '{"order": "lax", "notify": "off", "payload": "text", "max_bytes": "unlimited", "archive_at_pop": "off"}', '{"id": "id", "payload": "payload", "pushed_at": "pushed_at"}', 1, 'postgres', 'root@vm', '2026-11-28 14:50:00.531913+00');
INSERT INTO dbq.queue VALUES ('public', 'held', 'fifo', 'installed', '{"order": "lax", "notify": "off", "payload": "text", "max_bytes": "unlimited", "archive_at_pop": "off"}', '{"id": "id", "payload": "payload", "pushed_at": "pushed_at"}', 1, 'postgres', 'root@vm', '2026-11-28 14:50:00.77926+00');
INSERT INTO dbq.silence OVERRIDING SYSTEM VALUE VALUES (1, 'silence', 'bloat', 'public', 'mail', '', '2026-11-28 14:50:03.258879+00', 'root@vm', 'postgres', 'x', '2026-11-28 18:50:03.25888+00', NULL, '');
INSERT INTO public.held VALUES (1, 'h0', '2026-11-28 14:50:01.09622+00');
INSERT INTO public.held VALUES (2, 'h1', '2026-11-28 14:50:01.429556+00');
INSERT INTO public.held VALUES (3, 'h2', '2026-11-28 14:50:01.642147+00');
INSERT INTO public.mail VALUES (2, 'm1', '2026-11-28 14:50:01.263221+00');
INSERT INTO public.mail VALUES (3, 'm2', '2026-11-28 14:50:01.542197+00');
INSERT INTO public.mail_archive OVERRIDING SYSTEM VALUE VALUES (1, 1, 'm0', '2026-11-28 14:50:00.896216+00', NULL, NULL, NULL, 'ready', 0, NULL, 'purge', 3, '2026-11-28 14:50:02.013673+00');
SELECT pg_catalog.setval('dbq.action_action_id_seq', 7, true);
SELECT pg_catalog.setval('dbq.lake_plan_plan_id_seq', 1, false);
SELECT pg_catalog.setval('dbq.note_note_id_seq', 1, true);
SELECT pg_catalog.setval('dbq.notification_notification_id_seq', 1, false);
SELECT pg_catalog.setval('dbq.silence_silence_id_seq', 1, true);
SELECT pg_catalog.setval('public.held_archive_archive_id_seq', 1, false);
SELECT pg_catalog.setval('public.held_id_seq', 3, true);
SELECT pg_catalog.setval('public.mail_archive_archive_id_seq', 1, true);
SELECT pg_catalog.setval('public.mail_id_seq', 3, true);
ALTER TABLE ONLY dbq.action
    ADD CONSTRAINT action_pkey PRIMARY KEY (action_id);
ALTER TABLE ONLY dbq.catalog_id
    ADD CONSTRAINT catalog_id_pkey PRIMARY KEY (id);
ALTER TABLE ONLY dbq.lake_plan
    ADD CONSTRAINT lake_plan_pkey PRIMARY KEY (schema_name, queue_name);
ALTER TABLE ONLY dbq.lake_plan
    ADD CONSTRAINT lake_plan_plan_id_key UNIQUE (plan_id);
ALTER TABLE ONLY dbq.lake_row
    ADD CONSTRAINT lake_row_pkey PRIMARY KEY (plan_id, archive_id);
ALTER TABLE ONLY dbq.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (name);
ALTER TABLE ONLY dbq.note
    ADD CONSTRAINT note_pkey PRIMARY KEY (note_id);
ALTER TABLE ONLY dbq.notification
    ADD CONSTRAINT notification_pkey PRIMARY KEY (notification_id);
ALTER TABLE ONLY dbq.pause
    ADD CONSTRAINT pause_pkey PRIMARY KEY (schema_name, queue_name);
ALTER TABLE ONLY dbq.protection
    ADD CONSTRAINT protection_pkey PRIMARY KEY (schema_name, queue_name);
ALTER TABLE ONLY dbq.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (schema_name, queue_name);
ALTER TABLE ONLY dbq.setting
    ADD CONSTRAINT setting_pkey PRIMARY KEY (name);
ALTER TABLE ONLY dbq.silence
    ADD CONSTRAINT silence_pkey PRIMARY KEY (silence_id);
ALTER TABLE ONLY public.held_archive
    ADD CONSTRAINT held_archive_pkey PRIMARY KEY (archive_id);
ALTER TABLE ONLY public.held
    ADD CONSTRAINT held_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.mail_archive
    ADD CONSTRAINT mail_archive_pkey PRIMARY KEY (archive_id);
ALTER TABLE ONLY public.mail
    ADD CONSTRAINT mail_pkey PRIMARY KEY (id);
CREATE INDEX action_queue ON dbq.action USING btree (queue_name, schema_name, action_id);
CREATE INDEX action_running ON dbq.action USING btree (last_at) WHERE (ended_at IS NULL);
CREATE UNIQUE INDEX notification_open ON dbq.notification USING btree (target, schema_name, queue_name, code, which) WHERE (ended_at IS NULL);
CREATE TRIGGER check_action BEFORE INSERT OR UPDATE ON dbq.action FOR EACH ROW EXECUTE FUNCTION dbq.check_action();
CREATE TRIGGER check_queue BEFORE INSERT OR UPDATE OF schema_name, queue_name, design, kind, options, roles ON dbq.queue FOR EACH ROW EXECUTE FUNCTION dbq.check_queue();
ALTER TABLE ONLY dbq.lake_plan
    ADD CONSTRAINT lake_plan_schema_name_queue_name_fkey FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue(schema_name, queue_name) ON DELETE CASCADE;
ALTER TABLE ONLY dbq.pause
    ADD CONSTRAINT pause_schema_name_queue_name_fkey FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue(schema_name, queue_name) ON DELETE CASCADE;
ALTER TABLE ONLY dbq.protection
    ADD CONSTRAINT protection_schema_name_queue_name_fkey FOREIGN KEY (schema_name, queue_name) REFERENCES dbq.queue(schema_name, queue_name) ON DELETE CASCADE;
