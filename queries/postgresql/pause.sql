-- Pausing a queue: its pop functions are replaced by ones that report it empty. Without a pause this costs callers nothing.

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
-- one row: how many other sessions have an open transaction that has changed the queue's table
SELECT count(DISTINCT l.pid) AS sessions
FROM pg_locks AS l
WHERE
    l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
    AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    AND l.relation = CAST('"{schema}"."{table}"' AS regclass) AND l.pid <> pg_backend_pid();

-- name: exchange
-- script: a pop that returns nothing or a push that returns null for each message, with the same signature
-- CREATE OR REPLACE keeps owner and rights, and waits for no caller: a call in progress ends as it began.
DO $dbq$
DECLARE
    f record;
    answer text;
BEGIN
    SELECT
        n.nspname,
        p.proname,
        p.proretset,
        pg_get_function_arguments(p.oid) AS arguments,
        pg_get_function_result(p.oid) AS result,
        CAST(p.prorettype AS regtype) AS of
    INTO STRICT f
    FROM pg_proc AS p
    INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
    WHERE p.oid = CAST('{function}' AS regprocedure);
    answer := 'RETURN';
    IF '{pushes}' = 'yes' AND f.proretset THEN
        answer := format('RETURN QUERY SELECT CAST(NULL AS %s) FROM unnest($1)', f.of);
    ELSIF '{pushes}' = 'yes' THEN
        answer := 'RETURN NULL';
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS %L',
        f.nspname, f.proname, f.arguments, f.result,
        format(E'\n-- paused by dbq-console\nBEGIN\n    %s;\nEND\n', answer)
    );
END
$dbq$;

-- name: restore_code
-- script: restores a function
DO $dbq$
BEGIN
    EXECUTE (
        SELECT f.value ->> 'definition'
        FROM dbq.pause AS p
        CROSS JOIN LATERAL jsonb_array_elements(p.functions) AS f (value)
        WHERE p.schema_name = '{schema}' AND p.queue_name = '{queue}' AND f.value ->> 'id' = '{function}'
    );
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
-- the definition to restore for each replaced function; none if the queue is not paused
SELECT
    f.value ->> 'name' AS name,
    f.value ->> 'id' AS id,
    f.value ->> 'definition' AS definition,
    f.value ->> 'signature' AS signature,
    f.value ->> 'settings' AS settings,
    f.value ->> 'body' AS body,
    p.push AS push
FROM dbq.pause AS p
CROSS JOIN LATERAL jsonb_array_elements(p.functions) AS f (value)
WHERE p.schema_name = CAST(:schema AS text) AND p.queue_name = CAST(:queue AS text)
ORDER BY 1, 2;

-- name: end
-- one row: since when the queue had been paused, which ends now
DELETE FROM dbq.pause AS p
WHERE p.schema_name = CAST(:schema AS text) AND p.queue_name = CAST(:queue AS text)
RETURNING p.paused_at AS since;
