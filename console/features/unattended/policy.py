"""The policy of repairs without a person: what may be repaired, and when this stops automatically.

Nothing here reads a database: everything is decided from findings and from earlier repairs, as the
audit has them.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote, unquote

from console.catalog import Kind, Queue
from console.catalog.audit import Entry
from console.catalog.decisions import Decision
from console.config import Settings
from console.config import profile as keys
from console.config.values import OFF
from console.doctor.finding import Finding
from console.formats import duration

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
AGENT = "unattended"
"""The first word of what acts without a person, in the audit; and the verb of a stop there."""
NOUNS = {"orphans": "orphan", "holes": "hole", "claims_gone": "claim"}
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Repairable:
    """A kind of findings that can be repaired without a person."""

    key: str
    """In the configuration, under `unattended`."""
    values: tuple[str, ...]
    """What it may be there, besides `off`."""
    codes: tuple[str, ...]
    does: str
    safe: str
    """Why it takes no judgement and stops nobody."""


ORPHANS = Repairable(
    "orphans",
    ("always",),
    ("orphan", "spent"),
    "parks their numbers, so that the next pops take the messages",
    "a consumed number whose transaction has ended is never used again; pops and pushes continue",
)
HOLES = Repairable(
    "holes",
    ("pile", "always"),
    ("holes_pile_up", "hole", "stale_void"),
    "drops numbers that will never have a message; pile: only where they slow pops down",
    "no message has these numbers; pops and pushes continue",
)
CLAIMS_GONE = Repairable(
    "claims_gone",
    ("bound",),
    ("claims_gone",),
    "returns claims to the queue whose consumer bound them to its session, which is gone",
    "a session that is gone does not come back, and the consumer itself bound its claim to it; "
    "never by age, and never through a pooler",
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


def kind_named(key: str) -> Repairable:
    return next(kind for kind in REPAIRABLE if kind.key == key)


def why_not(queue: Queue, finding: Finding, kind: Repairable, policy: Policy) -> str:
    """Why a finding that the policy names is left to a person all the same; empty: it is not."""
    if finding.silenced is not None:
        return f"it is {finding.silenced.words}"
    if finding.repair is None or not finding.repair.unattended:
        return "its repair takes judgement"
    if queue.kind is Kind.ADOPTED and not (kind is CLAIMS_GONE and policy.library_rule):
        return (
            "the queue is adopted: only where its table says library_rule = true, and only claims"
        )
    return ""


def keeps_away(decision: Decision, queue: Queue) -> bool:
    """Whether an operator has paused or protected the queue."""
    of = (decision.schema, decision.queue)
    return of == (queue.schema, queue.name) and decision.kind in {"pause", "protection"}


def subjects(finding: Finding) -> tuple[str, ...]:
    """The numbers, or the messages, that a finding is about: the first hundred runs of numbers;
    of claims the ten oldest of each of its owners."""
    evidence = finding.evidence
    numbers, owners = evidence.get("numbers"), evidence.get("by_owner")
    if isinstance(numbers, Sequence):
        return tuple(f"{low}-{high}" if low != high else str(low) for low, high in numbers)
    if isinstance(owners, Sequence):
        return tuple(id_ for owner in owners for id_ in owner["ids"])
    return ()


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
_ABOUT = re.compile(rf'{AGENT}: (?P<kind>\w+) = "\w+" \((?P<about>.*)\)')


def detail(policy: Policy, kind: Repairable, about: Iterable[str]) -> str:
    """What the audit says of a repair: by which policy, and of what. `repairs_of` reads it back."""
    names = (quote(one, safe="", errors=_AS_IS) for one in about)
    return f"{AGENT}: {policy.text(kind)} ({', '.join(names)})"


def operator_name(operator: str, process: int) -> str:
    """Of the recorder, for the audit."""
    return f"{AGENT} {operator} pid {process}"


def is_unattended(entry: Entry) -> bool:
    return entry.operator.startswith(f"{AGENT} ")


def repairs_of(entries: Iterable[Entry]) -> list[Past]:
    """The earlier repairs among the audit's entries of one queue."""
    found = []
    for entry in entries:
        if is_unattended(entry) and entry.verb != AGENT:
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

    @property
    def text(self) -> str:
        """For the audit; `stop_of` reads it back."""
        until = "until a person acts on the queue" if self.lasts else "for up to an hour"
        return f"{self.kind} stopped {until}: {self.reason}"


_STOP = re.compile(r"(?P<kind>\w+) stopped (?P<until>.+?): (?P<reason>.*)", re.DOTALL)


def stops_of(entries: Sequence[Entry], now: datetime) -> dict[str, tuple[Entry, Stop]]:
    """What has stopped and not gone on yet, by the key of the policy. `entries`: of one queue, the
    newest first."""
    found: dict[str, tuple[Entry, Stop]] = {}
    for entry in entries:
        if not is_unattended(entry):
            break  # a person has acted since
        match = _STOP.match(entry.detail) if entry.verb == AGENT else None
        if match is not None and match["kind"] not in found:
            stop = Stop(match["kind"], match["reason"], match["until"].startswith("until"))
            if stop.lasts or now - entry.started_at < _HOUR:
                found[stop.kind] = (entry, stop)
    return found


def must_stop(
    policy: Policy,
    kind: Repairable,
    about: Iterable[str],
    rows: int,
    past: Sequence[Past],
    now: datetime,
) -> Stop | None:
    """Whether a repair of that many rows is one too many."""
    if stop := _returned(kind, about, past, now):
        return stop
    last_hour = [one for one in past if now - one.at < _HOUR]
    if len(last_hour) >= policy.repairs_per_hour:
        reason = f"repairs_per_hour = {policy.repairs_per_hour:,} is used up"
        return Stop(kind.key, reason, lasts=False)
    used = sum(one.rows for one in last_hour)
    if used + rows > policy.rows_per_hour:
        reason = (
            f"rows_per_hour = {policy.rows_per_hour:,}: {used:,} were repaired in the last hour, "
            f"and {rows:,} are found"
        )
        return Stop(kind.key, reason, lasts=False)
    return _unusual(kind, past, now)


def _returned(
    kind: Repairable, about: Iterable[str], past: Sequence[Past], now: datetime
) -> Stop | None:
    recent = [one for one in past if one.kind == kind.key and now - one.at < RETURNS_WITHIN]
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


def _is_among(name: str, about: Collection[str]) -> bool:
    return name in about


def _overlaps(run: str, about: Collection[str]) -> bool:
    """Whether two runs of numbers, `507-527` or `530`, have one in common."""
    first, last = _ends(run)
    return any(low <= last and first <= high for low, high in map(_ends, about))


def _ends(run: str) -> tuple[int, int]:
    first, _, last = run.partition("-")
    return int(first), int(last or first)


def _unusual(kind: Repairable, past: Sequence[Past], now: datetime) -> Stop | None:
    """Only where there were such repairs more than a day ago: before, nothing is usual."""
    hours: dict[int, int] = {}
    for one in past:
        if one.kind == kind.key:
            ago = int((now - one.at) / _HOUR)
            hours[ago] = hours.get(ago, 0) + 1
    latest = hours.pop(0, 0)
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
