"""The designs of queues in tables. To add one: its value here, its SQL in `queries/<engine>/`."""

from console.designs import libraries, shipped
from console.designs.model import Design, Flow, Option, Order
from console.errors import UsageError

__all__ = [
    "DESIGNS",
    "LIBRARIES",
    "Design",
    "Flow",
    "Option",
    "Order",
    "design",
    "designs_on",
    "library",
    "recorded",
]

DESIGNS: dict[str, Design] = {
    value.name: value
    for value in (
        shipped.NAIVE,
        shipped.RING,
        shipped.HEAP,
        shipped.FIFO,
        shipped.STACK,
        shipped.PENDING,
        shipped.CLAIM,
        shipped.STATUS,
        shipped.SPLIT,
        shipped.BROKER,
    )
}
"""Every design, in the order of the documentation."""

_EVERY_LIBRARY = {(value.name, *value.engines): value for value in libraries.every()}
LIBRARIES: dict[str, Design] = {value.name: value for value in _EVERY_LIBRARY.values()}
"""What `adopt --preset` takes: tables that a library made, works on, and has its own rules for. One
that is on several engines is what it is on the last of them: see `library`."""


def library(name: str, engine: str) -> Design | None:
    """What a library is on an engine: it names its tables and columns there in its own way."""
    return _EVERY_LIBRARY.get((name, engine))


def designs_on(engine: str) -> dict[str, Design]:
    """The designs that an engine has, in the same order."""
    return {name: value for name, value in DESIGNS.items() if engine in value.engines}


def design(name: str, engine: str | None = None) -> Design:
    """The design of that name, which the engine (when given) must have; else UsageError."""
    found = DESIGNS.get(name)
    if found is None:
        raise UsageError(
            f"There is no design {name!r}.", next_step=f"Designs: {', '.join(DESIGNS)}."
        )
    if engine is not None and engine not in found.engines:
        raise UsageError(
            f"The engine {engine} has no design {name!r}.",
            why=f"{name} exists on: {', '.join(found.engines)}.",
            next_step="List what each engine has with: dbq-console designs",
        )
    return found


def recorded(name: str, engine: str | None = None) -> Design:
    """The design under which a queue stands in the catalog: one of ours, a library's, or one that
    this version does not know, with every state and no verb."""
    of = LIBRARIES.get(name) if engine is None else library(name, engine)
    found = of or DESIGNS.get(name)
    if found is not None and (engine is None or engine in found.engines):
        return found
    return Design(
        name=name,
        title=f"queue of the design {name}",
        source="",
        summary="",
        advice="",
        engines=() if engine is None else (engine,),
        options=(),
        states=("ready", "scheduled", "claimed", "error", "done"),
        verbs=(),
        flow=Flow.NUMBERS,  # so that no figure of any design is taken for one that it lacks
        known=False,
    )
