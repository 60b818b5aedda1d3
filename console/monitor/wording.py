"""What kind of error a text tells of: the text without what differs from one error to the next.

    connection to 10.0.0.7:5432 lost at 2026-11-21 19:07:45.123+00, retry 3 of order 'A-17'
    connection to <ip> lost at <time>, retry <n> of order <text>

Whatever has a digit in it is a value: `<n>`, or `<uuid>`, `<time>`, `<ip>` where its shape says so.
So is an address of mail: `<address>`.
So is what stands in quotation marks: `<text>`. Words without digits stay: they are the kind.
"""

import re

_BLANKS = re.compile(r"\s+")
_QUOTED = re.compile(
    r"""
      (?<!\w)[bBuUrRN]?'(?:[^'\\]|\\.|'')*'(?!\w)
    | (?<!\w)[bBuUrR]?"(?:[^"\\]|\\.|"")*"(?!\w)
    | (?<!\w)`[^`]*`(?!\w)
    | \u201c[^\u201c\u201d]*\u201d | \u2018[^\u2018\u2019]*\u2019(?!\w) | «[^«»]*»
    """,
    re.VERBOSE,
)
_QUOTES = re.compile("['\"`\u201c\u2018«]")
# One begins where no other character of one stands: the search stays linear.
_ADDRESS = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@\w[\w-]*(?:\.\w[\w-]*)+")
_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b"
)
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\ ?[AaPp][Mm]\b)?"
_ZONE = r"(?:\ ?(?:Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)\b)?"
_HEX = "[0-9A-Fa-f]"
_VALUES = re.compile(
    rf"""
    (?<!\w) (?= \w*\d | [+-]\d | ::? | {_HEX}{{1,4}}: | [A-Fa-f]{{8}} | {_MONTH} | {_DAY} )
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
"""Several values of one shape are one: how many there are makes no other kind."""


def wording(text: str) -> str:
    """The text on one line, every value in it replaced by what it is.

    wording(wording(text)) is wording(text).
    """
    text = _BLANKS.sub(" ", text).strip()
    # What is replaced may free a quotation mark next to it; each round leaves fewer values.
    while _LEFT.search(text) and (again := _replaced(text)) != text:
        text = again
    return text


def _replaced(text: str) -> str:
    if _QUOTES.search(text):
        text = _QUOTED.sub("<text>", text)
    if "@" in text:
        text = _ADDRESS.sub("<address>", text)
    text = _VALUES.sub(_name, text)
    return _LISTS.sub(r"\1", text) if ">," in text else text


def _name(value: re.Match[str]) -> str:
    return f"<{value.lastgroup}>"
