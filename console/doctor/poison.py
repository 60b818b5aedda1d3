"""Messages that were tried too often: all that are not done are looked at, by their indexes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from console.catalog import Queue
from console.designs import Flow
from console.doctor import claims
from console.doctor.checks import checked, command, counted
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.walking import walked
from console.monitor.walks import Walk

LEAST_ATTEMPTS = 5
"""A message that was tried so often is more likely to blame than its consumers."""
_WHAT = "messages tried too often"
_STATES = ("ready", "claimed", "error")
_SHOWN = 10

POISON = Code(
    "poison",
    Severity.WARNING,
    f"messages that were tried {LEAST_ATTEMPTS} times or more and are not done",
)

CODES: tuple[Code, ...] = (POISON,)


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if claims.applies(look.queue):
        yield from checked(look, _WHAT, _poison)


@dataclass(frozen=True)
class TriedRow:
    """What the statement `tried` returns."""

    key_time: str | None
    key_id: str
    position: int
    looked: int
    id: str | None
    attempts: int | None


@dataclass
class _State:
    """Those of one state."""

    found: int = 0
    most: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, row: TriedRow) -> None:
        self.found += 1
        self.most = max(self.most, row.attempts or 0)
        if len(self.ids) < _SHOWN:
            self.ids.append(row.id or "?")


def _poison(look: Look) -> Iterator[Finding]:
    queue = look.queue
    if "attempts" not in queue.roles and queue.design.flow is not Flow.NUMBERS:
        look.unseen.append(f"{_WHAT}: no column counts the attempts")
        return
    states: dict[str, _State] = {}
    for walk in walks(queue):
        for row in _tried(look, walk):
            states.setdefault(walk.state, _State()).add(row)
    if not states:
        return
    total = sum(state.found for state in states.values())
    most = max(state.most for state in states.values())
    by_state = ", ".join(f"{state.found:,} {name}" for name, state in states.items())
    yield Finding(
        POISON,
        f"{counted(total, 'message')} tried {LEAST_ATTEMPTS} times or more, one {most} times "
        f"({by_state})",
        evidence={
            name: {"count": state.found, "most_attempts": state.most, "ids": state.ids}
            for name, state in states.items()
        },
        cause="each try ended with a death, a release or an error: the message, most likely",
        consequence="they take a consumer's time again and again; requeue them to another queue "
        f"({command(queue, 'requeue', '--to', 'OTHER', '--filter', 'id=ID')}), or purge them",
    )


def walks(queue: Queue) -> list[Walk]:
    """The ways through all messages that have been tried and may be again."""
    return [walk for walk in claims.walks(queue) if walk.state in _STATES]


def _tried(look: Look, walk: Walk) -> Iterator[TriedRow]:
    """The rows of one walk that were tried too often."""
    rows = walked(look, _WHAT, walk, TriedRow, "tried", least=LEAST_ATTEMPTS)
    return (row for row in rows if (row.attempts or 0) >= LEAST_ATTEMPTS)
