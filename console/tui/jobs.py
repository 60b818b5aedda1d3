"""Work that waits for a database, in threads of its own; what comes of it comes to the event loop.

A job's thread is a daemon: quitting waits for nobody. It never touches a widget.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from textual.message import Message

from console.errors import ConsoleError
from console.tui.findings import QueueKey
from console.tui.text import plain

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode

    from console.actions.execute import Control
    from console.verbs.verb import OnProgress, Progress, Result

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


class JobFinished(Message):
    """Posted from a job's thread."""

    def __init__(self, deliver: Callable[[], None]) -> None:
        super().__init__()
        self.deliver = deliver
        """To be called in the event loop."""


def start_job(
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
            app.post_message(JobFinished(told))

    def run() -> None:
        try:
            found = work()
        except ConsoleError as error:
            tell(failed, error)
        except Exception as error:  # noqa: BLE001  # a thread that dies tells nobody
            tell(failed, _unforeseen(error))
        else:
            tell(done, found)

    threading.Thread(target=run, name="job", daemon=True).start()


def _unforeseen(error: Exception) -> ConsoleError:
    _LOG.error("a job failed", exc_info=error)
    return ConsoleError("The console could not do that.", why=f"{type(error).__name__}: {error}")


class LatestQuery(Generic[T]):
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
        self.busy = False

    def submit(self, work: Callable[[], T], *, wait: bool = True) -> None:
        """Ask. `wait=False`: not at all where one is under way; for what comes again anyway."""
        if self.busy:
            self._next = work if wait else self._next
            return
        self.busy = True
        start_job(self._owner, work, self._answered, self._refused)

    def _answered(self, found: T) -> None:
        if not self._go_on():
            self._done(found)

    def _refused(self, error: ConsoleError) -> None:
        if not self._go_on():
            self._failed(error)

    def _go_on(self) -> bool:
        """Whether the answer is to an old question: then the newer one is asked."""
        self.busy = False
        if self._next is None:
            return False
        following, self._next = self._next, None
        self.submit(following)
        return True


# Actions that run in this console: in threads of their own, whatever is on the screen.
#
# Quitting stops each after the batch that runs, and the process waits for that batch: so what was
# done is in the audit, and the same action planned again finishes the rest.


class Work(Protocol):
    """What can run here: an action's plan, or something that is about no queue."""

    @property
    def verb(self) -> str: ...

    @property
    def count(self) -> int | None:
        """Messages or steps; None: they are not counted."""
        ...

    @property
    def run(self) -> Callable[[Control, OnProgress], Result]:
        """Does it."""
        ...


def _control() -> Control:
    from console.actions.execute import Control  # noqa: PLC0415  # not before something runs

    return Control()


@dataclass
class ActionRun:
    """One action. Its thread writes `told`, `ended` and `error`; screens only read them."""

    number: int
    key: QueueKey
    verb: str
    """As its form is called."""
    work: Work
    began_at: float
    """By the context's clock."""
    control: Control = field(default_factory=_control)
    progress: Progress | None = None
    result: Result | None = None
    error: ConsoleError | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    seen: bool = False
    """Whether somebody has seen how it ended."""

    @property
    def active(self) -> bool:
        return not self.finished.is_set()

    @property
    def name(self) -> str:
        """What it is and on what, safe to show."""
        return f"{self.work.verb} {plain(self.key[2])}"

    @property
    def summary(self) -> str:
        told, planned = self.progress, self.work.count
        total = planned if told is None else told.total
        done = 0 if told is None else told.done
        counts = f"{done:,} of {total:,}" if total else f"{done:,} so far"
        return f"{self.name}: {counts}{self.state}"

    @property
    def state(self) -> str:
        """What is not as usual; empty: it just runs."""
        if self.error is not None:
            return ", FAILED"
        if self.result is not None:
            return f", {self.result.outcome.value}"
        if self.control.stopped:
            return ", stopping after this batch"
        return ", paused" if self.control.paused else ""


class ActionRuns:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._all: list[ActionRun] = []
        self._number = 0

    @property
    def all(self) -> tuple[ActionRun, ...]:
        """Those that run, and those that ended and nobody has seen that."""
        return tuple(one for one in self._all if one.active or not one.seen)

    @property
    def active(self) -> tuple[ActionRun, ...]:
        return tuple(one for one in self._all if one.active)

    def start(
        self,
        app: App[None],
        key: QueueKey,
        verb: str,
        planned: Work,
        now: float,
        over: Callable[[ActionRun], None],
    ) -> ActionRun:
        """Do what the plan says; `over` is called in the event loop when that has ended."""
        self._number += 1
        running = ActionRun(self._number, key, verb, planned, now)
        self._all = [*self.all, running]

        def tell(told: Progress) -> None:
            running.progress = told

        def run() -> None:
            try:
                running.result = planned.run(running.control, tell)
            except ConsoleError as error:
                running.error = error
            except Exception as error:  # noqa: BLE001  # a thread that dies tells nobody
                running.error = _unforeseen(error)
            finally:
                running.finished.set()
            # The loop may be gone by now; then nobody wants to know.
            with contextlib.suppress(RuntimeError):
                app.post_message(JobFinished(lambda: over(running)))

        threading.Thread(target=run, name=running.name, daemon=True).start()
        return running

    def get(self, number: int) -> ActionRun | None:
        return next((one for one in self._all if one.number == number), None)

    def stop(self) -> None:
        """Each after the batch that runs. Does not wait."""
        for running in self.active:
            running.control.stop()

    def wait(self, told: Callable[[str], None]) -> None:
        """Until all have ended. Ctrl-C leaves them: what runs then is undone by the server."""
        for running in self.active:
            told(f"{running.summary}. Ctrl-C interrupts it.")
        for running in self.active:
            running.finished.wait()
        for running in self._all:
            if running.control.stopped:
                for line in _end(running):
                    told(line)


def _end(running: ActionRun) -> tuple[str, ...]:
    if running.error is not None:
        return tuple(plain(line) for line in str(running.error).splitlines())
    return () if running.result is None else tuple(map(plain, running.result.lines))
