"""The designs of queues in tables. To add one: its value here, its SQL in `queries/<engine>/`."""

from console.designs import libraries, own, shipped
from console.designs.model import Design, Flow, Option
from console.designs.order import Order
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

_EVERY_LIBRARY = {(value.name, *value.engines): value for value in libraries.every()}
LIBRARIES: dict[str, Design] = {value.name: value for value in _EVERY_LIBRARY.values()}
"""The presets of `adopt --preset`: tables that a library made and works on. For one on several
engines, the last one's: see `library`."""


def library(name: str, engine: str) -> Design | None:
    """A library's preset on an engine: tables and columns differ between engines."""
    return _EVERY_LIBRARY.get((name, engine))


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


def presets(engine: str | None = None) -> dict[str, Design]:
    """The presets of an engine: those shipped, then this user's own."""
    if engine is None:
        return LIBRARIES | own.usable()
    shipped = {name: of for name in LIBRARIES if (of := library(name, engine)) is not None}
    return shipped | {name: of for name, of in own.usable().items() if engine in of.engines}


def recorded(name: str, engine: str | None = None, *, sha256: str = "", by: str = "") -> Design:
    """The design of a queue in the catalog: one of ours, a library's, or an unknown one with every
    state and no verb, because this version does not have it, or because it was adopted by `by` with
    a preset file of that SHA-256 that this user does not have."""
    why, next_step = "", ""
    if sha256:
        design, why, next_step = _own(name, sha256, by)
    else:
        of = LIBRARIES.get(name) if engine is None else library(name, engine)
        design = of or DESIGNS.get(name)
    if design is not None and (engine is None or engine in design.engines):
        return design
    return unknown(name, engine, why, next_step)


def unknown(name: str, engine: str | None, why: str, next_step: str) -> Design:
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


def _own(name: str, sha256: str, by: str) -> tuple[Design | None, str, str]:
    """The preset; or None with the reason and the next step."""
    preset = own.of_name(name)
    adopted_by = f"{by} adopted it from a file with SHA-256 {sha256[:12]}"
    if preset is None:
        return (
            None,
            f"preset {name} is not here: {adopted_by}: get that file",
            f"Get {name}.sql from there, put it among your presets (dbq-console preset list), and "
            "read it before you trust it: dbq-console preset trust FILE",
        )
    if preset.design is not None and preset.sha256 == sha256:
        return preset.design, "", ""
    if preset.design is None:
        return None, f"preset {name}: {preset.problem}", f"Repair it, then compare: {adopted_by}."
    return (
        None,
        f"preset {name} differs: {adopted_by}, yours has {preset.sha256[:12]}: get that file, or "
        "forget the queue and adopt it with yours",
        f"Yours is {preset.path}. Agree on one of the two: all must read a queue by the same one.",
    )
