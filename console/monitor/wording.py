"""The wording of an error text: the text without what differs from one error to the next.

    connection to 10.0.0.7:5432 lost at 2026-11-21 19:07:45.123+00, retry 3 of order 'A-17'
    connection to <ip> lost at <time>, retry <n> of order <text>

Whatever has a digit in it is a value: `<n>`, or by its shape `<uuid>`, `<time>` or `<ip>`. So are
mail addresses, `<address>`, and quoted text, `<text>`. Words without digits stay, and so do error
codes and types: `HTTP 503` is not `HTTP 451`.
"""

import re
from functools import lru_cache
from hashlib import sha256

from console.errors import UsageError

RULES = 1
"""The version of these rules, raised with each change: keys of other versions are invalid."""
TEXT_LENGTH = 2_000
"""Characters of a text that are read."""
WORDING_LENGTH = 300
"""Characters of a wording that are compared."""

_BLANKS = re.compile(r"\s+")
_HEX = "[0-9A-Fa-f]"
# A number of up to six digits after one of these words is a code, as are those of SQL and SMTP.
_NAMES = "HTTP(?:/\\d(?:\\.\\d)?)?|HRESULT|(?:Win)?Error|errno|status|code|signal|Msg|exit|Fault"
_CODE = rf"""
    (?P<kept>
        (?<![\w.-])(?:
            (?i:{_NAMES})(?:[\ _-](?i:status|code|number))*
            (?:\ ?[:=\#(\[]\ ?|\ )(?:-?\d{{1,6}}|0x{_HEX}{{8}})(?![\w:]|[.,/-]\w)
          | (?i:SQLSTATE)(?:\ ?[:=(\[]\ ?|\ )[0-9A-Z]{{5}}(?!\w)
          | (?:ORA|TNS|PLS|DPI|DPY)-\d{{4,5}}(?!\w)
          | [245]\d\d[\ -][245]\.\d{{1,3}}\.\d{{1,3}}(?![\w.])
          | [A-Za-z_](?:[\w.]{{0,80}}[a-z0-9])?(?:Error|Exception|Fault)(?!\w)
        )
      | (?<!\w)["'](?i:code|error_?code|errno|status|type|exception)["']:\ ?
        (?:-?\d{{1,6}}(?![\w.])|["'][A-Za-z_][\w.-]{{0,60}}["'])
    )
"""
_QUOTED = re.compile(
    _CODE
    + r"""
    | (?<!\w)[bBuUrRN]?'(?:[^'\\]|\\.|'')*'(?!\w)
    | (?<!\w)[bBuUrR]?"(?:[^"\\]|\\.|"")*"(?!\w)
    | (?<!\w)`[^`]*`(?!\w)
    | \u201c[^\u201c\u201d]*\u201d | \u2018[^\u2018\u2019]*\u2019(?!\w) | «[^«»]*»
    """,
    re.VERBOSE,
)
_QUOTES = re.compile("['\"`\u201c\u2018«]")
# Begins only after a character that cannot be part of it: the search stays linear.
_ADDRESS = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@\w[\w-]*(?:\.\w[\w-]*)+")
_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b"
)
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[AaPp][Mm]\b)?"
_ZONE = r"(?:\ ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)\b)?"
_VALUES = re.compile(
    _CODE
    + rf"""
    | (?<!\w) (?= \w*\d | [+-]\d | ::? | {_HEX}{{1,4}}: | [A-Fa-f]{{8}} | {_MONTH} | {_DAY} )
    (?:
        (?P<uuid>{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}\b)
      | (?P<time>
            \d{{4}}[-/]\d\d?[-/]\d\d?(?:[T\ ]{_CLOCK}{_ZONE})?(?!\w)
          | (?:{_DAY},?\ )?(?:\d\d?[\ -]{_MONTH}|{_MONTH}\ \d\d?)(?!\w)
            (?:,?[\ -]\d{{4}}(?!\w))?(?:,?\ {_CLOCK}{_ZONE})?(?:\ \d{{4}}(?!\w))?
          | {_CLOCK}{_ZONE}(?![\w:])
        )
      | (?P<ip>
            (?:\d{{1,3}}\.){{3}}\d{{1,3}}(?:[:/]\d+)?(?![\w.])
          | (?<![:.])(?=[0-9A-Fa-f:]*\d)(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}(?![\w:])
          | (?<![:.])(?=[0-9A-Fa-f:]*\d)(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?
            ::(?:{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}})?(?![\w:])
        )
      | (?P<n>
            (?:(?<![>)\]])[-+])?\w*\d\w*(?:[.:,/+-]\w*\d\w*)*
          | [A-Fa-f]{{8,}}\b
        )
    )
    """,
    re.VERBOSE,
)
_LEFT = re.compile(rf"[\d@]|{_QUOTES.pattern}|\b[A-Fa-f]{{8}}")
_LISTS = re.compile(r"(<(?:n|text|uuid|time|ip|address)>)(?:, ?\1)+")
"""Several values of one shape are one: their number makes no other group."""


def wording(text: str) -> str:
    """The text on one line, every value in it replaced by what it is.

    wording(wording(text)) is wording(text).
    """
    text = _BLANKS.sub(" ", text).strip()
    # A replacement may free a quotation mark next to it; each round leaves fewer values.
    while _LEFT.search(text) and (again := _replaced(text)) != text:
        text = again
    return text


def _replaced(text: str) -> str:
    if _QUOTES.search(text):
        text = _QUOTED.sub(lambda match: match["kept"] or "<text>", text)
    if "@" in text:
        text = _ADDRESS.sub("<address>", text)
    text = _VALUES.sub(_name, text)
    return _LISTS.sub(r"\1", text) if ">," in text else text


def _name(value: re.Match[str]) -> str:
    return value["kept"] or f"<{value.lastgroup}>"


@lru_cache(maxsize=10_000)
def group_wording(text: str) -> str:
    """The wording that an error group shares: of the beginning of the text, and cut."""
    return wording(text[:TEXT_LENGTH])[:WORDING_LENGTH]


def group_key(text: str) -> str:
    """The key of an error text's group: the version of the rules, and a hash."""
    return f"{RULES}-{sha256(group_wording(text).encode()).hexdigest()[:16]}"


_KEY = re.compile(r"(?P<rules>[1-9]\d{0,5})-[0-9a-f]{16}")


def require_key(key: str) -> str:
    """The key itself. UsageError for what is no key of this version's rules."""
    match = _KEY.fullmatch(key)
    next_step = "List the groups: dbq-console errors NAME --json has the key of each."
    if match is None:
        raise UsageError(f"{key!r} is not the key of an error group.", next_step=next_step)
    if int(match["rules"]) != RULES:
        raise UsageError(
            f"The key {key!r} was made with other rules for the wording of errors.",
            why=f"It has version {match['rules']}; these are version {RULES}.",
            next_step=next_step,
        )
    return key
