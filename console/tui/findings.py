"""Findings for the screens: the doctor's, and those that only the current figures show.

The doctor's are some seconds old. One that is about a figure is shown with the current figure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from console import formats
from console.catalog.decisions import Decision
from console.doctor.finding import Diagnosis, Finding
from console.monitor.limits import Exceeded, Severity, limit_silence, silence_for, stuck_silence
from console.monitor.snapshot import QueueSnapshot
from console.tui.text import first_line
from console.views.doctor import LIMIT, FindingKey, FindingView


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
_ERRORS = (LIMIT, "errors")
_DISTINGUISHING = ("figure", "session")
"""The evidence that distinguishes several findings of one code."""


def queue_findings(
    key: QueueKey, snapshot: QueueSnapshot, judged: Sequence[Exceeded], diagnosis: Diagnosis | None
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
            finding_view
            for finding_view in undiagnosed
            if finding_view.key[3:] != _ERRORS or finding_view.level is Severity.CRITICAL
        ]
    views = [
        replace(finding_view, silenced=_silenced(finding_view, snapshot, exceeded))
        for finding_view in (*diagnosed, *undiagnosed)
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
    key: QueueKey, diagnosis: Diagnosis, snapshot: QueueSnapshot, exceeded: Mapping[str, Exceeded]
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
    named = {holder.session for holder in snapshot.held_by}
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
