"""What the bench leaves in a database: nothing, however it ends; and what a killed one left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from console import catalog, sql
from console.bench.names import APPLICATION, token_of
from console.catalog import Kind, Queue
from console.engines import Database

_NOTHING = sql.Scope()


@dataclass(frozen=True)
class _Name:
    name: str


@dataclass(frozen=True)
class Leftovers:
    """What earlier benches left, of which no session is there any more; and what may be in use."""

    queues: tuple[Queue, ...]
    schemas: tuple[str, ...]
    in_use: tuple[str, ...]
    """Names of what belongs to a bench that runs, or of which nobody can tell."""


def leftovers(database: Database) -> Leftovers:
    """Look for them."""
    product = database.product
    statements = sql.statements(product.name, "bench")
    with database.transaction("look for what earlier benches left", read_only=True) as connection:
        living = sql.fetch(connection, _Name, statements["living"], _NOTHING)
        schemas = [
            row.name for row in sql.fetch(connection, _Name, statements["schemas"], _NOTHING)
        ]
        known = catalog.queues(connection, product)
    alive = {row.name.removeprefix(APPLICATION).split()[0] for row in living}
    queues = [q for q in known if token_of(q.name) and q.kind is Kind.INSTALLED]
    # Who cannot see all sessions cannot tell that one is gone.
    names = [*(queue.name for queue in queues), *schemas]
    sees = database.capabilities.sees_all_sessions
    dead = {name for name in names if sees and token_of(name) not in alive}
    return Leftovers(
        tuple(queue for queue in queues if queue.name in dead),
        tuple(name for name in schemas if name in dead),
        tuple(name for name in names if name not in dead),
    )


def drop_leftovers(
    database: Database,
    found: Leftovers,
    uninstall: Callable[[Database, Queue], None],
    tell: Callable[[str], None],
) -> None:
    """Remove what is nobody's, and say so."""
    for queue in found.queues:
        tell(f"An earlier bench left the queue {queue.label}: it is dropped.")
        uninstall(database, queue)
    for schema in found.schemas:
        tell(f"An earlier bench left the schema {schema}: it is dropped.")
        drop_schema(database, schema)
    for name in found.in_use:
        tell(f"{name} belongs to a bench that may still run: it is left alone.")


@contextmanager
def schema_of_its_own(database: Database, schema: str) -> Iterator[None]:
    """A schema for one round; all that is in it goes with the context."""
    statement = sql.statements(database.product.name, "bench")["make_schema"]
    try:
        with database.transaction("make a schema for the bench") as connection:
            sql.run_script(connection, statement, sql.Scope({"schema": schema}))
        yield
    finally:
        # Also after an interrupt whose answer was lost: there is nothing of anybody else's in it.
        drop_schema(database, schema)


def drop_schema(database: Database, schema: str) -> None:
    """With all that is in it; nothing where it is not there."""
    statement = sql.statements(database.product.name, "bench")["drop_schema"]
    with database.transaction("drop a schema of the bench") as connection:
        sql.run_script(connection, statement, sql.Scope({"schema": schema}))
