"""What a design is, as data: its options, states, verbs, and which column plays which role."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from console.designs.subscribers import NO_SUBSCRIBERS, as_option, subscribers_of
from console.engines import PRODUCTS
from console.errors import UsageError


class Order(Enum):
    """What a design promises about the order of pops; what the smoke test and the tests check."""

    NONE = "none"
    LAX = "lax"
    """In order, but overtaken while another consumer holds it or its commit is late."""
    STRICT = "strict"
    """In the order of the ids, exactly, whatever rolls back or commits late."""
    NUMBERS = "numbers"
    """In the order in which numbers were drawn, not of commits."""
    SESSIONS = "sessions"
    """In the order of each session's own pushes; between sessions there is none."""
    LIFO = "lifo"
    DUE = "due"
    """By due time, and never before it."""

    @property
    def promise(self) -> str:
        """The same in words, for operators."""
        return _PROMISES[self]


_PROMISES = {
    Order.NONE: "none",
    Order.LAX: "as pushed; a message is overtaken while another consumer holds it or its commit "
    "is late",
    Order.STRICT: "as pushed, exactly, whatever rolls back or commits late",
    Order.NUMBERS: "of the numbers that pushes drew, not of their commits",
    Order.SESSIONS: "of each session's own pushes; between sessions none",
    Order.LIFO: "the newest first",
    Order.DUE: "by due time, and never before it",
}


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


@dataclass(frozen=True)
class Design:
    """One way to keep a queue in tables. The SQL is `queries/<engine>/<name>.sql`."""

    name: str
    title: str
    source: str
    summary: str
    """One honest sentence: what it promises, what it costs."""
    advice: str
    """For whoever chooses: what it promises, what it costs, when to take it."""
    engines: tuple[str, ...]
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


EVERYWHERE = tuple(PRODUCTS)
"""The engines of every design but Service Broker's."""

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


# The order in which messages were popped, judged by what their design promises.
#
# From a log of pops: the archive of a queue with `archive_at_pop=on`, or a smoke or trial run.


@dataclass(frozen=True)
class Pop:
    """One pop. `number`: what rises with each push. What is None nobody wrote down."""

    number: int
    pushed_at: datetime | None = None
    popped_at: datetime | None = None
    due_at: datetime | None = None


@dataclass(frozen=True)
class Overtaken:
    """A message that came after some that were pushed later."""

    pop: Pop
    by: int
    """How many these are."""
    first: Pop
    """The first of them to be popped."""

    @property
    def late_seconds(self) -> float:
        """How long after that one it came; 0 where nobody wrote down when."""
        if self.pop.popped_at is None or self.first.popped_at is None:
            return 0.0
        return (self.pop.popped_at - self.first.popped_at).total_seconds()


@dataclass(frozen=True)
class OrderVerdict:
    order: Order
    pops: int
    overtaken: tuple[Overtaken, ...]
    """In the order of the log. Where no order of pushes is promised, none is looked for."""
    early: tuple[Pop, ...]
    """Popped before they were due."""

    @property
    def kept(self) -> bool:
        """Whether the promise was kept. A lax order is overtaken while a row is held, and one of
        numbers while a push is not committed: that is told, and no breach."""
        if self.order is Order.STRICT:
            return not self.overtaken
        return not self.early

    @property
    def farthest(self) -> int:
        """The most that overtook one message."""
        return max((one.by for one in self.overtaken), default=0)


def judge(log: Iterable[Pop], order: Order, tolerance: timedelta = timedelta(0)) -> OrderVerdict:
    """Judge pops in the order in which they ran, which need not be that of their commits.

    Where the times of the pushes are known, they have to agree with the numbers: a numbering that
    began again is no inversion. `tolerance`: a message popped so much before it was due is not
    early, for a clock may be set back while a pop runs.
    """
    pops = list(log)
    numbered = order in {Order.STRICT, Order.LAX, Order.NUMBERS}
    return OrderVerdict(
        order=order,
        pops=len(pops),
        overtaken=tuple(_overtaken(pops)) if numbered else (),
        early=tuple(p for p in pops if _is_early(p, tolerance)) if order is Order.DUE else (),
    )


def _is_early(pop: Pop, tolerance: timedelta) -> bool:
    return (
        pop.due_at is not None
        and pop.popped_at is not None
        and pop.popped_at < pop.due_at - tolerance
    )


def _overtaken(log: Sequence[Pop]) -> Iterator[Overtaken]:
    """Those of a higher number that came before: by number, each with its time and place."""
    numbers: list[int] = []
    times: list[float] = []
    places: list[int] = []
    for place, pop in enumerate(log):
        pushed = None if pop.pushed_at is None else pop.pushed_at.timestamp()
        least = -math.inf if pushed is None else pushed
        at = bisect_right(numbers, pop.number)
        before = zip(times[at:], places[at:], strict=True)
        if by := [found for time, found in before if time >= least]:
            yield Overtaken(pop, len(by), log[min(by)])
        numbers.insert(at, pop.number)
        times.insert(at, math.inf if pushed is None else pushed)
        places.insert(at, place)
