"""The designs of queues in tables. To add one: its value here, its SQL in `queries/<engine>/`."""

from console.designs import broker, kejser, libraries, pinter, rusanu, zabir
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
    "recorded",
]

DESIGNS: dict[str, Design] = {
    value.name: value
    for value in (
        kejser.NAIVE,
        kejser.RING,
        rusanu.HEAP,
        rusanu.FIFO,
        rusanu.STACK,
        rusanu.PENDING,
        pinter.CLAIM,
        zabir.STATUS,
        zabir.SPLIT,
        broker.BROKER,
    )
}
"""Every design, in the order of the documentation."""

LIBRARIES: dict[str, Design] = {value.name: value for value in libraries.ALL}
"""What `adopt --preset` takes: tables that a library made, works on, and has its own rules for."""


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


def recorded(name: str) -> Design:
    """The design under which a queue stands in the catalog: one of ours, or a library's."""
    return LIBRARIES.get(name) or design(name)
