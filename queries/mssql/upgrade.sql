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
