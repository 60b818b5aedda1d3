"""The presets: of libraries, shipped in `queries/`, and this user's own files."""

from console.designs import Design, unknown
from console.features.presets.designs import libraries, own

_EVERY_LIBRARY = {(value.name, *value.engines): value for value in libraries.every()}
LIBRARIES: dict[str, Design] = {value.name: value for value in _EVERY_LIBRARY.values()}
"""The presets of `adopt --preset`: tables that a library made and works on. For one on several
engines, the last one's: see `library`."""


def library(name: str, engine: str) -> Design | None:
    """A library's preset on an engine: tables and columns differ between engines."""
    return _EVERY_LIBRARY.get((name, engine))


def presets(engine: str | None = None) -> dict[str, Design]:
    """The presets of an engine: those shipped, then this user's own."""
    if engine is None:
        return LIBRARIES | own.usable()
    shipped = {name: of for name in LIBRARIES if (of := library(name, engine)) is not None}
    return shipped | {name: of for name, of in own.usable().items() if engine in of.engines}


def recorded(name: str, engine: str | None, *, sha256: str, by: str) -> Design | None:
    """The preset of a queue in the catalog; an unknown design where it was adopted by `by` with a
    file of that SHA-256 that this user does not have."""
    why, next_step = "", ""
    if sha256:
        design, why, next_step = _own(name, sha256, by)
    else:
        design = LIBRARIES.get(name) if engine is None else library(name, engine)
    if design is not None and (engine is None or engine in design.engines):
        return design
    return unknown(name, engine, why, next_step) if why else None


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
