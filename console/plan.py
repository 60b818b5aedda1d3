"""What a verb would do, to be read and confirmed; how it is controlled; its progress and result.

Every plan is this one value: of verbs on messages, queues and sessions, of the pipeline's jobs, of
the doctor's repairs.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ParamSpec, Protocol

from console import catalog, clock
from console.catalog import Queue, audit, every_queue
from console.catalog.audit import Ledger, Outcome, Subject
from console.engines import Database
from console.errors import RefusedError
from console.formats import plain

P = ParamSpec("P")

MANY_MESSAGES = 1_000
"""More than these require the queue's name as confirmation."""


class Control:
    """Pauses and stops a run, from any thread."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()

    def pause(self) -> None:
        """After the current batch, until `resume`."""
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    def stop(self) -> None:
        """After the current batch; also while paused."""
        self._stop.set()
        self._go.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @property
    def paused(self) -> bool:
        return not self._go.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, unless stopped; then for as long as it is paused."""
        clock.sleep(seconds, self._stop)
        clock.sleep(math.inf, self._go)


@dataclass(frozen=True)
class Result:
    outcome: Outcome
    lines: tuple[str, ...]
    ledger: Ledger = field(default_factory=Ledger)
    """Of messages; empty where it moves none."""
    action_id: int | None = None
    """In the audit."""
    done: int = 0
    """Messages, steps, conversations; 1 where the verb is about the queue or a session."""
    queue_removed: bool = False
    problem: str = ""
    """Why it failed, or ended early; empty: it did not."""
    stopped_by_canary: bool = False
    """The canary's messages failed, or had no result in time."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For --json."""


@dataclass(frozen=True)
class Progress:
    done: int
    total: int | None = None
    """None: not known."""
    text: str = ""
    ledger: Ledger | None = None
    round: Result | None = None
    """The round that has just ended, if it works in rounds."""


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class Confirmation:
    """What has to be typed before a plan runs."""

    name: str
    """Of the queue; or of what else the plan is about."""
    requires_name: bool
    """Whether `y`, or a bare `--yes`, is not enough."""
    of: str = "queue"
    """What has that name."""
    blocked_reason: str = ""
    """Why it cannot be confirmed; empty if it can."""

    @property
    def label(self) -> str:
        return f"the {self.of}'s name"

    def error_for(self, word: str) -> str:
        """Why the word does not confirm the plan; empty if it does."""
        short = word.strip()
        if not short:
            return "Nothing was typed."
        if self.name in {word, short} or (not self.requires_name and short.lower() in {"y", "yes"}):
            return ""
        return f"{word!r} does not match."

    @property
    def prompt(self) -> str:
        if self.blocked_reason:
            return f"{self.blocked_reason} Escape: back; nothing is changed."
        word = f"{self.label}, {plain(self.name)}," if self.requires_name else "y"
        return f"To run it, type {word} and press Enter. Escape: back; nothing is changed."


class Tone(StrEnum):
    """How a line of a plan is shown; also the name of its style."""

    PLAIN = ""
    WARNING = "warning"
    OBSTACLE = "critical"
    PRODUCTION = "production"


class Line(str):
    """A line of a plan that is not shown as the others are."""

    __slots__ = ("tone",)
    tone: Tone

    def __new__(cls, text: str, tone: Tone) -> "Line":
        line = super().__new__(cls, text)
        line.tone = tone
        return line


def tone_of(line: str) -> Tone:
    return line.tone if isinstance(line, Line) else Tone.PLAIN


def indented(line: str) -> str:
    """In the same tone."""
    return Line(f"  {line}", tone_of(line))


def warning(text: str) -> str:
    return Line(text, Tone.WARNING)


def refused(why: str) -> str:
    """An obstacle."""
    return Line(f"  REFUSED: {why}", Tone.OBSTACLE)


PRODUCTION = Line("PRODUCTION database", Tone.PRODUCTION)


class SampleMessage(Protocol):
    """What is shown of one of the first messages; None: not known."""

    @property
    def key(self) -> str: ...
    @property
    def id(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def age_seconds(self) -> float | None: ...
    @property
    def attempts(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def claimed_by(self) -> str | None: ...


@dataclass(frozen=True)
class Plan:
    """What a verb would do, to be read and confirmed. Only `run` changes anything."""

    subject: Subject
    queue: Queue
    lines: tuple[str, ...]
    requires_name: bool
    """Whether the queue's name is required as confirmation; else `y` will do."""
    run: Callable[[Control, OnProgress], Result]
    needed: bool = True
    """False: there is nothing to do."""
    count: int | None = None
    """Messages or steps; None: not counted."""
    rounds: bool = False
    """Whether it repeats until it is stopped, which is then its normal end."""
    stoppable: bool = True
    """Whether it can be stopped between two steps; else only cut off."""
    sql: str = ""
    sample: tuple[SampleMessage, ...] = ()
    lines_beside_sample: tuple[str, ...] = ()
    """The lines where the sample is shown as a table; empty: the same."""
    obstacles: tuple[str, ...] = ()
    """Why it cannot run."""
    consent: str = ""
    """The option whose lack is the only obstacle: reported after the confirmation."""
    next_step: str = ""
    """What removes the obstacles."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For --json."""
    about: tuple[str, str] = ("queue", "")
    """What it is about, and its name, which confirms it; without a name, the queue."""

    @property
    def verb(self) -> str:
        return self.subject.verb

    @property
    def confirmation(self) -> Confirmation:
        """With nothing to do, no name is required."""
        of, name = self.about
        return Confirmation(name or self.queue.name, self.requires_name and self.needed, of)

    def as_json(self) -> dict[str, object]:
        """With the queue, if it is about one."""
        queue = self.queue
        where = {"queue": queue.name, "schema": queue.schema, "design": queue.design.name}
        return {**({} if self.about[1] else where), "plan": self.data}

    def require_possible(self) -> None:
        """RefusedError, which is kept in the local audit, where there are obstacles."""
        if self.obstacles:
            of = f"{self.verb} of {self.queue.name!r}"
            what = f"Nothing was changed: {of} cannot be done as things stand."
            audit.log_locally(self.subject, Outcome.REFUSED, detail=what)
            raise RefusedError(what, why=" ".join(self.obstacles), next_step=self.next_step)

    def run_to_end(self) -> Result:
        """Run it without progress, and without a way to stop it. ConsoleError."""
        return self.run(Control(), lambda _: None)


def is_production(database: Database) -> bool:
    """Whether the connection or the database is marked so. Queries the database."""
    if database.production:
        return True
    with database.transaction("read the catalog", read_only=True) as connection:
        return catalog.is_production(connection)


def queue_plan(
    database: Database,
    queue: Queue,
    verb: str,
    lines: Sequence[str],
    run: Callable[[Control, OnProgress], Result],
    *,
    requires_name: bool = False,
    **more: Any,
) -> Plan:
    """The plan of a verb on a queue as a whole. PRODUCTION is shown, and requires the name."""
    production = is_production(database)
    shown = (*lines, indented(PRODUCTION)) if production else tuple(lines)
    subject = Subject.of(database, queue, verb)
    return Plan(subject, queue, shown, requires_name or production, run, **more)


def single_step(
    do: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Control, OnProgress], Result]:
    """The `run` of a plan with one step: no progress, and nothing can stop it."""
    return lambda _, __: do(*args, **kwargs)


def waiting_step(
    waits_for: str, do: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
) -> Callable[[Control, OnProgress], Result]:
    """The same, which says first what it waits for."""

    def run(_: Control, on_progress: OnProgress) -> Result:
        on_progress(Progress(0, None, f"waiting {waits_for}"))
        return do(*args, **kwargs)

    return run


FOR_CALLERS = "for open transactions of its callers"
"""What a step waits for that needs a queue for itself."""


def job_plan(
    subject: Subject,
    lines: Sequence[str],
    run: Callable[[], Result],
    data: Mapping[str, Any],
    *,
    queue: Queue | None = None,
    about: tuple[str, str] = ("queue", ""),
    rows: int = 0,
    production: bool = False,
) -> Plan:
    """The plan of a job of the pipeline: of a `queue`, or `about` something else.

    Of many rows, or in production, the name has to be given."""
    return Plan(
        subject,
        every_queue() if queue is None else queue,
        tuple(lines),
        requires_name=rows > MANY_MESSAGES or production,
        run=single_step(run),
        stoppable=False,
        data=data,
        about=about,
    )
