-- What the console asks of the server itself, whatever queues it holds.

-- name: capabilities
-- one row: which server and login this is, and what it may do
-- version_number: major * 10,000,000 + minor * 100,000 + build, so 160004125 for 16.0.4125.3. In Azure it
-- stays at 12.0, whatever the server can; there engine_edition tells.
SELECT
    v.version AS server_version,
    CAST(PARSENAME(v.version, 4) AS int) * 10000000
    + CAST(PARSENAME(v.version, 3) AS int) * 100000
    + CAST(PARSENAME(v.version, 2) AS int) AS version_number,
    CAST(SERVERPROPERTY(N'Edition') AS nvarchar(128)) AS edition,
    v.engine_edition AS engine_edition,
    DB_NAME() AS [database],
    USER_NAME() AS database_user,
    CAST(
        CASE WHEN CAST(DATABASEPROPERTYEX(DB_NAME(), N'Updateability') AS nvarchar(20)) = N'READ_ONLY' THEN 1 ELSE 0 END
        AS bit
    ) AS read_only,
    -- In Azure SQL Database and Fabric the server is not ours to look at, but the database's sessions are.
    CAST(
        CASE
            WHEN v.engine_edition IN (5, 12) THEN v.sees_database
            WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER STATE') = 1 THEN 1
            WHEN HAS_PERMS_BY_NAME(NULL, NULL, N'VIEW SERVER PERFORMANCE STATE') = 1 THEN 1
            ELSE 0
        END AS bit
    ) AS sees_all_sessions,
    CAST(v.sees_database AS bit) AS sees_counters,
    CAST(
        CASE
            WHEN HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE TABLE') = 1
                AND HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'CREATE PROCEDURE') = 1
                AND HAS_PERMS_BY_NAME(QUOTENAME(SCHEMA_NAME()), N'SCHEMA', N'ALTER') = 1
                THEN 1
            ELSE 0
        END AS bit
    ) AS may_create,
    CAST(v.sees_database AS bit) AS counts_rows,
    CAST(COALESCE(d.is_read_committed_snapshot_on, 0) AS bit) AS read_committed_snapshot,
    CAST(COALESCE(d.is_broker_enabled, 0) AS bit) AS broker_enabled,
    -- Enterprise (with Developer and Evaluation), Azure SQL Database, Managed Instance, Fabric.
    CAST(CASE WHEN v.engine_edition IN (3, 5, 8, 12) THEN 1 ELSE 0 END AS bit) AS online_rebuild,
    -- NULL on SQL Server, which knows no such property.
    CAST(COALESCE(CAST(SERVERPROPERTY(N'Babelfish') AS int), 0) AS bit) AS babelfish,
    N'UTF-16' AS encoding,
    CAST(COALESCE(d.compatibility_level, 0) AS int) AS compatibility_level
FROM (
    SELECT
        CAST(SERVERPROPERTY(N'ProductVersion') AS nvarchar(128)) AS version,
        CAST(SERVERPROPERTY(N'EngineEdition') AS int) AS engine_edition,
        CASE
            WHEN HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'VIEW DATABASE STATE') = 1 THEN 1
            -- From SQL Server 2022; older ones answer NULL.
            WHEN HAS_PERMS_BY_NAME(DB_NAME(), N'DATABASE', N'VIEW DATABASE PERFORMANCE STATE') = 1 THEN 1
            ELSE 0
        END AS sees_database
) AS v
LEFT JOIN sys.databases AS d ON d.name = DB_NAME();

-- name: babelfish
-- one row: 1 on Babelfish, which lacks some of what the first statement asks; NULL on SQL Server
SELECT CAST(SERVERPROPERTY(N'Babelfish') AS int) AS babelfish;
