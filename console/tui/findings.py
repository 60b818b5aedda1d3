"""What is wrong, for the screens: the doctor's findings, and what figures say that he does not.

The doctor's word is some seconds old. Where it is about a figure, the figure of now is told.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from console.doctor.finding import Diagnosis, Finding, Severity
from console.monitor import QueueSnapshot
from console.monitor.limits import Exceeded, Level
from console.rights import Rights
from console.tui.health import stuck_words
from console.tui.text import first_line

Key = tuple[str, str, str]
FindingKey = tuple[str, str, str, str, str]
"""Connection, schema and name of a queue (empty: the connection itself), code, and which of several
of that code: one finding, whatever the screen does."""

CONNECTION = "connection"
LIMIT = "limit_reached"
"""The doctor's own code: what he says of a figure is the same finding as what the figure says."""
PROBLEM = "problem"
STUCK = "stuck"

_LEVELS = {
    Severity.CRITICAL: Level.CRITICAL,
    Severity.WARNING: Level.WARNING,
    Severity.NOTE: Level.OK,
}
_LIMITS = {"limit_reached", "limit_critical"}
_OF_SESSIONS = {"rows_held", "prepared_forgotten"}
_OF_CLAIMS = {"claims_gone", "claims_alive", "claims_unknown", "claims_nobody"}
_OF_A_FULL_RING = {"full", "filling", "full_soon", "full_within_hour", "lapped"}
_BURST = "error_burst"
_ERRORS = (LIMIT, "errors")
_TELLING = ("figure", "session")
"""What keeps several findings of one code apart, by the names in their evidence."""


@dataclass(frozen=True)
class FindingView:
    """One thing that is wrong, at one moment."""

    key: FindingKey
    level: Level
    """OK: worth knowing, and no more."""
    summary: str
    """One line; safe to show."""
    since_seconds: float | None = None
    """How long it has been so, as far as anybody knows."""
    longer: bool = False
    """Perhaps longer than that: it was there when this console first looked."""
    finding: Finding | None = None
    """What the doctor proved; None: figures say so, or a connection does."""
    label: str = ""
    """The queue or the connection; safe to show."""
    place: str = ""
    """The queue's connection, where there are several; safe to show."""
    stale_seconds: float | None = None
    """How old it is, where its connection gives no new answer."""

    @property
    def connection(self) -> str:
        """The connection's name, as the board calls it."""
        return self.key[0]

    @property
    def queue_key(self) -> Key | None:
        """The queue; None: it is about the connection itself."""
        return None if self.key[3] == CONNECTION else self.key[:3]

    @property
    def code(self) -> str:
        """The doctor's code, or what else it is about."""
        return self.key[3]

    @property
    def mark(self) -> str:
        """One cell that tells its level without any colour."""
        return self.level.mark if self.level > Level.OK else "·"

    @property
    def mends(self) -> str:
        """What mends it, in words; safe to show."""
        repair = None if self.finding is None else self.finding.repair
        return "" if repair is None else first_line(repair.summary)

    @property
    def rights(self) -> Rights | None:
        """What its repair needs; None: there is none."""
        repair = None if self.finding is None else self.finding.repair
        return None if repair is None else repair.rights


def of_queue(
    key: Key,
    snapshot: QueueSnapshot,
    judged: Sequence[Exceeded],
    diagnosis: Diagnosis | None,
) -> tuple[FindingView, ...]:
    """All of one queue, the gravest first; without times, but for those that figures tell.

    `judged`: the limits that its figures have reached.
    """
    exceeded = {one.figure: one for one in judged}
    told = [] if diagnosis is None else list(_told(key, diagnosis, snapshot, exceeded))
    named = {view.code for view in told}
    figures = {view.key[4] for view in told if view.code == LIMIT}
    found = [*told, *_untold(key, snapshot, exceeded, named, figures)]
    if _BURST in named:
        # It says how many errors there are, and more.
        found = [one for one in found if one.key[3:] != _ERRORS or one.level is Level.CRITICAL]
    return tuple(sorted(found, key=lambda view: -view.level))


def _told(
    key: Key,
    diagnosis: Diagnosis,
    snapshot: QueueSnapshot,
    exceeded: Mapping[str, Exceeded],
) -> Iterator[FindingView]:
    """The doctor's, but for those that the figures have outlived."""
    seen: dict[FindingKey, int] = {}
    for finding in diagnosis.findings:
        name, evidence = finding.code.name, finding.evidence
        which = next((str(evidence[it]) for it in _TELLING if it in evidence), "")
        full = (*key, LIMIT if name in _LIMITS else name, which)
        seen[full] = seen.get(full, 0) + 1
        if seen[full] > 1:
            full = (*full[:4], f"{which}#{seen[full]}")
        view = FindingView(full, _LEVELS[finding.code.severity], first_line(finding.summary))
        view = replace(view, finding=finding)
        if name in _LIMITS:
            if (now := exceeded.get(which)) is not None:
                yield _of_limit(view, finding, now)
        elif not _outlived(name, which, snapshot):
            share = exceeded.get("gap_share") if name in _OF_A_FULL_RING else None
            yield view if share is None else replace(view, level=max(view.level, share.level))


def _of_limit(view: FindingView, finding: Finding, now: Exceeded) -> FindingView:
    """The doctor's words on the figure of now."""
    told = replace(finding, summary=now.reason, evidence=now.as_json(), since=None)
    since = now.value if now.figure == "age" else None
    return replace(
        view, level=now.level, summary=first_line(now.reason), since_seconds=since, finding=told
    )


def _outlived(code: str, which: str, snapshot: QueueSnapshot) -> bool:
    """Whether the figures of now prove that it is over."""
    if code in _OF_CLAIMS:
        return snapshot.claimed == 0
    if code not in _OF_SESSIONS or snapshot.holders is None:
        return False
    if not snapshot.holders:
        return True
    all_named = snapshot.holders == len(snapshot.held_by)
    ids = {one.session.split()[0].partition("=")[2] for one in snapshot.held_by}
    return code == "rows_held" and all_named and which not in ids


def _untold(
    key: Key,
    snapshot: QueueSnapshot,
    exceeded: Mapping[str, Exceeded],
    named: set[str],
    figures: set[str],
) -> Iterator[FindingView]:
    """What only the figures say."""
    if snapshot.problem:
        words = first_line(snapshot.problem)
        yield FindingView((*key, PROBLEM, ""), Level.WARNING, f"cannot be looked at: {words}")
        return
    if snapshot.stuck and not named & _OF_CLAIMS:
        yield FindingView((*key, STUCK, ""), Level.WARNING, stuck_words(snapshot))
    for figure, one in exceeded.items():
        if figure in figures or (figure == "gap_share" and named & _OF_A_FULL_RING):
            continue
        since = one.value if figure == "age" else None
        yield FindingView((*key, LIMIT, figure), one.level, first_line(one.reason), since)
