"""What `queries/` has by name: statements, and definitions; chosen line by line for one queue.

A file of `queries/` is SQL that its engine would take as it stands, for a queue whose name is
the text `{queue}`. `{is_ready}` outside quotes becomes the definition of that name, which a file
states once under `-- define: is_ready`, for the design that the statement is rendered for.

Lines between `-- when option=a|b` and `-- end` stay only where the queue has such an option
(`-- when not option=a`: another; of an option with several values, "a|c", one that is named);
`-- when role due_at` (or `-- when no role due_at`) asks for a column with that role, and
`-- when defined is_error` (or `-- when not defined is_error`) for a definition. Those between
`-- else` and `-- end` stay where the block before it does not. A condition that ends a line is for
that line. Lines between `-- each partition` and `-- end` stand once for each
partition of the queue, `{partition}` being its number; with `-- each subscriber` once for each
subscriber, `{subscriber}` being its name and `{subscriber_number}` its number.

A statement of a design, `"fifo.status"`, is that of its file. What the file lacks is that of the
design that it is like (`-- like: fifo`), else the one that all designs share.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import _lru_cache_wrapper, cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

SHARED = ("monitor", "actions", "doctor", "common")
"""The files of what designs share: a design's own statement or definition goes before theirs."""
_HEAD = re.compile(r"^-- (?P<kind>name|define): (?P<name>[a-z][a-z0-9_]*)$", re.MULTILINE)
_LIKE = re.compile(r"^-- like: (?P<design>[a-z][a-z0-9_-]*)$", re.MULTILINE)
_CONDITION = (
    r"-- when (?:(?P<no>no )?role (?P<role>\w+)|(?P<not>not )?defined (?P<defined>\w+)"
    r"|(?P<unless>not )?(?P<option>\w+)=(?P<values>[\w|]+))$"
)
_WHEN = re.compile(rf"^\s*{_CONDITION}")
_LINE_WHEN = re.compile(rf"^(?P<line>.*\S) {_CONDITION}")
_EACH = re.compile(r"^\s*-- each (?P<of>partition|subscriber)$")
_END = re.compile(r"^\s*-- (?P<of>end|else)$")
_ALONE = re.compile(r"^\s*\{(?P<name>\w+)\}$")
_DEFINITION = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]\n]*\]|\{(?P<name>\w+)\}""",
    re.DOTALL,
)
"""What is skipped, and the name of a definition to put in."""
_CHOSEN_BY = ("design", "partitions", "subscribers")
"""The values that decide which lines a template keeps, besides options and roles."""
MOST_CHOSEN = 2000
"""Templates that are kept as queues have them: of 2 kB each, as a rule."""


@dataclasses.dataclass(frozen=True)
class Statement:
    engine: str
    file: str
    name: str
    comment: str
    """What it returns: the comment's first line under the name."""
    template: str

    @property
    def label(self) -> str:
        """How the server's DBA sees it, in the comment at its head."""
        return f"{self.file}.{self.name}"


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a rendering may put in: the names, the options and the roles of one queue."""

    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Role -> column. A role's column is also the value of its placeholder."""

    def __hash__(self) -> int:
        """Of what is in them: nobody changes them once they are a scope's."""
        return hash(tuple(frozenset(of.items()) for of in (self.values, self.options, self.roles)))


NOTHING = Scope()
"""For statements that are about no queue."""


def queries_folder() -> Traversable:
    """Where the SQL lies: inside the installed package, else beside it (a checkout)."""
    packaged = resources.files("console") / "queries"
    if packaged.is_dir():
        return packaged
    return Path(__file__).resolve().parent.parent.parent / "queries"


@dataclasses.dataclass(frozen=True)
class _File:
    """One file: its statements and its definitions, by name, and the design that it is like."""

    statements: Mapping[str, Statement]
    definitions: Mapping[str, str]
    like: str
    head: str


_GIVEN: dict[tuple[str, str], _File] = {}
"""Files that are not shipped: presets of this user."""
_Cached = TypeVar("_Cached", bound="_lru_cache_wrapper[Any]")
_UNTIL_GIVEN: list[_lru_cache_wrapper[Any]] = []


def until_given(cached: _Cached) -> _Cached:
    """Let it forget, when presets are given, what it made of those before."""
    _UNTIL_GIVEN.append(cached)
    return cached


UNTRUSTED_MARK = "/* dbq untrusted "
UNTRUSTED = re.compile(rf"{re.escape(UNTRUSTED_MARK)}(?P<preset>[a-z0-9_-]+) \*/ ?")
"""What stands before each text of a preset that its user has not trusted. It is sent with it, so
that `Database` sees, whatever put the statement together, that a stranger wrote a part of it."""


def give(
    engine: str, presets: Mapping[str, Mapping[str, str]], *, like: str, untrusted: Sequence[str]
) -> None:
    """What presets of this user define, in place of those that were given before."""
    before = [place for place in _GIVEN if place[0] == engine]
    if not before and not presets:
        return
    for place in before:
        del _GIVEN[place]
    for name, definitions in presets.items():
        mark = f"/* dbq untrusted {name} */ " if name in untrusted else ""
        # What is no text of the file's own quotes a column of it, and nothing else.
        texts = {
            key: text if key in _OF_COLUMNS else mark + text for key, text in definitions.items()
        }
        _GIVEN[engine, name] = _File({}, texts, like, "")
    for cached in _UNTIL_GIVEN:
        cached.cache_clear()


_OF_COLUMNS = ("part", "queue_column")


@until_given
@cache
def _file(engine: str, file: str) -> _File:
    if given := _GIVEN.get((engine, file)):
        return given
    path = queries_folder() / engine / f"{file}.sql"
    if not path.is_file():
        raise KeyError(f"{engine}/{file}.sql")
    beginning, *parts = _HEAD.split(path.read_text(encoding="utf-8"))
    found: dict[str, Statement] = {}
    definitions: dict[str, str] = {}
    for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if name in (found if kind == "name" else definitions):
            raise ValueError(f"{engine}/{file}.sql names {name!r} twice")
        if kind == "define":
            definitions[name] = _without_remarks(body)
            continue
        comment, _, template = body.strip("\n").partition("\n")
        if not comment.startswith("-- "):
            raise ValueError(f"{engine}/{file}.sql: {name!r} lacks its line of comment")
        found[name] = Statement(engine, file, name, comment[3:], template.strip("\n"))
    like = _LIKE.search(beginning)
    return _File(found, definitions, like["design"] if like else "", beginning)


def _without_remarks(body: str) -> str:
    """What a definition puts in: its comments are for the readers of its file."""
    lines = body.strip("\n").split("\n")
    return "\n".join(
        line
        for line in lines
        if not line.lstrip().startswith("--") or any(m.match(line) for m in (_WHEN, _EACH, _END))
    )


def statements(engine: str, file: str) -> Mapping[str, Statement]:
    """All statements of one file, by name, in the order of the file. KeyError where it lacks."""
    return _file(engine, file).statements


def definitions(engine: str, file: str) -> Mapping[str, str]:
    return _file(engine, file).definitions


def head(engine: str, file: str) -> str:
    """What stands in it before the first of both."""
    return _file(engine, file).head


def statements_of(engine: str, design: str) -> Mapping[str, Statement]:
    """All statements of a design by name: its own, then what it is monitored by like others."""
    found = dict(statements(engine, design))
    for file in (*lineage(engine, design)[1:], *_shared(engine)):
        for name in statements(engine, file) if file not in SHARED[1:] else ():
            if name not in found and _find(engine, design, name) is not None:
                found[name] = statement(engine, f"{design}.{name}")
    return found


def statement(engine: str, of: str | Statement) -> Statement:
    """The statement `of`, as `file.name`. KeyError where the engine lacks it."""
    if isinstance(of, Statement):
        return of
    file, _, name = of.rpartition(".")
    found = _find(engine, file, name)
    if found is None:
        raise KeyError(f"{engine}/{of}")
    return found


def there_is(engine: str, of: str) -> bool:
    file, _, name = of.rpartition(".")
    return _find(engine, file, name) is not None


def _find(engine: str, file: str, name: str) -> Statement | None:
    line = lineage(engine, file)
    for one in (*line, *_shared(engine)):
        found = statements(engine, one).get(name)
        if found is not None and (one == file or _can_be(found, line)):
            return found
    return None


def _can_be(found: Statement, line: tuple[str, ...]) -> bool:
    """Whether all that it is made of is defined for a design of these files."""
    engine = found.engine
    return _made_of(found) <= _defined((*line, *_shared(engine)), engine)


@until_given
@cache
def lineage(engine: str, file: str) -> tuple[str, ...]:
    """The file, the one that it is like, the one that this is like; none of a design of a later
    console, which this one has no file of."""
    there = (queries_folder() / engine / f"{file}.sql").is_file() or (engine, file) in _GIVEN
    if not there:
        return ()
    like = _file(engine, file).like
    return (file, *lineage(engine, like)) if like else (file,)


@cache
def _shared(engine: str) -> tuple[str, ...]:
    folder = queries_folder() / engine
    return tuple(file for file in SHARED if (folder / f"{file}.sql").is_file())


@until_given
@cache
def _defined(files: tuple[str, ...], engine: str) -> frozenset[str]:
    return frozenset(name for file in files for name in _file(engine, file).definitions)


@cache
def _made_of(found: Statement) -> frozenset[str]:
    """The definitions without which the statement cannot be, whatever the queue."""
    depth, lines = 0, []
    for line, when, each, end, only, _ in _lines(found.template):
        depth += bool(when or each) - bool(end and end["of"] == "end")
        if depth == 0 and not only:
            lines.append(line)
    return frozenset(m["name"] for m in _DEFINITION.finditer("\n".join(lines)) if m["name"])


def chosen(found: Statement, scope: Scope) -> str:
    """The template without the lines whose condition this queue does not meet, and with what its
    design means by each definition. Read once for all queues that have these alike: their names
    are put in afterwards."""
    values = frozenset((name, scope.values[name]) for name in _CHOSEN_BY if name in scope.values)
    return _chosen(found, values, frozenset(scope.options.items()), frozenset(scope.roles))


@until_given
@lru_cache(maxsize=MOST_CHOSEN)
def _chosen(
    found: Statement,
    values: frozenset[tuple[str, str]],
    options: frozenset[tuple[str, str]],
    roles: frozenset[str],
) -> str:
    scope = Scope(dict(values), dict(options), dict.fromkeys(roles, ""))
    kept: list[str] = []
    begun: list[tuple[Sequence[dict[str, str]], list[str]]] = []
    """Of each block that is open: what is put into its lines, once for each time that they stand
    there; and the lines before it."""
    for line, when, each, end, only, alone in _lines(found.template):
        if when:
            begun.append(([{}] if _holds(when, found, scope) else [], kept))
            kept = []
        elif each:
            begun.append((_each(each["of"], scope), kept))
            kept = []
        elif end:
            if not begun:
                raise ValueError(
                    f"{found.label}: a '-- {end['of']}' has no '-- when' that can be read"
                )
            times, before = begun.pop()
            kept = before + [_put(line, put) for put in times for line in kept]
            if end["of"] == "else":
                begun.append(([] if times else [{}], kept))
                kept = []
        elif all(times for times, _ in begun) and not _is_left_out(only, alone, found, scope):
            kept.append(line)
    if begun:
        raise ValueError(f"{found.label}: a '-- when' has no '-- end'")
    return _with_definitions("\n".join(kept), found, scope)


_Matched = re.Match[str] | None
_Line = tuple[str, _Matched, _Matched, _Matched, _Matched, _Matched]


@lru_cache(maxsize=MOST_CHOSEN)
def _lines(template: str) -> Sequence[_Line]:
    """Each line, and whether it opens a block (when, each), ends one or its first half, had a
    condition at its end, is a definition alone: read once, whichever queue its lines are then
    chosen for."""
    return tuple(map(_read, template.split("\n")))


def _read(line: str) -> _Line:
    when, each, end = (of.match(line) for of in (_WHEN, _EACH, _END))
    only = None
    if not when and " -- when " in line:
        only = _LINE_WHEN.match(line)
        if only is None:
            raise ValueError(f"a '-- when' that cannot be read: {line.strip()}")
        line = only["line"]
    return line, when, each, end, only, _ALONE.match(line)


def _each(of: str, scope: Scope) -> list[dict[str, str]]:
    """What is put into the lines of a block, once for each of those that the queue has."""
    if of == "partition":
        return [{"{partition}": str(n)} for n in range(int(scope.values.get("partitions", "0")))]
    named = [one.split(":") for one in scope.values.get("subscribers", "").split(",") if one]
    return [{"{subscriber}": name, "{subscriber_number}": number} for name, number in named]


def _put(line: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        line = line.replace(placeholder, value)
    return line


def _is_left_out(only: _Matched, alone: _Matched, found: Statement, scope: Scope) -> bool:
    """Whether the line's own condition does not hold, or it is a definition alone, of which nothing
    is left for this queue."""
    if only and not _holds(only, found, scope):
        return True
    return alone is not None and _definition(alone["name"], found, scope) == ""


def _holds(when: re.Match[str], found: Statement, scope: Scope) -> bool:
    if when["role"]:
        return (when["role"] in scope.roles) != bool(when["no"])
    if when["defined"]:
        return bool(_definition(when["defined"], found, scope)) != bool(when["not"])
    given = set(scope.options.get(when["option"], "").split("|"))
    return given.isdisjoint(when["values"].split("|")) == bool(when["unless"])


def _with_definitions(template: str, found: Statement, scope: Scope) -> str:
    def put_in(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        text = _definition(match["name"], found, scope)
        if text is None:
            raise KeyError(f"{found.label}: {match[0]} is not defined")
        line = template[template.rfind("\n", 0, match.start()) + 1 :]
        return text.replace("\n", "\n" + line[: len(line) - len(line.lstrip())])

    return _DEFINITION.sub(put_in, template)


def _definition(name: str, found: Statement, scope: Scope) -> str | None:
    """What the design means by the name, else what all do; empty: nothing, for this queue."""
    design = scope.values.get("design")
    files = lineage(found.engine, design) if design else ()
    for file in (*files, found.file, *_shared(found.engine)):
        text = _file(found.engine, file).definitions.get(name)
        if text is not None:
            return chosen(dataclasses.replace(found, template=text), scope)
    return None
