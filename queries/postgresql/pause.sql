-- Pausing a queue: its pop functions are replaced by ones that report it empty. Without a pause this costs callers nothing.
-- Who replaces a function is its owner; who writes into dbq.pause need not be. So the function that replaced it has the digest
-- of the body that comes back, and of the record that body alone is used.

-- name: code
-- a row for each function of the given names: its definition, which resume restores
SELECT
    CAST(p.proname AS text) AS name,
    CAST(CAST(p.oid AS regprocedure) AS text) AS id,
    pg_get_functiondef(p.oid) AS definition,
    starts_with(p.prosrc, E'\n-- paused by dbq-console\n') AS exchanged
FROM pg_proc AS p
INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
WHERE n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[])) AND p.prokind = 'f'
ORDER BY p.proname, id;

-- name: calling
-- one row: how many other sessions have an open transaction that has changed the queue's table; a prepared one, which has no
-- process, counts as one
SELECT count(DISTINCT l.virtualtransaction) AS sessions
FROM pg_locks AS l
WHERE
    l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation = CAST('"{schema}"."{table}"' AS regclass) AND l.pid IS DISTINCT FROM pg_backend_pid();

-- define: head
-- a function's definition up to its body
left(d.text, length(d.text) - length(p.prosrc) - 2 * length(substring(d.text FROM '\$functionx*\$\n$')) - 2)

-- define: digest
-- of a language and a body
encode(sha256(convert_to(concat_ws(E'\n', l.lanname, body.text), getdatabaseencoding())), 'hex')

-- define: is_intact
-- whether a recorded body is the one of which the function that replaced it has the digest: who may write dbq.pause need not be
-- its owner
starts_with(p.prosrc, format(E'\n-- paused by dbq-console\n-- before: %s\n', {digest}))

-- name: exchange
-- script: a pop that returns nothing or a push that returns null for each message, all but the body as before
-- CREATE OR REPLACE keeps owner and rights, and waits for no caller: a call in progress ends as it began.
DO $dbq$
DECLARE
    f record;
    answer text;
BEGIN
    SELECT
        p.proretset,
        CAST(p.prorettype AS regtype) AS of,
        l.lanpltrusted AS trusted,
        {digest} AS digest,
        regexp_replace({head}, E'\n LANGUAGE [^\n]+\n', E'\n LANGUAGE plpgsql\n') AS head
    INTO STRICT f
    FROM pg_proc AS p
    INNER JOIN pg_language AS l ON p.prolang = l.oid
    CROSS JOIN LATERAL (SELECT pg_get_functiondef(p.oid) AS text) AS d
    CROSS JOIN LATERAL (SELECT p.prosrc AS text) AS body
    WHERE p.oid = CAST('{function}' AS regprocedure);
    IF f.head IS NULL OR NOT f.trusted THEN
        RAISE EXCEPTION '% is not a function of ours', '{function}'
            USING ERRCODE = 'DBQ04', HINT = 'See what differs: dbq-console upgrade --dry-run';
    END IF;
    answer := 'RETURN';
    IF '{pushes}' = 'yes' AND f.proretset THEN
        answer := format('RETURN QUERY SELECT CAST(NULL AS %s) FROM unnest($1)', f.of);
    ELSIF '{pushes}' = 'yes' THEN
        answer := 'RETURN NULL';
    END IF;
    EXECUTE concat(
        f.head,
        format('AS %L', format(E'\n-- paused by dbq-console\n-- before: %s\nBEGIN\n    %s;\nEND\n', f.digest, answer))
    );
END
$dbq$;

-- name: restore_code
-- script: restores a function's body, as its owner; nothing else of what was recorded is executed
DO $dbq$
DECLARE
    f record;
    before text := current_setting('role');
BEGIN
    SELECT
        pg_get_userbyid(p.proowner) AS owner,
        regexp_replace({head}, E'\n LANGUAGE [^\n]+\n', format(E'\n LANGUAGE %I\n', l.lanname)) AS head,
        body.text AS body
    INTO STRICT f
    FROM dbq.pause AS r
    CROSS JOIN LATERAL jsonb_to_recordset(r.functions) AS k (id text, body text)
    CROSS JOIN LATERAL (SELECT k.body AS text) AS body
    INNER JOIN pg_proc AS p ON p.oid = to_regprocedure(k.id)
    INNER JOIN pg_language AS l ON l.lanpltrusted AND {is_intact}
    CROSS JOIN LATERAL (SELECT pg_get_functiondef(p.oid) AS text) AS d
    WHERE r.schema_name = '{schema}' AND r.queue_name = '{queue}' AND k.id = '{function}';
    IF pg_has_role(f.owner, CASE WHEN CAST(current_setting('server_version_num') AS integer) >= 160000 THEN 'SET' ELSE 'MEMBER' END) THEN
        PERFORM set_config('role', f.owner, true);
    END IF;
    EXECUTE concat(f.head, format('AS %L', f.body));
    PERFORM set_config('role', before, true);
END
$dbq$;

-- name: store_definitions
-- one row: since when the queue is paused; `functions`: the definitions that resume restores (a JSON array)
INSERT INTO dbq.pause (schema_name, queue_name, operator, reason, until, push, functions)
SELECT
    CAST(:schema AS text),
    CAST(:queue AS text),
    CAST(:operator AS text),
    CAST(:reason AS text),
    clock_timestamp() + CAST(:seconds AS double precision) * interval '1 second',
    CAST(:push AS boolean),
    CAST(:functions AS jsonb)
RETURNING paused_at AS since;

-- name: renew
-- one row: since when it is paused; resume restores what an upgrade has installed
UPDATE dbq.pause AS p SET functions = CAST(:functions AS jsonb)
WHERE p.schema_name = CAST(:schema AS text) AND p.queue_name = CAST(:queue AS text)
RETURNING p.paused_at AS since;

-- name: stored_definitions
-- the definition to restore for each replaced function, and whether it is still what was there; none if the queue is not paused
SELECT
    coalesce(f.value ->> 'name', '?') AS name,
    f.value ->> 'id' AS id,
    f.value ->> 'definition' AS definition,
    f.value ->> 'signature' AS signature,
    f.value ->> 'settings' AS settings,
    f.value ->> 'body' AS body,
    r.push AS push,
    EXISTS (
        SELECT FROM pg_proc AS p
        INNER JOIN pg_language AS l ON l.lanpltrusted
        CROSS JOIN LATERAL (SELECT f.value ->> 'body' AS text) AS body
        WHERE p.oid = to_regprocedure(f.value ->> 'id') AND {is_intact}
    ) AS intact
FROM dbq.pause AS r
CROSS JOIN LATERAL jsonb_array_elements(r.functions) AS f (value)
WHERE r.schema_name = CAST(:schema AS text) AND r.queue_name = CAST(:queue AS text)
ORDER BY 1, 2;

-- name: end
-- one row: since when the queue had been paused, which ends now
DELETE FROM dbq.pause AS p
WHERE p.schema_name = CAST(:schema AS text) AND p.queue_name = CAST(:queue AS text)
RETURNING p.paused_at AS since;
