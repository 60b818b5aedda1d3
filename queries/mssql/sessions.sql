-- Ending a session or a prepared (distributed) transaction, identified exactly, so that no other one is hit.

-- name: identity
-- one row: since when the session is connected and in its transaction, and whether it is this one; none: disconnected
DECLARE @session int = TRY_CAST(:session AS int);
SELECT
    CONVERT(nvarchar(23), s.login_time, 126) AS started,
    (
        SELECT CONCAT(CONVERT(nvarchar(23), MAX(a.transaction_begin_time), 126), N' ', MAX(t.transaction_id))
        FROM sys.dm_tran_session_transactions AS t
        INNER JOIN sys.dm_tran_active_transactions AS a ON t.transaction_id = a.transaction_id
        WHERE t.session_id = s.session_id AND t.is_user_transaction = 1
    ) AS transaction_started,
    -- As the procedures write claimed_by: the login time in UTC (the server keeps local time).
    CONCAT(N'session=', s.session_id, N' login=', CONVERT(nvarchar(23), CAST(DATEADD(
        minute, -DATEPART(tzoffset, SYSDATETIMEOFFSET()), s.login_time
    ) AS datetime2(3)), 126), N'Z') AS session,
    CAST(CASE WHEN s.session_id = @@SPID THEN 1 ELSE 0 END AS bit) AS own
FROM sys.dm_exec_sessions AS s WHERE s.session_id = @session;

-- name: prepared_identity
-- one row: when the distributed transaction began, and its number; none: it is finished
DECLARE @unit uniqueidentifier = TRY_CAST(:session AS uniqueidentifier);
SELECT
    CONVERT(nvarchar(23), a.transaction_begin_time, 126) AS started,
    CAST(a.transaction_id AS nvarchar(20)) AS transaction_started,
    CAST(a.transaction_uow AS nvarchar(36)) AS session,
    CAST(0 AS bit) AS own
FROM sys.dm_tran_active_transactions AS a WHERE a.transaction_uow = @unit;

-- name: end_session
-- one row: whether it was killed; none: it is not the same session any more, so it was not killed
-- KILL takes a constant, and is allowed in no transaction. :seconds is for engines that wait.
DECLARE @session int = TRY_CAST(:session AS int);
DECLARE @started nvarchar(50) = :started;
DECLARE @transaction_started nvarchar(50) = :transaction_started;
DECLARE @seconds float = :seconds;
DECLARE @found bit;
DECLARE @kill nvarchar(60);
SELECT
    @found = 1,
    @kill = CONCAT(N'KILL ', s.session_id)
FROM sys.dm_exec_sessions AS s
WHERE s.session_id = @session AND CONVERT(nvarchar(23), s.login_time, 126) = @started
AND COALESCE((
    SELECT CONCAT(CONVERT(nvarchar(23), MAX(a.transaction_begin_time), 126), N' ', MAX(t.transaction_id))
    FROM sys.dm_tran_session_transactions AS t
    INNER JOIN sys.dm_tran_active_transactions AS a ON t.transaction_id = a.transaction_id
    WHERE t.session_id = s.session_id AND t.is_user_transaction = 1
), N'') = COALESCE(@transaction_started, N'');
IF @found = 1 EXEC (@kill);
SELECT CAST(0 AS bit) AS ended WHERE @found = 1;

-- name: end_prepared
-- script: rolls back a distributed transaction without a session, outside a transaction
DECLARE @kill nvarchar(60) = CONCAT(N'KILL ''', CAST(CAST(N'{session}' AS uniqueidentifier) AS nvarchar(36)), N'''');
EXEC (@kill);
