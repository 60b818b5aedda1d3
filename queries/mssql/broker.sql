-- broker: SQL Server's own queue, Service Broker, behind the interface of the other designs.
--
-- A queue is a QUEUE, a SERVICE, a CONTRACT and a MESSAGE TYPE. Only the QUEUE lies in a schema; the names
-- of the others are the database's, so they hold the schema's name: [schema.queue_service] and so on.
-- Pushes send from a service and a queue of their own (_initiator), so that what Service Broker answers
-- does not come among the messages. It must be enabled: ALTER DATABASE ... SET ENABLE_BROKER.
-- Azure SQL Database has none; Managed Instance has.
--
-- The body of a message, for those who SEND and RECEIVE themselves: 16 bytes its id (a uniqueidentifier),
-- 9 bytes its push time in UTC (a datetime2(7) as binary(9): 07, five bytes of 100 ns since midnight and
-- three of days since 0001-01-01, both lowest byte first), then the payload, a text in UTF-16.
--
-- conversation=kept  each session keeps one conversation and sends all its messages on it (Rusanu, "Reusing
--                    conversations": about 4 times cheaper to send than one each, 10 times to receive).
--                    One for all would hold every push until the transaction of the one before it ends:
--                    SEND locks its conversation. The order is kept within a conversation, so within a
--                    session. RECEIVE locks a conversation too: one consumer at a time takes from it, and
--                    meanwhile others find nothing in it. One that was ended or broke is replaced by
--                    the next push. Sessions that are gone leave theirs to the next of the same number.
-- conversation=each  one conversation a message: as many consumers as messages, no promise of an order
--                    (in practice the one in which they came). pop ends it; the answer to that is taken
--                    by later pushes, two for each message. What is still open is in `health`.
--
-- Five rollbacks in a row of a transaction that received disable the queue (poison messages): pop fails
-- with error 9617, pushes pile up in sys.transmission_queue. To enable it: ALTER QUEUE ... WITH STATUS = ON.
-- attempts is always 1: Service Broker keeps no count.
--
-- activation=on makes a procedure <queue>_activated, the frame of a consumer, and registers it switched
-- off: see there.

-- name: tables
-- script: the message type, the contract, the queues and services of both sides
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
CREATE MESSAGE TYPE [{schema}.{queue}_message_type] VALIDATION = NONE;
CREATE CONTRACT [{schema}.{queue}_contract] ([{schema}.{queue}_message_type] SENT BY INITIATOR);
CREATE QUEUE [{schema}].[{queue}] WITH STATUS = ON;
CREATE SERVICE [{schema}.{queue}_service] ON QUEUE [{schema}].[{queue}] ([{schema}.{queue}_contract]);
-- No handling of poison here: pushes that are rolled back must not disable the answers' queue.
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
-- EXECUTE AS OWNER: services and contracts belong to no schema, so rights on them do not come with the
-- right to execute, as they do on tables.
SET ANSI_NULLS ON;
SET QUOTED_IDENTIFIER ON;
GO
-- Sends one message, in the transaction of push or push_many.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_send]
    @id uniqueidentifier,
    -- when payload=text|json
    @payload nvarchar(max)
    -- end
    -- when payload=bytes
    @payload varbinary(max)
    -- end
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
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
    -- when payload=text|json
    @payload nvarchar(max)
    -- end
    -- when payload=bytes
    @payload varbinary(max)
    -- end
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    IF @payload IS NULL
    BEGIN
        THROW 51002, N'The payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
    END;
    -- when limited=yes
    -- In bytes as they are stored: two for each UTF-16 unit of a text.
    IF DATALENGTH(@payload) > CAST(N'{max_bytes}' AS bigint)
    BEGIN
        THROW 51002, N'The payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
    END;
    -- end
    -- when payload=json
    -- As the one element of an array: ISJSON alone takes no scalars before SQL Server 2022.
    IF ISJSON(N'[' + @payload + N']') = 0
    BEGIN
        THROW 51002, N'The payload is not valid JSON.||Send one JSON value as the payload.', 1;
    END;
    IF (SELECT COUNT(*) FROM OPENJSON(N'[' + @payload + N']')) <> 1
    BEGIN
        THROW 51002, N'The payload is not one JSON value.||Send one JSON value as the payload.', 1;
    END;
    -- end
    DECLARE @id uniqueidentifier = NEWID();
    BEGIN TRANSACTION;
    EXEC [{schema}].[{queue}_send] @id = @id, @payload = @payload;
    COMMIT TRANSACTION;
    SELECT @id AS id;
END;
GO
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_push_many]
    @payloads nvarchar(max)
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    IF ISJSON(@payloads) = 0
    BEGIN
        THROW 51002, N'The payloads are not a JSON array.||Send an array of strings, one for each payload.', 1;
    END;
    DECLARE @rows TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL DEFAULT NEWID(),
        -- when payload=text|json
        payload nvarchar(max) NULL
        -- end
        -- when payload=bytes
        payload varbinary(max) NULL
        -- end
    );
    INSERT INTO @rows (position, payload)
    -- when payload=text|json
    SELECT CAST(j.[key] AS int), j.value FROM OPENJSON(@payloads) AS j;
    -- end
    -- when payload=bytes
    -- Hexadecimal digits; what is none becomes NULL, which is refused below.
    SELECT CAST(j.[key] AS int), TRY_CONVERT(varbinary(max), j.value, 2) FROM OPENJSON(@payloads) AS j;
    -- end
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE r.payload IS NULL)
    BEGIN
        -- when payload=text|json
        THROW 51002, N'A payload is NULL.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
        -- when payload=bytes
        THROW 51002, N'A payload is NULL or not hexadecimal digits.|A message needs a payload.|Send an empty payload instead.', 1;
        -- end
    END;
    -- when limited=yes
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE DATALENGTH(r.payload) > CAST(N'{max_bytes}' AS bigint))
    BEGIN
        THROW 51002, N'A payload is over the limit of {max_bytes} bytes.||Send it in parts, or install a queue with a larger max_bytes.', 1;
    END;
    -- end
    -- when payload=json
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE ISJSON(N'[' + r.payload + N']') = 0)
    BEGIN
        THROW 51002, N'A payload is not valid JSON.||Send one JSON value as each payload.', 1;
    END;
    IF EXISTS (SELECT 1 FROM @rows AS r WHERE (SELECT COUNT(*) FROM OPENJSON(N'[' + r.payload + N']')) <> 1)
    BEGIN
        THROW 51002, N'A payload is not one JSON value.||Send one JSON value as each payload.', 1;
    END;
    -- end
    DECLARE @position int = 0, @count int = (SELECT COUNT(*) FROM @rows), @id uniqueidentifier;
    -- when payload=text|json
    DECLARE @payload nvarchar(max);
    -- end
    -- when payload=bytes
    DECLARE @payload varbinary(max);
    -- end
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
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    IF EXISTS (
        SELECT 1 FROM sys.dm_exec_sessions AS s
        WHERE s.session_id = @@SPID AND s.transaction_isolation_level IN (4, 5)
    )
    BEGIN
        THROW 51002, N'The session is at isolation level SERIALIZABLE or SNAPSHOT.|A queue skips rows that others hold and must see what they committed.|Call it at READ COMMITTED.', 1;
    END;
    DECLARE @received TABLE (
        conversation_handle uniqueidentifier NOT NULL,
        message_sequence_number bigint NOT NULL,
        message_type_name nvarchar(256) NOT NULL,
        message_body varbinary(max) NULL
    );
    DECLARE @popped TABLE (
        position int NOT NULL PRIMARY KEY,
        id uniqueidentifier NOT NULL,
        -- when payload=text|json
        payload nvarchar(max) NOT NULL,
        -- end
        -- when payload=bytes
        payload varbinary(max) NOT NULL,
        -- end
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
            -- when payload=text|json
            CAST(SUBSTRING(r.message_body, 26, 2147483647) AS nvarchar(max)),
            -- end
            -- when payload=bytes
            SUBSTRING(r.message_body, 26, 2147483647),
            -- end
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
        -- when conversation=each
        END CONVERSATION @conversation;
        -- end
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
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    EXEC [{schema}].[{queue}_pop_many] @n = 1, @wait_ms = @wait_ms;
END;
-- when activation=on
GO
-- The frame of a consumer that the engine starts. It has no client, so it must not call pop: what that
-- returns would be lost. Until somebody writes what shall be done, it keeps each message in the archive.
-- ALTER QUEUE ... WITH ACTIVATION (STATUS = ON) starts it; until then it is only registered.
CREATE OR ALTER PROCEDURE [{schema}].[{queue}_activated]
WITH EXECUTE AS OWNER
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
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
                -- when payload=text|json
                CAST(SUBSTRING(@body, 26, 2147483647) AS nvarchar(max)),
                -- end
                -- when payload=bytes
                SUBSTRING(@body, 26, 2147483647),
                -- end
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
        -- when conversation=each
        END CONVERSATION @conversation;
        -- end
        COMMIT TRANSACTION;
    END;
END;
GO
ALTER QUEUE [{schema}].[{queue}] WITH ACTIVATION (
    STATUS = OFF, PROCEDURE_NAME = [{schema}].[{queue}_activated], MAX_QUEUE_READERS = 1, EXECUTE AS OWNER
);
-- end

-- name: drop
-- script: removes the services with their conversations and messages, the queues, what they are made of
DROP PROCEDURE
    [{schema}].[{queue}_push], [{schema}].[{queue}_push_many], [{schema}].[{queue}_pop],
    [{schema}].[{queue}_pop_many], [{schema}].[{queue}_send];
DROP SERVICE [{schema}.{queue}_initiator];
DROP SERVICE [{schema}.{queue}_service];
DROP QUEUE [{schema}].[{queue}_initiator];
DROP QUEUE [{schema}].[{queue}];
DROP CONTRACT [{schema}.{queue}_contract];
DROP MESSAGE TYPE [{schema}.{queue}_message_type];
-- when activation=on
DROP PROCEDURE [{schema}].[{queue}_activated];
-- end
-- when conversation=kept
DROP TABLE [{schema}].[{queue}_conversation];
-- end

-- name: status
-- one row: a count of at most 10,001, the age of the oldest message, the counters of the queue's own table
-- NOLOCK: a queue is looked at without locks or its RECEIVE and the look wait for each other; what
-- open transactions send is counted already. Service Broker's own messages are none of the queue's.
-- There are no claims to list: RECEIVE keeps nothing of a message, and its transaction, which holds the
-- conversation's lock, stands among the holders.
SELECT
    CAST(N'{schema}' AS nvarchar(128)) AS [schema],
    CAST(N'{queue}' AS nvarchar(128)) AS queue,
    (
        SELECT COUNT_BIG(*) FROM (
            SELECT TOP (CAST(N'{ready_limit}' AS bigint)) 1 AS one FROM [{schema}].[{table}] AS m WITH (NOLOCK)
            WHERE m.status = 1 AND m.message_type_name NOT LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'
        ) AS bounded
    ) AS ready,
    CAST(NULL AS bigint) AS scheduled,
    CAST(NULL AS bigint) AS claimed,
    CAST(NULL AS bigint) AS stuck,
    CAST(NULL AS bigint) AS errors,
    CAST(NULL AS bigint) AS done,
    -- when installed=yes
    (
        -- In the order of the queue's index; without priorities this is the order of arrival.
        SELECT TOP (CAST(N'{age_seconds_limit}' AS bigint)) CAST(DATEDIFF_BIG(
            microsecond, TRY_CAST(CAST(SUBSTRING(head.message_body, 17, 9) AS binary(9)) AS datetime2(7)), SYSUTCDATETIME()
        ) / 1e6 AS float)
        FROM [{schema}].[{table}] AS head WITH (NOLOCK)
        WHERE head.status = 1 AND head.message_type_name = N'{schema}.{queue}_message_type'
        ORDER BY head.priority, head.queuing_order
    ) AS age_seconds,
    -- end
    -- when installed=no
    CAST(NULL AS float) AS age_seconds,
    -- end
    -- when counters=yes
    estimated.number_of_rows AS rows_estimated,
    counted.inserted AS inserted,
    counted.updated AS updated,
    counted.deleted AS deleted,
    -- end
    -- when counters=no
    CAST(NULL AS bigint) AS rows_estimated,
    CAST(NULL AS bigint) AS inserted,
    CAST(NULL AS bigint) AS updated,
    CAST(NULL AS bigint) AS deleted,
    -- end
    CAST(NULL AS bigint) AS next_push,
    CAST(NULL AS bigint) AS next_pop,
    CAST(NULL AS bigint) AS base,
    CAST(NULL AS bigint) AS capacity
-- when counters=yes
FROM (
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.internal_tables AS i INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id
    WHERE i.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND i.internal_type = 201 AND p.index_id = 1
) AS estimated
CROSS JOIN (
    SELECT
        SUM(o.leaf_insert_count) AS inserted,
        SUM(o.leaf_update_count) AS updated,
        -- A delete makes a ghost, except where the row goes at once.
        SUM(o.leaf_delete_count + o.leaf_ghost_count) AS deleted
    -- Of all objects, since the function takes no column for an argument.
    FROM sys.dm_db_index_operational_stats(DB_ID(), NULL, NULL, NULL) AS o
    INNER JOIN sys.internal_tables AS i ON o.object_id = i.object_id AND o.index_id = 1
    WHERE i.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND i.internal_type = 201
) AS counted
-- end

-- name: estimate
-- one row: about how many rows there are of each state; nothing to a login that does not see the row counts
-- See fifo.sql. Service Broker's own messages are in it, if any lie in the queue.
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
    SELECT SUM(p.row_count) AS number_of_rows
    FROM sys.internal_tables AS i INNER JOIN sys.dm_db_partition_stats AS p ON i.object_id = p.object_id
    WHERE i.parent_id = OBJECT_ID(N'[{schema}].[{table}]') AND i.internal_type = 201 AND p.index_id = 1
) AS estimated
-- end
-- when counters=no
    CAST(NULL AS float) AS ready,
    CAST(NULL AS float) AS scheduled,
    CAST(NULL AS float) AS claimed,
    CAST(NULL AS float) AS errors,
    CAST(NULL AS float) AS done
-- end

-- name: health
-- one row: whether the queue and the broker are enabled, open conversations, what cannot be delivered and why
-- Bounded counts, of at most 10,001. A conversation that both sides have ended is kept for a while by the
-- engine itself (CD) and does not count.
SELECT
    q.is_receive_enabled AS is_receive_enabled,
    q.is_enqueue_enabled AS is_enqueue_enabled,
    d.is_broker_enabled AS broker_enabled,
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
FROM sys.service_queues AS q CROSS JOIN sys.databases AS d
WHERE q.object_id = OBJECT_ID(N'[{schema}].[{queue}]') AND d.database_id = DB_ID();

-- name: messages
-- the messages by the order number that Service Broker gave them, for `looked` of common.sql
-- NOLOCK: a queue is looked at without locks or its RECEIVE and the look wait for each other. The engine's
-- index is by priority first: of a deep queue a page costs a look at all of it.
SELECT
    m.queuing_order AS key_id,
    -- when installed=yes
    CAST(CAST(CAST(SUBSTRING(m.message_body, 1, 16) AS binary(16)) AS uniqueidentifier) AS nvarchar(450)) AS id,
    -- end
    -- when installed=no
    CAST(NULL AS nvarchar(450)) AS id,
    -- end
    N'ready' AS state,
    -- when role pushed_at
    -- when installed=yes
    TRY_CAST(CAST(SUBSTRING(m.message_body, 17, 9) AS binary(9)) AS datetime2(7)) AS pushed_at,
    -- end
    -- when installed=no
    CAST(NULL AS datetime2(7)) AS pushed_at,
    -- end
    -- end
    -- when installed=yes
    -- when payload=text|json
    CAST(SUBSTRING(m.message_body, 26, 2147483647) AS nvarchar(max)) AS payload
    -- end
    -- when payload=bytes
    SUBSTRING(m.message_body, 26, 2147483647) AS payload
    -- end
FROM [{schema}].[{table}] AS m WITH (NOLOCK)
WHERE m.status = 1 AND m.message_type_name = N'{schema}.{queue}_message_type'
    -- end
    -- when installed=no
    m.message_body AS payload
FROM [{schema}].[{table}] AS m WITH (NOLOCK)
WHERE m.status = 1 AND m.message_type_name NOT LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'
    -- end

-- name: enable
-- script: lets the queue give and take messages again, after poison messages (or somebody) switched it off
ALTER QUEUE [{schema}].[{queue}] WITH STATUS = ON;

-- name: over
-- one row: how many conversations are over on the other side and hold nothing, of at most 10,001
-- Ended there (DI) or broken (ER), with no message left in the queue and none to be sent.
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

-- name: end_over
-- one row: how many of these conversations, at most :n, were ended on this side too
-- Nothing can come to one of them any more, so what was seen without a lock is still so.
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
    END CONVERSATION @conversation;
    SET @ended += 1;
    DELETE FROM @over WHERE conversation_handle = @conversation;
END;
SELECT @ended AS ended;
