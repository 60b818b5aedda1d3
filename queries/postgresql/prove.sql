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
