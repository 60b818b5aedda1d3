"""What a design is, as data: its options, states, verbs, and which column plays which role."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

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
    engines: tuple[str, ...] = ()
    """Where it exists; empty: wherever its design does."""

    def is_on(self, engine: str) -> bool:
        """Whether the engine has it."""
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
        if not value.isascii() or not value.isdecimal():
            raise UsageError(
                f"The option {self.name} wants a whole number, not {value!r}.",
                next_step=f"It can be {self.range}.",
            )
        number = int(value)
        if not self.minimum <= number <= self.maximum:
            raise UsageError(
                f"The option {self.name} cannot be {number}.",
                next_step=f"It can be {self.range}.",
            )
        return str(number)

    @property
    def range(self) -> str:
        """The values that it takes, in words."""
        if self.choices:
            return " or ".join(self.choices)
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
    age_is_known: bool = True
    waits_itself: bool = False
    """Its pop can wait inside the engine, which wakes it."""
    like: str = ""
    """The design whose tables and columns it has, where it is one more way to use those."""
    library: str = ""
    """The library, with its version, whose own tables these are; empty: a design of queues here."""
    table_each: bool = False
    """A library's: it makes a table for each queue, and none holds several."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Verb -> why it is not for such a queue, where that is no matter of its states."""
    requeued: str = ""
    """What becomes of a message that is made ready again, where a library's own rule does it."""
    stays: str = ""
    """Why a message that was chosen may stay as it is: the library's own rule."""

    @property
    def shape(self) -> str:
        """What SQL and checks that are not its own go by: `-- when design=...` asks for this."""
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

    def options_on(self, engine: str) -> tuple[Option, ...]:
        """The options that it has on one engine."""
        return tuple(option for option in self.options if option.is_on(engine))

    def complete_options(
        self, given: Mapping[str, str], engine: str | None = None
    ) -> dict[str, str]:
        """All options (of the engine, where one is named): those given, checked, and defaults."""
        checked = {name: self.option(name).check(value) for name, value in given.items()}
        for name in checked:
            if engine is not None and not self.option(name).is_on(engine):
                raise UsageError(
                    f"The design {self.name} has no option {name!r} on {engine}.",
                    why=f"{name} exists on: {', '.join(self.option(name).engines)}.",
                    next_step="List what each engine has with: dbq-console designs",
                )
        here = self.options if engine is None else self.options_on(engine)
        options = {option.name: checked.get(option.name, option.default) for option in here}
        if options.get("in_hand") == "on" and options.get("archive_at_pop") == "on":
            raise UsageError(
                "in_hand=on and archive_at_pop=on exclude each other.",
                why="With in_hand a pop is not the end of a message; complete is.",
                next_step="Choose one of them.",
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
        return self._with(self.verbs, self.option_verbs, options)

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
