"""What the drivers of the libraries share: the loop, the URL, what an error tells of its call."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL

from console import sql
from console.bench.candidate import LeftRow, left, left_codes
from console.bench.worker_round import WorkerRound
from console.engines import Database


@dataclass(frozen=True)
class ScratchPeer:
    """As long as the context that made it is open."""

    database: Database
    held: str
    """The statement that selects the payloads of what no consumer finished."""
    scope: sql.Scope
    schema: str
    tables: Sequence[str]
    settings: Mapping[str, object]

    @property
    def readers(self) -> "Sequence[ScratchPeer]":
        """Itself."""
        return [self]

    def left(self, filler: bytes) -> list[LeftRow]:
        """Counted and checked in the database."""
        with self.database.transaction("count what is left", read_only=True) as connection:
            return left(connection, self.held, self.scope, filler)

    def left_codes(self, filler: bytes) -> list[int]:
        """Each of them."""
        with self.database.transaction("count what is left", read_only=True) as connection:
            return left_codes(connection, self.held, self.scope, filler)


_POLL_SECONDS = 0.02
_LOST = ("08", "57P")
"""Of SQLSTATEs: the connection is gone, or the server ended it."""


def url_in_schema(url: URL, schema: str) -> URL:
    """The same server, where names without a schema are those of this one."""
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return url.update_query_dict({"options": f"{options} -c search_path={schema}".strip()})


def run_loop(
    work: Callable[[WorkerRound], Coroutine[Any, Any, None]], worker_round: WorkerRound
) -> None:
    """Run it in the fastest event loop that is there: pgqueuer's own, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(work(worker_round))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(worker_round))


async def until_over(worker_round: WorkerRound, workers: list[asyncio.Task[None]]) -> None:
    """Until the clock ends, or all workers have."""
    pending = set(workers)
    while pending and not worker_round.over():
        _, pending = await asyncio.wait(pending, timeout=_POLL_SECONDS)


def is_lost(error: BaseException) -> bool:
    """Whether nobody knows what became of the call; else the server undid it."""
    state = getattr(error, "sqlstate", None)
    return not isinstance(state, str) or state.startswith(_LOST)
