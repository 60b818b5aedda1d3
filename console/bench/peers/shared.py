"""What the drivers of the libraries share: the loop, the URL, what an error tells of its call."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sqlalchemy import URL

from console.bench.shift import Shift

_POLL_SECONDS = 0.02
_LOST = ("08", "57P")
"""Of SQLSTATEs: the connection is gone, or the server ended it."""


def url_in_schema(url: URL, schema: str) -> URL:
    """The same server, where names without a schema are those of this one."""
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return url.update_query_dict({"options": f"{options} -c search_path={schema}".strip()})


def run_loop(work: Callable[[Shift], Coroutine[Any, Any, None]], shift: Shift) -> None:
    """Run it in the fastest event loop that is there: pgqueuer's own, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        asyncio.run(work(shift))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work(shift))


async def until_over(shift: Shift, workers: list[asyncio.Task[None]]) -> None:
    """Until the clock ends, or all workers have."""
    pending = set(workers)
    while pending and not shift.over():
        _, pending = await asyncio.wait(pending, timeout=_POLL_SECONDS)


def is_lost(error: BaseException) -> bool:
    """Whether nobody knows what became of the call; else the server undid it."""
    state = getattr(error, "sqlstate", None)
    return not isinstance(state, str) or state.startswith(_LOST)
