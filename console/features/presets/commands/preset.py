"""Presets of libraries, and your own: list, show, check, trust.

A preset says how a library keeps its queues: which table, what its columns mean, which rows are
ready. Twelve are built in; your own are files (dbq-console help presets).

\b
Examples:
  dbq-console preset list
  dbq-console preset show river
  dbq-console preset check ~/.config/dbq-console/presets/parcel.sql --url URL
  dbq-console preset trust ~/.config/dbq-console/presets/parcel.sql
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from console.cli.command import as_command
from console.cli.context import Call
from console.designs import Design, presets
from console.errors import UsageError
from console.features.presets.designs import LIBRARIES, own
from console.features.presets.designs.own import OwnPreset
from console.features.presets.designs.own_file import SETS
from console.features.presets.preset_check import Check, check
from console.formats import numbered
from console.sql import templates
from console.verbs.command import Command
from console.verbs.parameters import Parameter, argument


def _list(call: Call) -> None:
    """List the built-in presets and your own files, trusted or not.

    \b
    Examples:
      dbq-console preset list
      dbq-console preset list --json
    """
    shipped = [
        {"preset": of.name, "library": of.library, "engines": list(of.engines)}
        for of in LIBRARIES.values()
    ]
    mine = [_own_json(preset) for preset in own.every()]
    where = [str(folder) for folder in own.folders()]
    lines = [f"{of.name:<20}{of.library}" for of in LIBRARIES.values()]
    exists = {True: "", False: " (does not exist)"}
    lines += ["", *(f"your own, in {path}{exists[path.is_dir()]}:" for path in own.folders())]
    for own_preset in own.every():
        library = "?" if own_preset.design is None else own_preset.design.library
        lines += [
            f"{own_preset.name:<20}{library}  {own_preset.path}",
            f"{'':<20}{_standing(own_preset)}",
        ]
    if not own.every():
        lines.append("none. To write one: dbq-console help presets")
    call.answer({"shipped": shipped, "own": mine, "folders": where}, lines)


def _standing(preset: OwnPreset) -> str:
    if preset.problem:
        return f"cannot be used: {preset.problem}"
    if preset.untrusted:
        return f"{preset.untrusted}; for monitoring only: {preset.trust_command}"
    return f"trusted, SHA-256 {preset.sha256}"


def _own_json(preset: OwnPreset) -> dict[str, object]:
    return {
        "preset": preset.name,
        "library": None if preset.design is None else preset.design.library,
        "engines": [] if preset.design is None else list(preset.design.engines),
        "file": str(preset.path),
        "sha256": preset.sha256 or None,
        "problem": preset.problem or None,
        "trusted": preset.design is not None and not preset.untrusted,
        "untrusted": preset.untrusted or None,
    }


def _show(call: Call, name: str) -> None:
    """Show a preset: how its tables are recognised, roles, states, verbs and refusals.

    \b
    Examples:
      dbq-console preset show pg-boss
      dbq-console preset show ~/.config/dbq-console/presets/parcel.sql
    """
    mine = _own_preset(name)
    if mine is None:
        of = LIBRARIES.get(name)
        if of is None:
            raise _no_preset(name)
        written = dict(templates.definitions(of.engines[0], name))
    else:
        of, written = (
            mine.design_if_trusted or mine.require(),
            dict(mine.parsed.written if mine.parsed else {}),
        )
    answer = {
        "preset": of.name,
        "library": of.library,
        "engines": list(of.engines),
        "summary": of.summary,
        "found_by": dict(of.found_by),
        "roles": dict(of.roles),
        "states": list(of.states),
        "verbs": list(of.verbs),
        "refused": dict(of.refusals),
        "definitions": written,
        "own": None if mine is None else _own_json(mine),
    }
    call.answer(answer, list(_shown(of, mine, written)))


def _shown(of: Design, mine: OwnPreset | None, written: Mapping[str, str]) -> Iterator[str]:
    yield f"{of.name}: {of.library} ({', '.join(of.engines)})"
    yield of.summary
    if mine is not None:
        yield f"file: {mine.path}"
        yield f"SHA-256: {mine.sha256}"
        yield _standing(mine)
    found_by = of.found_by
    yield f"table: {found_by['table']}" + (
        f" in {found_by['schema']}" if found_by["schema"] else ""
    )
    yield f"columns: {_words(found_by['columns'])}"
    yield "roles: " + ", ".join(f"{role}={column}" for role, column in of.roles.items())
    yield f"states: {', '.join(of.states)}"
    yield f"verbs: {', '.join(of.verbs) or 'none'}"
    for verb, why in of.refusals.items():
        yield f"  no {verb}: {why}"
    for name, text in written.items():
        yield f"{name}:"
        yield from (f"    {line}" for line in text.strip().split("\n") if line.strip())


def _words(columns: object) -> str:
    return " ".join(columns) if isinstance(columns, list) else ""


def _own_preset(name: str) -> OwnPreset | None:
    """The file at that path, or this user's own preset of that name."""
    if name in LIBRARIES:
        return None
    if "/" in name or name.endswith(".sql"):
        return own.read(Path(name).expanduser())
    return own.of_name(name)


def _require_own_preset(name: str) -> OwnPreset:
    preset = _own_preset(name)
    if preset is None and name in LIBRARIES:
        raise UsageError(f"{name!r} is built in.", why="This command is for your own preset files.")
    if preset is None:
        raise _no_preset(name)
    return preset


def _no_preset(name: str) -> UsageError:
    return UsageError(
        f"There is no preset {name!r}.", next_step=f"There are: {', '.join(presets())}."
    )


def _check(call: Call, file: str, table: str | None) -> None:
    """Check your own preset against the existing table. It changes nothing.

    The server's own parser checks each expression: its columns, its type, that it does not write.
    It then shows the number of rows in no state or in two (of the first million), the cost of a
    sample at the table's present size, and the SQL that requeue and release run.
    A file that is not trusted is checked only through the role dbq_reader, unless the login itself
    is read-only (dbq-console roles creates the role). Exit 1: something must be corrected.

    \b
    Examples:
      dbq-console preset check ~/.config/dbq-console/presets/parcel.sql --url URL
      dbq-console preset check parcel --table parcel_jobs --json
    """
    mine = _require_own_preset(file)
    mine.require()
    database = call.database("preset check")
    found = check(database, mine, schema=call.schema, table=table)
    answer = {**_own_json(mine), "connection": database.label, **found.as_json}
    call.answer(answer, list(_checked(mine, found)))
    if found.problems:
        click.get_current_context().exit(1)


def _checked(mine: OwnPreset, check: Check) -> Iterator[str]:
    rows = "?" if check.size.rows is None else f"≈{check.size.rows:,}"
    pages = "? pages" if check.size.pages is None else numbered(check.size.pages, "page")
    yield f"{mine.name} on {check.queue.schema}.{check.queue.table}: {rows} rows, {pages}"
    yield _standing(mine)
    for fragment in check.fragments:
        verdict = "WRONG" if fragment.problem else "ok"
        yield f"  {verdict:<6}{fragment.name}: {fragment.problem or fragment.type}"
    if check.states is not None:
        yield f"states of {numbered(check.rows_read, 'row')}:"
        for met in check.states:
            status = f" (status {met.status})" if met.status is not None else ""
            where = "in no state" if not met.states else met.states.replace(" ", " and ")
            level = "WRONG" if met.several else "" if met.states else "note"
            yield f"  {level:<6}{where}{status}: {met.rows:,}, for example id {met.id}"
    if check.costs:
        yield "a sample reads, for each figure until 10,001 are found:"
        yield from (f"  {cost.text}" for cost in check.costs)
    for verb, text in check.sent.items():
        yield f"{verb} runs for each batch:"
        yield from (f"    {line}" for line in text.split("\n"))
    for verb in SETS:
        if verb not in check.sent and not check.problems and mine.design_if_trusted is not None:
            yield f"no {verb}: {mine.design_if_trusted.refusals[verb]}"
    yield (
        f"{numbered(len(check.problems), 'thing')} to correct."
        if check.problems
        else "No problems."
    )


def _trust(call: Call, file: str, revoke: bool) -> None:
    """Trust a preset file in its present form: its path and SHA-256 are stored for your user.

    Only then can it adopt, requeue and release. After any change it is no longer trusted. Read it
    first: requeue and release set the columns that it names. Running consoles notice only after a
    restart.

    \b
    Examples:
      dbq-console preset trust ~/.config/dbq-console/presets/parcel.sql
      dbq-console preset trust parcel --revoke
    """
    mine = _require_own_preset(file)
    if revoke:
        own.distrust(mine.path)
        call.answer(
            {"file": str(mine.path), "trusted": False}, [f"{mine.path} is no longer trusted"]
        )
        return
    mine.require()
    own.trust(mine)
    list_path = own.trust_list_path()
    lines = [f"trusted {mine.path}", f"SHA-256 {mine.sha256}", f"written to {list_path}"]
    if mine.parsed is not None:
        lines += [f"{verb} sets: {', '.join(sets)}" for verb, sets in mine.parsed.sets.items()]
    if mine.path.parent not in [Path(folder).resolve() for folder in own.folders()]:
        where = own.folders()[0] if own.folders() else "a folder that DBQ_PRESETS names"
        lines.append(f"It is not among your presets: discover and adopt read those in {where}")
    answer = {
        "file": str(mine.path),
        "trusted": True,
        "sha256": mine.sha256,
        "list": str(list_path),
    }
    call.answer(answer, lines)


_FILE = argument("file", metavar="FILE|NAME")
_TABLE = Parameter("table", "The table, if several have its columns.", metavar="T")
_PARTS = (
    Command("list", _list),
    Command("show", _show, parameters=(argument("name", metavar="NAME|FILE"),)),
    Command("check", _check, parameters=(_FILE, _TABLE)),
    Command(
        "trust", _trust, parameters=(_FILE, Parameter("revoke", "Stop trusting it.", is_flag=True))
    ),
)
COMMAND = click.Group("preset", [as_command(one) for one in _PARTS], help=__doc__)
