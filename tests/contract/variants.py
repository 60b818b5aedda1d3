"""Every design with every option, generated from the designs' own data: new ones are covered."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from console.catalog import Queue, installed_queue
from console.designs import DESIGNS, Design, Option, Order
from console.errors import UsageError

SMALL_RING = "300"
"""Slots of a ring in all tests except those of the default: a ring is prefilled at full width."""
SMALL_NUMBER = "300"
"""The value of numeric options: small, but more than `tests.contract.messages` needs."""


@dataclass(frozen=True)
class Variant:
    """One design with the options that are given to `install`."""

    design: Design
    given: Mapping[str, str]
    only_on: str = ""
    """The only engine, where others can combine more options."""

    @property
    def options(self) -> dict[str, str]:
        return self.complete()

    def complete(self, engine: str | None = None) -> dict[str, str]:
        """All options. The consumers of tests connect directly."""
        direct = {"consumers": "direct"} if self.design.has_option("consumers") else {}
        return self.design.complete_options({**direct, **self.given}, engine)

    @property
    def engines(self) -> list[str]:
        """The engines that have the design with all given options."""
        given = [self.design.option(name) for name in self.given]
        having = [e for e in self.design.engines if all(option.is_on(e) for option in given)]
        return [engine for engine in having if self.only_on in {"", engine}]

    @property
    def payload(self) -> str:
        return self.options["payload"]

    @property
    def order(self) -> Order:
        return self.design.order_with(self.options)

    @property
    def finishes(self) -> bool:
        return self.design.finishes(self.options)

    @property
    def limit(self) -> int | None:
        """The largest payload in bytes."""
        limit = self.options["max_bytes"]
        return None if limit == "unlimited" else int(limit)

    @property
    def waits(self) -> bool:
        """Whether a pop waits for another pop's transaction, as in the design's source."""
        return (
            self.design.name in {"naive", "status"}
            or self.order is Order.STRICT
            or self.options.get("dequeue") == "two_step"
        )

    @property
    def hides(self) -> bool:
        """Whether a pop returns nothing while another pop's transaction is open.

        Service Broker locks the conversation.
        """
        return self.options.get("conversation") == "kept"

    def holds_pushes(self, engine: str) -> bool:
        """Whether a push waits for another push's transaction.

        PostgreSQL hides uncommitted rows, so only the pushes can keep the order.
        """
        return self.order is Order.STRICT and engine == "postgresql"

    def waits_for_pushes(self, engine: str) -> bool:
        """Whether a pop waits for an uncommitted push that others skip.

        SQL Server has the locked row in its index.
        """
        return self.waits and engine == "mssql"

    def queue(self, schema: str, name: str, engine: str | None = None) -> Queue:
        return installed_queue(schema, name, self.design, self.complete(engine))

    def __str__(self) -> str:
        """The id that pytest shows."""
        shown = [f"{name}={value}" for name, value in self.given.items() if value != SMALL_RING]
        return "-".join((self.design.name, *shown))


def variants_of(design: Design) -> Iterator[Variant]:
    """The default, every other value of every option, and all options together."""
    yield Variant(design, {})
    for option in design.options:
        for value in other_values(option) if option.name not in _NOT_VARIED else ():
            yield _with(design, option, value)
    for engine in design.engines:
        for payload in design.option("payload").choices:
            yield Variant(design, _all_options(design, engine) | {"payload": payload}, engine)


def other_values(option: Option) -> list[str]:
    """The values other than the default: every choice, or one number."""
    values = option.choices or (() if option.names else (SMALL_NUMBER,))
    return [value for value in values if value != option.default]


def _small(design: Design) -> dict[str, str]:
    return {option.name: SMALL_RING for option in design.options if option.name == "size"}


_GIVEN_WITH = {"content": {"partitions": "3"}}
"""Option -> options that are given with it, and have no effect without it."""
_ONLY_WITH_ANOTHER = {name for given in _GIVEN_WITH.values() for name in given}
_NOT_VARIED = {"consumers", *_ONLY_WITH_ANOTHER}


def _with(design: Design, option: Option, value: str) -> Variant:
    given = {**_GIVEN_WITH.get(option.name, {}), **_required(design, option), option.name: value}
    return Variant(design, _small(design) | given)


def _required(design: Design, option: Option) -> dict[str, str]:
    """The options that this one requires."""
    in_hand = option.name == "history" and design.has_option("in_hand")
    return {"in_hand": "on"} if in_hand else {}


def on(engine: str, variants: Iterable[Variant]) -> list[Variant]:
    """Those that exist on the engine."""
    return [variant for variant in variants if engine in variant.engines]


def _all_options(design: Design, engine: str) -> dict[str, str]:
    """As many options as can be combined, each with its last value that is not the default."""
    chosen: dict[str, str] = {}
    # The last ones first: those are specific to the design.
    for option in reversed(design.options_on(engine)):
        if option.names or option.name in {"payload", *_NOT_VARIED}:
            continue
        value = (other_values(option) or [option.default])[-1]
        tried = chosen | _GIVEN_WITH.get(option.name, {}) | {option.name: value}
        try:
            design.complete_options(tried)
        except UsageError:
            continue
        chosen = tried
    return chosen


DEFAULTS = [Variant(design, _small(design)) for design in DESIGNS.values()]
"""Each design as it is installed without options (a ring with few slots)."""


def default(name: str, **given: str) -> Variant:
    """One design, with some options."""
    (plain,) = (variant for variant in DEFAULTS if variant.design.name == name)
    return Variant(plain.design, {**plain.given, **given})


ALL = [variant for design in DESIGNS.values() for variant in variants_of(design)]
"""Each variant of each design on any engine; those with all options differ by engine."""


_SAME_BEHAVIOUR = {"payload", "max_bytes", "size", "notify", "history", *_NOT_VARIED}

BEHAVIOURS = DEFAULTS + [
    _with(design, option, value)
    for design in DESIGNS.values()
    for option in design.options
    if option.name not in _SAME_BEHAVIOUR
    for value in other_values(option)
]
"""One variant for each way to push and to pop."""

BEHAVIOURS_AND_PAYLOADS = BEHAVIOURS + [variant for variant in ALL if variant.only_on]
"""Each behaviour, and as many options as can be combined with each payload type."""


CORE = DEFAULTS + [
    variant
    for variant in BEHAVIOURS
    if (variant.order is Order.STRICT and variant not in DEFAULTS)
    or variant.given.get("dequeue") == "two_step"
    or variant.given.get("in_hand") == "on"
]
"""Each design, and its variants that lock or keep rows differently."""


SUBSCRIBED = [
    Variant(DESIGNS["ring"], _small(DESIGNS["ring"]) | {"subscribers": names} | more, "postgresql")
    for names, more in (
        ("a,b", {"content": "apart", "partitions": "3", "archive_at_pop": "on"}),
        ("a", {}),
        ("a,b,c,d,e", {}),
        ("a,b", {"in_hand": "on"}),
    )
]
"""Rings with subscribers; the first is in the short tier. `Client` pops for all subscribers."""


def long_except(short: Iterable[Variant], everything: Iterable[Variant] = ALL) -> list[object]:
    """For parametrize: everything with `--long`, `short` in the short tier."""
    kept = list(short)
    return [v if v in kept else pytest.param(v, marks=pytest.mark.long) for v in everything]


def with_subscribed_rings(
    short: Iterable[Variant], everything: Iterable[Variant] = ALL
) -> list[object]:
    """The same, and rings with subscribers."""
    return long_except([*short, *SUBSCRIBED[:1]], [*everything, *SUBSCRIBED])
