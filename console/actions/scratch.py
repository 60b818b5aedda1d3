"""A queue that is there for a while only: made, and gone again however that ends."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from console.actions.install import install
from console.actions.push import signals_held
from console.actions.uninstall import uninstall
from console.catalog import Queue
from console.engines import Database


@contextmanager
def scratch_queue(database: Database, queue: Queue) -> Iterator[None]:
    """The queue, for as long as the block lasts, however it ends."""
    with ExitStack() as at_the_end:
        with signals_held():
            install(database, queue)
            at_the_end.callback(remove, database, queue)
        yield


def remove(database: Database, queue: Queue) -> None:
    """With all that is in it; no signal comes in between."""
    with signals_held():
        uninstall(database, queue, keep_archive=False, with_messages=True)
