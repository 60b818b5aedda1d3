"""The designs of queues in tables. To add one: its value here, its SQL in `queries/<engine>/`.

A feature's `designs/` adds presets: designs of tables that others made, which are adopted.
"""

from collections.abc import Mapping
from typing import Protocol

from console import features
from console.designs import shipped
from console.designs.model import Design, Flow, Option
from console.designs.order import Order
from console.errors import UsageError

__all__ = [
    "DESIGNS",
    "Design",
    "Flow",
    "Option",
    "Order",
    "design",
    "designs_on",
    "presets",
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


def designs_on(engine: str) -> dict[str, Design]:
    """The designs of an engine, in the same order."""
    return {name: value for name, value in DESIGNS.items() if engine in value.engines}


def design(name: str, engine: str | None = None) -> Design:
    """The design of that name (on the engine, if given), or UsageError."""
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


class AddedDesigns(Protocol):
    """What a feature's package `designs` has."""

    def presets(self, engine: str | None = None) -> Mapping[str, Design]:
        """Its presets, on the engine or on any, by name."""

    def recorded(self, name: str, engine: str | None, *, sha256: str, by: str) -> Design | None:
        """As `recorded`; None: it has none of that name."""


def _added() -> tuple[AddedDesigns, ...]:
    return features.modules("designs")


def presets(engine: str | None = None) -> dict[str, Design]:
    """The presets of an engine, or all."""
    return {name: of for added in _added() for name, of in added.presets(engine).items()}


ADOPTING = "presets"
"""The feature by which tables are adopted."""


def recorded(
    name: str, engine: str | None = None, *, sha256: str = "", by: str = "", adopted: bool = False
) -> Design:
    """The design of a queue in the catalog: one of ours, a feature's, or an unknown one with every
    state and no verb, because this version does not have it, or because it was adopted by `by` with
    a preset file of that SHA-256 that this user does not have."""
    of = None if sha256 else DESIGNS.get(name)
    if of is not None and (engine is None or engine in of.engines):
        return of
    for added in _added():
        if (of := added.recorded(name, engine, sha256=sha256, by=by)) is not None:
            return of
    if adopted and features.missing(ADOPTING):
        return unknown(
            name,
            engine,
            f"its design {name} needs the feature {ADOPTING}, which is off",
            "Install a dbq-console that has it. Its table is untouched; forget takes the queue "
            "out of the catalog.",
        )
    return unknown(name, engine)


def unknown(name: str, engine: str | None, why: str = "", next_step: str = "") -> Design:
    """A design with every state and no verb, in place of one that cannot be used here."""
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
        flow=Flow.NUMBERS,  # so that no design's figures are assumed
        known=False,
        unknown=why,
        unknown_next=next_step,
    )
