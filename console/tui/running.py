"""Actions that run in this console: in threads of their own, whatever is on the screen.

Quitting stops each after the batch that runs, and the process waits for that batch: so what was
done is in the audit, and the same action planned again finishes the rest.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from textual.app import App

from console.actions.execute import Control
from console.actions.work import Ended, Tell, Told
from console.errors import ConsoleError
from console.tui.board import Key
from console.tui.jobs import JobEnded
from console.tui.text import plain

_LOG = logging.getLogger(__name__)


class Work(Protocol):
    """What can run here: an action's plan, or something that is about no queue."""

    @property
    def verb(self) -> str:
        """Its name."""
        ...

    @property
    def count(self) -> int | None:
        """Messages or steps; None: they are not counted."""
        ...

    @property
    def do(self) -> Callable[[Control, Tell], Ended]:
        """Does it."""
        ...


@dataclass
class Running:
    """One action. Its thread writes `told`, `ended` and `error`; screens only read them."""

    number: int
    key: Key
    verb: str
    """As its form is called."""
    planned: Work
    began_at: float
    """By the desk's clock."""
    control: Control = field(default_factory=Control)
    told: Told | None = None
    ended: Ended | None = None
    error: ConsoleError | None = None
    over: threading.Event = field(default_factory=threading.Event)
    seen: bool = False
    """Whether somebody has seen how it ended."""

    @property
    def runs(self) -> bool:
        """Whether it is still at it."""
        return not self.over.is_set()

    @property
    def name(self) -> str:
        """What it is and on what, safe to show."""
        return f"{self.planned.verb} {plain(self.key[2])}"

    @property
    def words(self) -> str:
        """What it is and how far, in one line."""
        told, planned = self.told, self.planned.count
        total = planned if told is None else told.total
        done = 0 if told is None else told.done
        counts = f"{done:,} of {total:,}" if total else f"{done:,} so far"
        return f"{self.name}: {counts}{self.state}"

    @property
    def state(self) -> str:
        """What is not as usual; empty: it just runs."""
        if self.error is not None:
            return ", FAILED"
        if self.ended is not None:
            return f", {self.ended.outcome.value}"
        if self.control.stopped:
            return ", stopping after this batch"
        return ", paused" if self.control.paused else ""


class Runs:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._all: list[Running] = []
        self._number = 0

    @property
    def all(self) -> tuple[Running, ...]:
        """Those that run, and those that ended and nobody has seen that."""
        return tuple(one for one in self._all if one.runs or not one.seen)

    @property
    def active(self) -> tuple[Running, ...]:
        """Those that run."""
        return tuple(one for one in self._all if one.runs)

    def start(
        self,
        app: App[None],
        key: Key,
        verb: str,
        planned: Work,
        now: float,
        over: Callable[[Running], None],
    ) -> Running:
        """Do what the plan says; `over` is called in the event loop when that has ended."""
        self._number += 1
        running = Running(self._number, key, verb, planned, now)
        self._all = [*self.all, running]

        def tell(told: Told) -> None:
            running.told = told

        def run() -> None:
            try:
                running.ended = planned.do(running.control, tell)
            except ConsoleError as error:
                running.error = error
            except Exception as error:  # noqa: BLE001  # a thread that dies tells nobody
                _LOG.exception("an action failed")
                words = f"{type(error).__name__}: {error}"
                running.error = ConsoleError("The console could not do that.", why=words)
            finally:
                running.over.set()
            # The loop may be gone by now; then nobody wants to know.
            with contextlib.suppress(RuntimeError):
                app.post_message(JobEnded(lambda: over(running)))

        threading.Thread(target=run, name=running.name, daemon=True).start()
        return running

    def get(self, number: int) -> Running | None:
        """The one of that number."""
        return next((one for one in self._all if one.number == number), None)

    def stop(self) -> None:
        """Each after the batch that runs. Does not wait."""
        for running in self.active:
            running.control.stop()

    def wait(self, told: Callable[[str], None]) -> None:
        """Until all have ended. Ctrl-C leaves them: what runs then is undone by the server."""
        for running in self.active:
            told(f"{running.words}. Ctrl-C cuts it off.")
        for running in self.active:
            running.over.wait()
        for running in self._all:
            if running.control.stopped:
                for line in _end(running):
                    told(line)


def _end(running: Running) -> tuple[str, ...]:
    if running.error is not None:
        return tuple(plain(line) for line in str(running.error).splitlines())
    return () if running.ended is None else tuple(map(plain, running.ended.lines))
