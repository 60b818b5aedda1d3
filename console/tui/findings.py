"""Findings for the screens: the doctor's, and those that only the current figures show.

The doctor's are some seconds old. One that is about a figure is shown with the current figure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from console import formats
from console.decisions import Decision
from console.doctor.finding import Diagnosis, Finding
from console.monitor.limits import (
    Exceeded,
    Severity,
    limit_code,
    limit_silence,
    silence_for,
    stuck_silence,
)
from console.monitor.snapshot import QueueSnapshot
from console.tui.text import SEVERITY_STYLES, first_line, plain, whole_seconds


def stuck_text(snapshot: QueueSnapshot) -> str:
    stuck = formats.count(snapshot.stuck or 0, estimated="stuck" in snapshot.estimated)
    return f"{stuck} stuck"


def full_in_seconds(snapshot: QueueSnapshot) -> float | None:
    """When the queue is full at the current rates, or at the usual ones if they are the better
    guess; None: never, or unknown."""
    return snapshot.full_in_seconds if snapshot.filling is None else snapshot.filling.seconds


FULL_SOON_SECONDS = 600.0
"""A queue that is full before that is not all clear, whatever its limits say."""


def full_soon(seconds: float | None) -> str:
    """`full in ≈5.0 s` or `full`; empty: not soon, or not known."""
    if seconds is None or seconds >= FULL_SOON_SECONDS:
        return ""
    return f"full in {formats.ESTIMATE}{formats.duration(seconds)}" if seconds else "full"


QueueKey = tuple[str, str, str]
FindingKey = tuple[str, str, str, str, str]
"""Connection, schema, queue name (empty: the connection itself), code, and what distinguishes
several findings of that code."""

CONNECTION = "connection"
LIMIT = "limit_reached"
"""Also a code of the doctor: its finding on a figure and the figure's own are shown as one."""
PROBLEM = "problem"
STUCK = "stuck"

_LIMITS = {"limit_reached", "limit_critical"}
_OF_SESSIONS = {"rows_held", "prepared_forgotten"}
_OF_CLAIMS = {"claims_gone", "claims_alive", "claims_unknown", "claims_nobody"}
_OF_A_FULL_RING = {"full", "filling", "full_soon", "full_within_hour", "lapped"}
_BURST = "error_burst"
_STOPPED = "consumer_stopped"
_LOCKED = "table_locked"
_OF_A_PAUSE = {"pause_overdue", "pause_undone"}
_OLD_SECONDS = 2.0
"""An older figure is shown with its age."""
_ERRORS = (LIMIT, "errors")
_DISTINGUISHING = ("figure", "session")
"""The evidence that distinguishes several findings of one code."""


@dataclass(frozen=True)
class FindingView:
    """One finding at one moment."""

    key: FindingKey
    level: Severity
    summary: str
    """One line; safe to show."""
    since_seconds: float | None = None
    """How long it has existed, as far as known."""
    at_least: bool = False
    """It may be older: it was there at this console's first sample."""
    finding: Finding | None = None
    """The doctor's finding; None: it comes from figures, or from a connection."""
    label: str = ""
    """The queue's or the connection's name; safe to show."""
    connection_label: str = ""
    """The queue's connection, if there are several; safe to show."""
    stale_seconds: float | None = None
    """Its age, if its connection does not answer."""
    live: bool = False
    """The doctor found it, but its text has the newest figures."""
    silenced: Decision | None = None
    """The silence or acknowledgement: it is shown in grey, after the others."""
    diagnosed_seconds_ago: float | None = None
    """How old the doctor's statement is; None: its text has the newest figures."""

    @property
    def text(self) -> str:
        """The summary, with its age if its figures are old, and with who silenced it."""
        if self.silenced is None:
            return self._summary
        return f"{self.silenced.state} by {plain(self.silenced.operator)}: {self._summary}"

    @property
    def _summary(self) -> str:
        old = self.diagnosed_seconds_ago is not None and self.diagnosed_seconds_ago >= _OLD_SECONDS
        if not old or not any(sign.isdigit() for sign in self.summary):
            return self.summary
        return f"{self.summary} ({whole_seconds(self.diagnosed_seconds_ago or 0.0)} ago)"

    @property
    def connection(self) -> str:
        return self.key[0]

    @property
    def queue_key(self) -> QueueKey | None:
        """None: it is about the connection itself."""
        return None if self.key[3] == CONNECTION else self.key[:3]

    @property
    def code(self) -> str:
        """The doctor's code, or one of those above."""
        return self.key[3]

    @property
    def is_problem(self) -> bool:
        """Whether it is more than a note, and not silenced."""
        return self.level > Severity.NOTE and self.silenced is None

    @property
    def style(self) -> str:
        """The style of its text: grey if it is silenced."""
        return "quiet" if self.silenced else SEVERITY_STYLES.get(self.level, "quiet")

    @property
    def silence_code(self) -> str:
        """As `silence` and `ack` take it: for a limit with its figure."""
        if self.code == LIMIT:
            return f"{limit_code(self.level)}:{self.key[4]}"
        return self.code

    @property
    def mark(self) -> str:
        """One character per level, which needs no colour."""
        return self.level.mark

    @property
    def repair_text(self) -> str:
        """Its repair; if it is silenced, until when and why. Safe to show."""
        if self.silenced is not None:
            return first_line(self.silenced.lasting)
        repair = None if self.finding is None else self.finding.repair
        return "" if repair is None else first_line(repair.summary)


def queue_findings(
    key: QueueKey,
    snapshot: QueueSnapshot,
    judged: Sequence[Exceeded],
    diagnosis: Diagnosis | None,
) -> tuple[FindingView, ...]:
    """All findings of one queue, the most severe first; only those from figures have times.

    `judged`: the limits that its figures have reached.
    """
    exceeded = {one.figure: one for one in judged}
    diagnosed = [] if diagnosis is None else list(_from_doctor(key, diagnosis, snapshot, exceeded))
    named = {view.code for view in diagnosed}
    figures = {view.key[4] for view in diagnosed if view.code == LIMIT}
    undiagnosed = [*_from_figures(key, snapshot, exceeded, named, figures)]
    if _BURST in named:
        # It includes the number of errors.
        undiagnosed = [
            one for one in undiagnosed if one.key[3:] != _ERRORS or one.level is Severity.CRITICAL
        ]
    views = [
        replace(one, silenced=_silenced(one, snapshot, exceeded))
        for one in (*diagnosed, *undiagnosed)
    ]
    return tuple(sorted(views, key=lambda view: (view.silenced is not None, -view.level)))


def _silenced(
    view: FindingView, snapshot: QueueSnapshot, exceeded: Mapping[str, Exceeded]
) -> Decision | None:
    """By the current decisions, which may be newer than the doctor's finding."""
    if view.code == LIMIT and (limit := exceeded.get(view.key[4])) is not None:
        return limit_silence(snapshot.silences, limit)
    if view.code == STUCK:
        return stuck_silence(snapshot.silences, snapshot.stuck, snapshot.claims)
    code, _, which = view.silence_code.partition(":")
    return silence_for(snapshot.silences, code, view.level, which)


def _from_doctor(
    key: QueueKey,
    diagnosis: Diagnosis,
    snapshot: QueueSnapshot,
    exceeded: Mapping[str, Exceeded],
) -> Iterator[FindingView]:
    """The doctor's findings, without those that the current figures disprove."""
    counts: dict[FindingKey, int] = {}
    for finding in diagnosis.findings:
        name, evidence = finding.code.name, finding.evidence
        which = next(
            (str(evidence[figure]) for figure in _DISTINGUISHING if figure in evidence), ""
        )
        finding_key = (*key, LIMIT if name in _LIMITS else name, which)
        counts[finding_key] = counts.get(finding_key, 0) + 1
        if counts[finding_key] > 1:
            finding_key = (*finding_key[:4], f"{which}#{counts[finding_key]}")
        view = FindingView(finding_key, finding.code.severity, first_line(finding.summary))
        view = replace(view, finding=finding)
        if name in _LIMITS:
            if (now := exceeded.get(which)) is not None:
                yield _of_limit(view, finding, now)
        elif not _no_longer_true(finding, snapshot):
            share = exceeded.get("gap_share") if name in _OF_A_FULL_RING else None
            yield view if share is None else replace(view, level=max(view.level, share.level))


def _of_limit(view: FindingView, finding: Finding, now: Exceeded) -> FindingView:
    """The doctor's finding, with the current figure."""
    current = replace(finding, summary=now.reason, evidence=now.as_json(), since=None)
    since = now.value if now.figure == "age" else None
    return replace(
        view,
        level=now.level,
        summary=first_line(now.reason),
        since_seconds=since,
        finding=current,
        live=True,
    )


def _no_longer_true(finding: Finding, snapshot: QueueSnapshot) -> bool:
    """Whether the current figures disprove it."""
    code = finding.code.name
    if code in _OF_CLAIMS:
        return snapshot.claimed == 0
    if code == _STOPPED:
        return snapshot.ready == 0 or bool(snapshot.pop_per_second)
    if code in _OF_A_PAUSE:
        return snapshot.paused is None
    if code not in _OF_SESSIONS or snapshot.holders is None:
        return False
    all_named = snapshot.holders == len(snapshot.held_by)
    named = {one.session for one in snapshot.held_by}
    return all_named and finding.evidence.get("session") not in named


def _from_figures(
    key: QueueKey,
    snapshot: QueueSnapshot,
    exceeded: Mapping[str, Exceeded],
    named: set[str],
    figures: set[str],
) -> Iterator[FindingView]:
    """Findings that only the figures show."""
    if snapshot.problem and _LOCKED in named:
        return
    if snapshot.problem:
        problem = first_line(snapshot.problem)
        yield FindingView((*key, PROBLEM, ""), Severity.WARNING, f"cannot be sampled: {problem}")
        return
    if snapshot.stuck and not named & _OF_CLAIMS:
        yield FindingView((*key, STUCK, ""), Severity.WARNING, stuck_text(snapshot))
    for figure, one in exceeded.items():
        if figure in figures or (figure == "gap_share" and named & _OF_A_FULL_RING):
            continue
        since = one.value if figure == "age" else None
        yield FindingView((*key, LIMIT, figure), one.level, first_line(one.reason), since)


def sort_findings(
    findings: Iterable[tuple[FindingView, tuple[float, bool]]],
) -> tuple[tuple[FindingView, ...], tuple[tuple[float, bool], ...]]:
    """Sort (finding, (since when by our clock, at least)) pairs for display, and unzip them."""
    ordered = sorted(findings, key=lambda one: _order(one[0], one[1][0]))
    return tuple(view for view, _ in ordered), tuple(since for _, since in ordered)


def sort_key(view: FindingView) -> tuple[object, ...]:
    return (*_order(view, -(view.since_seconds or 0.0)), view.key)


def _order(view: FindingView, since: float) -> tuple[float, ...]:
    """The most severe first; at the same level those with a repair, then the oldest; what is
    silenced comes last."""
    return (view.silenced is not None, -view.level, not view.repair_text, since)
