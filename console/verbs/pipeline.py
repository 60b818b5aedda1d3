"""The jobs of the pipeline, each of which runs in a process of its own."""

from typing import Any

import click

from console.filters import ARCHIVED
from console.verbs.parameters import DURATION, Parameter, WholeNumber
from console.verbs.verb import Verb


class ArchivedFilterType(click.ParamType[str]):
    """A filter on archived messages, which has other forms than one on a queue."""

    name = "filter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, unchanged. UsageError."""
        del param, ctx
        return ARCHIVED.term(str(value)).word


_FILTER_HELP = f"All must match: {'  '.join(ARCHIVED.forms)}"
_LAKE = Parameter("lake", "A folder or a URI; empty: in this user's state.")
_SHARED = Parameter("shared", "From now on the lake's group may read and write it.", is_flag=True)
_MASTER = Parameter("master", "Spark's.", default="local[*,4]")
_FROM = Parameter("from", "The connection whose archive it was.")

JOBS: tuple[Verb, ...] = (
    Verb(
        "archive",
        own_summary="drain its archive into a Delta Lake table",
        parameters=(
            _LAKE,
            Parameter("older", "Only rows this old: 1h; empty: the configuration's.", DURATION),
            Parameter("retention", "Purged messages stay this long.", DURATION, default="7d"),
            Parameter("connections", "At once, to the database.", WholeNumber(3), default="16"),
            Parameter("cancel", "Give an unfinished plan's rows back instead.", is_flag=True),
            _SHARED,
            _MASTER,
        ),
    ),
    Verb(
        "replay",
        own_summary="push archived messages from a lake again, once each",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("to", "Another queue of this database."),
            Parameter(
                "filter",
                _FILTER_HELP,
                ArchivedFilterType(),
                multiple=True,
            ),
            _MASTER,
        ),
    ),
    Verb(
        "verify",
        own_summary="compare logs of its pushes and pops: lost, duplicated, out of order",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("push-log", "A file, or a folder of files."),
            Parameter("pop-log", "Empty: what the lake has of it."),
            Parameter("order", "Empty: what the queue guarantees."),
            Parameter("left", "Messages still in the queue at the end: not lost.", WholeNumber(0)),
            _MASTER,
        ),
        confirmed=False,
    ),
    Verb(
        "expire",
        own_summary="take its old days out of a lake",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("older", "90d, 2y; empty: the configuration's.", DURATION),
        ),
    ),
    Verb(
        "erase",
        own_summary="take single messages of it out of a lake",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("id", "Of a message; or a filter.", multiple=True),
            Parameter(
                "filter",
                _FILTER_HELP,
                ArchivedFilterType(),
                multiple=True,
            ),
        ),
    ),
    Verb(
        "rollup",
        own_summary="summarize recordings by minute, hour and day; forecast the week",
        parameters=(
            _LAKE,
            Parameter("recordings", "A folder; empty: this user's."),
            Parameter("days", "Only these days, even if done: 2026-03-28..2026-03-29."),
            Parameter("zone", "Of the forecast's hours of the week; empty: display_zone."),
            _SHARED,
            _MASTER,
        ),
        confirmed=False,
    ),
    Verb(
        "compact",
        own_summary="merge a lake's small files, remove those that nobody reads",
        parameters=(
            _LAKE,
            Parameter("keep", "How long older versions stay readable.", DURATION, default="7d"),
        ),
    ),
    Verb("lake", own_summary="show what a lake has", parameters=(_LAKE,), confirmed=False),
)
BY_NAME = {job.name: job for job in JOBS}
ABOUT_A_QUEUE = ("archive", "replay", "verify", "expire", "erase")
QUEUE_AS_OPTION = ("expire", "erase")
"""Their command lines are about all queues of the connection without --queue."""
