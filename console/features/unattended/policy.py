"""The policy of repairs without a person: what may be repaired, and when this stops automatically.

Nothing here reads a database: everything is decided from findings and from earlier repairs, as the
audit has them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import quote, unquote

from console.catalog import Kind, Queue
from console.catalog.audit import UNATTENDED, Entry
from console.catalog.decisions import Decision
from console.config import Settings
from console.config import profile as keys
from console.config.values import OFF
from console.doctor.finding import Finding
from console.doctor.repairs import VerbRepair
from console.engines import Database
from console.formats import duration
from console.monitor.owners import are_direct

AGAIN_SECONDS = 10.0
"""At least this long between the two proofs."""
RETURNS = 3
"""A number or message that was repaired this often, and is found again, is left to a person."""
RETURNS_WITHIN = timedelta(days=1)
USUAL_DAYS = 7
MANY_TIMES_USUAL = 3
LEAST_UNUSUAL = 6
"""An hour with at least this many repairs, and more than `MANY_TIMES_USUAL` times as many as any of
the `USUAL_DAYS` before, is unusual."""

USUAL_SECONDS = 86_400.0 * (USUAL_DAYS + 1)
STOP = UNATTENDED
"""The verb of a stop in the audit."""
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Repairable:
    """A kind of findings that can be repaired without a person."""

    key: str
    """In the configuration, under `unattended`."""
    values: tuple[str, ...]
    """What it may be there, besides `off`."""
    noun: str
    codes: tuple[str, ...]
    does: str
    safe: str
    """Why it takes no judgement and stops nobody."""


ORPHANS = Repairable(
    "orphans",
    ("always",),
    "orphan",
    ("orphan", "spent"),
    "parks their numbers, so that the next pops take the messages",
    "a consumed number whose transaction has ended is never used again; pops and pushes continue",
)
HOLES = Repairable(
    "holes",
    ("pile", "always"),
    "hole",
    ("holes_pile_up", "hole", "stale_void"),
    "drops numbers that will never have a message; pile: only where they slow pops down",
    "no message has these numbers; pops and pushes continue",
)
CLAIMS_GONE = Repairable(
    "claims_gone",
    ("bound",),
    "claim",
    ("claims_gone",),
    "returns claims to the queue whose consumer bound them to its session, which is gone",
    "a session that is gone does not come back, and the consumer itself bound its claim to it; "
    "never by age, and only where consumers are said to connect directly",
)
REPAIRABLE = (ORPHANS, HOLES, CLAIMS_GONE)


@dataclass(frozen=True)
class Policy:
    """Of one queue."""

    orphans: str = OFF
    holes: str = "pile"
    claims_gone: str = OFF
    library_rule: bool = False
    repairs_per_hour: int = 20
    rows_per_hour: int = 5_000

    @classmethod
    def of_settings(cls, own: Settings) -> "Policy":
        """By the settings of a queue."""
        return cls(
            own[keys.ORPHANS],
            own[keys.HOLES],
            own[keys.CLAIMS_GONE],
            own[keys.LIBRARY_RULE],
            own[keys.REPAIRS_PER_HOUR],
            own[keys.ROWS_PER_HOUR],
        )

    def value(self, kind: Repairable) -> str:
        return str(getattr(self, kind.key))

    def text(self, kind: Repairable) -> str:
        """`orphans = "always"`."""
        return f'{kind.key} = "{self.value(kind)}"'

    def kind_of(self, code: str) -> Repairable | None:
        """What allows the repair of findings with that code; None: nothing does."""
        for kind in REPAIRABLE:
            if code in kind.codes and self.value(kind) != OFF:
                piles = kind is HOLES and self.value(kind) == "pile"
                return None if piles and code != HOLES.codes[0] else kind
        return None


def why_not(
    queue: Queue, kind: Repairable, policy: Policy, held: Iterable[Decision], database: Database
) -> str:
    """Why findings of that kind are left to a person, whatever is found; empty: they are not.

    `held`: the decisions in force.
    """
    for decision in held:
        of = (decision.schema, decision.queue)
        if of == (queue.schema, queue.name) and decision.kind in {"pause", "protection"}:
            return decision.words
    if queue.kind is Kind.ADOPTED and not (kind is CLAIMS_GONE and policy.library_rule):
        return "adopted, and its table does not say library_rule = true"
    if kind is CLAIMS_GONE and database.pooled:
        return "the console's own connection goes through a pooler"
    if kind is CLAIMS_GONE and not are_direct(queue, database.consumers):
        return 'that its consumers connect directly is not said (consumers = "direct")'
    return ""


def subjects(finding: Finding) -> tuple[str, ...]:
    """The numbers, or the messages, that a finding is about: the first hundred runs of numbers;
    of claims the ten oldest of each owner, a thousand at most."""
    numbers, repair = finding.evidence.get("numbers"), finding.repair
    if isinstance(numbers, Sequence):
        return tuple(f"{low}-{high}" if low != high else str(low) for low, high in numbers)
    if isinstance(repair, VerbRepair):
        return tuple(id_ for ids in repair.bound.values() for id_ in ids)[:_MOST_SUBJECTS]
    return ()


_MOST_SUBJECTS = 1_000


def is_same(kind: Repairable, before: Finding, now: Finding) -> bool:
    """Whether some of what one was about is there still."""
    earlier, about = subjects(before), subjects(now)
    if not earlier or not about:
        return True
    same = _is_among if kind is CLAIMS_GONE else _overlaps
    return any(same(name, earlier) for name in about)


@dataclass(frozen=True)
class Past:
    """One earlier repair, as its audit tells it."""

    at: datetime
    kind: str
    """Its key in the policy; empty: it is not known any more."""
    rows: int
    about: frozenset[str] = frozenset()
    """The messages that it was about, or runs of numbers."""


_AS_IS = "surrogatepass"
_ABOUT = re.compile(rf'{UNATTENDED}: (?P<kind>\w+) = "\w+" \((?P<about>.*)\)')


def detail(policy: Policy, kind: Repairable, about: Iterable[str]) -> str:
    """What the audit says of a repair: by which policy, and of what. `repairs_of` reads it back."""
    names = (quote(one, safe="", errors=_AS_IS) for one in about)
    return f"{UNATTENDED}: {policy.text(kind)} ({', '.join(names)})"


def operator_name(operator: str, process: int) -> str:
    """Of the recorder, for the audit."""
    return f"{UNATTENDED} {operator} pid {process}"


def repairs_of(entries: Iterable[Entry]) -> list[Past]:
    """The earlier repairs among the audit's entries of agents on one queue."""
    found = []
    for entry in entries:
        if entry.verb != STOP:
            match = _ABOUT.search(entry.detail)
            names = match["about"].split(", ") if match and match["about"] else []
            about = frozenset(unquote(name, errors=_AS_IS) for name in names)
            found.append(Past(entry.started_at, match["kind"] if match else "", entry.done, about))
    return found


@dataclass(frozen=True)
class Stop:
    """Why nothing more is repaired automatically, and when it goes on."""

    kind: str
    """Of what: a key of the policy."""
    reason: str
    lasts: bool
    """Until a person acts on the queue; else until the hour has passed."""

    def is_over(self, since: datetime, now: datetime, person: datetime | None) -> bool:
        """`person`: when one acted on the queue last."""
        acted = person is not None and person > since
        return acted or (not self.lasts and now - since >= _HOUR)

    @property
    def text(self) -> str:
        """For the audit; `stops_of` reads it back."""
        until = "until a person acts on the queue" if self.lasts else "for up to an hour"
        return f"{self.kind} stopped {until}: {self.reason}"


_STOP = re.compile(r"(?P<kind>\w+) stopped (?P<until>.+?): (?P<reason>.*)", re.DOTALL)


def stops_of(
    entries: Iterable[Entry], person: datetime | None, now: datetime
) -> dict[str, tuple[Entry, Stop]]:
    """What has stopped and not gone on yet, by the key of the policy.

    `entries`: of one queue's stops, the newest first. `person`: when one acted on it last.
    """
    found: dict[str, tuple[Entry, Stop]] = {}
    for entry in entries:
        match = _STOP.match(entry.detail)
        if match is not None and match["kind"] not in found:
            stop = Stop(match["kind"], match["reason"], match["until"].startswith("until"))
            if not stop.is_over(entry.started_at, now, person):
                found[stop.kind] = (entry, stop)
    return found


@dataclass(frozen=True)
class Audited:
    """What the audit tells of one queue."""

    now: datetime
    """By the database's clock."""
    repairs: Sequence[Past] = ()
    """Attempts, too: with no rows."""
    stops: Mapping[str, tuple[Entry, Stop]] = field(default_factory=dict)
    """What has stopped, by the key of the policy."""
    person: datetime | None = None
    """When a person acted on it last: what came back before is dealt with."""

    def within(self, time: timedelta) -> list[Past]:
        return [one for one in self.repairs if self.now - one.at < time]

    def since(self, at: datetime) -> list[Past]:
        return [one for one in self.repairs if one.at >= at]


def must_stop(
    policy: Policy, kind: Repairable, about: Iterable[str], rows: int, audited: Audited
) -> Stop | None:
    """Whether a repair of that many rows is one too many."""
    if stop := _returned(kind, about, audited):
        return stop
    last_hour = audited.within(_HOUR)
    if len(last_hour) >= policy.repairs_per_hour:
        reason = f"repairs_per_hour = {policy.repairs_per_hour:,} is used up"
        return Stop(kind.key, reason, lasts=False)
    used = sum(one.rows for one in last_hour)
    if used + rows > policy.rows_per_hour:
        reason = (
            f"rows_per_hour = {policy.rows_per_hour:,}: {used:,} used in the last hour, and "
            f"{rows:,} are found"
        )
        return Stop(kind.key, reason, lasts=False)
    return _unusual(kind, audited)


def _returned(kind: Repairable, about: Iterable[str], audited: Audited) -> Stop | None:
    recent = [
        one
        for one in audited.within(RETURNS_WITHIN)
        if one.kind == kind.key and one.rows and _is_news(one, audited)
    ]
    same = _is_among if kind is CLAIMS_GONE else _overlaps
    back = [name for name in about if sum(same(name, one.about) for one in recent) >= RETURNS]
    if not back:
        return None
    noun = "message" if kind is CLAIMS_GONE else "number"
    reason = (
        f"{noun} {', '.join(back[:5])}{' and more' if back[5:] else ''} came back after {RETURNS} "
        f"repairs within {duration(RETURNS_WITHIN.total_seconds())}"
    )
    return Stop(kind.key, reason, lasts=True)


def _is_news(one: Past, audited: Audited) -> bool:
    """Whether no person has acted on the queue since."""
    return audited.person is None or one.at > audited.person


def _is_among(name: str, about: Collection[str]) -> bool:
    return name in about


def _overlaps(run: str, about: Collection[str]) -> bool:
    """Whether two runs of numbers, `507-527` or `530`, have one in common."""
    first, last = _ends(run)
    return any(low <= last and first <= high for low, high in map(_ends, about))


def _ends(run: str) -> tuple[int, int]:
    first, _, last = run.partition("-")
    return int(first), int(last or first)


def _unusual(kind: Repairable, audited: Audited) -> Stop | None:
    """Only where there were such repairs more than a day ago: before, nothing is usual."""
    hours: dict[int, int] = {}
    latest = 0
    for one in audited.repairs:
        if one.kind == kind.key and one.rows:
            ago = int((audited.now - one.at) / _HOUR)
            hours[ago] = hours.get(ago, 0) + 1
            latest += ago == 0 and _is_news(one, audited)
    hours.pop(0, None)
    if not hours or max(hours) < 24 or latest < LEAST_UNUSUAL:
        return None
    busiest = max(hours.values())
    if latest <= MANY_TIMES_USUAL * busiest:
        return None
    reason = (
        f"{latest:,} repairs in the last hour, and never more than {busiest:,} in an hour of the "
        f"{USUAL_DAYS} days before"
    )
    return Stop(kind.key, reason, lasts=True)
