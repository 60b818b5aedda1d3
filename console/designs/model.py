"""What a design is, as data: its options, states, verbs, and which column plays which role."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from console.designs.order import Order
from console.engines import PRODUCTS
from console.errors import UsageError


@dataclass(frozen=True)
class Subscriber:
    """Who gets every message of a queue once, beside others who do."""

    name: str
    number: int
    """Its objects are called by it. It is not used again when another one comes."""


NO_SUBSCRIBERS = "none"
_SUBSCRIBER = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,30})(?::(?P<number>[1-9][0-9]{0,3}))?")


def subscribers_of(value: str) -> tuple[Subscriber, ...]:
    """Those of the option's value, `billing,search:3`: a number is told where it is not the place.

    Raises ValueError, with what is wrong.
    """
    if value == NO_SUBSCRIBERS:
        return ()
    found: list[Subscriber] = []
    for place, word in enumerate(value.split(","), start=1):
        read = _SUBSCRIBER.fullmatch(word)
        if read is None or read["name"] == NO_SUBSCRIBERS:
            raise ValueError(
                f"{word!r} is no name: a letter from a to z, then up to 30 of a-z 0-9 _."
            )
        one = Subscriber(read["name"], int(read["number"] or place))
        if any(one.name == other.name or one.number == other.number for other in found):
            raise ValueError(f"{word!r} is there twice.")
        found.append(one)
    return tuple(found)


def as_option(subscribers: Iterable[Subscriber]) -> str:
    """The option's value, in its one form."""
    words = [
        one.name if one.number == place else f"{one.name}:{one.number}"
        for place, one in enumerate(subscribers, start=1)
    ]
    return ",".join(words) or NO_SUBSCRIBERS


class Flow(Enum):
    """How the number of pops follows from what the engine counts anyway."""

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
    """Words that are taken instead of a number."""
    names: bool = False
    """It takes names, separated by commas, in place of a number; `maximum` of them."""
    engines: tuple[str, ...] = ()
    """Where it exists; empty: wherever its design does."""

    def is_on(self, engine: str) -> bool:
        return not self.engines or engine in self.engines

    def check(self, value: str) -> str:
        """The value in its one form, or UsageError."""
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
                f"The option {self.name} cannot be {number}.",
                next_step=f"It can be {self.range}.",
            )
        return str(number)

    def _check_names(self, value: str) -> str:
        try:
            found = subscribers_of(value)
        except ValueError as error:
            raise UsageError(
                f"The option {self.name} cannot be {value!r}.",
                why=str(error),
                next_step=f"It can be {self.range}.",
            ) from None
        if len(found) > self.maximum:
            raise UsageError(
                f"The option {self.name} cannot be {len(found)} names.",
                next_step=f"It can be {self.range}.",
            )
        return as_option(found)

    @property
    def range(self) -> str:
        """The values that it takes, in words."""
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
    """One honest sentence: what it promises, what it costs."""
    advice: str
    """For whoever chooses: what it promises, what it costs, when to take it."""
    engines: tuple[str, ...] = EVERYWHERE
    options: tuple[Option, ...]
    states: tuple[str, ...]
    verbs: tuple[str, ...]
    details: str = ""
    """For whoever has one: how it works, and what goes wrong with it."""
    option_verbs: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    """Verbs that an option adds: (option, value) -> verbs."""
    option_states: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role -> column (for sequences: their suffix) of a queue that the console installed."""
    needed_roles: tuple[str, ...] = ("id", "payload")
    """What `adopt` cannot do without."""
    order: Order = Order.LAX
    option_orders: Mapping[tuple[str, str], Order] = field(default_factory=dict)
    """Another order that an option brings: (option, value) -> order."""
    needs: tuple[str, ...] = ()
    """Capabilities of the server without which it cannot be."""
    flow: Flow = Flow.DELETED
    keeps_row: bool = False
    id_type: str = "bigint"
    table_suffix: str = ""
    """The main table is the queue's name and this."""
    push_takes: tuple[str, ...] = ()
    """What its push takes besides the payload: `due`, `title`, `id`."""
    age_is_known: bool = True
    waits_itself: bool = False
    """Its pop can wait inside the engine, which wakes it."""
    like: str = ""
    """The design whose tables and columns it has, where it is one more way to use those."""
    library: str = ""
    """The library, with its version, whose own tables these are; empty: a design of queues here."""
    found_by: Mapping[str, object] = field(default_factory=dict)
    """What a library's `find` goes by: the values that it binds."""
    table_each: bool = False
    """A library's: it makes a table for each queue, and none holds several."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Verb -> why it is not for such a queue, where that is no matter of its states. `{schema}`
    stands for the schema that its tables are in."""
    requeued: str = ""
    """What becomes of a message that is made ready again, where a library's own rule does it."""
    paused: str = ""
    """What a pause does there, where a library's own rule is one."""
    stays: str = ""
    """Why a message that was chosen may stay as it is: the library's own rule."""
    left_claims: str = ""
    """What a library does itself with what a dead worker had claimed."""
    archives: bool = False
    """What is done goes into a table of its own, read by `archived` and `archived_messages`."""
    claims_expire: bool = False
    """A claim ends by itself at a time that its row tells: none is ever stuck."""
    known: bool = True
    """False: a catalog names it, and this version has nothing of it but the name."""
    unknown: str = ""
    """Then: why, in words; empty: this version does not have it."""
    unknown_next: str = ""
    """And what to do about it."""
    file: str = ""
    """Of a preset of this user: where it was read."""
    sha256: str = ""
    """What that file is, which the catalog keeps with a queue that was adopted by it."""
    trusted: bool = True
    """False: its user has not trusted that file, so what it says is only looked at (`Database`)."""

    @property
    def shape(self) -> str:
        """What checks that are not its own go by."""
        return self.like or self.name

    def option(self, name: str) -> Option:
        """The option of that name, or UsageError with those that there are."""
        for option in self.options:
            if option.name == name:
                return option
        names = ", ".join(sorted(option.name for option in self.options))
        raise UsageError(
            f"The design {self.name} has no option {name!r}.", next_step=f"It has: {names}."
        )

    def option_with(self, name: str, given: Mapping[str, str]) -> Option:
        """The same, as others make it that are given."""
        # What lies apart from its slot has no width to be laid at.
        apart = given.get("content") == "apart"
        return MAX_BYTES if apart and name == "max_bytes" else self.option(name)

    def options_on(self, engine: str) -> tuple[Option, ...]:
        """The options that it has on one engine."""
        return tuple(option for option in self.options if option.is_on(engine))

    def complete_options(
        self, given: Mapping[str, str], engine: str | None = None
    ) -> dict[str, str]:
        """All options (of the engine, where one is named): those given, checked, and defaults."""
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
                why="With content=slot every message lies in its slot.",
                next_step="Add --option content=apart, or leave partitions out.",
            )
        if not apart:  # as of an older version, which knew neither
            options = {n: v for n, v in options.items() if n not in {"content", "partitions"}}
        if options.get("subscribers") == NO_SUBSCRIBERS:  # likewise
            del options["subscribers"]
        if options.get("in_hand") == "on" and options.get("archive_at_pop") == "on":
            raise UsageError(
                "in_hand=on and archive_at_pop=on exclude each other.",
                why="With in_hand a pop is not the end of a message; complete is.",
                next_step="Choose one of them.",
            )
        if options.get("history", "off") != "off" and options.get("in_hand") == "off":
            raise UsageError(
                "history wants in_hand=on.",
                why="Without in_hand a pop is the end of a message: none of them fails.",
            )
        return options

    def finishes(self, options: Mapping[str, str]) -> bool:
        """Whether a popped message is kept until complete or fail."""
        return self.keeps_row or options.get("in_hand") == "on"

    def states_with(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """The states that a message of such a queue can have."""
        return self._with(self.states, self.option_states, options)

    def verbs_with(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """The verbs that such a queue has."""
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
        """The order that such a queue promises."""
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
    "push wakes consumers that wait (NOTIFY). Its price: all commits that notify go one by one in "
    "the whole cluster, measured 2.2 times slower",
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
"""The verbs that every design has. Where a pop deletes there are no claims: what is stuck is a
session that holds rows, and `release` names it."""
ANY_QUEUE_VERBS = ("protect", "unprotect", "note", "forget")
"""What is about a queue in the catalog, whatever its design."""
SUBSCRIBER_VERBS = ("subscribe", "unsubscribe", "skip")
FINISHING_VERBS = ("complete", "fail", "requeue", "archive")
"""What a queue whose popped rows stay has besides."""
