"""Queues of every design for the tests, and their entries in the catalog."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

from console import catalog
from console.actions import execute
from console.actions.execute import Batching
from console.actions.install import install, missing_requirement
from console.actions.message_action import MessageAction
from console.actions.selected import SelectedMessages
from console.catalog import Queue, installed_queue
from console.catalog.audit import Ledger
from console.designs import Design, designs_on
from console.engines import Database
from console.errors import ConsoleError
from console.plan import Result
from tests.contract.client import Client
from tests.contract.variants import Variant


def default_of(database: Database, of: Design, name: str) -> Queue:
    small = {"size": "10"} if "size" in {option.name for option in of.options} else {}
    schema = database.product.default_schema
    return installed_queue(schema, name, of, of.complete_options(small, database.product.name))


def installed(database: Database, variant: Variant, name: str = "q") -> Client:
    """A queue that is not removed at the end."""
    product = database.product
    queue = variant.queue(product.default_schema, name, product.name)
    install(database, queue)
    return Client(database, queue)


def all_designs(database: Database) -> list[Design]:
    """The designs that the server can have."""
    here = designs_on(database.product.name).values()
    return [of for of in here if not missing_requirement(database, of)]


def catalogued(database: Database, queue: Queue) -> Queue | None:
    """The queue as read from the catalog."""
    with database.transaction("look") as connection:
        queues = catalog.queues(connection)
    return next((q for q in queues if q.label == queue.label), None)


def run_concurrently(*calls: Callable[[], object]) -> list[object]:
    """Call all at once; what each returned, or the ConsoleError it raised."""
    barrier = Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except ConsoleError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def execute_concurrently(
    database: Database, actions: Sequence[MessageAction], plans: Sequence[SelectedMessages]
) -> list[Ledger]:
    """Execute all plans at once, each as a separate operator, in batches of four."""
    batching = Batching(batch=4)
    calls = [
        partial(execute.execute, database, action, plan, batching=batching)
        for action, plan in zip(actions, plans, strict=True)
    ]
    results = [result for result in run_concurrently(*calls) if isinstance(result, Result)]
    assert len(results) == len(plans)
    return [result.ledger for result in results]
