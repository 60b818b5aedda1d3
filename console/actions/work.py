"""Any verb as one thing that is asked for, planned, confirmed, done and ended.

What verbs work on differs (messages, tables, a session): whoever shows them to an operator needs
the same of all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from console import catalog
from console.actions import audit
from console.actions.audit import Outcome, Subject
from console.actions.execute import Control, Pace
from console.actions.ledger import Ledger
from console.catalog import Queue
from console.engines import Database
from console.errors import RefusedError
from console.monitor.limits import ThresholdsOf, defaults_of
from console.monitor.message import Masks, Message
from console.rights import Rights


@dataclass(frozen=True)
class Site:
    """Where something is to be done."""

    database: Database
    queue: Queue
    rights: Rights = Rights.READ_ONLY
    thresholds_of: ThresholdsOf = defaults_of
    masks: Masks = ()

    def find(self, name: str) -> Queue:
        """Another queue of the same schema. UsageError where there is none."""
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return catalog.find(connection, self.database.product, name, self.queue.schema)

    @property
    def production(self) -> bool:
        """Whether the connection or the database itself is marked so. Waits."""
        if self.database.production:
            return True
        with self.database.transaction("read the catalog", read_only=True) as connection:
            return catalog.is_production(connection, self.database.product)


@dataclass(frozen=True)
class Asked:
    """What is wanted. `options` have the command line's names; a flag that is set says "yes"."""

    verb: str
    words: tuple[str, ...] = ()
    """Filters."""
    options: Mapping[str, str] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)

    def text(self, name: str) -> str:
        """What was said; empty: nothing."""
        return self.options.get(name, "")

    def flag(self, name: str) -> bool:
        """Whether it is set."""
        return self.text(name) == "yes"

    def number(self, name: str) -> int | None:
        """A whole number; None: nothing was said."""
        return int(self.text(name)) if self.text(name) else None


@dataclass(frozen=True)
class Told:
    """How far something is that runs."""

    done: int
    total: int | None = None
    words: str = ""
    ledger: Ledger | None = None


@dataclass(frozen=True)
class Ended:
    """How it ended, in words too."""

    outcome: Outcome
    lines: tuple[str, ...]
    ledger: Ledger | None = None
    action_id: int | None = None


Tell = Callable[[Told], None]
Counted = Callable[[int], None]
"""Told while a plan is made how many messages were counted."""


@dataclass(frozen=True)
class Planned:
    """A plan as somebody is asked to confirm it. It runs by `run`, and not without."""

    subject: Subject
    queue: Queue
    lines: tuple[str, ...]
    by_name: bool
    """Whether `y` is not enough."""
    do: Callable[[Control, Tell], Ended]
    needed: bool = True
    """False: there is nothing to do."""
    count: int | None = None
    """Messages or steps; None: they are not counted."""
    sql: str = ""
    sample: tuple[Message, ...] = ()
    obstacles: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """Its name."""
        return self.subject.verb

    def require_possible(self) -> None:
        """RefusedError, which the local audit keeps, where something stands in its way."""
        if self.obstacles:
            what = f"{self.verb} of {self.queue.name!r} cannot be done as it stands."
            audit.note(self.subject, Outcome.REFUSED, detail=what)
            raise RefusedError(what, why=" ".join(self.obstacles))

    def confirmed_by(self, word: str) -> bool:
        """Whether the word will do: the queue's name always, `y` where little can go wrong."""
        return word == self.queue.name or (
            not self.by_name and word.strip().lower() in {"y", "yes"}
        )


def whole(
    site: Site,
    verb: str,
    lines: Sequence[str],
    do: Callable[[Control, Tell], Ended],
    *,
    by_name: bool | None = None,
) -> Planned:
    """A verb on a queue as a whole. `by_name` None: where it is production, which is then said."""
    production = by_name is None and site.production
    more = ("  PRODUCTION database",) if production else ()
    subject = Subject.of(site.database, site.queue, verb)
    return Planned(subject, site.queue, (*lines, *more), bool(by_name) or production, do)
