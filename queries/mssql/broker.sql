-- broker: SQL Server's own queue, Service Broker, behind the interface of the other designs.
--
-- A queue is a QUEUE, a SERVICE, a CONTRACT and a MESSAGE TYPE. Only the QUEUE belongs to a schema; the names
-- of the others are global in the database, so they contain the schema's name: [schema.queue_service] etc.
-- Pushes send from a service and a queue of their own (_initiator), so that Service Broker's answers do not
-- get among the messages. It must be enabled: ALTER DATABASE ... SET ENABLE_BROKER.
-- Azure SQL Database does not have it; Managed Instance does.
--
-- The body of a message, for those who SEND and RECEIVE themselves: 16 bytes its id (a uniqueidentifier),
-- 9 bytes its push time in UTC (a datetime2(7) as binary(9): 07, five bytes of 100 ns since midnight and
-- three of days since 0001-01-01, both lowest byte first), then the payload, a text in UTF-16.
--
-- conversation=kept  each session keeps one conversation and sends all its messages on it (Rusanu, "Reusing
--                    conversations": about 4 times cheaper to send than one each, 10 times to receive).
--                    One for all would make every push wait until the transaction of the previous one
--                    ends: SEND locks its conversation. Order is kept within a conversation, and so within
--                    a session. RECEIVE locks a conversation too: one consumer at a time takes from it,
--                    and meanwhile others find nothing in it. One that was ended or broke is replaced by
--                    the next push. A closed session's is used by the next session with the same number.
-- conversation=each  one conversation per message: as many consumers as messages, no guaranteed order
--                    (in practice that of arrival). pop ends it; the answer to that is received by
--                    later pushes, two for each message. What is still open is in `health`.
--
-- Five rollbacks in a row of a transaction that received disable the queue (poison messages): pop fails
-- with error 9617, pushes pile up in sys.transmission_queue. To enable it: ALTER QUEUE ... WITH STATUS = ON.
-- attempts is always 1: Service Broker keeps no count.
--
-- activation=on creates a procedure <queue>_activated, the frame of a consumer, and registers it disabled:
-- see there.

-- define: reading
-- NOLOCK: otherwise a read of the queue and its RECEIVE wait for each other. Uncommitted messages are counted.
WITH (NOLOCK)

-- define: is_ready
-- Service Broker's own messages do not count.
m.status = 1 AND m.message_type_name NOT LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'

-- define: is_message
m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type'

-- define: age_seconds
-- In the order of the queue's index; without priorities this is the order of arrival.
-- when installed=yes
(
    SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) CAST(DATEDIFF_BIG(
        microsecond, TRY_CAST(CAST(SUBSTRING(m.message_body, 17, 9) AS binary(9)) AS datetime2(7)), SYSUTCDATETIME()
    ) / 1e6 AS float)
    FROM [{schema}].[{table}] AS m {reading}
    WHERE {is_message}
    ORDER BY m.priority, m.queuing_order
)
-- end

-- define: row_count
SELECT SUM(p.row_count) AS number_of_rows
FROM sys.internal_tables AS i INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id
WHERE i.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND i.internal_type = 201 AND p.index_id = 1

-- define: counters_of_table
-- CROSS APPLY: for this object only; otherwise the function reads the whole database.
FROM sys.internal_tables AS i
CROSS APPLY sys.dm_db_index_operational_stats(DB_ID(), i.object_id, 1, NULL) AS o
WHERE i.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND i.internal_type = 201

-- define: popped
-- unknown

-- define: next_pop
SELECT TOP (1) @next = CAST(m.queuing_order AS nvarchar(450)) FROM [{schema}].[{table}] AS m {reading}
WHERE m.status = 1
ORDER BY m.priority, m.queuing_order;

-- define: key_text

-- define: id_type
uniqueidentifier

-- define: location_type
bigint -- when installed=yes
nvarchar(450) -- when installed=no

-- define: archived_id
LOWER(CAST(a.id AS nvarchar(36)))

-- define: own_id
CAST(CAST(SUBSTRING(m.message_body, 1, 16) AS binary(16)) AS uniqueidentifier)

-- define: pop_values
DECLARE @wait_ms int = :wait_ms;

-- define: pop_with
, @wait_ms = @wait_ms

-- define: locked
-- Pushes on kept conversations go through their table. There is nothing else to lock: SEND and RECEIVE touch none of our
-- tables, and a Service Broker queue takes no hint but NOLOCK. So a message that arrives between the count and the DROP is
-- dropped with the queue.
-- when conversation=kept
SELECT TOP (1) @held = 1 FROM [{schema}].[{queue}_conversation] AS c WITH (TABLOCKX, HOLDLOCK);
-- end

-- define: unfinished_payloads
-- Our procedures put the id and the time before it.
SELECT CAST(SUBSTRING(m.message_body, 26, 2147483647) AS nvarchar(max)) AS payload
FROM [{schema}].[{table}] AS m {reading}
WHERE {is_message}

-- define: readable_table
[{schema}].[{queue}_archive]

-- define: grants_of_table
-- Whoever can read the queue can also RECEIVE from it, so a reader's counts stay unknown.
GRANT RECEIVE ON OBJECT::[{schema}].[{queue}] TO dbq_operator;
GRANT EXECUTE ON OBJECT::[{schema}].[{queue}_end] TO dbq_operator;
-- The next installer may remove this one. Before an upgrade it belongs to somebody else.
IF EXISTS (
    SELECT 1 FROM sys.services AS x
    WHERE x.name = N'{schema}.{queue}_service' AND x.principal_id = DATABASE_PRINCIPAL_ID(N'dbq_owner')
)
BEGIN
    GRANT CONTROL ON CONTRACT::[{schema}.{queue}_contract] TO dbq_admin AS dbq_owner;
    GRANT CONTROL ON SERVICE::[{schema}.{queue}_service] TO dbq_admin AS dbq_owner;
    GRANT CONTROL ON SERVICE::[{schema}.{queue}_initiator] TO dbq_admin AS dbq_owner;
END;

-- define: chosen_by_conversation
-- Only RECEIVE takes from a queue, and only from the beginning of a conversation: from each conversation, as many chosen
-- messages as precede any other one. The first RECEIVE locks the conversation. If somebody took from it since the plan,
-- too much is received, and the whole batch is undone.
DECLARE @conversation uniqueidentifier, @group uniqueidentifier, @other bigint, @count int;
DECLARE @there TABLE (
    queuing_order bigint NOT NULL PRIMARY KEY,
    conversation_handle uniqueidentifier NOT NULL,
    conversation_group_id uniqueidentifier NOT NULL
);
INSERT INTO @there (queuing_order, conversation_handle, conversation_group_id)
SELECT
    m.queuing_order,
    m.conversation_handle,
    m.conversation_group_id
FROM @chosen AS c INNER JOIN [{schema}].[{table}] AS m {reading} ON c.location = m.queuing_order
WHERE m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type';

-- define: next_conversation
-- @conversation, and @count: how many chosen messages are at its beginning
SELECT TOP (1)
    @conversation = t.conversation_handle,
    @group = t.conversation_group_id
FROM @there AS t ORDER BY t.queuing_order;
SET @other = (
    SELECT MIN(m.queuing_order) FROM [{schema}].[{table}] AS m {reading}
    WHERE m.status = 1 AND m.conversation_group_id = @group AND m.conversation_handle = @conversation
    AND NOT EXISTS (SELECT 1 FROM @there AS t WHERE t.queuing_order = m.queuing_order)
);
SET @count = (
    SELECT COUNT(*) FROM @there AS t
    WHERE t.conversation_handle = @conversation AND (@other IS NULL OR t.queuing_order < @other)
);

-- define: all_or_nothing
IF EXISTS (
    SELECT 1 FROM @received AS r
    WHERE r.message_type_name <> N'{schema}.{queue}_message_type'
    OR NOT EXISTS (SELECT 1 FROM @chosen AS c WHERE c.location = r.queuing_order)
)
    THROW 51003, N'A consumer took from the same conversation meanwhile.||Nothing was changed. Try again.', 1;

-- define: broker_is_on
IF NOT EXISTS (SELECT 1 FROM sys.databases AS d WHERE d.name = DB_NAME() AND d.is_broker_enabled = 1)
    THROW 51004, N'Service Broker is off in this database.|What is sent would stay in sys.transmission_queue.|Switch it on: ALTER DATABASE CURRENT SET ENABLE_BROKER, when no other session is in it.', 1;

-- name: tables
-- script: the message type, the contract, the queues and services of both sides
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
GO
{broker_is_on}
CREATE MESSAGE TYPE [{schema}.{queue}_message_type] VALIDATION = NONE;
CREATE CONTRACT [{schema}.{queue}_contract] ([{schema}.{queue}_message_type] SENT BY INITIATOR);
CREATE QUEUE [{schema}].[{queue}] WITH STATUS = ON;
CREATE SERVICE [{schema}.{queue}_service] ON QUEUE [{schema}].[{queue}] ([{schema}.{queue}_contract]);
-- No poison message handling here: rolled-back pushes must not disable the queue of answers.
CREATE QUEUE [{schema}].[{queue}_initiator] WITH STATUS = ON, POISON_MESSAGE_HANDLING (STATUS = OFF);
CREATE SERVICE [{schema}.{queue}_initiator] ON QUEUE [{schema}].[{queue}_initiator];
-- when conversation=kept
CREATE TABLE [{schema}].[{queue}_conversation] (
    session_id smallint NOT NULL,
    conversation_handle uniqueidentifier NOT NULL,
    begun_at datetime2(7) NOT NULL DEFAULT SYSUTCDATETIME(),
    CONSTRAINT [{queue}_conversation_key] PRIMARY KEY CLUSTERED (session_id) WITH (ALLOW_PAGE_LOCKS = OFF)
);
ALTER TABLE [{schema}].[{queue}_conversation] SET (LOCK_ESCALATION = DISABLE);
-- end

-- name: functions
-- script: the procedures push, push_many, pop, pop_many, what both pushes send with, and activated
-- EXECUTE AS 'dbq_owner': services and contracts are in no schema, so EXECUTE gives no rights on them, as it does on tables.
-- They belong to that user, who may also RECEIVE from both queues: what BEGIN DIALOG and SEND require (Microsoft's manual,
-- "BEGIN DIALOG CONVERSATION", "SEND", Permissions).
SET ANSI_NULLS, QUOTED_IDENTIFIER ON;
{owner_exists}
IF NOT {owned_already}
BEGIN
    GRANT RECEIVE ON OBJECT::[{schema}].[{queue}] TO dbq_owner;
    GRANT RECEIVE ON OBJECT::[{schema}].[{queue}_initiator] TO dbq_owner;
END;
IF EXISTS (SELECT 1 FROM sys.service_contracts AS x WHERE x.name = N'{schema}.{queue}_contract' AND x.principal_id <> DATABASE_PRINCIPAL_ID(N'dbq_owner'))
    ALTER AUTHORIZATION ON CONTRACT::[{schema}.{queue}_contract] TO dbq_owner;
IF EXISTS (SELECT 1 FROM sys.services AS x WHERE x.name = N'{schema}.{queue}_service' AND x.principal_id <> DATABASE_PRINCIPAL_ID(N'dbq_owner'))
    ALTER AUTHORIZATION ON SERVICE::[{schema}.{queue}_service] TO dbq_owner;
IF EXISTS (SELECT 1 FROM sys.services AS x WHERE x.name = N'{schema}.{queue}_initiator' AND x.principal_id <> DATABASE_PRINCIPAL_ID(N'dbq_owner'))
    ALTER AUTHORIZATION ON SERVICE::[{schema}.{queue}_initiator] TO dbq_owner;
GO
-- Ends a conversation of this queue for an operator: END CONVERSATION requires the owner of its service.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_end]
    @conversation uniqueidentifier
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    IF EXISTS (
        SELECT 1 FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
        WHERE e.conversation_handle = @conversation AND s.name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator')
    )
    BEGIN
        END CONVERSATION @conversation;
    END;
END;
GO
-- Sends one message, in the transaction of push or push_many.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_send]
    @id uniqueidentifier,
    @payload {payload_type}
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    DECLARE @dialog uniqueidentifier;
    DECLARE @body varbinary(max) = CAST(@id AS binary(16)) + CAST(SYSUTCDATETIME() AS binary(9))
        + CAST(@payload AS varbinary(max));
    -- when conversation=kept
    DECLARE @kept uniqueidentifier, @state nchar(2);
    SELECT @kept = c.conversation_handle
    FROM [{schema}].[{queue}_conversation] AS c WITH (ROWLOCK, READCOMMITTEDLOCK)
    WHERE c.session_id = @@SPID;
    SELECT @state = e.state FROM sys.conversation_endpoints AS e WHERE e.conversation_handle = @kept;
    -- Begun or conversing. SEND itself would say so too late: its error ends the transaction.
    IF @state IN (N'SO', N'CO')
    BEGIN
        SET @dialog = @kept;
    END
    ELSE
    BEGIN
        -- Ended by the other side, or broken. Its end would drop what it could not deliver yet.
        IF @state IN (N'DI', N'ER')
            AND NOT EXISTS (SELECT 1 FROM sys.transmission_queue AS t WHERE t.conversation_handle = @kept)
        BEGIN
            END CONVERSATION @kept;
        END;
        BEGIN DIALOG CONVERSATION @dialog
            FROM SERVICE [{schema}.{queue}_initiator]
            TO SERVICE N'{schema}.{queue}_service', 'CURRENT DATABASE'
            ON CONTRACT [{schema}.{queue}_contract]
            WITH ENCRYPTION = OFF;
        DELETE FROM [{schema}].[{queue}_conversation] WITH (ROWLOCK) WHERE session_id = @@SPID;
        INSERT INTO [{schema}].[{queue}_conversation] WITH (ROWLOCK) (session_id, conversation_handle)
        VALUES (@@SPID, @dialog);
    END;
    -- end
    -- when conversation=each
    -- What pop ended has to be ended on this side too, or it stays for ever: two for one that is begun.
    DECLARE @ended uniqueidentifier, @answered int = 0;
    WHILE @answered < 2
    BEGIN
        SET @ended = NULL;
        RECEIVE TOP (1) @ended = conversation_handle FROM [{schema}].[{queue}_initiator];
        IF @ended IS NULL
        BEGIN
            BREAK;
        END;
        END CONVERSATION @ended;
        SET @answered += 1;
    END;
    BEGIN DIALOG CONVERSATION @dialog
        FROM SERVICE [{schema}.{queue}_initiator]
        TO SERVICE N'{schema}.{queue}_service', 'CURRENT DATABASE'
        ON CONTRACT [{schema}.{queue}_contract]
        WITH ENCRYPTION = OFF;
    -- end
    SEND ON CONVERSATION @dialog MESSAGE TYPE [{schema}.{queue}_message_type] (@body);
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push]
    @payload {payload_type}
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    {payload_in_bounds}
    DECLARE @id uniqueidentifier = NEWID();
    BEGIN TRANSACTION;
    EXEC [{schema}].[{queue}_send] @id = @id, @payload = @payload;
    COMMIT TRANSACTION;
    SELECT @id AS id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    IF ISJSON(@payloads) = 0
        THROW 51002, N'The payloads are not a JSON array.||Send an array of strings, one for each payload.', 1;
    DECLARE @rows TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL DEFAULT NEWID(),
        payload {payload_type} NULL
    );
    {rows_in_bounds}
    DECLARE @position int = 0, @count int = (SELECT COUNT(*) FROM @rows), @id uniqueidentifier;
    DECLARE @payload {payload_type};
    BEGIN TRANSACTION;
    WHILE @position < @count
    BEGIN
        SELECT @id = r.id, @payload = r.payload FROM @rows AS r WHERE r.position = @position;
        EXEC [{schema}].[{queue}_send] @id = @id, @payload = @payload;
        SET @position += 1;
    END;
    COMMIT TRANSACTION;
    SELECT r.id FROM @rows AS r ORDER BY r.position;
END;
GO
-- @wait_ms: how long to wait for the first message; the waiting is Service Broker's own and costs nothing.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop_many]
    @n int,
    @wait_ms int = 0
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    {read_committed_only}
    DECLARE @received TABLE (
        conversation_handle uniqueidentifier NOT NULL,
        message_sequence_number bigint NOT NULL,
        message_type_name nvarchar(256) NOT NULL,
        message_body varbinary(max) NULL
    );
    DECLARE @popped TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL,
        payload {payload_type} NOT NULL,
        pushed_at datetime2(7) NOT NULL
    );
    DECLARE @taken int = 0, @left int = CASE WHEN @n > 0 THEN @n ELSE 0 END, @conversation uniqueidentifier;
    BEGIN TRANSACTION;
    -- A RECEIVE returns messages of one conversation: once more, until there are enough or none.
    WHILE @left > 0
    BEGIN
        DELETE FROM @received;
        IF @wait_ms > 0
        BEGIN
            WAITFOR (
                RECEIVE TOP (@left) conversation_handle, message_sequence_number, message_type_name, message_body
                FROM [{schema}].[{queue}] INTO @received
            ), TIMEOUT @wait_ms;
            SET @wait_ms = 0;
        END
        ELSE
        BEGIN
            RECEIVE TOP (@left) conversation_handle, message_sequence_number, message_type_name, message_body
            FROM [{schema}].[{queue}] INTO @received;
        END;
        IF NOT EXISTS (SELECT 1 FROM @received)
        BEGIN
            BREAK;
        END;
        INSERT INTO @popped (position, id, payload, pushed_at)
        SELECT
            @taken + ROW_NUMBER() OVER (ORDER BY r.message_sequence_number),
            CAST(CAST(SUBSTRING(r.message_body, 1, 16) AS binary(16)) AS uniqueidentifier),
            CAST(SUBSTRING(r.message_body, 26, 2147483647) AS nvarchar(max)), -- when payload=text|json
            SUBSTRING(r.message_body, 26, 2147483647), -- when payload=bytes
            CAST(CAST(SUBSTRING(r.message_body, 17, 9) AS binary(9)) AS datetime2(7))
        FROM @received AS r WHERE r.message_type_name = N'{schema}.{queue}_message_type';
        SET @taken = (SELECT COUNT(*) FROM @popped);
        SET @left = @n - @taken;
        SET @conversation = (SELECT TOP (1) r.conversation_handle FROM @received AS r);
        -- when conversation=kept
        -- The other side has ended it, or it broke: this comes after its last message.
        IF EXISTS (
            SELECT 1 FROM @received AS r WHERE r.message_type_name IN (
                N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog',
                N'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
            )
        )
        BEGIN
            END CONVERSATION @conversation;
        END;
        -- end
        END CONVERSATION @conversation; -- when conversation=each
    END;
    -- when archive_at_pop=on
    INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
    SELECT p.id, p.payload, p.pushed_at, SYSUTCDATETIME(), N'done', 1, N'pop' FROM @popped AS p ORDER BY p.position;
    -- end
    COMMIT TRANSACTION;
    SELECT p.id, p.payload, p.pushed_at, 1 AS attempts FROM @popped AS p ORDER BY p.position;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_pop]
    @wait_ms int = 0
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    EXEC [{schema}].[{queue}_pop_many] @n = 1, @wait_ms = @wait_ms;
END;
-- when activation=on
GO
-- The frame of a consumer that the engine starts. It has no client, so it must not call pop: what that
-- returns would be lost. Until somebody writes what shall be done, it keeps each message in the archive.
-- ALTER QUEUE ... WITH ACTIVATION (STATUS = ON) starts it; until then it is only registered.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_activated]
WITH EXECUTE AS 'dbq_owner'
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    SET ROWCOUNT 0;
    DECLARE @conversation uniqueidentifier, @type nvarchar(256), @body varbinary(max);
    WHILE 1 = 1
    BEGIN
        SET @conversation = NULL;
        BEGIN TRANSACTION;
        WAITFOR (
            RECEIVE TOP (1) @conversation = conversation_handle, @type = message_type_name, @body = message_body
            FROM [{schema}].[{queue}]
        ), TIMEOUT 1000;
        IF @conversation IS NULL
        BEGIN
            COMMIT TRANSACTION;
            BREAK;
        END;
        IF @type = N'{schema}.{queue}_message_type'
        BEGIN
            -- The work goes here, in place of this.
            INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, done_at, state, attempts, reason)
            SELECT
                CAST(CAST(SUBSTRING(@body, 1, 16) AS binary(16)) AS uniqueidentifier),
                CAST(SUBSTRING(@body, 26, 2147483647) AS nvarchar(max)), -- when payload=text|json
                SUBSTRING(@body, 26, 2147483647), -- when payload=bytes
                CAST(CAST(SUBSTRING(@body, 17, 9) AS binary(9)) AS datetime2(7)),
                SYSUTCDATETIME(), N'done', 1, N'activated';
        END;
        -- when conversation=kept
        IF @type IN (
            N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog',
            N'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
        )
        BEGIN
            END CONVERSATION @conversation;
        END;
        -- end
        END CONVERSATION @conversation; -- when conversation=each
        COMMIT TRANSACTION;
    END;
END;
GO
ALTER QUEUE [{schema}].[{queue}] WITH ACTIVATION (
    STATUS = OFF, PROCEDURE_NAME = [{schema}].[{queue}_activated], MAX_QUEUE_READERS = 1, EXECUTE AS 'dbq_owner'
);
-- end

-- name: drop
-- script: removes the services with their conversations and messages, the queues, what they are made of
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_send], [{schema}].[{queue}_end];
DROP SERVICE [{schema}.{queue}_initiator];
DROP SERVICE [{schema}.{queue}_service];
DROP QUEUE [{schema}].[{queue}_initiator];
DROP QUEUE [{schema}].[{queue}];
DROP CONTRACT [{schema}.{queue}_contract];
DROP MESSAGE TYPE [{schema}.{queue}_message_type];
DROP PROCEDURE [{schema}].[{queue}_activated]; -- when activation=on
DROP TABLE [{schema}].[{queue}_conversation]; -- when conversation=kept

-- name: estimate
-- one row: estimated rows of each state; nothing for a login that does not see the row counts
-- See monitor.sql. Includes Service Broker's own messages in the queue, if any.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
-- when counters=yes
    CAST(estimated.number_of_rows AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
FROM (
    {row_count}
) AS estimated
-- else
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: health
-- one row: whether the queue and the broker are enabled, the open conversations, and what cannot be delivered and why
-- Counted to 10,001, by a sampler once a minute: with a conversation for each message the view has all of the last half
-- hour. One that both sides have ended is kept for that long by the engine (CD) and not counted.
SELECT
    q.is_receive_enabled AS is_receive_enabled,
    q.is_enqueue_enabled AS is_enqueue_enabled,
    d.is_broker_enabled AS broker_enabled,
    -- when counters=yes
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (10001) 1 AS one
            FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
            WHERE s.name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator') AND e.state <> 'CD'
        ) AS bounded
    ) AS conversations,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (10001) 1 AS one FROM sys.transmission_queue AS t WITH (NOLOCK)
            WHERE t.from_service_name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator')
        ) AS bounded
    ) AS transmission,
    (
        SELECT TOP (1) t.transmission_status FROM sys.transmission_queue AS t WITH (NOLOCK)
        WHERE t.from_service_name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator')
        AND t.transmission_status <> N''
        ORDER BY t.enqueue_time
    ) AS transmission_status
    -- else
    CAST(NULL AS bigint) AS conversations,
    CAST(NULL AS bigint) AS transmission,
    CAST(NULL AS nvarchar(4000)) AS transmission_status
    -- end
FROM sys.service_queues AS q CROSS JOIN sys.databases AS d
WHERE q.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND d.name = DB_NAME();

-- name: messages
-- the messages by Service Broker's order number, for `chunk` of common.sql
-- NOLOCK: otherwise a read of the queue and its RECEIVE wait for each other. The engine's index begins with the priority:
-- for a page of a deep queue all of it is read.
SELECT
    m.queuing_order AS key_id,
    -- when installed=yes
    CAST(CAST(CAST(SUBSTRING(m.message_body, 1, 16) AS binary(16)) AS uniqueidentifier) AS nvarchar(450)) AS id,
    -- end
    CAST(NULL AS nvarchar(450)) AS id, -- when installed=no
    N'ready' AS state,
    -- when role pushed_at
    TRY_CAST(CAST(SUBSTRING(m.message_body, 17, 9) AS binary(9)) AS datetime2(7)) AS pushed_at, -- when installed=yes
    CAST(NULL AS datetime2(7)) AS pushed_at, -- when installed=no
    -- end
    -- when installed=yes
    CAST(SUBSTRING(m.message_body, 26, 2147483647) AS nvarchar(max)) AS payload -- when payload=text|json
    SUBSTRING(m.message_body, 26, 2147483647) AS payload -- when payload=bytes
FROM [{schema}].[{table}] AS m WITH (NOLOCK)
WHERE m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type'
    -- else
    m.message_body AS payload
FROM [{schema}].[{table}] AS m WITH (NOLOCK)
WHERE m.status = 1 AND m.message_type_name NOT LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'
    -- end

-- name: enable
-- script: enables the queue again, after poison messages (or somebody) disabled it
ALTER QUEUE [{schema}].[{queue}] WITH STATUS = ON;

-- name: finished_conversations
-- one row: how many conversations are finished on the other side and hold nothing (counted to 10,001)
-- Ended there (DI) or broken (ER), without messages in the queue or to be sent.
SELECT COUNT_BIG(*) AS conversations
FROM (
    SELECT TOP (10001) 1 AS one
    FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
    WHERE s.name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator') AND e.state IN ('DI', 'ER')
    AND NOT EXISTS (
        SELECT 1 FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
        WHERE m.conversation_group_id = e.conversation_group_id AND m.conversation_handle = e.conversation_handle
        AND m.message_type_name = N'{schema}.{queue}_message_type'
    )
    AND NOT EXISTS (SELECT 1 FROM sys.transmission_queue AS t WITH (NOLOCK) WHERE t.conversation_handle = e.conversation_handle)
) AS bounded;

-- name: end_finished
-- one row: how many of these conversations, at most :n, were ended on this side too
-- They cannot receive anything any more, so what was read without a lock is still true.
SET NOCOUNT ON;
DECLARE @n int = :n;
DECLARE @ended bigint = 0, @conversation uniqueidentifier;
DECLARE @over TABLE (conversation_handle uniqueidentifier NOT NULL PRIMARY KEY);
INSERT INTO @over (conversation_handle)
SELECT TOP (@n) e.conversation_handle
FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
WHERE s.name IN (N'{schema}.{queue}_service', N'{schema}.{queue}_initiator') AND e.state IN ('DI', 'ER')
AND NOT EXISTS (
    SELECT 1 FROM [{schema}].[{queue}] AS m WITH (NOLOCK)
    WHERE m.conversation_group_id = e.conversation_group_id AND m.conversation_handle = e.conversation_handle
    AND m.message_type_name = N'{schema}.{queue}_message_type'
)
AND NOT EXISTS (SELECT 1 FROM sys.transmission_queue AS t WITH (NOLOCK) WHERE t.conversation_handle = e.conversation_handle);
WHILE EXISTS (SELECT 1 FROM @over)
BEGIN
    SET @conversation = (SELECT TOP (1) o.conversation_handle FROM @over AS o);
    EXEC [{schema}].[{queue}_end] @conversation = @conversation;
    SET @ended += 1;
    DELETE FROM @over WHERE conversation_handle = @conversation;
END;
SELECT @ended AS ended;

-- name: conversations
-- a row for each state of the broker queue's conversations, on either side: how many (counted to 10,001)
-- CO, SO, SI, DI, DO, ER, CD: see sys.conversation_endpoints. The engine keeps one that both sides have ended (CD) for
-- half an hour.
SELECT
    RTRIM(b.state) AS state,
    COUNT_BIG(*) AS found
FROM (
    SELECT TOP (10001) e.state
    FROM sys.conversation_endpoints AS e WITH (NOLOCK) INNER JOIN sys.services AS s ON e.service_id = s.service_id
    WHERE s.service_queue_id IN (OBJECT_ID(N'[{schema}].[{table}]'), OBJECT_ID(N'[{schema}].[{table}_initiator]'))
) AS b
GROUP BY b.state
ORDER BY b.state;

-- name: undelivered
-- one row: how many of the broker queue's messages wait in sys.transmission_queue (counted to 10,001), since when, and why the oldest does
SELECT
    COUNT_BIG(*) AS found,
    CAST(DATEDIFF_BIG(millisecond, MIN(b.enqueue_time), SYSUTCDATETIME()) / 1e3 AS float) AS oldest_seconds,
    (
        SELECT TOP (1) t.transmission_status
        FROM sys.transmission_queue AS t WITH (NOLOCK)
        WHERE t.transmission_status <> N''
        AND (
            t.to_service_name IN (
                SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
            )
            OR t.from_service_name IN (
                SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
            )
        )
        ORDER BY t.enqueue_time
    ) AS status
FROM (
    SELECT TOP (10001) t.enqueue_time
    FROM sys.transmission_queue AS t WITH (NOLOCK)
    WHERE
        t.to_service_name IN (
            SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
        )
        OR t.from_service_name IN (
            SELECT s.name FROM sys.services AS s WHERE s.service_queue_id = OBJECT_ID(N'[{schema}].[{table}]')
        )
    ORDER BY t.enqueue_time
) AS b;

-- name: activation
-- one row: the broker queue's activation procedure (null: none), whether it is enabled, and the state of its monitor
-- monitored: whether this login sees monitors at all (VIEW SERVER STATE). state: INACTIVE, NOTIFIED (started, and has not
-- received yet), RECEIVES_OCCURRING; null: no monitor.
SET NOCOUNT ON;
DECLARE @monitored bit = {sees_server_state}, @state nvarchar(32), @activated datetime;
IF @monitored = 1
    SELECT
        @state = m.state,
        @activated = m.last_activated_time
    FROM sys.dm_broker_queue_monitors AS m
    WHERE m.database_id = DB_ID() AND m.queue_id = OBJECT_ID(N'[{schema}].[{table}]');
SELECT
    q.activation_procedure AS activated,
    q.is_activation_enabled AS enabled,
    @monitored AS monitored,
    @state AS state,
    CAST(DATEDIFF_BIG(millisecond, @activated, SYSDATETIME()) / 1e3 AS float) AS activated_seconds
FROM sys.service_queues AS q WHERE q.object_id = OBJECT_ID(N'[{schema}].[{table}]');

-- name: lock_rows
-- a row for each chosen message that exists: its order number
-- Only a RECEIVE could lock it: archive_rows receives it or fails.
{chosen_keys}
SELECT
    CAST(m.queuing_order AS nvarchar(450)) AS location,
    CAST({own_id} AS nvarchar(450)) AS id,
    N'ready' AS state,
    CAST(NULL AS bigint) AS attempts,
    CAST(NULL AS nvarchar(64)) AS error_hash
FROM @chosen AS c
INNER JOIN [{schema}].[{table}] AS m {reading} ON c.id = m.queuing_order
WHERE m.status = 1;

-- name: archive_rows
-- one row: how many messages left the queue, and how many entered its archive
{batch_begins}
DECLARE @received TABLE (
    queuing_order bigint NOT NULL,
    message_type_name nvarchar(256) NOT NULL,
    message_body varbinary(max) NULL
);
{chosen_by_conversation}
WHILE EXISTS (SELECT 1 FROM @there)
BEGIN
    {next_conversation}
    IF @count > 0
    BEGIN
        RECEIVE TOP (@count) queuing_order, message_type_name, message_body
        FROM [{schema}].[{table}] INTO @received WHERE conversation_handle = @conversation;
        EXEC [{schema}].[{queue}_end] @conversation = @conversation; -- when conversation=each
    END;
    DELETE FROM @there WHERE conversation_handle = @conversation;
END;
{all_or_nothing}
SET @taken_out = (SELECT COUNT_BIG(*) FROM @received);
INSERT INTO [{schema}].[{queue}_archive] (id, payload, pushed_at, state, attempts, reason, action_id)
SELECT
    CAST(CAST(SUBSTRING(r.message_body, 1, 16) AS binary(16)) AS uniqueidentifier),
    CAST(SUBSTRING(r.message_body, 26, 2147483647) AS nvarchar(max)), -- when payload=text|json
    SUBSTRING(r.message_body, 26, 2147483647), -- when payload=bytes
    CAST(CAST(SUBSTRING(r.message_body, 17, 9) AS binary(9)) AS datetime2(7)),
    @state,
    0,
    @reason,
    @action_id
FROM @received AS r ORDER BY r.queuing_order;
{batch_ends}

-- name: delete_rows
-- one row: how many messages were deleted
SET NOCOUNT ON;
DECLARE @locations nvarchar(max) = :locations;
DECLARE @taken_out bigint = 0, @put_in bigint;
{chosen_locations}
DECLARE @received TABLE (queuing_order bigint NOT NULL, message_type_name nvarchar(256) NOT NULL);
{chosen_by_conversation}
WHILE EXISTS (SELECT 1 FROM @there)
BEGIN
    {next_conversation}
    IF @count > 0
    BEGIN
        RECEIVE TOP (@count) queuing_order, message_type_name
        FROM [{schema}].[{table}] INTO @received WHERE conversation_handle = @conversation;
        EXEC [{schema}].[{queue}_end] @conversation = @conversation; -- when conversation=each
    END;
    DELETE FROM @there WHERE conversation_handle = @conversation;
END;
{all_or_nothing}
SET @taken_out = (SELECT COUNT_BIG(*) FROM @received);
SELECT
    @taken_out AS taken_out,
    COALESCE(@put_in, @taken_out) AS put_in;

-- name: contents
-- one row: exact counts of the queue's messages, by a scan; for verbs, never for monitoring
SELECT
    -- Undeliverable messages are elsewhere, for all queues of the database together.
    (
        SELECT COUNT_BIG(*) FROM [{schema}].[{table}] AS m WITH (NOLOCK)
        WHERE m.message_type_name = N'{schema}.{queue}_message_type'
    ) + (
        SELECT COUNT_BIG(*) FROM sys.transmission_queue AS t
        WHERE t.to_service_name = N'{schema}.{queue}_service' AND t.message_type_name = N'{schema}.{queue}_message_type'
    ) AS live,
    CAST(0 AS bigint) AS claimed,
    CAST(0 AS bigint) AS finished,
    (SELECT COUNT_BIG(*) FROM [{schema}].[{queue}_archive] AS a WITH (READPAST, READCOMMITTEDLOCK)) AS archived;
