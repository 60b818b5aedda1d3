-- Who may do what: three database roles for people, enforced by the server itself. Users become members:
--
--   ALTER ROLE dbq_reader ADD MEMBER [the user];      reads everything and changes nothing
--   ALTER ROLE dbq_operator ADD MEMBER [the user];    also pushes, pops, finishes and repairs
--   ALTER ROLE dbq_admin ADD MEMBER [the user];       also installs
--
-- Procedures reach their tables through their common owner, so EXECUTE is all that a caller needs, and
-- a reader has none. The right to see what other sessions do and wait for is granted to a login by the
-- server, not the database: VIEW SERVER STATE (from SQL Server 2022 VIEW SERVER PERFORMANCE STATE);
-- ending a session requires ALTER ANY CONNECTION.

-- define: rights
-- the roles' rights on the catalog
REVOKE UPDATE ON OBJECT::dbq.[action] FROM dbq_operator;
REVOKE UPDATE ON OBJECT::dbq.silence FROM dbq_operator;
REVOKE UPDATE ON OBJECT::dbq.note FROM dbq_operator;
REVOKE UPDATE ON OBJECT::dbq.pause FROM dbq_admin;
GRANT INSERT, UPDATE, DELETE ON OBJECT::dbq.[queue] TO dbq_admin;
GRANT INSERT, UPDATE, DELETE ON OBJECT::dbq.setting TO dbq_admin;
GRANT INSERT, DELETE ON OBJECT::dbq.pause TO dbq_admin;
GRANT UPDATE ON OBJECT::dbq.pause (functions) TO dbq_admin;
-- Whoever acts writes the audit, not its times and logins; only its owner can delete from it.
GRANT INSERT ON OBJECT::dbq.[action] TO dbq_operator;
GRANT UPDATE ON OBJECT::dbq.[action] (last_at, ended_at, selected, done, skipped, failed, outcome, detail) TO dbq_operator;
GRANT INSERT ON OBJECT::dbq.silence TO dbq_operator;
GRANT UPDATE ON OBJECT::dbq.silence (ended_at, ended_by) TO dbq_operator;
GRANT INSERT ON OBJECT::dbq.note TO dbq_operator;
GRANT INSERT, UPDATE ON OBJECT::dbq.lease TO dbq_operator;
GRANT INSERT, DELETE ON OBJECT::dbq.protection TO dbq_operator;
GRANT INSERT, UPDATE, DELETE ON OBJECT::dbq.notification TO dbq_operator;
GRANT INSERT, UPDATE ON OBJECT::dbq.lake_plan TO dbq_operator;
GRANT INSERT, DELETE ON OBJECT::dbq.lake_row TO dbq_operator;

-- name: roles
-- script: creates the three roles where they are missing, and lets them read this database's catalog
IF DATABASE_PRINCIPAL_ID(N'dbq_reader') IS NULL CREATE ROLE dbq_reader;
IF DATABASE_PRINCIPAL_ID(N'dbq_operator') IS NULL CREATE ROLE dbq_operator;
IF DATABASE_PRINCIPAL_ID(N'dbq_admin') IS NULL CREATE ROLE dbq_admin;
-- The user that the procedures of ring and broker run as: see there.
IF DATABASE_PRINCIPAL_ID(N'dbq_owner') IS NULL CREATE USER dbq_owner WITHOUT LOGIN;
GO
GRANT IMPERSONATE ON USER::dbq_owner TO dbq_admin;
ALTER ROLE dbq_reader ADD MEMBER dbq_operator;
ALTER ROLE dbq_operator ADD MEMBER dbq_admin;

-- Sequences and procedures are visible only with VIEW DEFINITION. On the database: sys.dm_db_partition_stats, from which
-- row counts are, asks for it there beside VIEW DATABASE STATE (Microsoft's manual, Permissions). It shows definitions, no row.
GRANT VIEW DEFINITION TO dbq_reader;
GRANT VIEW DATABASE STATE TO dbq_reader;
GRANT SELECT ON SCHEMA::dbq TO dbq_reader;

{rights}
GRANT CREATE TABLE, CREATE PROCEDURE, CREATE QUEUE, CREATE MESSAGE TYPE, CREATE CONTRACT, CREATE SERVICE TO dbq_admin;
{make_schema}
-- Never on a schema of dbo's or of an application's: there the grants name each object of a queue, and whoever installs,
-- upgrades or pauses is one of the database's owners.
IF EXISTS (SELECT 1 FROM sys.schemas AS s WHERE s.name = N'{schema}' AND s.principal_id = DATABASE_PRINCIPAL_ID(N'dbq_owner'))
    GRANT ALTER, CONTROL ON SCHEMA::[{schema}] TO dbq_admin;

-- name: catalog
-- script: the roles' rights on a catalog that has grown, if they exist in this database
IF DATABASE_PRINCIPAL_ID(N'dbq_reader') IS NOT NULL
BEGIN
    GRANT SELECT ON SCHEMA::dbq TO dbq_reader;
    {rights}
END;

-- define: grants_of_table
GRANT SELECT ON OBJECT::[{schema}].[{table}] TO dbq_reader;
GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{table}] TO dbq_operator;

-- name: queue
-- script: the roles' rights on one queue, if they exist in this database
IF DATABASE_PRINCIPAL_ID(N'dbq_reader') IS NOT NULL
BEGIN
    GRANT SELECT ON OBJECT::[{schema}].[{queue}_archive] TO dbq_reader;
    GRANT INSERT, UPDATE, DELETE ON OBJECT::[{schema}].[{queue}_archive] TO dbq_operator;
    {grants_of_table}
    {grants} -- when defined grants
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_push] TO dbq_operator;
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_push_many] TO dbq_operator;
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_pop] TO dbq_operator;
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_pop_many] TO dbq_operator;
    -- when finishes=yes
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_complete] TO dbq_operator;
    GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_fail] TO dbq_operator;
    -- end
END;
