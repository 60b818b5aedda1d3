"""Work that waits for a database, in threads of its own; what comes of it comes to the event loop.

A job's thread is a daemon: quitting waits for nobody. It never touches a widget.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from textual.dom import DOMNode
from textual.message import Message

from console.errors import ConsoleError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class JobEnded(Message):
    """Posted from a job's thread."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self.told = told
        """To be called in the event loop."""


def start(
    owner: DOMNode,
    work: Callable[[], T],
    done: Callable[[T], None],
    failed: Callable[[ConsoleError], None],
) -> None:
    """Do `work` in a thread; then `done` or `failed` in the event loop, if `owner` is still there.

    An error that nobody foresaw is told like any other; the log has its traceback.
    """
    app = owner.app

    def tell(call: Callable[[Any], None], value: object) -> None:
        def told() -> None:
            if owner.is_attached:
                call(value)

        # The loop may be gone by now; then nobody wants to know.
        with contextlib.suppress(RuntimeError):
            app.post_message(JobEnded(told))

    def run() -> None:
        try:
            found = work()
        except ConsoleError as error:
            tell(failed, error)
        except Exception as error:  # noqa: BLE001  # a thread that dies tells nobody
            _LOG.exception("a job failed")
            words = f"{type(error).__name__}: {error}"
            tell(failed, ConsoleError("The console could not do that.", why=words))
        else:
            tell(done, found)

    threading.Thread(target=run, name="job", daemon=True).start()


class Question(Generic[T]):
    """Something that a screen asks again and again: one at a time, and the newest wins.

    While one is under way the next waits; of several that wait only the last is asked.
    """

    def __init__(
        self,
        owner: DOMNode,
        done: Callable[[T], None],
        failed: Callable[[ConsoleError], None],
    ) -> None:
        self._owner = owner
        self._done = done
        self._failed = failed
        self._next: Callable[[], T] | None = None
        self.under_way = False

    def ask(self, work: Callable[[], T], *, wait: bool = True) -> None:
        """Ask. `wait=False`: not at all where one is under way; for what comes again anyway."""
        if self.under_way:
            self._next = work if wait else self._next
            return
        self.under_way = True
        start(self._owner, work, self._answered, self._refused)

    def _answered(self, found: T) -> None:
        if not self._go_on():
            self._done(found)

    def _refused(self, error: ConsoleError) -> None:
        if not self._go_on():
            self._failed(error)

    def _go_on(self) -> bool:
        """Whether the answer is to an old question: then the newer one is asked."""
        self.under_way = False
        if self._next is None:
            return False
        following, self._next = self._next, None
        self.ask(following)
        return True
