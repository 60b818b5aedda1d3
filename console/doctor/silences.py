"""Acknowledgements end by themselves: when their finding has ended, or is graver than it was."""

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from console import sql
from console.decisions import Decision
from console.doctor.finding import Diagnosis, Finding
from console.engines import Database
from console.errors import ConsoleError
from console.monitor.silences import LIMIT, LIMIT_CRITICAL, graveness, named

_LOG = logging.getLogger(__name__)


def over(
    silences: Sequence[Decision], findings: Sequence[Finding], unproven: Callable[[str], bool]
) -> Iterator[tuple[Decision, str]]:
    """Which of a queue's end now, and why: `ended`, `worsened`.

    `unproven`: whether nobody can say of a code that there is no such finding any more.
    """
    for one in silences:
        if one.kind != "acknowledge":
            continue
        code, _, which = one.code.partition(":")
        graver = LIMIT_CRITICAL if code == LIMIT else code
        about = [it for it in findings if it.code.name in {code, graver}]
        about = [it for it in about if not which or it.which == which]
        if any(it.code.severity > graveness(one) for it in about):
            yield one, "worsened"
        elif not any(named(one, it.code.name, it.which) for it in about) and not unproven(code):
            yield one, "ended"


def end(database: Database, found: Sequence[Diagnosis]) -> None:
    """Write it down, where this connection may; where it cannot be, the next examination tries."""
    ended = [it for diagnosis in found for it in diagnosis.over]
    if not ended:
        return
    try:
        with database.transaction("end acknowledgements") as connection:
            for one, why in ended:
                sql.values(
                    connection,
                    datetime,
                    "catalog.silence_end",
                    kind=one.kind,
                    code=one.code,
                    schema=one.schema,
                    queue=one.queue,
                    by=why,
                )
    except ConsoleError as error:
        _LOG.info("%s: acknowledgements were not ended: %s", database.label, error)
