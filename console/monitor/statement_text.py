"""A session's statement: masked so that it may be shown, and whether it pops or pushes.

Literals may hold payloads, so each literal and number becomes `?`. A quoted name is kept only if
it is one of the queue's: under some settings (SQL Server's QUOTED_IDENTIFIER) it may be text. Where
the text cannot be parsed with certainty, the rest becomes `…`.
"""

import re
from collections.abc import Collection, Iterator

from console import sql
from console.catalog import Kind, Queue, object_names
from console.engines import Product

LONGEST = 200
"""Characters of a shown statement."""

_REST = "…"
_START = re.compile(
    r"""
    abort | alter | analyze | autovacuum | backup | begin | call | checkpoint | close |
    cluster | comment | commit | copy | create | dbcc | deallocate | declare | delete |
    discard | do | drop | end | exec | execute | explain | fetch | grant | if | import |
    insert | kill | listen | lock | merge | move | notify | prepare | print | reassign |
    receive | refresh | reindex | release | reset | revoke | rollback | save | savepoint |
    security | select | send | set | show | start | table | truncate | unlisten | update |
    use | vacuum | values | waitfor | while | with
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Another first word may be a procedure's name, followed by bare words as values."""

_LABEL = re.compile(r"\s*(/\*[\w .:+=,-]{1,80}\*/)")
_PARAMETERS = re.compile(r"\s*\(@\w+ (?>[^()']|\([^()']*\))*\)")
"""`(@P1 nvarchar(4000), @P2 int)`: what SQL Server puts before a statement with bound values."""
_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | --[^\n]* )
    | (?P<comment> /\* )
    # A backslash before the quote that would end it: whether it ends there is a setting.
    | (?P<value> (?: [bexn] | u& )? '(?> (?: [^'\\] | '' | \\(?!') )* )'
        | (?P<tag> \$ (?: [^\W\d]\w* )? \$ ) (?s: .*? ) (?-i: (?P=tag) )
        | \$? \d [\w.]* )
    | (?P<quoted> "(?> (?: [^"] | "" )* )" )
    | (?P<bracketed> \[ [^][\'"]* \] )
    | (?P<word> [^\W\d][\w$]* | @@?\w+ )
    | (?P<sign> [-+*/%<>=~!^&|?:;,.()\#@] )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_COMMENT_SIGN = re.compile(r"/\*|\*/")
_NAME = r'(?: [^\W\d]\w* | "[^"]*" | \[[^]]*\] )'
_CALLED = re.compile(rf"\s* (?: @\w+ \s* = \s* )? {_NAME} (?: \s* \. \s* {_NAME} )*", re.VERBOSE)
"""The procedure after EXEC. What follows may be bare words, which are values."""


def masked(text: str, known: Collection[str] = ()) -> str:
    """The text on one line without its values; `known` names are kept even if quoted.

    Still untrusted: its names and its first comment are the author's choice.
    """
    shown: list[str] = []
    length = 0
    for piece in _pieces(text, known):
        shown.append(piece)
        length += len(piece)
        if length > 2 * LONGEST:
            break
    line = " ".join("".join(shown).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + _REST


def _pieces(text: str, known: Collection[str]) -> Iterator[str]:
    at = 0
    if label := _LABEL.match(text):
        yield label[1] + " "
        at = label.end()
    if parameters := _PARAMETERS.match(text, at):
        at = parameters.end()
    started = False
    for token in _tokens(text, at):
        if token is None:
            yield _REST
            return
        word = token[0].lower()
        yield _shown(token, known)
        if not started and token.lastgroup != "space" and word not in {"(", ";"}:
            started = True
            if not _START.fullmatch(word):
                yield _REST
                return
        if word in {"exec", "execute"}:
            yield from _called(text, token.end(), known)
            return


def _tokens(text: str, at: int) -> Iterator[re.Match[str] | None]:
    """The tokens without comments; None where the text cannot be parsed with certainty."""
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            yield None
            return
        at = token.end()
        if token.lastgroup == "comment":
            at = _comment_end(text, at)
        else:
            yield token


def _called(text: str, at: int, known: Collection[str]) -> Iterator[str]:
    called = _CALLED.match(text, at)
    for part in _TOKEN.finditer(called[0] if called else ""):
        yield _shown(part, known)
    if text[called.end() if called else at :].strip():
        yield _REST


def _shown(token: re.Match[str], known: Collection[str]) -> str:
    shown = token[0]
    if token.lastgroup == "space":
        return " "
    if token.lastgroup == "value":
        return "?"
    if token.lastgroup == "quoted":
        return shown if shown[1:-1].replace('""', '"') in known else '"?"'
    if token.lastgroup == "bracketed":
        return shown if shown[1:-1] in known else "[?]"
    return shown


def _comment_end(text: str, at: int) -> int:
    """The end of the comment that is open at `at`; comments may be nested."""
    depth = 1
    for sign in _COMMENT_SIGN.finditer(text, at):
        depth += 1 if sign[0] == "/*" else -1
        if depth == 0:
            return sign.end()
    return len(text)


POP, PUSH = "pop", "push"
_DOES = {
    **dict.fromkeys(("push", "push_many"), PUSH),
    **dict.fromkeys(("pop", "pop_many", "complete", "fail"), POP),
}
"""Suffix of a queue's function -> what its caller does."""
_WRITES = r"(?P<verb>insert\s+into|update(?:\s+only)?|delete\s+from(?:\s+only)?|merge\s+into)\s+"
_SCHEMA = r'(?:(?<![\w$])(?P<schema>"[^"]+"|\[[^]]+\]|[\w$]+)\s*\.\s*)?'


def has_own_table(queue: Queue) -> bool:
    """Whether its table has no other queue's messages, so that a statement identifies it."""
    return queue.design.known and not queue.part


def called_names(product: Product, queue: Queue) -> dict[str, str]:
    """Names in statements that pop or push, as quoted -> what these do.

    Empty for an adopted table, where the statement's own verb decides.
    """
    if not has_own_table(queue):
        return {}
    does = {queue.table: ""}
    if queue.kind is Kind.INSTALLED:
        there = set(object_names.of(product, queue))
        called = ((f"{queue.name}_{suffix}", does) for suffix, does in _DOES.items())
        does = {name: what for name, what in called if name in there}
    return {sql.quote_identifier(product.dialect, name)[1:-1]: of for name, of in does.items()}


def call_pattern(product: Product, queue: Queue) -> re.Pattern[str] | None:
    """Matches such statements, with the schema or without; None: not possible."""
    found = called_names(product, queue)
    if not found:
        return None
    named = "|".join(re.escape(name) for name in sorted(found, key=len, reverse=True))
    head = "" if queue.kind is Kind.INSTALLED else _WRITES
    return re.compile(rf'{head}{_SCHEMA}(?<![\w$])["\[]?(?P<name>{named})(?![\w$])', re.IGNORECASE)


def actions_in(calls: re.Pattern[str] | None, queue: Queue, text: str | None) -> set[str]:
    """Whether the statement pops from the queue or pushes to it."""
    does: set[str] = set()
    installed = queue.kind is Kind.INSTALLED
    # On adopted tables the console's own statements look like pops.
    if calls is None or text is None or (not installed and "/* dbq " in text):
        return does
    for match in calls.finditer(text):
        if (match["schema"] or queue.schema).strip('"[]').casefold() != queue.schema.casefold():
            continue
        if installed:
            does.add(_does(match["name"]))
        else:
            does.add(PUSH if match["verb"].lower().startswith("insert") else POP)
        if text.lstrip()[:6].lower() == "create":
            break  # a procedure's own text: only its name was called
    return does


def _does(function: str) -> str:
    ends = (does for suffix, does in _DOES.items() if function.lower().endswith(f"_{suffix}"))
    return next(ends)
