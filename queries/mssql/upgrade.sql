-- The code installed under a queue's names, to be compared with what this console would install. CREATE OR ALTER keeps a
-- procedure's rights, whatever its parameters, so nothing has to be dropped.

-- name: installed_code
-- a row for each procedure of the given names (a JSON array): its text, NULL where this login may not see it
DECLARE @schema nvarchar(max) = :schema;
DECLARE @names nvarchar(max) = :names;
SELECT
    o.name AS name,
    N'' AS id,
    N'' AS signature,
    N'' AS settings,
    OBJECT_DEFINITION(o.object_id) AS body
FROM sys.objects AS o
INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
INNER JOIN OPENJSON(@names) AS given ON o.name = given.[value] COLLATE Latin1_General_100_BIN2
WHERE s.name = @schema COLLATE Latin1_General_100_BIN2 AND o.type = N'P'
ORDER BY o.name;

-- name: set_default
-- script: gives a column the default of its definition, or none; rows keep their values
DECLARE @change nvarchar(max);
SELECT @change = CONCAT(N'ALTER TABLE [{schema}].[{table}] DROP CONSTRAINT ', QUOTENAME(d.name))
FROM sys.default_constraints AS d
INNER JOIN sys.columns AS c ON d.parent_object_id = c.object_id AND d.parent_column_id = c.column_id
WHERE c.object_id = OBJECT_ID(N'[{schema}].[{table}]') AND c.name = N'{column}' COLLATE Latin1_General_100_BIN2;
IF @change IS NOT NULL
    EXEC (@change);
SET @change = N'ALTER TABLE [{schema}].[{table}] ADD ' + NULLIF(N'{default}', N'') + N' FOR [{column}]';
IF @change IS NOT NULL
    EXEC (@change);
