"""Queues that a library keeps in its own tables (`adopt --preset`), read by what it writes there.

The library goes on working on them, so nothing is done in another way than its own: each verb is
the library's own function, or exactly the statement that it runs itself. Each is one file,
`queries/<engine>/<name>.sql`, whose head says the rest: see `preset.sql` there. What the library
has no rule for is refused.
"""

import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable

from console import sql
from console.designs.model import Design, Flow, Order

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
    "requeued",
    "paused",
    "stays",
}
_ENDS = ("push", "pop", "purge", "archive", "restore", "smoke")
_STATES = ("ready", "scheduled", "claimed", "error", "done")


def every() -> tuple[Design, ...]:
    """All that are shipped, by name."""
    return tuple(
        _design(engine.name, path.name.removesuffix(".sql"))
        for engine in sorted(sql.queries_folder().iterdir(), key=lambda one: one.name)
        if engine.is_dir()
        for path in sorted(engine.iterdir(), key=lambda one: one.name)
        if _is_preset(path)
    )


def _is_preset(path: Traversable) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.readline().startswith(_FIRST)


def _design(engine: str, name: str) -> Design:
    head = dict(_fields(sql.head(engine, name), f"{engine}/{name}.sql"))
    own, defined = sql.statements(engine, name), sql.definitions(engine, name)
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
        table_each="queues" not in own,
        refusals=dict.fromkeys(_ENDS, owned) | refusals,
        requeued=head.get("requeued", ""),
        paused=head.get("paused", ""),
        stays=head.get("stays", ""),
        left_claims=head.get("left claims", ""),
        archives=archives,
        claims_expire=head.get("claims") == "expire",
    )


def _fields(head: str, file: str) -> Iterator[tuple[str, str]]:
    """The keys of a head, up to its remarks. ValueError where it is not one."""
    lines = head.partition("\n--\n")[0].replace("\n--   ", " ").split("\n")
    found = [field for line in lines if (field := _FIELD.match(line))]
    keys = [field["key"] for field in found]
    strange = [key for key in keys if key not in _KEYS and not key.startswith("no ")]
    if len(found) != len(lines) or strange or not set(keys) >= _NEEDED:
        raise ValueError(f"{file}: its head is not that of a preset (see preset.sql): {strange}")
    yield from ((field["key"], field["text"]) for field in found)
