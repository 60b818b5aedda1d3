-- What `prove` does to its own scratch queues, and to nothing else. Roles and members are made in
-- transactions that are rolled back: nothing of them is ever committed.

-- name: session
-- one value: the session that asks, as `end-session` takes it
SELECT CAST(pg_backend_pid() AS text) AS session;

-- name: drop_pop
-- script: a function that somebody dropped
DROP FUNCTION "{schema}"."{queue}_pop";

-- name: drop_payloads
-- script: the payloads of all messages that lie apart from them are lost
DELETE FROM {beside}; -- when defined beside
-- each partition
DELETE FROM "{schema}"."{queue}_content_{partition}";
-- end

-- name: roles_there
-- one value: whether the three roles have been made in this database already
SELECT
    EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = 'dbq_reader')
    AND COALESCE((
        SELECT has_schema_privilege(r.oid, n.oid, 'USAGE')
        FROM pg_roles AS r, pg_namespace AS n WHERE r.rolname = 'dbq_reader' AND n.nspname = 'dbq'
    ), false) AS there;

-- name: make_member
-- script: somebody who has one of the roles, whom this login may become
CREATE ROLE "{member}" NOLOGIN IN ROLE "{role}";
GRANT "{member}" TO CURRENT_USER;

-- name: become
-- script: the session has that member's rights and no others, until the transaction's end
SET LOCAL ROLE "{member}";

-- name: revert
-- script: the session is itself again
RESET ROLE;

-- name: count_rows
-- one value: how many rows the queue's table holds
SELECT COUNT(*) AS held FROM "{schema}"."{table}";

-- name: delete_directly
-- script: rows are deleted past the queue's functions
DELETE FROM "{schema}"."{queue}_archive";
