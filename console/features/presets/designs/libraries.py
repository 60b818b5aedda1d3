"""Presets: queues in the tables of a library (`adopt --preset`).

The library keeps working on them, so each verb is the library's own function or exactly its own
statement, and everything else is refused. A preset is a file, `queries/<engine>/<name>.sql`, with a
head that `preset.sql` describes.
"""

import re
from collections.abc import Container, Mapping
from pathlib import Path

from console.designs.model import Design, Flow
from console.designs.order import Order
from console.sql import templates

_FIRST = "-- preset: "
_FIELD = re.compile(r"^-- (?P<key>[a-z][a-z ]*): (?P<text>.*)$")
_NEEDED = {"preset", "like", "summary", "advice", "columns", "roles"}
_KEYS = {
    *_NEEDED,
    "verbs",
    "table",
    "schema",
    "beside",
    "claims",
    "left claims",
    "takes due",
    "overdue",
    "errors",
    "requeued",
    "paused",
    "stays",
    "prunes",
    "older",
}
_ENDS = ("push", "pop", "purge", "archive", "restore", "smoke")
_STATES = ("ready", "scheduled", "claimed", "error", "done")


def every() -> tuple[Design, ...]:
    """All shipped presets, by name."""
    return tuple(
        _design(engine.name, path.name.removesuffix(".sql"))
        for engine in sorted(templates.queries_folder().iterdir())
        if engine.is_dir()
        for path in sorted(engine.iterdir())
        if _is_preset(path)
    )


def _is_preset(path: Path) -> bool:
    if not path.is_file():
        return False  # a design in several files
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(_FIRST)


def _design(engine: str, name: str) -> Design:
    files = [one for one in templates.lineage(engine, name) if one != "preset"]
    own = {of for one in files for of in templates.statements(engine, one)}
    defined: dict[str, str] = {}
    for file in reversed(files):
        defined |= templates.definitions(engine, file)
    return design_of(
        engine, name, _head(engine, name), own, {of for of, text in defined.items() if text.strip()}
    )


def _head(engine: str, name: str) -> dict[str, str]:
    """Its head. One that is like another library's file says only what differs, and its verbs; one
    of an older version refuses what that version has no known rule for."""
    text = templates.head(engine, name)
    head = fields(text, set(), _KEYS)
    if isinstance(head, dict) and head.get("like", "preset") != "preset":
        head = _head(engine, head["like"]) | {"verbs": "", "paused": ""} | head
    if isinstance(head, dict) and (missing := _NEEDED - head.keys()):
        head = f"its head lacks: {', '.join(sorted(missing))}"
    if isinstance(head, str):
        raise ValueError(f"{engine}/{name}.sql: {head} (see preset.sql)")  # noqa: TRY004
    if "older" in head:
        newer = _head(engine, head["older"])
        only = f"{head['preset']}: this console has the rule of {newer['preset']} only"
        for verb in {*newer.get("verbs", "").split()} - {*head.get("verbs", "").split()}:
            head.setdefault(f"no {verb}", only)
    return head


def design_of(
    engine: str, name: str, head: Mapping[str, str], own: Container[str], defined: Container[str]
) -> Design:
    """The design from a preset's head and the names of its own statements and definitions."""
    archives = "archived_messages" in own
    states = {state for state in _STATES if f"is_{state}" in defined}
    owned = f"{name} owns the table: only it adds and deletes rows there"
    verbs = tuple(head.get("verbs", "").split())
    refusals = {key.removeprefix("no "): why for key, why in head.items() if key.startswith("no ")}
    if "pause" in verbs:
        verbs = (*verbs, "resume")
    elif why := refusals.get("pause"):
        refusals["resume"] = why
    return Design(
        name=name,
        title=f"queue of {name}",
        source=name,
        summary=head["summary"],
        advice=head["advice"],
        engines=(engine,),
        options=(),
        states=tuple(s for s in _STATES if s in states or (archives and s == "done")),
        verbs=(*verbs, "maintain", "end-session"),
        roles=dict(pair.split("=", 1) for pair in head["roles"].split()),
        needed_roles=("id", "status", "payload"),
        order=Order.LAX,
        flow=Flow.CLAIMED if "done" in states else Flow.DELETED,
        keeps_row=True,
        like="library",
        library=head["preset"],
        found_by={
            "schema": head.get("schema"),
            "table": head.get("table", "*"),
            "columns": head["columns"].split(),
            "beside": head.get("beside"),
        },
        table_each="queues" not in own and "queue_column" not in defined,
        refusals=dict.fromkeys(_ENDS, owned) | refusals,
        requeued=head.get("requeued", ""),
        paused=head.get("paused", ""),
        stays=head.get("stays", ""),
        left_claims=head.get("left claims", ""),
        takes_due=head.get("takes due", ""),
        overdue=head.get("overdue", ""),
        errors_elsewhere=head.get("errors", ""),
        archives=archives,
        finished="is_finished" in defined
        or ("is_done" in defined and ("done_at" in defined or "done_at=" in head["roles"])),
        # An older version's rule is not known.
        prunes="" if "older" in head else head.get("prunes", ""),
        claims_expire=head.get("claims") == "expire",
        older=head.get("older", ""),
    )


def fields(head: str, needed: set[str], keys: set[str]) -> dict[str, str] | str:
    """The keys of a head, up to its comments; or why it is invalid."""
    keys_part = (head.rstrip("\n") + "\n").partition("\n--\n")[0]
    lines = keys_part.rstrip("\n").replace("\n--   ", " ").split("\n")
    found: dict[str, str] = {}
    for line in lines:
        field = _FIELD.match(line)
        if field is None:
            return f"its head has a line that is not `-- key: text`: {line!r}"
        key = field["key"]
        if key in found:
            return f"its head says {key!r} twice"
        if key not in keys and not key.startswith("no "):
            return f"its head has no key {key!r}; it can have: {', '.join(sorted(keys))}, no VERB"
        found[key] = field["text"]
    missing = sorted(needed - found.keys())
    return f"its head lacks: {', '.join(missing)}" if missing else found
