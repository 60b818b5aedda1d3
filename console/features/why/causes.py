"""What may have caused that a queue is not as usual, in order: rules over its figures and events.

A rule yields causes with a weight: what the rule sees itself weighs more than what only fits. What
lies far from the first figure that left its band weighs less. What somebody or the server did
comes before what it led to: a deployment before the errors that it brought.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from console.features.history.points import ACTION, NOTE, Spell
from console.features.why.events import CONNECTION, CONSUMER, ONE_FAILED, UNATTENDED, Event
from console.features.why.recorded import QueueRecord
from console.features.why.usual import NEW_ERRORS, Change
from console.figures import AGE, CLAIMED, GAP, POP, PUSH, READY, SAMPLE_LATENCY

MOST = 5
_LEAST = 40
"""Causes of a lower weight are not given."""
_FAR, _FAR_COSTS = timedelta(minutes=30), 20
_AFTER, _AFTER_COSTS = timedelta(minutes=5), 15
_MUCH_MORE = 0.25
"""More than this part of what is usual on top of it."""
_OUTAGE = timedelta(seconds=20)
_MUCH_LESS, _NEARLY_NONE = 0.75, 0.1
"""Less than this part of what is usual."""
_DEPLOYED = re.compile(
    r"deploy|releas|roll(ed|ing)?[ -]?(out|back)|ship|version|upgrad|migrat|config|"
    r"\bv?\d+\.\d+",
    re.IGNORECASE,
)
_DENIED = re.compile(r"permission|denied|not permitted|insufficient.privilege", re.IGNORECASE)


@dataclass(frozen=True)
class Evidence:
    words: str
    at: datetime | None = None


@dataclass(frozen=True)
class Cause:
    code: str
    what: str
    at: datetime
    evidence: tuple[Evidence, ...]
    disproof: str
    """What would show that it is not the cause."""
    opens: str
    """The tab that shows it."""
    weight: int
    standing: bool = False
    """It lasts until someone ends it, so that it may have begun long ago."""
    follows: int | None = None
    """From which of the causes before it, counted from 1, it may follow."""


@dataclass(frozen=True)
class Case:
    record: QueueRecord
    at: datetime
    changes: Sequence[Change]
    """Those that are not back."""
    events: Sequence[Event]
    spells: Sequence[Spell]
    """Findings that have not ended."""

    @property
    def lost(self) -> bool:
        """Whether the last samples failed: one alone says nothing."""
        return all(row["error"] for row in self.record.links[-2:]) and bool(self.record.links)

    @property
    def harms(self) -> list[Change]:
        return [one for one in self.changes if one.harms or self._stopped(one)]

    @staticmethod
    def _stopped(change: Change) -> bool:
        """Pushes that nearly ended."""
        nearly_none = change.value < _NEARLY_NONE * change.usual.median
        return change.measure.name == PUSH.name and change.direction < 0 and nearly_none

    @property
    def times(self) -> list[datetime]:
        """When figures left their bands that harm, or whose fall explains one that does."""
        found = [one.at for one in (*self.harms, *filter(None, (self.fell(POP.name),)))]
        return sorted(found) or [self.at]

    @property
    def onset(self) -> datetime:
        return self.times[0]

    def rose(self, *names: str) -> Change | None:
        return self._change(names, 1)

    def fell(self, *names: str) -> Change | None:
        return self._change(names, -1)

    def _change(self, names: Sequence[str], direction: int) -> Change | None:
        found = (c for c in self.changes if c.measure.name in names and c.direction == direction)
        return next(found, None)

    def spell(self, *codes: str) -> Spell | None:
        """The first that has not ended, in the order of the codes."""
        found = (spell for code in codes for spell in self.spells if spell.code == code)
        return next(found, None)

    def near(self, kind: str, before: int, after: int = 3) -> list[Event]:
        """Events of a kind that many minutes before such a figure to so many after it."""
        early, late = timedelta(minutes=before), timedelta(minutes=after)
        return [
            event
            for event in self.events
            if event.kind == kind and any(t - early <= event.at <= t + late for t in self.times)
        ]

    def seen(self, *changes: Change | None) -> tuple[Evidence, ...]:
        """Figures as evidence."""
        return tuple(
            Evidence(f"{one.words}{' or earlier' if one.before else ''}", one.at)
            for one in changes
            if one is not None
        )

    @property
    def pops_fell(self) -> bool:
        """By much."""
        pops = self.fell(POP.name)
        return pops is not None and pops.value < _MUCH_LESS * pops.usual.median

    @property
    def fewer_explain(self) -> bool:
        """Whether sessions of consumers are missing by half as much as pops, or more."""
        sessions, pops = self.fell("sessions"), self.fell(POP.name)
        return sessions is not None and (pops is None or 2 * sessions.share >= pops.share)

    @property
    def pops_stopped(self) -> bool:
        pops = self.fell(POP.name)
        return pops is not None and pops.value < _NEARLY_NONE * pops.usual.median


def _of(spell: Spell) -> Evidence:
    before = " (it was there before that time)" if spell.first else ""
    now = "" if spell.ended else ", now"
    return Evidence(f"finding {spell.code}{now}: {spell.summary}{before}", spell.began)


def _event(event: Event) -> Evidence:
    return Evidence(f"{event.kind} {event.name}: {event.words}", event.at)


def _unreachable(case: Case) -> Iterator[Cause]:
    lost = [one for one in case.events if one.kind == CONNECTION and case.lost][-1:]
    for event in lost:
        yield Cause(
            "unreachable",
            "the database cannot be reached", event.at, (_event(event),),
            "another client connects to it: then only this console's way to it is cut",
            "findings", 99, standing=True,
        )  # fmt: skip


def _paused(case: Case) -> Iterator[Cause]:
    record = case.record
    of_queue = (record.schema, record.queue)
    for one in record.catalog.decisions:
        if one.kind == "pause" and (one.schema, one.queue) == of_queue and one.since <= case.at:
            yield _pause(case, one.since, one.words, 97)
            return
    actions = [
        row
        for row in record.catalog.actions
        if ((row["schema"] or "", row["queue"]) == of_queue and row["outcome"] != "failed")
        and row["verb"] in {"pause", "resume"}
        and row["at"] <= case.at
    ]
    if actions and actions[-1]["verb"] == "pause":
        row = actions[-1]
        yield _pause(case, row["at"], f"paused by {row['operator']}, and not resumed since", 97)
    elif spell := case.spell("pause_overdue", "paused_elsewhere"):
        yield _pause(case, spell.began, f"finding {spell.code}: {spell.summary}", 95)


def _pause(case: Case, at: datetime, words: str, weight: int) -> Cause:
    evidence = (Evidence(words, at), *case.seen(case.fell(POP.name), case.rose(READY.name)))
    return Cause(
        "paused",
        "the queue is paused: its pops return nothing until someone resumes it", at, evidence,
        "messages are popped while it lasts, or none had been for minutes when it began",
        "audit", weight, standing=True,
    )  # fmt: skip


def _denied(case: Case) -> Iterator[Cause]:
    for at, words in case.record.problems:
        if _DENIED.search(words):
            yield Cause(
                "denied",
                "a login lost its rights on the queue", at, (Evidence(words, at),),
                "the consumers' login may still run the pop: try it as that login",
                "findings", 93, standing=True,
            )  # fmt: skip
            return
    calls = [row for row in case.record.consumers if row["last_call"] and row["last_pop"]]
    last = calls[-1]["at"] if calls else case.at
    failing = [
        row
        for row in calls
        if row["at"] == last
        and "pop" in str(row["does"] or "")
        and row["last_call"] - row["last_pop"] > timedelta(minutes=1)
    ]
    if failing and case.pops_stopped and not case.spell("head_stuck", "poison", "table_locked"):
        row = max(failing, key=lambda row: row["last_call"])
        yield Cause(
            "denied",
            "the consumers call and every call fails: their rights, or the code that they call",
            row["last_pop"],
            (
                Evidence(f"{row['name']} popped for the last time", row["last_pop"]),
                Evidence(f"{row['name']} still calls the pop", row["last_call"]),
                *case.seen(case.fell(POP.name)),
            ),
            "one of their calls returns a message, or returns none because none is ready; their "
            "own log has the error of each call",
            "consumers", 84,
        )  # fmt: skip


def _failover(case: Case) -> Iterator[Cause]:
    events = [one for one in case.near(CONNECTION, 15) if not one.words.startswith(ONE_FAILED)]
    for event in events:
        changed = event.words.startswith("failover")
        lasted = event.until is not None and event.until - event.at >= _OUTAGE
        lost = case.spell("orphan", "spent", "hole", "claims_gone")
        evidence = (
            *map(_event, events),
            *(_event(one) for one in case.near(CONSUMER, 15)[:2]),
            *((_of(lost),) if lost else ()),
        )
        yield Cause(
            "failover",
            "the server failed over" if changed else "the server restarted, or was out of reach",
            event.at, evidence,
            "the server has run since before that time: SELECT pg_postmaster_start_time(), on SQL "
            "Server sqlserver_start_time of sys.dm_os_sys_info",
            "timeline", 94 if changed or lost else 91 if lasted else 60,
        )  # fmt: skip
        return


def _deployed(case: Case) -> Iterator[Cause]:
    for event in case.near(NOTE, 15, 1)[-1:]:
        named = bool(_DEPLOYED.search(event.words))
        yield Cause(
            "deployed",
            f"what a note just before it says: {event.words}", event.at,
            (_event(event), *case.seen(*case.harms[:2])),
            "the figures left their bands before it, or stay outside after it is taken back",
            "audit", 95 if named else 50,
        )  # fmt: skip
    if (spell := case.spell("code_changed", "code_missing")) and not spell.first:
        yield Cause(
            "deployed", "the queue's installed code was changed", spell.began, (_of(spell),),
            "the changed functions do what the installed ones did: see the tab SQL",
            "sql", 86,
        )  # fmt: skip
    restarts = [one for one in case.near(CONSUMER, 15, 1) if one.words.startswith("restarted")]
    for event in restarts[:1]:
        yield Cause(
            "deployed",
            f"the consumers were restarted: {event.name}", event.at,
            tuple(map(_event, restarts)),
            "the same version runs as before, and the figures had left their bands before it",
            "consumers", 70,
        )  # fmt: skip


_BRINGS = {"restore", "requeue", "replay", "release", "push", "reschedule"}
_CHANGES = {"upgrade", "install", "relay", "resize", "maintain", "purge", "archive"}


def _operator(case: Case) -> Iterator[Cause]:
    acted = [*case.near(ACTION, 10, 1), *case.near(UNATTENDED, 10, 1)]
    for event in acted:
        if event.name in _BRINGS | _CHANGES:
            brought = event.name in _BRINGS and case.rose(READY.name) is not None
            kind = "an unattended repair" if event.kind == UNATTENDED else "an operator's action"
            yield Cause(
                "operator",
                f"{kind}: {event.name}, {event.words}", event.at,
                (_event(event), *case.seen(case.rose(READY.name))),
                "its count is far from what the figures show, or they changed before it",
                "audit", 88 if brought else 58,
            )  # fmt: skip


def _blocked(case: Case) -> Iterator[Cause]:
    spell = case.spell("table_locked", "rows_held", "prepared_forgotten")
    locks = case.rose("lock_waits")
    if spell is None and locks is None:
        return
    weight = 84 if locks else 0
    if spell is not None:
        weight = max(weight, {"table_locked": 92}.get(spell.code, 86 if locks else 76))
    at = min(one for one in (spell and spell.began, locks and locks.at) if one)
    yield Cause(
        "blocked",
        f"a session blocks the queue: {spell.summary}" if spell
        else "sessions of the queue wait for a lock that another session holds",
        at, (*((_of(spell),) if spell else ()), *case.seen(locks, case.fell(POP.name))),
        "nobody waits for that session now (tab Waits, dbq-console waits), or pops do not come "
        "back when it ends its transaction",
        "waits", weight, standing=True,
    )  # fmt: skip


def _poison(case: Case) -> Iterator[Cause]:
    if spell := case.spell("head_stuck", "poison"):
        pops = case.fell(POP.name)
        weight = 90 if spell.code == "head_stuck" else 82 if pops else 58
        yield Cause(
            "poison",
            f"a message that its consumers fail each time: {spell.summary}", spell.began,
            (_of(spell), *case.seen(pops)),
            "other messages are popped at the usual rate, or that message is gone and pops do not "
            "come back",
            "findings", weight,
        )  # fmt: skip


def _errors(case: Case) -> Iterator[Cause]:
    burst, rose = case.spell("error_burst"), case.rose(NEW_ERRORS)
    if burst is not None or rose is not None:
        at = min(one for one in (burst and burst.began, rose and rose.at) if one)
        yield Cause(
            "errors",
            "consumers fail messages: they pop them, and report errors", at,
            (*((_of(burst),) if burst else ()), *case.seen(rose)),
            "the error texts (tab Errors) are old, or about messages of another kind",
            "errors", 81 if burst and rose else 74,
        )  # fmt: skip


def _full(case: Case) -> Iterator[Cause]:
    spell = case.spell("full", "subscriber_stopped", "lapped", "full_soon", "filling")
    capacity, points = case.record.capacity, case.record.points
    gap = points[-1]["gap"] if points else None
    is_full = bool(capacity and gap is not None and gap >= 0.98 * capacity)
    if not is_full and spell is None:
        return
    led_to = case.pops_fell or case.rose(PUSH.name) is not None
    at = spell.began if spell else case.at
    pushes = case.fell(PUSH.name)
    weight = 46 if led_to else 87
    if spell is not None and spell.code == "subscriber_stopped":
        weight = 90
    if not is_full and spell is not None and spell.code in {"full_soon", "filling"}:
        weight -= 20
    words = f"{gap:,.0f} of {capacity:,.0f} slots in use" if is_full else ""
    yield Cause(
        "full",
        "the ring is full: pushes find no room" if is_full else "the ring fills up",
        pushes.at if pushes and is_full else at,
        (*((_of(spell),) if spell else ()), *((Evidence(words),) if words else ()),
         *case.seen(pushes, case.rose(GAP.name))),
        "pushes are stored again without a larger ring and without more pops",
        "slots", weight, standing=True,
    )  # fmt: skip


def _consumers(case: Case) -> Iterator[Cause]:
    gone = [one for one in case.near(CONSUMER, 8, 4) if "disconnected" in one.words]
    silent = [one for one in case.near(CONSUMER, 8, 4) if one.words.startswith("last pop")]
    sessions = case.fell("sessions")
    spell = case.spell("consumer_silent", "consumer_stopped", "claims_gone")
    pops = case.fell(POP.name)
    if not (gone or silent or sessions or spell) or not (pops or (gone and sessions)):
        return
    if gone or sessions:
        names = ", ".join(dict.fromkeys(one.name for one in gone))
        what = (
            f"consumers disconnected: {names}" if names else "there are fewer consumers than usual"
        )
        weight = (89 if gone and sessions else 85) if case.fewer_explain else 55
    else:
        names = ", ".join(dict.fromkeys(one.name for one in silent))
        what = (
            f"consumers are connected and pop nothing: {names}"
            if names
            else ("nothing is popped: the consumers stopped, or are not there")
        )
        weight = 79 if silent or (spell and spell.code == "consumer_silent") else 72
    first = [one.at for one in (*gone, *silent)] or [sessions.at if sessions else case.onset]
    yield Cause(
        "consumers",
        what, min(first),
        (*map(_event, (gone or silent)[:3]), *((_of(spell),) if spell else ()),
         *case.seen(sessions, pops)),
        "the same consumers are connected and pop (tab Consumers)",
        "consumers", weight,
    )  # fmt: skip


def _slow(case: Case) -> Iterator[Cause]:
    slower, pops = case.rose("processing_p95_seconds"), case.fell(POP.name)
    if case.fewer_explain or case.pops_stopped or not (slower or pops):
        return
    if not case.rose(READY.name, AGE.name, GAP.name):
        return
    yield Cause(
        "slow",
        "the consumers are slower: each message takes them longer"
        if slower else "the consumers take fewer messages, and none of them disconnected",
        slower.at if slower else case.onset,
        case.seen(slower, pops, case.rose(CLAIMED.name), case.rose(AGE.name)),
        "each message takes as long as before" + ("" if slower else ", by the consumers' own log: "
        "here it is not measured"),
        "consumers", 77 if slower else 56,
    )  # fmt: skip


def _flood(case: Case) -> Iterator[Cause]:
    pushes = case.rose(PUSH.name)
    if pushes is None or pushes.share < _MUCH_MORE or case.fell(POP.name):
        return
    if pushes.at > case.times[-1] + _AFTER:
        return
    yield Cause(
        "flood",
        "more is pushed than usual", pushes.at,
        case.seen(pushes, case.rose(READY.name), case.rose(POP.name)),
        "what is pushed is as much as in other weeks at this hour; the tab Consumers shows the "
        "producers",
        "consumers", 83,
    )  # fmt: skip


def _producers(case: Case) -> Iterator[Cause]:
    pushes = case.fell(PUSH.name)
    if pushes is None or pushes not in case.harms:
        return
    gone = [one for one in case.near(CONSUMER, 10, 5) if "disconnected" in one.words]
    yield Cause(
        "producers",
        "nearly nothing is pushed any more", pushes.at,
        (*case.seen(pushes), *map(_event, gone[:2])),
        "this hour is always quiet, or the producers push and are refused, as by a full ring",
        "consumers", 75,
    )  # fmt: skip


def _bloat(case: Case) -> Iterator[Cause]:
    spell = case.spell(
        "dead_head", "index_unused", "index_missing", "index_invalid", "key_missing",
        "xmin_held_long", "xmin_held", "bloat",
    )  # fmt: skip
    latency = case.rose(SAMPLE_LATENCY.name)
    if spell is None and latency is None:
        return
    if spell is None:
        yield Cause(
            "bloat",
            "the server responds more slowly than usual", latency.at if latency else case.at,
            case.seen(latency),
            "other queues and clients of the same server are as fast as before",
            "waits", 48,
        )  # fmt: skip
        return
    strong = spell.code not in {"xmin_held_long", "xmin_held", "bloat"}
    weight = 86 if strong and latency else 82 if strong or latency else 50
    yield Cause(
        "bloat",
        f"each pop reads more than it should: {spell.summary}",
        latency.at if latency else spell.began,
        (_of(spell), *case.seen(latency, case.fell(POP.name))),
        "a pop reads few rows (the plan of dbq-console sql), or stays slow after maintain",
        "findings", weight - (25 if spell.first and not latency else 0), standing=True,
    )  # fmt: skip


_RULES: Sequence[Callable[[Case], Iterator[Cause]]] = (
    *(_unreachable, _paused, _failover, _denied, _deployed, _operator, _blocked, _poison),
    *(_full, _consumers, _errors, _bloat, _flood, _slow, _producers),
)


_LEADS_TO: Mapping[str, frozenset[str]] = {
    "unreachable": frozenset({"consumers", "slow", "producers", "errors"}),
    "failover": frozenset({"consumers", "slow", "producers", "errors", "blocked"}),
    "paused": frozenset({"consumers", "slow", "full"}),
    "denied": frozenset({"consumers", "slow", "errors"}),
    "deployed": frozenset({"consumers", "slow", "errors"}),
    "blocked": frozenset({"consumers", "slow", "producers", "full"}),
    "poison": frozenset({"consumers", "slow", "errors"}),
    "full": frozenset({"producers"}),
    "consumers": frozenset({"full"}),
    "bloat": frozenset({"slow", "full"}),
}
"""Cause -> what it brings about."""
_SAME_TIME = timedelta(minutes=2)
"""What follows may be seen this long before what it follows from."""


def causes_of(case: Case) -> list[Cause]:
    """At most five, the likeliest first; none if nothing harms."""
    if not case.harms and not case.lost:
        return []
    found = (_weighed(case, cause) for rule in _RULES for cause in rule(case))
    likely = [cause for cause in found if cause.weight >= _LEAST]
    chosen = sorted(likely, key=lambda cause: (-cause.weight, cause.at))[:MOST]
    return [replace(one, follows=_followed(one, chosen[:n])) for n, one in enumerate(chosen)]


def _followed(cause: Cause, likelier: Sequence[Cause]) -> int | None:
    for number, one in enumerate(likelier, 1):
        if cause.code in _LEADS_TO.get(one.code, ()) and cause.at >= one.at - _SAME_TIME:
            return number
    return None


def _weighed(case: Case, cause: Cause) -> Cause:
    """It weighs less the further it is from all figures."""
    costs = 0
    if not cause.standing and cause.at < case.onset - _FAR:
        costs = _FAR_COSTS
    elif not cause.standing and cause.at > case.times[-1] + _AFTER:
        costs = _AFTER_COSTS
    return replace(cause, weight=cause.weight - costs)
