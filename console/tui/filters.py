"""The filter of the queue table: free words and `field:value`, all of which must hold.

`mail` is found in the name, design, schema or connection; `design:ring` and `state:critical` in
that field; `errors:>0` and `ready:<=100` compare; a word with blanks stands in double quotes;
`@sick` stands for the filter that was saved under that name.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from console.monitor.saved import MARK
from console.tui.board import QueueView

_WORD = re.compile(r'(?:(?P<field>[a-z_/]+):)?(?:"(?P<quoted>[^"]*)"?|(?P<bare>\S+))', re.I)
_NUMBER = re.compile(r"(?P<sign><=|>=|<|>|=)?(?P<number>\d+(?:\.\d+)?)")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}
_TEXTS: dict[str, Callable[[QueueView], str]] = {
    "queue": lambda view: view.snapshot.queue,
    "design": lambda view: view.snapshot.design,
    "schema": lambda view: view.snapshot.schema,
    "connection": lambda view: view.connection,
    "state": lambda view: view.level.word + (" stale" if view.stale_seconds is not None else ""),
}
_NUMBERS: dict[str, str] = {
    "ready": "ready",
    "age": "age_seconds",
    "push/s": "push_per_second",
    "pop/s": "pop_per_second",
    "gap": "gap",
    "claimed": "claimed",
    "stuck": "stuck",
    "errors": "errors",
    "done": "done",
    "scheduled": "scheduled",
    "capacity": "capacity",
}
FIELDS = (*_TEXTS, *_NUMBERS)
"""What may stand before the colon."""
_FREE = ("queue", "design", "schema", "connection")

Test = Callable[[QueueView], bool]


@dataclass(frozen=True)
class Filter:
    """What was typed, and the tests that it means."""

    text: str = ""
    tests: tuple[Test, ...] = ()

    def __bool__(self) -> bool:
        """Whether it hides anything at all."""
        return bool(self.tests)

    def matches(self, view: QueueView) -> bool:
        """Whether a queue is shown."""
        return all(test(view) for test in self.tests)


def parse(text: str, saved: Mapping[str, str] | None = None) -> Filter:
    """The filter that a line means. Nothing is wrong in it: what is no field is a word."""
    meant = expanded(text, saved or {})
    return Filter(text.strip(), tuple(_test(match) for match in _WORD.finditer(meant)))


def expanded(text: str, saved: Mapping[str, str]) -> str:
    """The line with the filters that are named in it."""

    def meant(match: re.Match[str]) -> str:
        word = match["bare"] or ""
        named = not match["field"] and word.startswith(MARK)
        return saved.get(word.removeprefix(MARK), match[0]) if named else match[0]

    return _WORD.sub(meant, text).strip()


def _test(match: re.Match[str]) -> Test:
    quoted = match["quoted"]
    value = quoted if quoted is not None else match["bare"]
    name = (match["field"] or "").lower()
    if name in _TEXTS:
        return _contains((name,), value)
    if name in _NUMBERS and (number := _NUMBER.fullmatch(value)):
        return _compares(_NUMBERS[name], number["sign"] or "=", float(number["number"]))
    return _contains(_FREE, f"{match['field']}:{value}" if match["field"] else value)


def _contains(names: tuple[str, ...], value: str) -> Test:
    wanted = value.casefold()
    return lambda view: any(wanted in _TEXTS[name](view).casefold() for name in names)


def _compares(name: str, sign: str, number: float) -> Test:
    """What the design has not, and what is unknown, is neither more nor less."""

    def test(view: QueueView) -> bool:
        value = getattr(view.snapshot, name)
        return value is not None and _SIGNS[sign](value, number)

    return test
