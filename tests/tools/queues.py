"""A queue of a design, by the names of both."""

from console.actions.install import install
from console.catalog import Queue, installed_queue
from console.designs import design
from console.engines import Database


def queue_of(
    name: str, shape: str, engine: str = "postgresql", schema: str = "public", **options: str
) -> Queue:
    """Not installed."""
    chosen = design(shape, engine)
    return installed_queue(schema, name, chosen, chosen.complete_options(options, engine))


def install_queue(database: Database, name: str, shape: str, **options: str) -> Queue:
    queue = queue_of(name, shape, database.product.name, database.product.default_schema, **options)
    install(database, queue)
    return queue
