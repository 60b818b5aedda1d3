-- The code installed under a queue's names, to be compared with what this console would install; and the replacement of
-- functions whose signature has changed.

-- name: installed_code
-- a row for each function of the given names: how it is called, its settings and its body
SELECT
    CAST(p.proname AS text) AS name,
    CAST(CAST(p.oid AS regprocedure) AS text) AS id,
    -- A default's type is the argument's own.
    format(
        '(%s) RETURNS %s',
        regexp_replace(pg_get_function_arguments(p.oid), '::[a-z ]+(\[\])?', '', 'g'), pg_get_function_result(p.oid)
    ) AS signature,
    concat_ws(
        E'\n',
        array_to_string(p.proconfig, E'\n'),
        CASE WHEN p.prosecdef THEN 'security definer' END,
        CASE WHEN p.provolatile <> 'v' THEN 'not volatile' END,
        -- Ours have the server's defaults; what CREATE OR REPLACE does not name it resets to them.
        CASE WHEN p.procost <> 100 THEN 'cost ' || CAST(p.procost AS text) END,
        CASE WHEN p.prorows NOT IN (0, 1000) THEN 'rows ' || CAST(p.prorows AS text) END,
        CASE WHEN p.proisstrict THEN 'strict' END,
        CASE WHEN p.proleakproof THEN 'leakproof' END,
        CASE WHEN p.proparallel <> 'u' THEN 'parallel ' || CAST(p.proparallel AS text) END,
        CASE WHEN l.lanname <> 'plpgsql' THEN 'language ' || l.lanname END
    ) AS settings,
    p.prosrc AS body
FROM pg_proc AS p
INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
INNER JOIN pg_language AS l ON p.prolang = l.oid
WHERE n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[])) AND p.prokind = 'f'
ORDER BY p.proname, id;

-- name: bare_triggers
-- triggers of others on the queue's table whose function has no search path of its own: called from the queue's functions, it
-- has theirs, in which names without a schema are the server's own
SELECT CAST(t.tgname AS text) AS name
FROM pg_trigger AS t
INNER JOIN pg_proc AS p ON t.tgfoid = p.oid
INNER JOIN pg_language AS l ON p.prolang = l.oid
WHERE t.tgrelid = CAST('"{schema}"."{table}"' AS regclass) AND NOT t.tgisinternal AND l.lanname NOT IN ('c', 'internal')
AND NOT EXISTS (SELECT FROM unnest(p.proconfig) AS c (setting) WHERE starts_with(c.setting, 'search_path='))
ORDER BY name;

-- name: callers
-- a row for each grant of EXECUTE on one of the given functions, except to its owner; without a role: PUBLIC has none
SELECT
    CAST(p.proname AS text) AS name,
    CAST(r.rolname AS text) AS role
FROM pg_proc AS p
INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
CROSS JOIN LATERAL aclexplode(p.proacl) AS a
INNER JOIN pg_roles AS r ON a.grantee = r.oid
WHERE n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[])) AND a.grantee <> p.proowner
UNION
SELECT
    CAST(p.proname AS text),
    NULL
FROM pg_proc AS p
INNER JOIN pg_namespace AS n ON p.pronamespace = n.oid
WHERE
    n.nspname = CAST(:schema AS text) AND p.proname = ANY(CAST(:names AS text[]))
    AND p.proacl IS NOT NULL AND NOT EXISTS (SELECT FROM aclexplode(p.proacl) AS a WHERE a.grantee = 0);

-- name: drop_code
-- script: drops one function, by its signature
DO $dbq$
BEGIN
    EXECUTE format('DROP FUNCTION %s', CAST('{function}' AS regprocedure));
END
$dbq$;

-- name: grant_execute
-- script: grants a role EXECUTE on a function
DO $dbq$
BEGIN
    EXECUTE format('GRANT EXECUTE ON FUNCTION %I.%I TO %I', '{schema}', '{function}', '{role}');
END
$dbq$;

-- name: close_code
-- script: revokes EXECUTE on a function from PUBLIC
DO $dbq$
BEGIN
    EXECUTE format('REVOKE EXECUTE ON FUNCTION %I.%I FROM PUBLIC', '{schema}', '{function}');
END
$dbq$;

-- name: set_default
-- script: gives a column the default of its definition, or none; rows keep their values
DO $dbq$
BEGIN
    EXECUTE concat_ws(' ', format('ALTER TABLE %I.%I ALTER COLUMN %I', '{schema}', '{table}', '{column}'),
        CASE WHEN '{default}' = '' THEN 'DROP DEFAULT' ELSE 'SET ' || '{default}' END);
END
$dbq$;
