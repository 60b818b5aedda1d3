"""Every object of a database outside the console's own schema and the engine's."""

from sqlalchemy import text

from console.engines import Database

_OBJECTS = {
    "postgresql": """
        WITH objects AS (
            SELECT relnamespace AS schema, 'relation ' || relname AS what FROM pg_class
            UNION ALL SELECT pronamespace, 'function ' || proname FROM pg_proc
            UNION ALL SELECT typnamespace, 'type ' || typname FROM pg_type
            UNION ALL SELECT connamespace, 'constraint ' || conname FROM pg_constraint
            UNION ALL SELECT oid, 'itself' FROM pg_namespace
        )
        SELECT n.nspname || '.' || o.what AS object
        FROM objects AS o INNER JOIN pg_namespace AS n ON o.schema = n.oid
        WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
        AND (n.nspname <> 'dbq' OR :with_own)
    """,
    "mssql": """
        SELECT s.name + N'.' + RTRIM(o.type) COLLATE DATABASE_DEFAULT + N' ' + o.name AS object
        FROM sys.objects AS o INNER JOIN sys.schemas AS s ON o.schema_id = s.schema_id
        WHERE o.is_ms_shipped = 0 AND (s.name <> N'dbq' OR :with_own = 1)
        UNION ALL SELECT N'schema ' + name FROM sys.schemas WHERE name <> N'dbq' OR :with_own = 1
    """,
}

_BROKER = """
    UNION ALL SELECT N'message type ' + name COLLATE DATABASE_DEFAULT FROM sys.service_message_types
    UNION ALL SELECT N'contract ' + name COLLATE DATABASE_DEFAULT FROM sys.service_contracts
    UNION ALL SELECT N'service ' + name COLLATE DATABASE_DEFAULT FROM sys.services
"""
"""What Service Broker has outside the schemas, on servers that have it."""


def objects_of(database: Database, *, with_own: bool = False) -> set[str]:
    """Schemas and their objects; schema `dbq` only with `with_own`."""
    engine = database.product.name
    has_broker = engine == "mssql" and "broker" not in database.capabilities.missing
    query = text(_OBJECTS[engine] + (_BROKER if has_broker else ""))
    with database.transaction("look at the catalog") as connection:
        return set(connection.execute(query, {"with_own": with_own}).scalars())
