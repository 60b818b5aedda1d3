"""Why a ring lost numbers, as far as the server tells: a crash, a rollback, a caller's death."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from console.doctor.ring_proof import Run, spelled, total

_STARTING = timedelta(seconds=60)
"""A server that recovers drops its counters within so much of its start."""
_AT_ONCE = timedelta(seconds=2)
"""A server that starts has its checkpointer within so much."""
AHEAD = 33
"""A crash of PostgreSQL loses at most so many numbers of a sequence with CACHE 1: those that it
logs ahead, and the one whose commit was not there yet."""


@dataclass(frozen=True)
class Life:
    """The server's own life, as far as this login may see it."""

    server_started: datetime
    checkpointer_started: datetime | None
    counts_since: datetime | None
    timeline: int | None
    rollbacks: int
    sessions_lost: int
    """Ended by their client's death, an error or an administrator, in this database."""
    recovering: bool = False
    """A standby, which does not know where its primary's sequences stand."""
    ahead: int = AHEAD
    """A crash loses at most so many numbers of a sequence at once."""

    @property
    def crashed_at(self) -> datetime | None:
        """When the server came back from its last crash; None: there is no sign of one.

        A clean start keeps the counters, recovery from a crash begins them anew. A backend that
        crashes takes the checkpointer with it, not the server. A server's very first start looks
        like a crash: only together with lost numbers from around that time does it tell one.
        """
        started = self.checkpointer_started or self.server_started
        if started - self.server_started > _AT_ONCE:
            return started
        if self.counts_since is None:
            return None
        anew = timedelta(0) <= self.counts_since - self.server_started <= _STARTING
        return started if anew else None


class Loss(StrEnum):
    """What became of whoever had drawn."""

    CRASH = "crash"
    ROLLBACK = "rollback"
    DEATH = "caller died"
    EITHER = "rollback or caller died"
    BATCH = "a batch rolled back, or a sequence moved"
    UNKNOWN = "unknown"


def loss_of(run: Run, life: Life) -> Loss:
    """The class of one run of lost numbers, by its length and the times around it."""
    crash = life.crashed_at
    if crash is not None and run.count <= life.ahead and _may_be_of(run, crash):
        # A batch that was rolled back since looks alike, unless what came before it is known.
        alone = not life.rollbacks and not life.sessions_lost
        sure = run.count > 1 and (run.before_at is not None or alone)
        return Loss.CRASH if sure else Loss.UNKNOWN
    if run.count > life.ahead:
        return Loss.BATCH
    if life.sessions_lost == 0:
        return Loss.ROLLBACK if life.rollbacks else Loss.UNKNOWN
    return Loss.DEATH if life.rollbacks <= life.sessions_lost else Loss.EITHER


def _may_be_of(run: Run, crash: datetime) -> bool:
    """Whether the numbers around it were used before and after the crash; unknown times may be."""
    before = run.before_at is None or run.before_at <= crash
    after = run.after_at is None or run.after_at >= crash
    return before and after


def causes(runs: Sequence[Run], life: Life) -> dict[Loss, list[Run]]:
    """The runs by their class."""
    found: dict[Loss, list[Run]] = {}
    for run in runs:
        found.setdefault(loss_of(run, life), []).append(run)
    return found


def told(found: dict[Loss, list[Run]], life: Life) -> str:
    """The cause of a finding in words."""
    crash = life.crashed_at
    at = "" if crash is None else f" before {crash:%Y-%m-%d %H:%M:%S} UTC"
    lost = f"{life.sessions_lost:,} sessions were lost in this database"
    counted = f"{life.rollbacks:,} transactions were rolled back in this database"
    words = {
        Loss.CRASH: f"the server crashed{at}; a sequence skips what it had logged or cached ahead",
        Loss.ROLLBACK: f"their callers rolled back ({counted}); a sequence never does",
        Loss.DEATH: f"their callers died ({lost}); a sequence keeps what they had drawn",
        Loss.EITHER: f"their callers rolled back or died ({counted}, {lost})",
        Loss.BATCH: "a batch was rolled back; or table and sequences are of different moments (a "
        "dump restored, a fail-over, a sequence set by hand)",
        Loss.UNKNOWN: f"a rollback, a caller's death, or the crash{at}"
        if crash
        else "not known: nothing that the server still counts explains it",
    }
    lines = [f"{total(runs):,} ({spelled(runs)}): {words[loss]}" for loss, runs in found.items()]
    if life.timeline is not None and life.timeline > 1:
        lines.append(f"the server is on timeline {life.timeline}: it was promoted or restored")
    return "; ".join(lines)
