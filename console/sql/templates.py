"""Reads `queries/`: named statements and definitions, and selects the lines for one queue.

A file is plain SQL for a queue named `{queue}`; queries/README.md describes the directives:
`-- name:`, `-- more:`, `-- define:`, `-- like:`, `-- when` ... `-- else` ... `-- end`, `-- each`.
What is too long for one file, `ring`, is a folder: `install.sql`, and its `-- parts:`.

A statement of a design, `"fifo.status"`, is looked up in the design's file, then in that of the
design that it is like, then in the shared files.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import _lru_cache_wrapper, cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

SHARED = ("monitor", "actions", "doctor", "common")
"""The files that all designs share; a design's own statements and definitions take precedence."""
_HEAD = re.compile(r"^-- (?P<kind>name|more|define): (?P<name>[a-z][a-z0-9_]*)$", re.MULTILINE)
_LIKE = re.compile(r"^-- like: (?P<design>[a-z][a-z0-9_-]*)$", re.MULTILINE)
_PARTS = re.compile(r"^-- parts: (?P<files>[a-z ]+)$", re.MULTILINE)
_CONDITION = (
    r"-- when (?:(?P<no>no )?role (?P<role>\w+)|(?P<not>not )?defined (?P<defined>\w+)"
    r"|(?P<unless>not )?(?P<option>\w+)=(?P<values>[\w|]+))$"
)
_WHEN = re.compile(rf"^\s*{_CONDITION}")
_LINE_WHEN = re.compile(rf"^(?P<line>.*\S) {_CONDITION}")
_EACH = re.compile(r"^\s*-- each (?P<of>partition|subscriber|column)$")
_END = re.compile(r"^\s*-- (?P<of>end|else)$")
_ALONE = re.compile(r"^\s*\{(?P<name>\w+)\}$")
_DEFINITION = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]\n]*\]|\{(?P<name>\w+)\}""",
    re.DOTALL,
)
"""Text to skip, or the name of a definition to insert."""
_SELECTED_BY = ("design", "partitions", "subscribers", "columns")
"""The values, besides options and roles, that select a template's lines."""
CACHE_SIZE = 2000
"""Cached templates with their lines selected, of about 2 kB each."""


@dataclasses.dataclass(frozen=True)
class Statement:
    engine: str
    file: str
    name: str
    comment: str
    """What it returns: the first comment line under the name."""
    template: str

    @property
    def label(self) -> str:
        """Its name in the comment that is sent with it."""
        return f"{self.file}.{self.name}"


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a rendering needs of one queue: names, options and roles."""

    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Role -> column, which is also the value of the role's placeholder."""

    def __hash__(self) -> int:
        """Of the contents, which are never changed."""
        return hash(tuple(frozenset(of.items()) for of in (self.values, self.options, self.roles)))


NOTHING = Scope()
"""For statements that concern no queue."""


def queries_folder() -> Path:
    """The folder of the SQL: in the installed package, else beside it (a checkout)."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "queries"
    return packaged if packaged.is_dir() else package.parent / "queries"


@dataclasses.dataclass(frozen=True)
class _File:
    """One file: its statements and definitions by name, and the design that it is like."""

    statements: Mapping[str, Statement]
    definitions: Mapping[str, str]
    like: str
    head: str


_USER_PRESETS: dict[tuple[str, str], _File] = {}
_Cached = TypeVar("_Cached", bound="_lru_cache_wrapper[Any]")
_CLEARED_WITH_PRESETS: list[_lru_cache_wrapper[Any]] = []


def cleared_with_presets(cached: _Cached) -> _Cached:
    """Register a cache to be cleared when the user's presets change."""
    _CLEARED_WITH_PRESETS.append(cached)
    return cached


UNTRUSTED_MARK = "/* dbq untrusted "
UNTRUSTED = re.compile(rf"{re.escape(UNTRUSTED_MARK)}(?P<preset>[a-z0-9_-]+) \*/ ?")
"""Precedes each definition of an untrusted preset. It is sent to the server, so that `Database`
recognises statements with untrusted parts however they were composed."""


def set_user_presets(
    engine: str, presets: Mapping[str, Mapping[str, str]], *, like: str, untrusted: Sequence[str]
) -> None:
    """Replace the definitions of this user's presets."""
    before = [key for key in _USER_PRESETS if key[0] == engine]
    if not before and not presets:
        return
    for key in before:
        del _USER_PRESETS[key]
    for name, definitions in presets.items():
        mark = f"/* dbq untrusted {name} */ " if name in untrusted else ""
        # The others merely quote a column name.
        texts = {
            key: text if key in _OF_COLUMNS else mark + text for key, text in definitions.items()
        }
        _USER_PRESETS[engine, name] = _File({}, texts, like, "")
    for cached in _CLEARED_WITH_PRESETS:
        cached.cache_clear()


_OF_COLUMNS = ("part", "queue_column")


@cleared_with_presets
@cache
def _file(engine: str, file: str) -> _File:
    if given := _USER_PRESETS.get((engine, file)):
        return given
    parts_of_file = texts(engine, file)
    if not parts_of_file:
        raise KeyError(f"{engine}/{file}.sql")
    statements: dict[str, Statement] = {}
    definitions: dict[str, str] = {}
    heads = []
    for path, text in parts_of_file.items():
        head, *parts = _HEAD.split(text)
        heads.append(head)
        for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if name in (definitions if kind == "define" else statements) and kind != "more":
                raise ValueError(f"{engine}/{path} names {name!r} twice")
            if kind == "define":
                definitions[name] = _without_comments(body)
                continue
            comment, _, template = body.strip("\n").partition("\n")
            if not comment.startswith("-- "):
                raise ValueError(f"{engine}/{path}: {name!r} lacks its line of comment")
            template = template.strip("\n")
            if kind == "more":
                begun = statements[name]
                template = f"{begun.template}\n\n{template}"
                statements[name] = dataclasses.replace(begun, template=template)
            else:
                statements[name] = Statement(engine, file, name, comment[3:], template)
    like = _LIKE.search(heads[0])
    return _File(statements, definitions, like["design"] if like else "", heads[0])


def files(engine: str) -> tuple[str, ...]:
    """The names of an engine's files and folders."""
    paths = (queries_folder() / engine).iterdir()
    names = (path.name.removesuffix(".sql") for path in paths)
    return tuple(sorted(name for name in names if "." not in name))  # and not its README.md


def texts(engine: str, file: str) -> dict[str, str]:
    """Path in the engine's folder -> text: a file, or a folder's files in order; else nothing."""
    folder = queries_folder() / engine
    if (folder / f"{file}.sql").is_file():
        return {f"{file}.sql": (folder / f"{file}.sql").read_text(encoding="utf-8")}
    if not (folder / file / "install.sql").is_file():
        return {}
    first = (folder / file / "install.sql").read_text(encoding="utf-8")
    parts = _PARTS.search(first)
    return {f"{file}/install.sql": first} | {
        f"{file}/{part}.sql": (folder / file / f"{part}.sql").read_text(encoding="utf-8")
        for part in (parts["files"].split() if parts else ())
    }


def _without_comments(body: str) -> str:
    """A definition without its comment lines, which stay in its file."""
    lines = body.strip("\n").split("\n")
    return "\n".join(
        line
        for line in lines
        if not line.lstrip().startswith("--") or any(m.match(line) for m in (_WHEN, _EACH, _END))
    )


def statements(engine: str, file: str) -> Mapping[str, Statement]:
    """All statements of one file, by name, in order. KeyError if there is no such file."""
    return _file(engine, file).statements


def definitions(engine: str, file: str) -> Mapping[str, str]:
    return _file(engine, file).definitions


def head(engine: str, file: str) -> str:
    """What stands in it before the first of both."""
    return _file(engine, file).head


def statements_of(engine: str, design: str) -> Mapping[str, Statement]:
    """All statements of a design by name: its own, then the shared ones of monitoring."""
    found = dict(statements(engine, design))
    for file in (*lineage(engine, design)[1:], *_shared(engine)):
        for name in statements(engine, file) if file not in SHARED[1:] else ():
            if name not in found and _find(engine, design, name) is not None:
                found[name] = statement(engine, f"{design}.{name}")
    return found


def statement(engine: str, of: str | Statement) -> Statement:
    """The statement `of`, as `file.name`. KeyError if the engine lacks it."""
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


@cleared_with_presets
@cache
def _find(engine: str, file: str, name: str) -> Statement | None:
    line = lineage(engine, file)
    for one in (*line, *_shared(engine)):
        statement = statements(engine, one).get(name)
        if statement is not None and (one == file or _can_be(statement, line)):
            return statement
    return None


def _can_be(statement: Statement, line: tuple[str, ...]) -> bool:
    """Whether all its definitions exist for a design of these files."""
    engine = statement.engine
    return _made_of(statement) <= _defined((*line, *_shared(engine)), engine)


@cleared_with_presets
@cache
def lineage(engine: str, file: str) -> tuple[str, ...]:
    """The design's file, that of the design it is like, and so on; empty for an unknown design."""
    if (engine, file) not in _USER_PRESETS and not texts(engine, file):
        return ()
    like = _file(engine, file).like
    return (file, *lineage(engine, like)) if like else (file,)


@cache
def _shared(engine: str) -> tuple[str, ...]:
    folder = queries_folder() / engine
    return tuple(file for file in SHARED if (folder / f"{file}.sql").is_file())


@cleared_with_presets
@cache
def _defined(files: tuple[str, ...], engine: str) -> frozenset[str]:
    return frozenset(name for file in files for name in _file(engine, file).definitions)


@cache
def _made_of(found: Statement) -> frozenset[str]:
    """The definitions that the statement needs for any queue."""
    depth, lines = 0, []
    for line, when, each, end, only, _ in _lines(found.template):
        depth += bool(when or each) - bool(end and end["of"] == "end")
        if depth == 0 and not only:
            lines.append(line)
    return frozenset(m["name"] for m in _DEFINITION.finditer("\n".join(lines)) if m["name"])


def chosen(statement: Statement, scope: Scope) -> str:
    """The template with the lines selected for this queue and its design's definitions inserted.
    Cached for all queues with the same options; names are filled in afterwards."""
    values = frozenset((name, scope.values[name]) for name in _SELECTED_BY if name in scope.values)
    return _chosen(statement, values, frozenset(scope.options.items()), frozenset(scope.roles))


@cleared_with_presets
@lru_cache(maxsize=CACHE_SIZE)
def _chosen(
    found: Statement,
    values: frozenset[tuple[str, str]],
    options: frozenset[tuple[str, str]],
    roles: frozenset[str],
) -> str:
    scope = Scope(dict(values), dict(options), dict.fromkeys(roles, ""))
    kept: list[str] = []
    begun: list[tuple[Sequence[dict[str, str]], list[str]]] = []
    """Of each open block: the values for each repetition of its lines, and the lines before it."""
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


@lru_cache(maxsize=CACHE_SIZE)
def _lines(template: str) -> Sequence[_Line]:
    """Each line with its matches: opens a block (when, each), ends one (or its first half), has a
    condition, is only a definition."""
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
    """The values of a block's lines, for each of the queue's partitions or subscribers, or of a
    table's columns: any name is possible there, so the line gets a placeholder of its own."""
    if of == "column":
        columns = range(int(scope.values.get("columns", "0")))
        return [{"{column}": f"{{column_{n}}}"} for n in columns]
    if of == "partition":
        return [{"{partition}": str(n)} for n in range(int(scope.values.get("partitions", "0")))]
    named = [one.split(":") for one in scope.values.get("subscribers", "").split(",") if one]
    return [{"{subscriber}": name, "{subscriber_number}": number} for name, number in named]


def _put(line: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        line = line.replace(placeholder, value)
    return line


def _is_left_out(only: _Matched, alone: _Matched, statement: Statement, scope: Scope) -> bool:
    """Whether the line's condition does not hold, or it is only a definition that is empty."""
    if only and not _holds(only, statement, scope):
        return True
    return alone is not None and _definition(alone["name"], statement, scope) == ""


def _holds(when: re.Match[str], statement: Statement, scope: Scope) -> bool:
    if when["role"]:
        return (when["role"] in scope.roles) != bool(when["no"])
    if when["defined"]:
        return bool(_definition(when["defined"], statement, scope)) != bool(when["not"])
    given = set(scope.options.get(when["option"], "").split("|"))
    return given.isdisjoint(when["values"].split("|")) == bool(when["unless"])


def _with_definitions(template: str, statement: Statement, scope: Scope) -> str:
    def put_in(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        text = _definition(match["name"], statement, scope)
        if text is None:
            raise KeyError(f"{statement.label}: {match[0]} is not defined")
        line = template[template.rfind("\n", 0, match.start()) + 1 :]
        return re.sub(r"\n(?!\n)", "\n" + line[: len(line) - len(line.lstrip())], text)

    return _DEFINITION.sub(put_in, template)


def _definition(name: str, statement: Statement, scope: Scope) -> str | None:
    """The design's definition of the name, else the shared one; empty: nothing for this queue."""
    design = scope.values.get("design")
    files = lineage(statement.engine, design) if design else ()
    for file in (*files, statement.file, *_shared(statement.engine)):
        text = _file(statement.engine, file).definitions.get(name)
        if text is not None:
            return chosen(dataclasses.replace(statement, template=text), scope)
    return None
