"""The parameters of verbs and their types, checked alike by click and by the forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from console.actions import BATCH as BATCH_DEFAULT
from console.actions import MOST_BATCH
from console.errors import UsageError
from console.filters import MARK, words_of
from console.formats import parse_duration, parse_moment
from console.monitor import filters as filtering

if TYPE_CHECKING:
    from console.catalog import Queue

T = TypeVar("T")
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem] | list[str]]


class Placement(Enum):
    """Where a parameter is on the command line."""

    OPTION = "option"
    ARGUMENT = "argument"
    """After the queue's name."""
    BEFORE = "before"
    """Before the queue's name, which may then be left out."""
    REDIRECTION = "redirection"
    """The file that the shell redirects output to; a parameter in the screens only."""


class TextType(click.ParamType[T]):
    """A type that `parse` converts a text to, or raises UsageError."""

    def __init__(self, name: str, type_: type[T], parse: Callable[[str], T]) -> None:
        self.name = name
        self._type = type_
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """A value that is converted already stays as it is."""
        if isinstance(value, self._type):
            return value
        try:
            return self._parse(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class WholeNumber(click.IntRange):
    """ASCII digits only: `int` also takes other scripts' digits, and underscores."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Fails below the minimum or above the maximum."""
        least, most = int(self.min or 0), int(self.max or 2**31 - 1)
        text = str(value)
        if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
            self.fail(
                f"It must be a whole number from {least:,} to {most:,}, not {text!r}.", param, ctx
            )
        return int(text)


def _rate(text: str) -> float:
    rate = _number(text)
    if not 0 < rate < math.inf:
        raise UsageError("It must be above 0: messages per second.")
    return rate


def _share(text: str) -> float:
    share = _number(text)
    if not 0 <= share < 1:
        raise UsageError("It must be 0 to below 1: 0.2 is one in five.")
    return share


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class FilterType(click.ParamType[str]):
    """A filter, or `@NAME` of a saved one. The value is the word itself."""

    name = "filter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """UsageError, with the possible forms, where it is no filter."""
        del param, ctx
        word = str(value)
        if not word.startswith(MARK):  # a saved one is looked up by the plan, for the queue
            filtering.parse([word])
        return word


class LocationType(click.ParamType[str]):
    """A folder or a URI."""

    name = "location"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, unchanged. UsageError."""
        del param, ctx
        if not str(value).strip():
            raise UsageError(
                "--lake is empty.", next_step="Leave it out for the default, or name one."
            )
        return str(value)


LOCATION = LocationType()
DURATION = TextType("duration", float, parse_duration)
"""`0s`, `500ms`, `5s`, `10m`; the value is in seconds."""
MOMENT = TextType("moment", datetime, parse_moment)
"""`2026-03-29T08:00Z`; the value is in UTC."""
RATE_TYPE = TextType("rate", float, _rate)
"""Messages a second, above 0."""
SHARE_TYPE = TextType("share", float, _share)
"""0 to below 1."""
FILTER_TYPE = FilterType()
SECONDS_TYPE = click.FloatRange(0, 3600)
FOLDER_TYPE = click.Path(path_type=Path, file_okay=False)


def every_queue(_: Queue) -> bool:
    """The parameter applies to every queue that has the verb."""
    return True


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a verb."""

    name: str
    """On the command line, without the dashes."""
    help: str = ""
    """Of an argument only a form shows it."""
    type: click.ParamType[Any] = click.STRING
    placement: Placement = Placement.OPTION
    required: bool = False
    default: str = ""
    multiple: bool = False
    is_flag: bool = False
    metavar: str = ""
    applies: Callable[[Queue], bool] = every_queue
    """Whether it applies to the queue."""
    complete: Complete | None = None
    """Shell completion."""
    dest: str = ""
    """Its key among the values, where its name is a word of Python's."""

    @property
    def key(self) -> str:
        """Its key among the values."""
        return self.dest or self.name.replace("-", "_")

    def as_click(self, *, required: bool | None = None) -> click.Parameter:
        """`required` False: it may be missing, as on a `:` line."""
        required = self.required if required is None else required
        if self.placement in {Placement.ARGUMENT, Placement.BEFORE}:
            return click.Argument(
                [self.key],
                required=required,
                type=self.type,
                nargs=-1 if self.multiple else 1,
                metavar=self.metavar or None,
                shell_complete=self.complete,
            )
        if self.is_flag:
            return click.Option([f"--{self.name}", self.key], is_flag=True, help=self.help)
        # A default of None would be one: nothing would be required.
        default: dict[str, Any] = {"default": self.default} if self.default else {}
        return click.Option(
            [f"--{self.name}", self.key],
            type=self.type,
            required=required,
            multiple=self.multiple,
            **default,
            show_default=bool(self.default),
            metavar=self.metavar or None,
            help=self.help,
            shell_complete=self.complete,
        )

    def check(self, text: str) -> None:
        """UsageError for an invalid text in its field."""
        if not text:
            if self.required:
                raise UsageError(f"{self.name} is required.")
            return
        try:
            for word in self.words_of(text):
                self.type.convert(word, None, None)
        except click.BadParameter as error:
            raise UsageError(error.message) from error

    def value_of(self, text: str) -> Any:
        """As a plan or a list takes it. UsageError."""
        self.check(text)
        return self.type.convert(text, None, None)

    def words_of(self, text: str) -> list[str]:
        """The values in its field: several only if the parameter is `multiple`."""
        return words_of(text) if self.multiple else [text]


argument = partial(Parameter, placement=Placement.ARGUMENT, required=True)
"""One that must be given, after the queue's name."""

FILTER = Parameter(
    "filter",
    "Only messages that match all filters (of several id=, any). "
    f"{'  '.join(filtering.FORMS)}  @NAME: one that is saved",
    FILTER_TYPE,
    multiple=True,
    metavar="F",
)
SUBSCRIBER = Parameter(
    "subscriber",
    "The subscriber, if a ring has any.",
    metavar="S",
    applies=lambda queue: bool(queue.subscribers),
)
BATCH = Parameter(
    "batch",
    f"Messages per transaction; {BATCH_DEFAULT}, and more while these are quick.",
    WholeNumber(1, MOST_BATCH),
    metavar="N",
)
RATE = Parameter("rate", "At most this many messages per second.", RATE_TYPE, metavar="N")
CANARY = Parameter("canary", "First 1 message, then 10, then the rest in batches.", is_flag=True)
CANARY_WAIT = Parameter(
    "canary-wait",
    "How long to wait for the canary's results; 30s by default.",
    DURATION,
    metavar="T",
)
CANARY_SHARE = Parameter(
    "canary-share",
    "Share of the canary that may fail, 0 to below 1; 0 by default.",
    SHARE_TYPE,
    metavar="S",
)
REASON = Parameter("reason", "Kept with them in the archive.", metavar="TEXT")
WAIT = Parameter(
    "wait", "How long to keep trying: 500ms, 5s, 10m.", DURATION, default="0s", metavar="T"
)
SELECTION = (FILTER, BATCH, RATE, CANARY)
"""Which messages, and how fast."""
