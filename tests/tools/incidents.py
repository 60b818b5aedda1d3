"""Invented incidents and quiet hours: a queue with its consumers, simulated and recorded.

A step is 15 seconds. Arrivals and departures are Poisson; the doctor sees with its real delays and
not always; unrelated notes, actions and findings are in every recording.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.features.history import segments
from console.features.history.segments import (
    ACTIONS,
    CONSUMERS,
    FINDINGS,
    LINKS,
    SAMPLES,
    WAITS,
    RecordKind,
)

STEP = 15.0
QUEUE = {"schema": "public", "queue": "orders"}
BEGIN = datetime(2026, 3, 27, 1, 0, tzinfo=UTC)


_NOTES = ("backup began", "shift begins", "called the network team", "deployed 3.2 of billing")
"""Of what has nothing to do with the queue."""


@dataclass
class Worker:
    """Sessions of one consumer."""

    name: str
    host: str
    sessions: int
    since: datetime
    last_pop: datetime | None = None
    last_call: datetime | None = None


@dataclass
class Simulation:
    """A queue over time. Incidents change its attributes while it runs."""

    seed: int
    ring: bool = False
    knows_processing: bool = True
    now: datetime = BEGIN
    latency: float = 0.004
    fail_share: float = 0.0
    """Of the pops, that end as errors."""
    stopped: bool = False
    """Pops return nothing."""
    rolled_back: bool = False
    """Consumers call, and nothing is committed."""
    push_blocked: bool = False
    lost: str = ""
    """Why the connection is lost."""
    role: str = "primary"
    problem: str = ""
    lock_waits: int = 0
    factor: float = 1.0
    """Of the pushes."""
    burst: float = 0.0
    """Messages that are pushed at once."""
    speed: float = 1.0
    """Of the consumers."""
    slots: int = 10_000_000
    found: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Code -> severity and summary, of the findings in force."""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        pick = self.random
        self.rate = pick.choice([2.0, 12.0, 60.0, 310.0])
        """Of the pushes, a second."""
        self.service = pick.choice([0.02, 0.2, 1.0])
        """Seconds of work a message."""
        load = pick.uniform(0.35, 0.7)
        # No fewer than two are busy enough that a queue with slower ones grows.
        self.service = max(self.service, 2 * load / self.rate)
        sessions = max(2, math.ceil(self.rate * self.service / load - 1e-9))
        self.spare = sessions / (self.rate * self.service)
        hosts = ["app3", "app4"] if sessions > 2 else ["app3"]
        shares = [sessions // len(hosts) + (i < sessions % len(hosts)) for i in range(len(hosts))]
        old = self.now - timedelta(days=1)
        self.workers = [
            Worker("mailer", host, share, old, self.now, self.now)
            for host, share in zip(hosts, shares, strict=True)
        ]
        self.usual_sessions = sessions
        self.queue: deque[list[Any]] = deque()
        self.ready = 0
        self.errors = pick.choice([0, 3, 40])
        self.phase = pick.uniform(0, 2 * math.pi)
        self.noise = 1.0
        self.pushes = self.pops = 0.0
        self.action_id = pick.randint(100, 900)
        self.clean_at = self.now
        self.stopped_since: datetime | None = None
        self.chronic()

    def chronic(self) -> None:
        """Findings that have been there for long, and explain nothing."""
        for code, chance in (("consumers_unsaid", 0.5), ("bloat", 0.15), ("archive_lags", 0.2)):
            if self.random.random() < chance:
                self.found[code] = ("note", f"{code} since last week")
        if self.random.random() < 0.1:
            self.found["claims_unknown"] = ("warning", "3 claims older than 5 min")

    @property
    def sessions(self) -> int:
        return sum(worker.sessions for worker in self.workers)

    def poisson(self, mean: float) -> int:
        if mean <= 0:
            return 0
        if mean > 50:
            return max(0, round(self.random.gauss(mean, math.sqrt(mean))))
        limit, number, product = math.exp(-mean), 0, self.random.random()
        while product > limit:
            number, product = number + 1, product * self.random.random()
        return number

    def add(self, of: RecordKind, /, **row: Any) -> None:
        self.rows.setdefault(of.name, []).append({"at": self.now, **row})

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step()
            self.now += timedelta(seconds=STEP)

    def step(self) -> None:
        pick = self.random
        # Traffic of its hour, and noise that lasts for minutes.
        hour = self.hour
        self.noise = 1 + 0.9 * (self.noise - 1) + pick.gauss(0, 0.03)
        wanted = self.poisson(self.rate * hour * self.noise * self.factor * STEP + self.burst)
        self.burst = 0.0
        free = self.slots - self.ready if self.ring else wanted
        pushed = 0 if self.push_blocked or self.lost else max(0, min(wanted, free))
        if pushed:
            self.queue.append([self.now, pushed])
            self.ready += pushed
        works = not (self.stopped or self.rolled_back or self.lost)
        # A pool that is as large as at the start has the same capacity, whatever its rounding.
        share = self.sessions / self.usual_sessions
        capacity = share * self.spare * self.rate * STEP * self.speed
        popped = min(self.ready, self.poisson(capacity)) if works else 0
        self._take(popped)
        self.pushes, self.pops = pushed / STEP, popped / STEP
        self.errors += self.poisson(popped * (self.fail_share + 2e-6))
        for worker in self.workers:
            calls = worker.sessions and not self.lost
            if calls and popped:
                worker.last_pop = self.now
            if calls and (popped or self.rolled_back):
                worker.last_call = self.now
        self.stopped_since = None if popped or not self.ready else self.stopped_since or self.now
        self._record()
        if pick.random() < STEP / 3600:
            self.unrelated()

    @property
    def hour(self) -> float:
        """The traffic of the time of day, as a part of the mean."""
        return 1 + 0.25 * math.sin(self.phase + 2 * math.pi * self.now.timestamp() / 86_400)

    def _take(self, popped: int) -> None:
        self.ready -= popped
        while popped:
            at, count = self.queue[0]
            taken = min(count, popped)
            popped -= taken
            if taken == count:
                self.queue.popleft()
            else:
                self.queue[0] = [at, count - taken]

    @property
    def age(self) -> float:
        at = self.queue[0][0] if self.queue else self.now
        return float((self.now - at).total_seconds()) + self.random.random()

    def _record(self) -> None:
        if self.lost:
            self.add(LINKS, error=self.lost, next_seconds=STEP)
            return
        latency = self.latency * self.random.lognormvariate(0, 0.25)
        self.add(LINKS, latency_seconds=latency, queues=1, next_seconds=STEP, role=self.role)
        age = self.age if self.ready else 0.0
        busy = min(self.sessions, round(self.pops * self.service / self.speed))
        processing = self.service / self.speed * self.random.lognormvariate(0.7, 0.08)
        self.add(
            SAMPLES, **QUEUE, design="ring" if self.ring else "claim", ready=self.ready,
            age_seconds=age, push_per_second=self.pushes, pop_per_second=self.pops,
            gap=self.ready if self.ring else None, capacity=self.slots if self.ring else None,
            claimed=busy, stuck=0, errors=self.errors, problem=self.problem,
            latency_seconds=latency, next_seconds=STEP,
            waiting_p95_seconds=age * 0.95 + self.random.random() * 0.02 if self.pops else None,
            processing_p95_seconds=processing if self.knows_processing and self.pops else None,
        )  # fmt: skip
        if self.lock_waits:
            self.add(WAITS, **QUEUE, kind="Lock", wait="relation", sessions=self.lock_waits)
        self.add(WAITS, **QUEUE, kind="Client", wait="ClientRead", sessions=self.sessions)
        if self.now.second % 30 == 0:
            self._examine()

    def _examine(self) -> None:
        found = dict(self.found)
        since = self.stopped_since
        if since and (self.now - since).total_seconds() >= 60 and self.seen("consumer_stopped"):
            found["consumer_stopped"] = ("warning", f"{self.ready} ready, and nothing was popped")
        if self.ready > 1_000 and self.age > 60:
            found["limit_reached"] = ("warning", f"oldest {self.age:.0f} s")
        if self.ring and self.ready > 0.9 * self.slots:
            full = self.ready >= self.slots
            code = "full" if full and not self.pops else "filling"
            found[code] = ("critical" if code == "full" else "warning", "the ring is nearly full")
        for code, (severity, summary) in found.items():
            self.add(
                FINDINGS, **QUEUE, verdict="warning", code=code, severity=severity, summary=summary
            )
        if not found:
            self.add(FINDINGS, **QUEUE, verdict="all clear")
        late = self.ready if self.age > 60 and self.ready else 0
        alive = [worker for worker in self.workers if worker.sessions]
        for worker in alive:
            self.add(
                CONSUMERS, **QUEUE, late=late, name=worker.name, does="pop", program="mailer.py",
                host=worker.host, user="app", sessions=worker.sessions, since=worker.since,
                last_pop=worker.last_pop, last_call=worker.last_call, claims=0, identities="",
            )  # fmt: skip
        self.add(
            CONSUMERS, **QUEUE, late=late, name="shop", does="push", program="shop", host="web1",
            user="app", sessions=4, since=BEGIN, last_call=self.now,
        )  # fmt: skip

    def seen(self, code: str) -> bool:
        """Whether the doctor of this recording sees such a finding: in two of three."""
        return random.Random(f"{self.seed}{code}").random() < 0.67

    def find(self, code: str, severity: str, summary: str, *, surely: bool = False) -> None:
        if surely or self.seen(code):
            self.found[code] = (severity, summary)

    def act(self, verb: str, *, note: str | None = None, done: int = 0, ago: float = 0.0) -> None:
        self.action_id += 1
        at = self.now - timedelta(seconds=ago)
        self.rows.setdefault(ACTIONS.name, []).append(
            {"at": at, **QUEUE, "action_id": self.action_id, "verb": verb, "ended_at": at,
             "operator": "ann@ops1", "outcome": "done", "planned": done, "done": done,
             "skipped": 0, "failed": 0, "note": note}
        )  # fmt: skip

    def unrelated(self) -> None:
        """What happens anyway."""
        kind = self.random.randrange(8)
        if kind == 0:
            self.act("note", note=self.random.choice(_NOTES))
        elif kind == 1:
            self.act("archive", done=1200)
        elif kind == 2:
            self.act("silence")
        elif kind == 3:  # a job pushes at once what is done in a minute or two
            self.burst = self.rate * self.random.uniform(10, 60)
        elif kind == 4:
            self.errors += self.random.randrange(1, 6)
        elif kind == 5:  # this console lost its connection for a moment
            self.add(LINKS, error="connection reset by peer", next_seconds=STEP)
        elif kind == 6 and self.workers[0].sessions > 2:
            self.workers[0].sessions -= 1
        else:
            self.workers[0].sessions = max(1, self.workers[0].sessions)
            self.workers[-1].sessions += 1

    def restart(self) -> None:
        for worker in self.workers:
            worker.since = self.now

    def write(self, root: Path, connection: str = "prod") -> None:
        segment = segments.Segment(root, connection, BEGIN)
        for kind in (SAMPLES, LINKS, WAITS, FINDINGS, ACTIONS, CONSUMERS):
            segment.write(kind, self.rows.get(kind.name, ()))
        segment.close()


def _dead(sim: Simulation) -> None:
    partly = sim.random.random() < 0.4 and sim.sessions > 3
    for worker in sim.workers:
        worker.sessions = int(partly and worker.sessions > 1)
    sim.run(sim.random.uniform(6, 25) * 60)


def _slow(sim: Simulation) -> None:
    sim.speed = sim.random.uniform(0.12, 0.3)
    sim.run(sim.random.uniform(10, 30) * 60)


def _poison(sim: Simulation) -> None:
    sim.rolled_back = True
    sim.run(90)
    head = sim.random.random() < 0.8
    what = "id 4711 was popped and put back 61 times"
    sim.find("head_stuck" if head else "poison", "warning", what, surely=True)
    sim.run(sim.random.uniform(5, 25) * 60)


def _blocker(sim: Simulation) -> None:
    sim.stopped = True
    sim.push_blocked = sim.random.random() < 0.3
    sim.lock_waits = sim.sessions
    sim.run(45)
    code, what = sim.random.choice(
        [("table_locked", "ALTER TABLE of session 4242 stops all others"),
         ("rows_held", "session 4242 holds rows of it for 12 min")]
    )  # fmt: skip
    sim.find(code, "critical", what)
    sim.run(sim.random.uniform(5, 25) * 60)


def _bloat(sim: Simulation) -> None:
    minutes = round(sim.random.uniform(40, 80))
    for minute in range(minutes):
        sim.latency = 0.004 * (1 + 60 * minute / minutes)
        sim.speed = 1 - 0.85 * minute / minutes
        if minute == minutes // 3:
            code = sim.random.choice(["dead_head", "xmin_held", "bloat"])
            sim.find(code, "note", "2,000,000 dead rows", surely=True)
        sim.run(60)
    sim.run(sim.random.uniform(10, 20) * 60)


def _flood(sim: Simulation) -> None:
    sim.factor = sim.random.uniform(4, 9)
    sim.run(sim.random.uniform(5, 25) * 60)


def _deployment(sim: Simulation) -> None:
    version = f"{sim.random.randrange(9)}.{sim.random.randrange(20)}"
    notes = [f"deployed {version} of mailer", f"release {version}", f"mailer {version} rolled out"]
    sim.act("note", note=sim.random.choice(notes))
    sim.run(sim.random.uniform(0.5, 3) * 60)
    sim.restart()
    broke = sim.random.randrange(3)
    if broke == 0:
        sim.speed = 0.2
    elif broke == 1:
        sim.fail_share = 0.4
        sim.run(120)
        sim.find("error_burst", "warning", "812 errors in 10 min, in the day before 3")
    else:
        sim.rolled_back = True
    sim.run(sim.random.uniform(8, 25) * 60)


def _failover(sim: Simulation) -> None:
    sim.lost = "connection refused"
    sim.run(sim.random.uniform(30, 150))
    sim.lost = ""
    sim.restart()
    sim.speed = sim.random.uniform(0.1, 0.35)
    if sim.random.random() < 0.5:
        sim.find("orphan", "critical", "49 orphans since the crash", surely=True)
    if sim.random.random() < 0.3:
        sim.workers[0].sessions = max(1, sim.workers[0].sessions // 2)
    sim.run(sim.random.uniform(5, 20) * 60)


def _storm(sim: Simulation) -> None:
    sim.fail_share = sim.random.uniform(0.2, 0.9)
    sim.run(120)
    sim.find("error_burst", "warning", "812 errors in 10 min, in the day before 3")
    sim.run(sim.random.uniform(4, 20) * 60)


def _full(sim: Simulation) -> None:
    # A little more is pushed than popped, since before the recording began.
    for _ in range(180):
        sim.spare = 0.9 * sim.hour * sim.usual_sessions / sim.sessions
        sim.run(60)
    sim.slots = sim.ready
    sim.run(sim.random.uniform(10, 40) * 60)


def _paused(sim: Simulation) -> None:
    sim.act("pause")
    sim.stopped = True
    sim.run(sim.random.uniform(40, 300) * 60)


def _denied(sim: Simulation) -> None:
    sim.rolled_back = True
    if sim.random.random() < 0.5:
        sim.problem = "permission denied for table orders"
    sim.run(sim.random.uniform(6, 25) * 60)


KINDS: dict[str, Callable[[Simulation], None]] = {
    "consumers": _dead,
    "slow": _slow,
    "poison": _poison,
    "blocked": _blocker,
    "bloat": _bloat,
    "flood": _flood,
    "deployed": _deployment,
    "failover": _failover,
    "errors": _storm,
    "full": _full,
    "paused": _paused,
    "denied": _denied,
}
"""By the code of its true cause."""


def incident(kind: str, seed: int) -> Simulation:
    """A recording that ends some minutes after it began."""
    sim = Simulation(seed)
    sim.ring = kind == "full" or sim.random.random() < 0.3
    sim.knows_processing = not sim.ring
    if kind != "full":
        sim.run(3 * 3600)
    KINDS[kind](sim)
    return sim


def quiet(hours: int, seed: int) -> Simulation:
    """A recording in which nothing happens that would wake anyone."""
    sim = Simulation(seed)
    sim.run(hours * 3600)
    return sim
