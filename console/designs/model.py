"""A design as data: options, states, verbs, and the column of each role."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from console.designs.order import Order
from console.engines import PRODUCTS
from console.errors import UsageError


@dataclass(frozen=True)
class Subscriber:
    """A subscriber of a queue, who gets every message once."""

    name: str
    number: int
    """Names its objects; never reused."""


NO_SUBSCRIBERS = "none"
_SUBSCRIBER = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,30})(?::(?P<number>[1-9][0-9]{0,3}))?")


def subscribers_of(value: str) -> tuple[Subscriber, ...]:
    """Parse the option's value, `billing,search:3`; without a number it is the position.

    Raises ValueError, with the reason.
    """
    if value == NO_SUBSCRIBERS:
        return ()
    subscribers: list[Subscriber] = []
    for position, text in enumerate(value.split(","), start=1):
        match = _SUBSCRIBER.fullmatch(text)
        if match is None or match["name"] == NO_SUBSCRIBERS:
            raise ValueError(
                f"{text!r} is not a name: a letter from a to z, then up to 30 of a-z 0-9 _."
            )
        new = Subscriber(match["name"], int(match["number"] or position))
        if any(new.name == other.name or new.number == other.number for other in subscribers):
            raise ValueError(f"{text!r} is given twice.")
        subscribers.append(new)
    return tuple(subscribers)


def as_option(subscribers: Iterable[Subscriber]) -> str:
    """The option's value in canonical form."""
    texts = [
        subscriber.name
        if subscriber.number == position
        else f"{subscriber.name}:{subscriber.number}"
        for position, subscriber in enumerate(subscribers, start=1)
    ]
    return ",".join(texts) or NO_SUBSCRIBERS


class Flow(Enum):
    """How the number of pops is derived from the engine's counters."""

    DELETED = "deleted"
    """A pop deletes its row."""
    NUMBERS = "numbers"
    """A pop draws a number."""
    CLAIMED = "claimed"
    """A pop updates a row and its end updates or deletes it: (updates + deletes + claimed) / 2."""


@dataclass(frozen=True)
class Option:
    """One option of `install`, `--option name=value`."""

    name: str
    summary: str
    default: str
    choices: tuple[str, ...] = ()
    """Empty: a whole number."""
    minimum: int = 1
    maximum: int = 2**31 - 1
    words: tuple[str, ...] = ()
    """Words accepted instead of a number."""
    names: bool = False
    """It takes names, separated by commas, instead of a number; at most `maximum`."""
    engines: tuple[str, ...] = ()
    """The engines that have it; empty: all of its design."""

    def is_on(self, engine: str) -> bool:
        return not self.engines or engine in self.engines

    def check(self, value: str) -> str:
        """The value in canonical form, or UsageError."""
        if self.choices:
            if value not in self.choices:
                raise UsageError(
                    f"The option {self.name} cannot be {value!r}.",
                    next_step=f"It can be: {', '.join(self.choices)}.",
                )
            return value
        if value in self.words:
            return value
        if self.names:
            return self._check_names(value)
        if not value.isascii() or not value.isdecimal():
            raise UsageError(
                f"The option {self.name} must be a whole number, not {value!r}.",
                next_step=f"It can be {self.range}.",
            )
        number = int(value)
        if not self.minimum <= number <= self.maximum:
            raise UsageError(
                f"The option {self.name} cannot be {number}.", next_step=f"It can be {self.range}."
            )
        return str(number)

    def _check_names(self, value: str) -> str:
        try:
            subscribers = subscribers_of(value)
        except ValueError as error:
            raise UsageError(
                f"The option {self.name} cannot be {value!r}.",
                why=str(error),
                next_step=f"It can be {self.range}.",
            ) from None
        if len(subscribers) > self.maximum:
            raise UsageError(
                f"The option {self.name} cannot be {len(subscribers)} names.",
                next_step=f"It can be {self.range}.",
            )
        return as_option(subscribers)

    @property
    def range(self) -> str:
        """A description of the valid values."""
        if self.choices:
            return " or ".join(self.choices)
        if self.names:
            names = f"up to {self.maximum} names such as billing,search"
            return " or ".join((*self.words, names))
        numbers = f"{self.minimum} to {self.maximum}"
        return " or ".join((*self.words, numbers))


EVERYWHERE = tuple(PRODUCTS)
"""The engines of every design but Service Broker's."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """One way to keep a queue in tables. The SQL is `queries/<engine>/<name>.sql`."""

    name: str
    title: str
    source: str
    summary: str
    """One sentence: what it promises, what it costs."""
    advice: str
    """When to choose it: what it promises, what it costs."""
    engines: tuple[str, ...] = EVERYWHERE
    options: tuple[Option, ...]
    states: tuple[str, ...]
    verbs: tuple[str, ...]
    details: str = ""
    """How it works, and what can go wrong."""
    option_verbs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Verbs that an option adds: (option, value) -> verbs."""
    option_states: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role -> column (for sequences: their suffix) of a queue that the console installed."""
    needed_roles: tuple[str, ...] = ("id", "payload")
    """The roles that `adopt` requires."""
    order: Order = Order.LAX
    option_orders: Mapping[tuple[str, str], Order] = field(default_factory=dict)
    """The order with an option: (option, value) -> order."""
    needs: tuple[str, ...] = ()
    """Capabilities of the server that it requires."""
    flow: Flow = Flow.DELETED
    keeps_row: bool = False
    id_type: str = "bigint"
    table_suffix: str = ""
    """The main table's name is the queue's with this suffix."""
    push_takes: tuple[str, ...] = ()
    """Further arguments of its push: `due`, `title`, `id`."""
    age_is_known: bool = True
    waits_itself: bool = False
    """Its pop can wait in the server until a message arrives."""
    like: str = ""
    """The design whose tables and columns it shares."""
    library: str = ""
    """The library, with its version, that owns the tables; empty: a design of this console."""
    older: str = ""
    """For an older version of a library: the preset of its present one."""
    found_by: Mapping[str, object] = field(default_factory=dict)
    """The bound values of a library's `find` statement."""
    table_each: bool = False
    """For a library: it has a table for each queue."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Verb -> why such a queue does not have it, unless its states explain that. `{schema}` is the
    schema of its tables."""
    requeued: str = ""
    """What a library's own rule does to a message that is requeued."""
    paused: str = ""
    """What a pause does, by the library's own rule."""
    stays: str = ""
    """Why a planned message may stay unchanged, by the library's own rule."""
    left_claims: str = ""
    """What a library does itself with a dead worker's claims."""
    takes_due: str = ""
    """What of a library takes, or makes ready, a message that is due."""
    overdue: str = ""
    """What to do if it does not."""
    errors_elsewhere: str = ""
    """Where a library keeps its errors, if not in this table: their number is unknown."""
    archives: bool = False
    """Done messages are in a separate table, read by `archived` and `archived_messages`."""
    finished: bool = False
    """For a library: it keeps what is finished, with its time: `finished_rows` reads it."""
    prunes: str = ""
    """What of a library deletes finished rows: `prune` does it by the same rule."""
    claims_expire: bool = False
    """A claim expires at a time in its row: none is ever stuck."""
    known: bool = True
    """False: a name in a catalog that this version does not know."""
    unknown: str = ""
    """If so, the reason; empty: this version does not have it."""
    unknown_next: str = ""
    """The next step."""
    file: str = ""
    """For a preset of this user: its file."""
    sha256: str = ""
    """The file's hash, which the catalog stores with a queue adopted by it."""
    trusted: bool = True
    """False: its user has not trusted the file, so it is used for reading only (`Database`)."""

    @property
    def library_name(self) -> str:
        """The library without its version: `River`."""
        return re.split(r" (?:before )?\d", self.library, maxsplit=1)[0]

    @property
    def shape(self) -> str:
        """The design whose checks apply."""
        return self.like or self.name

    def option(self, name: str) -> Option:
        """The option of that name, or UsageError with the valid ones."""
        for option in self.options:
            if option.name == name:
                return option
        names = ", ".join(sorted(option.name for option in self.options))
        raise UsageError(
            f"The design {self.name} has no option {name!r}.", next_step=f"It has: {names}."
        )

    def has_option(self, name: str) -> bool:
        return any(option.name == name for option in self.options)

    def option_with(self, name: str, given: Mapping[str, str]) -> Option:
        """The option as modified by the other options given."""
        # Only slots have a width.
        apart = given.get("content") == "apart"
        return MAX_BYTES if apart and name == "max_bytes" else self.option(name)

    def options_on(self, engine: str) -> tuple[Option, ...]:
        """Its options on one engine."""
        return tuple(option for option in self.options if option.is_on(engine))

    def complete_options(
        self, given: Mapping[str, str], engine: str | None = None
    ) -> dict[str, str]:
        """All options (on the engine, if named): those given, checked, and defaults."""
        checked = {n: self.option_with(n, given).check(value) for n, value in given.items()}
        for name in checked:
            if engine is not None and not self.option(name).is_on(engine):
                raise UsageError(
                    f"The design {self.name} has no option {name!r} on {engine}.",
                    why=f"{name} exists on: {', '.join(self.option(name).engines)}.",
                    next_step="List what each engine has with: dbq-console designs",
                )
        here = self.options if engine is None else self.options_on(engine)
        options = {
            option.name: checked.get(option.name, self.option_with(option.name, given).default)
            for option in here
        }
        apart = options.get("content") == "apart"
        if not apart and options.get("partitions", "8") != "8":
            raise UsageError(
                "partitions goes with content=apart only.",
                why="With content=slot every message is in its slot.",
                next_step="Add --option content=apart, or leave partitions out.",
            )
        if not apart:  # as in older versions, which had neither
            options = {n: v for n, v in options.items() if n not in {"content", "partitions"}}
        if options.get("subscribers") == NO_SUBSCRIBERS:  # likewise
            del options["subscribers"]
        if options.get("in_hand") == "on" and options.get("archive_at_pop") == "on":
            raise UsageError(
                "in_hand=on and archive_at_pop=on exclude each other.",
                why="With in_hand a message ends with complete, not with the pop.",
                next_step="Choose one of them.",
            )
        if options.get("history", "off") != "off" and options.get("in_hand") == "off":
            raise UsageError(
                "history requires in_hand=on.",
                why="Without in_hand a message ends with the pop: none can fail.",
            )
        return options

    def finishes(self, options: Mapping[str, str]) -> bool:
        """Whether a popped message is kept until complete or fail."""
        return self.keeps_row or options.get("in_hand") == "on"

    def states_with(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """The states of messages with these options."""
        return self._with(self.states, self.option_states, options)

    def verbs_with(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """The verbs of a queue with these options."""
        found = self._with(self.verbs, self.option_verbs, options)
        if options.get("subscribers", NO_SUBSCRIBERS) == NO_SUBSCRIBERS:
            return found
        return (*found, *SUBSCRIBER_VERBS)

    @staticmethod
    def _with(
        always: tuple[str, ...],
        added: Mapping[tuple[str, str], tuple[str, ...]],
        options: Mapping[str, str],
    ) -> tuple[str, ...]:
        more = [v for (name, value), vs in added.items() if options.get(name) == value for v in vs]
        return (*always, *(verb for verb in more if verb not in always))

    def order_with(self, options: Mapping[str, str]) -> Order:
        """The order that a queue with these options promises."""
        for (name, value), order in self.option_orders.items():
            if options.get(name) == value:
                return order
        return self.order


PAYLOAD = Option(
    "payload", "what a message is: text, JSON or bytes", "text", choices=("text", "json", "bytes")
)
MAX_BYTES = Option(
    "max_bytes",
    "the largest payload in bytes; a longer one is refused",
    "unlimited",
    maximum=1_000_000_000,
    words=("unlimited",),
)
NOTIFY = Option(
    "notify",
    "push wakes consumers that wait (NOTIFY). Its price: all commits that notify go one at a time "
    "in the whole cluster, measured 2.2 times slower",
    "off",
    choices=("off", "on"),
    engines=("postgresql",),
)
ARCHIVE_AT_POP = Option(
    "archive_at_pop",
    "pop also writes the message to <queue>_archive, in the same statement",
    "off",
    choices=("off", "on"),
)

HISTORY = Option(
    "history",
    "how many of its last errors and releases each message keeps in its row: when, whose, which "
    "attempt, the first 1,000 characters. Its price: fail writes them too, in the same statement",
    "off",
    maximum=1_000,
    words=("off",),
)

CONSUMERS = Option(
    "consumers",
    "direct: each consumer has a session of its own, so that a claim whose session is gone has "
    "lost its owner; any: they may come through a pooler, where that proves nothing",
    "any",
    choices=("any", "direct"),
)

EVERY_VERB = (
    "install",
    "upgrade",
    "uninstall",
    "push",
    "pop",
    "smoke",
    "purge",
    "restore",
    "maintain",
    "release",
    "end-session",
    "pause",
    "resume",
)
"""The verbs of every design. Where a pop deletes there are no claims; then `release` names the
sessions that hold rows."""
ANY_QUEUE_VERBS = ("protect", "unprotect", "note", "forget")
"""Verbs about a queue's catalog entry."""
SUBSCRIBER_VERBS = ("subscribe", "unsubscribe", "skip")
FINISHING_VERBS = ("complete", "fail", "requeue", "archive")
"""Further verbs of queues that keep popped rows."""
