"""Parses a user's own preset: a head, expressions and predicates, never a statement.

They are inserted between brackets into the statements of `queries/<engine>/own.sql`. The checks
here keep them inside: no comment, no semicolon, no quote that servers read differently, balanced
brackets. Whether each is an expression that writes nothing is checked by the server's own parser
(`console.features.presets.own_fragments`)."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from console.features.presets.designs.libraries import fields
from console.sql import templates

STATES = ("ready", "scheduled", "claimed", "error", "done")
PREDICATES = (
    *(f"is_{state}" for state in STATES),
    *("is_stuck", "is_waiting", "was_tried", "is_first_pop"),
)
TIMES = ("pushed_at", "due_at", "claimed_at", "done_at", "ready_since", "failing_since")
VALUES = ("claimed_by", "attempts", "error", "payload", "title")
SETS = ("requeue", "release")
ROLES = (*TIMES[:4], *VALUES[:4], "id", "status")
_KINDS = {
    **dict.fromkeys(PREDICATES, "true or false"),
    **dict.fromkeys(TIMES, "a time"),
    **dict.fromkeys(("claimed_by", "error", "title"), "a text"),
    "attempts": "a whole number",
}
_NEEDED = {"preset", "roles"}
_KEYS = {
    *(*_NEEDED, "engine", "summary", "advice", "table", "schema", "columns", "beside", "queue"),
    *("claims", "left claims", "requeued", "stays", "takes due", "overdue", "errors"),
}
_NEEDED_ROLES = ("id", "status", "payload")
_NEEDED_BY = {"requeue": ({"is_error"}, {"error"}), "release": ({"is_claimed"}, {"claimed_at"})}
"""Verb -> the definitions and roles that it requires."""
_PLACEHOLDERS = {"schema", "table", "beside", "only", "stuck_after_seconds"}
"""Placeholders allowed in quoted names and literals, besides the columns of roles."""
_LARGEST_BYTES = 100_000
_COLUMN = re.compile(r"[^\W\d]\w*")
_DEFINE = re.compile(r"^-- define: (?P<name>.*)$", re.MULTILINE)
_NAMED = re.compile(r"^-- name:", re.MULTILINE)
_DIRECTIVE = re.compile(r"\s*-- (?:when|each|else|end)\b|(?!\s*--).*-- when\b")
_SET = re.compile(r"(?P<column>[^\W\d]\w*)\s*=(?!=)\s*(?P<text>\S.*)", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<literal>'(?:[^']|'')*')|(?P<quoted>\"(?:[^\"]|\"\")*\")|\{(?P<definition>\w+)\}"
    r"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<refused>--|/\*|\*/|[;$\\:`{}'\"])|.",
    re.DOTALL,
)
_DEFINITION_USED = re.compile(r"\{(\w+)\}|-- when (?:not )?defined (\w+)")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_WHY = {
    "--": "a comment: write remarks on lines of their own, which begin with --",
    "/*": "a comment: write remarks on lines of their own, which begin with --",
    "*/": "the end of a comment",
    ";": "a semicolon: it is one expression, never a statement",
    "$": "a dollar: it would begin a quotation or a parameter",
    "\\": "a backslash outside of a literal",
    ":": "a colon: write CAST(x AS type) instead of x::type, and no slice of an array",
    "'": "a literal that does not end",
    '"': "a quoted name that does not end",
    "{": "a brace that names no definition",
    "}": "a brace that names no definition",
    "`": "a backtick",
}
_CLOSES = {")": "(", "]": "["}


class NotAPresetError(ValueError):
    """Why a file is not a valid preset."""


@dataclass(frozen=True)
class OwnFile:
    """The content of the file."""

    engine: str
    head: Mapping[str, str]
    roles: Mapping[str, str]
    written: Mapping[str, str]
    """Its definitions, by name, without comments."""
    sets: Mapping[str, Mapping[str, str]]
    """Verb -> column -> expression."""

    @property
    def columns(self) -> list[str]:
        """The columns by which a table is recognised."""
        queue = [self.head["queue"]] if "queue" in self.head else []
        return sorted({*self.head.get("columns", "").split(), *self.roles.values(), *queue})

    def fragments(self) -> Iterator[tuple[str, str, str]]:
        """(purpose, definition, its required kind as in the statement `typed`; empty: any), also of
        the columns of roles."""
        plain = (role for role in self.roles if role in _KINDS and role not in self.written)
        for name in (*plain, *(name for name in self.written if name not in SETS)):
            yield name, name, _KINDS.get(name, "")
        for verb, sets in self.sets.items():
            for number, column in enumerate(sets):
                yield f"{verb}: {column}", f"{verb}_{number}", ""

    def definitions(self) -> dict[str, str]:
        """As the statements of own.sql use them: in brackets; predicates restricted to the queue's
        rows; assignments as one list."""
        found = {name: f"(\n{text}\n)" for name, text in self.written.items() if name not in SETS}
        if queue := self.head.get("queue"):
            found["queue_column"] = f'm."{queue}"'
            found["part"] = f"m.\"{queue}\" = '{{only}}'"
            for name in (*(f"is_{state}" for state in STATES), "is_stuck", "is_waiting"):
                if name in found:
                    found[name] = f"({found[name]} AND {{in_part}})"
        for verb, sets in self.sets.items():
            found[verb] = ",\n".join(f'"{column}" = ({text})' for column, text in sets.items())
            for number, (column, text) in enumerate(sets.items()):
                # Must have the column's type, or the server reports why not.
                found[f"{verb}_{number}"] = f'CASE WHEN true THEN ({text}) ELSE m."{column}" END'
        return found


def parse(text: str) -> OwnFile:
    """Parse a file; NotAPresetError, with the reason, if it is invalid."""
    if len(text.encode()) > _LARGEST_BYTES:
        raise NotAPresetError(f"it is longer than {_LARGEST_BYTES:,} bytes")
    if "\0" in text:
        raise NotAPresetError("it contains the character NUL")
    if _NAMED.search(text):
        raise NotAPresetError(
            "it has a statement (-- name:), which only shipped presets may have; your own preset "
            "has definitions: -- define: is_ready"
        )
    beginning, *parts = _DEFINE.split(text.replace("\r\n", "\n"))
    head = fields(beginning, _NEEDED, _KEYS)
    if isinstance(head, str):
        raise NotAPresetError(head)
    engine = head.get("engine", "postgresql")
    roles = _roles(head)
    _check_names(head)
    written: dict[str, str] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in written:
            raise NotAPresetError(f"it defines {name!r} twice")
        written[name] = _body(name, body)
    file = OwnFile(
        engine,
        head,
        roles,
        written,
        {verb: _sets(verb, written) for verb in SETS if verb in written},
    )
    _check(file)
    return file


def _roles(head: Mapping[str, str]) -> dict[str, str]:
    roles: dict[str, str] = {}
    for pair in head["roles"].split():
        role, _, column = pair.partition("=")
        if role not in ROLES or not _COLUMN.fullmatch(column) or role in roles:
            raise NotAPresetError(
                f"roles: {pair!r} is not role=column; roles: {', '.join(sorted(ROLES))}"
            )
        roles[role] = column
    missing = [role for role in _NEEDED_ROLES if role not in roles]
    if missing:
        raise NotAPresetError(f"roles: it lacks {', '.join(missing)}")
    return roles


def _check_names(head: Mapping[str, str]) -> None:
    for column in (*head.get("columns", "").split(), *([head["queue"]] if "queue" in head else [])):
        if not _COLUMN.fullmatch(column):
            raise NotAPresetError(f"{column!r} is not the name of a column")
    if head.get("claims", "expire") != "expire":
        raise NotAPresetError("claims: can only be expire")


def _body(name: str, body: str) -> str:
    """The definition without its comments."""
    lines = body.strip("\n").split("\n")
    if any(map(_DIRECTIVE.match, lines)):
        raise NotAPresetError(f"{name}: conditions (-- when) are for shipped presets")
    return "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip()


def _sets(verb: str, written: Mapping[str, str]) -> dict[str, str]:
    """Column -> expression, one per line; indented lines continue the one before."""
    sets: dict[str, str] = {}
    for text in re.split(r"\n(?=\S)", written[verb]):
        pair = _SET.fullmatch(text.rstrip().removesuffix(","))
        if pair is None or pair["column"] in sets:
            raise NotAPresetError(
                f"{verb}: {text!r} is not a line `column = expression`, one per column"
            )
        sets[pair["column"]] = pair["text"].strip()
    return sets


def _check(file: OwnFile) -> None:
    known = (*PREDICATES, *TIMES, *VALUES, *SETS)
    for name in file.written:
        if name not in known and (name in _reserved_names(file.engine) or not _is_own(name)):
            raise NotAPresetError(
                f"it cannot define {name!r}; it can: {', '.join(known)}, or your own names, in "
                "lower case, that these use"
            )
        if name in ROLES and name not in file.roles:
            raise NotAPresetError(f"{name}: it needs a column too: {name}=COLUMN among the roles")
    if "is_ready" not in file.written:
        raise NotAPresetError("it does not say which rows are ready (-- define: is_ready)")
    for verb, (definitions, roles) in _NEEDED_BY.items():
        missing = sorted(definitions - file.written.keys()) + sorted(roles - file.roles.keys())
        if verb in file.written and missing:
            raise NotAPresetError(f"{verb}: it needs {' and '.join(missing)}")
    _check_texts(file)


def _check_texts(file: OwnFile) -> None:
    for name, text in file.written.items():
        for fragment in file.sets[name].values() if name in SETS else (text,):
            if why := wrong(fragment, {*file.written} - {*SETS}, {*_PLACEHOLDERS, *file.roles}):
                raise NotAPresetError(f"{name}: {why}")
    for name in file.written:
        _check_circles(name, file.written, ())


def _is_own(name: str) -> bool:
    return re.fullmatch(r"[a-z][a-z_]*", name) is not None


@cache
def _reserved_names(engine: str) -> frozenset[str]:
    """Names that the shared statements define or use."""
    reserved_names = {"part", "queue_column"}
    for file in ("own", "preset", *templates.SHARED):
        definitions = templates.definitions(engine, file)
        texts = (statement.template for statement in templates.statements(engine, file).values())
        reserved_names |= definitions.keys()
        for text in (*definitions.values(), *texts):
            reserved_names.update(
                name for pair in _DEFINITION_USED.findall(text) for name in pair if name
            )
    return frozenset(reserved_names)


def _check_circles(name: str, written: Mapping[str, str], within: tuple[str, ...]) -> None:
    if name in within:
        raise NotAPresetError(f"{name}: it uses itself")
    for token in _TOKEN.finditer(written.get(name, "")):
        if inner := token["definition"]:
            _check_circles(inner, written, (*within, name))


def wrong(text: str, definitions: set[str], placeholders: set[str]) -> str:
    """Why the text cannot be one expression in brackets; empty: it looks like one."""
    if not text:
        return "there is nothing in it"
    opened: list[str] = []
    for token in _TOKEN.finditer(text):
        if sign := token["refused"]:
            return f"it has {_WHY[sign]}"
        if token["open"]:
            opened.append(token["open"])
        elif sign := token["close"]:
            if not opened or opened.pop() != _CLOSES[sign]:
                return f"it closes a bracket {sign!r} that it has not opened"
        elif (name := token["definition"]) and name not in definitions:
            return f"it has {{{name}}}, which the file does not define"
        elif (quoted := token["literal"] or token["quoted"]) and (
            why := _wrong_quoted(quoted, text[: token.start()], placeholders)
        ):
            return why
    return f"it opens a bracket {opened[-1]!r} and does not close it" if opened else ""


def _wrong_quoted(quoted: str, before: str, placeholders: set[str]) -> str:
    if re.search(r"[\w&]\Z", before):
        return f"it has a prefix before {quoted[0]}, as in E'...': write it without"
    if "\n" in quoted:
        return "it has a line break between quotes"
    if "\\'" in quoted:
        return "it has a backslash before a quote: servers read that in different ways"
    unknown = [name for name in _PLACEHOLDER.findall(quoted) if name not in placeholders]
    return f"it has {{{unknown[0]}}} between quotes, where nothing has that name" if unknown else ""
