"""Queues of every design as the catalog's tests install them, and what the catalog says of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from console import catalog
from console.actions.install import lacking
from console.catalog import Queue, installed_queue
from console.designs import Design, designs_on
from console.engines import Database
from console.errors import ConsoleError


def default_of(database: Database, of: Design, name: str) -> Queue:
    small = {"size": "10"} if "size" in {option.name for option in of.options} else {}
    schema = database.product.default_schema
    return installed_queue(schema, name, of, of.complete_options(small))


def all_designs(database: Database) -> list[Design]:
    """Those that the server can have."""
    here = designs_on(database.product.name).values()
    return [of for of in here if not lacking(database, of)]


def known(database: Database, queue: Queue) -> Queue | None:
    """The queue as the catalog has it."""
    with database.transaction("look") as connection:
        found = catalog.queues(connection, database.product)
    return next((q for q in found if q.label == queue.label), None)


def together(*calls: Callable[[], object]) -> list[object]:
    """Call all at once; what each returned or the ConsoleError it raised."""
    barrier = Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except ConsoleError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))
