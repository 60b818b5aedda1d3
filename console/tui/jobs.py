"""Work that waits for a database runs in threads; results are delivered to the event loop.

The threads are daemons, so quitting never waits for them. They never touch a widget.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from textual.message import Message

from console.errors import ConsoleError
from console.plan import Control, Plan, Progress, Result
from console.tui.findings import QueueKey
from console.tui.text import plain

if TYPE_CHECKING:
    from textual.app import App
    from textual.dom import DOMNode
    from textual.screen import Screen

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
    """Do `work` in a thread; then call `done` or `failed` in the event loop if `owner` is attached.

    An unexpected error is shown like any other; the log has its traceback.
    """
    app = owner.app

    def deliver(call: Callable[[Any], None], value: object) -> None:
        _post(app, lambda: call(value) if owner.is_attached else None)

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  # or the thread would die silently
            deliver(failed, _as_console_error(error))
        else:
            deliver(done, result)

    threading.Thread(target=run, name="job", daemon=True).start()


def _post(app: App[Any], deliver: Callable[[], None]) -> None:
    # Once the event loop has stopped there is nothing left to deliver to.
    with contextlib.suppress(RuntimeError):
        app.post_message(JobFinished(deliver))


def _as_console_error(error: Exception) -> ConsoleError:
    if isinstance(error, ConsoleError):
        return error
    _LOG.error("a job failed", exc_info=error)
    return ConsoleError("The console could not do that.", why=f"{type(error).__name__}: {error}")


class LatestQuery(Generic[T]):
    """A query that a screen repeats: one at a time, and the newest wins.

    While one runs the next one waits; of several that wait only the last is run.
    """

    def __init__(
        self, owner: DOMNode, done: Callable[[T], None], failed: Callable[[ConsoleError], None]
    ) -> None:
        self._owner = owner
        self._done = done
        self._failed = failed
        self._next: Callable[[], T] | None = None
        self.busy = False

    def submit(self, work: Callable[[], T], *, wait: bool = True) -> None:
        """Run it. `wait=False`: drop it if another is running, as for periodic queries."""
        if self.busy:
            self._next = work if wait else self._next
            return
        self.busy = True
        start_job(self._owner, work, self._on_done, self._on_error)

    def _on_done(self, result: T) -> None:
        if not self._run_next():
            self._done(result)

    def _on_error(self, error: ConsoleError) -> None:
        if not self._run_next():
            self._failed(error)

    def _run_next(self) -> bool:
        """Whether this result is outdated, because a newer query was waiting; that one is run."""
        self.busy = False
        if self._next is None:
            return False
        following, self._next = self._next, None
        self.submit(following)
        return True


# Actions run in threads of their own, whatever is on the screen.
#
# Quitting stops each after its current batch, and the process waits for that batch: so the audit
# is complete, and the same action planned again finishes the rest.


@dataclass
class ActionRun:
    """One action. Its thread writes `progress`, `result` and `error`; screens only read them."""

    number: int
    key: QueueKey
    verb: str
    """The name of its form."""
    plan: Plan
    began_at: float
    """By the context's clock."""
    screen_of: Callable[[ActionRun], Screen[None]]
    """Makes a screen of it, to go back to."""
    control: Control = field(default_factory=Control)
    progress: Progress | None = None
    result: Result | None = None
    error: ConsoleError | None = None
    finished: threading.Event = field(default_factory=threading.Event)
    result_shown: bool = False
    """Whether its result has been shown."""

    @property
    def active(self) -> bool:
        return not self.finished.is_set()

    @property
    def name(self) -> str:
        """The verb and the queue; safe to show."""
        return f"{self.plan.verb} {plain(self.key[2])}"

    @property
    def summary(self) -> str:
        progress = self.progress
        total = self.plan.count if progress is None else progress.total
        done = 0 if progress is None else progress.done
        counts = f"{done:,} of {total:,}" if total else f"{done:,} so far"
        return f"{self.name}: {counts}{self.state}"

    @property
    def state(self) -> str:
        """Empty while it simply runs."""
        if self.error is not None:
            return ", FAILED"
        if self.result is not None:
            return f", {self.result.outcome.value}"
        if self.control.stopped:
            return ", stopping after this batch"
        return ", paused" if self.control.paused else ""


class ActionRuns:
    """All runs, the oldest first."""

    def __init__(self) -> None:
        self._all: list[ActionRun] = []
        self._number = 0

    @property
    def all(self) -> tuple[ActionRun, ...]:
        """Those that are running, and those whose result has not been shown yet."""
        return tuple(one for one in self._all if one.active or not one.result_shown)

    @property
    def active(self) -> tuple[ActionRun, ...]:
        return tuple(one for one in self._all if one.active)

    def start(
        self,
        app: App[None],
        key: QueueKey,
        verb: str,
        plan: Plan,
        now: float,
        on_finished: Callable[[ActionRun], None],
        screen_of: Callable[[ActionRun], Screen[None]],
    ) -> ActionRun:
        """Carry out the plan; `on_finished` is called in the event loop."""
        self._number += 1
        running = ActionRun(self._number, key, verb, plan, now, screen_of)
        self._all = [*self.all, running]

        def on_progress(progress: Progress) -> None:
            running.progress = progress

        def run() -> None:
            try:
                running.result = plan.run(running.control, on_progress)
            except Exception as error:  # noqa: BLE001  # or the thread would die silently
                running.error = _as_console_error(error)
            finally:
                running.finished.set()
            _post(app, lambda: on_finished(running))

        threading.Thread(target=run, name=running.name, daemon=True).start()
        return running

    def get(self, number: int) -> ActionRun | None:
        return next((run for run in self._all if run.number == number), None)

    def stop(self) -> None:
        """Stop each after its current batch, without waiting."""
        for running in self.active:
            running.control.stop()

    def wait(self, on_line: Callable[[str], None]) -> None:
        """Wait until all have finished. On Ctrl-C the server rolls the current batches back."""
        for running in self.active:
            on_line(f"{running.summary}. Ctrl-C interrupts it.")
        for running in self.active:
            running.finished.wait()
        for running in self._all:
            if running.control.stopped:
                for line in _result_lines(running):
                    on_line(line)


def _result_lines(running: ActionRun) -> tuple[str, ...]:
    if running.error is not None:
        return tuple(plain(line) for line in str(running.error).splitlines())
    return () if running.result is None else tuple(map(plain, running.result.lines))
