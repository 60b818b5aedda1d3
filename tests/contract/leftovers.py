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
}


def objects_of(database: Database, *, with_own: bool = False) -> set[str]:
    """Schemas and what is in them, schema `dbq` only if asked for."""
    query = text(_OBJECTS[database.product.name])
    with database.transaction("look at the catalog") as connection:
        return set(connection.execute(query, {"with_own": with_own}).scalars())
