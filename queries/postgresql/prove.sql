-- What `prove` does to its own scratch queues, and to nothing else. Roles and members are created in transactions that are
-- rolled back: none is ever committed.

-- name: session
-- one value: this session, as `end-session` takes it
SELECT CAST(pg_backend_pid() AS text) AS session;

-- name: drop_pop
-- script: drops a function, as a fault
DROP FUNCTION "{schema}"."{queue}_pop";

-- name: drop_payloads
-- script: deletes all payloads of a split queue, as a fault
DELETE FROM {beside}; -- when defined beside
-- each partition
DELETE FROM "{schema}"."{queue}_content_{partition}";
-- end

-- name: roles_exist
-- one value: whether the three roles exist in this database
SELECT
    EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_reader')
    AND COALESCE((
        SELECT has_schema_privilege(r.oid, n.oid, 'USAGE')
        FROM pg_roles AS r, pg_namespace AS n WHERE r.rolname = 'dbq_reader' AND n.nspname = 'dbq'
    ), false) AS roles_exist;

-- name: make_member
-- script: creates a member of one of the roles that this login may impersonate
CREATE ROLE "{member}" NOLOGIN IN ROLE "{role}";
GRANT "{member}" TO CURRENT_USER;

-- name: impersonate
-- script: the session has that member's rights only, until the transaction ends
SET LOCAL ROLE "{member}";

-- name: revert
-- script: the session has its own rights again
RESET ROLE;

-- name: count_rows
-- one value: how many rows the queue's table has
SELECT COUNT(*) AS held FROM "{schema}"."{table}";

-- name: delete_directly
-- script: deletes rows directly, not by a pop
DELETE FROM "{schema}"."{queue}_archive";

-- name: databases
-- the databases of proofs on this server
SELECT CAST(d.datname AS text) AS name FROM pg_database AS d WHERE starts_with(d.datname, 'dbq_prove_') ORDER BY d.datname;

-- name: make_database
-- script: a database of the proof's own; sent outside a transaction
CREATE DATABASE "{database}" TEMPLATE template0;

-- name: drop_database
-- script: drops that database with all sessions in it, if it is there; sent outside a transaction
DROP DATABASE IF EXISTS "{database}" WITH (FORCE);

-- name: become
-- script: the session is that member until it ends
SET SESSION ROLE "{member}";

-- name: forget_member
-- script: removes a member, if it is there
DROP ROLE IF EXISTS "{member}";

-- name: hold_lock
-- script: an application lock until the transaction ends
SELECT pg_advisory_xact_lock(hashtextextended('dbq {schema}.{queue}, and with this the name is longer than 32 characters', 0));

-- name: draw
-- one value: the next number of a sequence
SELECT nextval('"{schema}"."{sequence}"') AS drawn;

-- name: draw_range
-- one value: the first of the next three numbers of a sequence
SELECT min(nextval('"{schema}"."{sequence}"')) AS drawn FROM generate_series(1, 3);

-- name: restart_sequence
-- script: here to be rolled back
ALTER SEQUENCE "{schema}"."{sequence}" RESTART WITH 1000000;

-- name: settings
-- one row: what the session is set to, and which it is
SELECT
    CAST(pg_backend_pid() AS text) AS session,
    current_setting('transaction_isolation') AS isolation,
    current_setting('lock_timeout') AS lock_timeout;

-- name: alter_table
-- script: DDL, here to be rolled back: until then it keeps all others away from the table
ALTER TABLE "{schema}"."{relation}" ADD COLUMN proved integer;

-- name: lock_configuration
-- script: as a relay locks a ring's configuration
LOCK TABLE "{schema}"."{relation}" IN ACCESS EXCLUSIVE MODE;

-- name: roles_made
-- one value: whether the three roles exist; they belong to the whole server, so a proof makes none
SELECT COUNT(*) = 3 AS made FROM pg_roles AS r WHERE r.rolname IN ('dbq_reader', 'dbq_operator', 'dbq_admin');
