"""One check of a family: what it cannot see is told, and the others go on."""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from console import sql
from console.catalog import Queue
from console.doctor.finding import Finding
from console.doctor.look import Look
from console.engines import Product
from console.errors import ConnectionFailedError, ConsoleError
from console.monitor.asking import be_careful

Row = TypeVar("Row")

Check = Callable[[Look], Iterator[Finding]]

STATEMENT_SECONDS = 5.0
"""The time-out of one statement of the doctor; it takes milliseconds."""
LOCK_SECONDS = 1.0
MOST = 10_000
"""Rows are counted up to here; one more says: there are more."""


def checked(look: Look, what: str, check: Check) -> Iterator[Finding]:
    """Its findings; where it cannot look, `what` is told in `unseen` with the reason."""
    try:
        yield from check(look)
    except ConnectionFailedError:
        raise
    except ConsoleError as error:
        look.unseen.append(f"{what}: {error.why or error.what}")


def can_ask(look: Look, what: str, name: str) -> bool:
    """Whether the engine has that statement of the doctor's; else `what` is unseen."""
    product = look.database.product
    try:
        there = name in sql.statements(product.name, "doctor")
    except KeyError:
        there = False
    if not there:
        look.unseen.append(f"{what}: not looked for on {product.title} yet")
    return there


def ask(
    look: Look, row_type: type[Row], name: str, scope: sql.Scope | None = None, **values: object
) -> list[Row]:
    """The rows of one statement of doctor.sql, read by indexes and within its time-out."""
    product = look.database.product
    statement = sql.statements(product.name, "doctor")[name]
    with look.moment() as connection:
        be_careful(connection, look.database, STATEMENT_SECONDS, LOCK_SECONDS)
        return sql.fetch(
            connection, row_type, statement, scope or look.queue.scope(product), **values
        )


@dataclass(frozen=True)
class _Recovering:
    recovering: bool


def follows(look: Look, what: str) -> bool:
    """Whether this server follows another, which alone knows its sessions: `what` is unseen."""
    if not look.database.capabilities.read_only:
        return False
    (found,) = ask(look, _Recovering, "recovering")
    if found.recovering:
        look.unseen.append(f"{what}: a standby does not know its primary's sessions")
    return found.recovering


def texts(value: Any) -> list[str]:
    """An array of a row: a list, or the JSON text of an engine that has no arrays."""
    found = json.loads(value) if isinstance(value, str) else value
    return [str(next(iter(it.values()))) if isinstance(it, dict) else str(it) for it in found or []]


def ago(seconds: float | None) -> datetime | None:
    """The moment so many seconds ago."""
    return None if seconds is None else datetime.now(UTC) - timedelta(seconds=seconds)


def clearer(product: Product) -> str:
    """What clears dead rows away, as that engine calls it."""
    return "vacuum" if product.name == "postgresql" else "ghost cleanup"


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 claim`, `17 claims`, `more than 10,000 claims`."""
    if number > MOST:
        return f"more than {MOST:,} {many or noun + 's'}"
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def shortened(text: str, most: int) -> str:
    """Its beginning, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def some(words: Sequence[str], most: int = 2, between: str = "; ") -> str:
    """The first few, and how many more there are: `this; that; 3 more`."""
    rest = len(words) - most
    return between.join([*words[:most], *([f"{rest} more"] if rest > 0 else [])])


def command(queue: Queue, verb: str, *words: str) -> str:
    """A verb on the queue as it is typed."""
    schema = [] if queue.schema in {"public", "dbo"} else ["--schema", queue.schema]
    return shlex.join(["dbq-console", verb, queue.name, *words, *schema])
