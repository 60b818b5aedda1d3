"""The jobs of the pipeline, each of which runs in a process of its own."""

from typing import Any

import click

from console.designs import Order
from console.filters import ARCHIVED
from console.verbs.command import Command, operator
from console.verbs.parameters import DURATION, LOCATION, Parameter, WholeNumber


class ArchivedFilterType(click.ParamType[str]):
    """A filter on archived messages, which has other forms than one on a queue."""

    name = "filter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word, unchanged. UsageError."""
        del param, ctx
        return ARCHIVED.term(str(value)).word


_LAKE = Parameter(
    "lake",
    "A folder or a URI. Default: the folder `lake` in this user's state folder.",
    LOCATION,
    metavar="PATH",
)
_SHARED = Parameter(
    "shared",
    "From now on the lake's group may read and write its files. Without it: only its user.",
    is_flag=True,
)
_MASTER = Parameter(
    "master", "Spark's master. Default: spark-submit's, else local[*,4].", metavar="M"
)
_FROM = Parameter("from", "The connection of the archive.", metavar="C", dest="source")
_FILTER = Parameter(
    "filter",
    f"Only messages that match all filters (of several id=, any). {'  '.join(ARCHIVED.forms)}. "
    "payload~T: also in bytes, as UTF-8 or UTF-16.",
    ArchivedFilterType(),
    multiple=True,
    metavar="F",
    dest="words",
)

JOBS: tuple[Command, ...] = (
    Command(
        "archive",
        own_summary="drain its archive into a Delta Lake table",
        parameters=(
            _LAKE,
            Parameter(
                "older",
                "Only rows at least this old. Default: the queue's `archive` in the "
                "configuration, else 0s.",
                DURATION,
                metavar="T",
            ),
            Parameter(
                "retention",
                "Purged or archived messages stay this long, for restore.",
                DURATION,
                default="7d",
                metavar="T",
            ),
            Parameter(
                "connections",
                "At most this many to the database; two of them are not for tasks.",
                WholeNumber(3),
                default="16",
                metavar="N",
            ),
            Parameter("cancel", "Give the rows of an unfinished plan back instead.", is_flag=True),
            _SHARED,
            _MASTER,
        ),
        right=operator,
        confirmed=True,
    ),
    Command(
        "replay",
        own_summary="push archived messages from a lake again, once each",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("to", "Into another queue of this database.", metavar="OTHER"),
            _FILTER,
            _MASTER,
        ),
        right=operator,
        confirmed=True,
    ),
    Command(
        "verify",
        own_summary="compare logs of its pushes and pops: lost, duplicated, out of order",
        parameters=(
            Parameter(
                "push-log", "The log of pushes: a file, or a folder of files.", metavar="FILE"
            ),
            Parameter(
                "pop-log",
                "The log of pops. Default: what the lake has of the queue.",
                metavar="FILE",
            ),
            _LAKE,
            _FROM,
            Parameter(
                "order",
                "The guaranteed order. Default: that of the queue NAME in its database.",
                click.Choice([order.value for order in Order]),
            ),
            Parameter(
                "left",
                "Messages still in the queue at the end of the log of pops, so not lost.",
                WholeNumber(0),
                default="0",
                metavar="N",
            ),
            _MASTER,
        ),
        continues=False,
    ),
    Command(
        "expire",
        own_summary="take its old days out of a lake",
        parameters=(
            _LAKE,
            _FROM,
            Parameter(
                "older",
                "Days archived longer ago than this: 90d, 2y. Default: each queue's `expire` in "
                "the configuration.",
                DURATION,
                metavar="T",
            ),
        ),
        right=operator,
        confirmed=True,
    ),
    Command(
        "erase",
        own_summary="take single messages of it out of a lake",
        parameters=(
            _LAKE,
            _FROM,
            Parameter("id", "A message's id; repeatable.", multiple=True, metavar="I", dest="ids"),
            _FILTER,
        ),
        right=operator,
        confirmed=True,
    ),
    Command(
        "rollup",
        own_summary="summarize recordings by minute, hour and day; forecast the week",
        parameters=(
            Parameter(
                "recordings",
                "A console's folder, or a copy; repeatable. Default: in this user's state folder.",
                multiple=True,
                metavar="FOLDER",
            ),
            _LAKE,
            Parameter(
                "days",
                "Only these days in UTC, even if done before: 2026-03-28..2026-03-29. Default: all "
                "days with new segments.",
                metavar="D[..D]",
            ),
            Parameter(
                "zone",
                "The time zone of the forecast's hours, such as Europe/Prague. Default: the "
                "connection's display_zone.",
                metavar="Z",
            ),
            _SHARED,
            _MASTER,
        ),
    ),
    Command(
        "compact",
        own_summary="merge a lake's small files, remove those that nobody reads",
        parameters=(
            _LAKE,
            Parameter(
                "keep",
                "Files that are no longer in the table stay so long, for readers at work.",
                DURATION,
                default="7d",
                metavar="T",
            ),
        ),
        confirmed=True,
    ),
    Command("lake", own_summary="show what a lake has", parameters=(_LAKE,)),
)
BY_NAME = {job.name: job for job in JOBS}
ABOUT_A_QUEUE = ("archive", "replay", "verify", "expire", "erase")
QUEUE_AS_OPTION = ("expire", "erase")
"""Their command lines are about all queues of the connection without --queue."""
