"""Repairs, without a person, what the policy allows: proven when it was found and again at least
`AGAIN_SECONDS` later, by one recorder of the database at a time."""

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from console import catalog, clock, sql
from console.catalog import Queue, audit, decisions
from console.catalog.audit import Agent, EntryFilter, Outcome, Subject
from console.catalog.decisions import Decision
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import try_repair
from console.doctor.watcher import DoctorUpdate
from console.engines import Database, time_limit
from console.errors import ConsoleError
from console.features.unattended import policy as policies
from console.features.unattended.policy import Policy, Repairable, Stop
from console.features.unattended.repairs import TwiceProven
from console.monitor.limits import ThresholdsOf
from console.rights import Rights
from console.verbs.verb import Target

_LOG = logging.getLogger(__name__)
_LEASE = "unattended"
LEASE_SECONDS = 60.0
"""The longest time without repairs after the recorder that makes them was killed."""
LEFT_SECONDS = 60.0
"""A finding that is not repaired by then is reported like any other."""
_STEP_SECONDS = 120.0
"""Time-out of the repairs that are due."""

Key = tuple[str, str, str, str]
"""Schema and name of a queue, code and subject of a finding."""


@dataclass(frozen=True)
class _Waiting:
    """A finding that was proven once."""

    queue: Queue
    finding: Finding
    kind: Repairable
    policy: Policy
    since: float
    """When it was found first, by `clock.elapsed`."""


class Repairer:
    """Of one database. `marked` may be called in another thread than the rest."""

    def __init__(
        self,
        database: Database,
        policy_of: Callable[[str], Policy],
        *,
        rights: Rights,
        thresholds_of: ThresholdsOf,
        again_seconds: float | None = None,
    ) -> None:
        """`policy_of` a queue's name. `again_seconds`: between the two proofs."""
        self.database = database
        self._policy_of = policy_of
        self._rights = rights
        self._thresholds_of = thresholds_of
        self.again_seconds = policies.AGAIN_SECONDS if again_seconds is None else again_seconds
        self.me = policies.operator_name(audit.operator(), os.getpid())
        self._holder = f"{self.me} {secrets.token_hex(4)}"
        self.held_by = ""
        """Who repairs; empty: not known yet, or this one."""
        self._prepared = False
        self._lock = threading.Lock()
        self._waiting: dict[Key, _Waiting] = {}
        self._since: dict[Key, float] = {}
        """Of the findings of the last diagnoses that the policy allows to repair."""
        self._stopped: set[tuple[str, str, str]] = set()
        """Schema and name of a queue, key of the policy."""

    @property
    def may_act(self) -> bool:
        return (
            self._rights >= Rights.OPERATOR
            and not self.database.read_only
            and self.database.seen_standby is None
        )

    def marked(self, diagnosis: Diagnosis) -> Diagnosis:
        """The findings that are about to be repaired, marked as left to the recorder: nobody has to
        know before that has failed. It remembers them as proven once."""
        queue = diagnosis.queue
        mine = {key: since for key, since in self._since.items() if key[:2] == _name(queue)}
        findings, seen = [], {}
        for finding in diagnosis.findings:
            key = (*_name(queue), finding.code.name, finding.subject)
            waiting = self._to_repair(queue, finding, mine.get(key, clock.elapsed()))
            if waiting is not None:
                seen[key] = waiting
                finding = self._mark(finding, waiting, diagnosis.clock_ahead)  # noqa: PLW2901
            findings.append(finding)
        with self._lock:
            for key in mine:
                self._since.pop(key, None)
                self._waiting.pop(key, None)
            self._since |= {key: waiting.since for key, waiting in seen.items()}
            self._waiting |= seen
        return replace(diagnosis, findings=tuple(findings))

    def forget(self) -> None:
        """What was proven: after a lost connection it has to be proven again."""
        with self._lock:
            self._waiting, self._since = {}, {}

    @property
    def waits(self) -> bool:
        """Whether a repair is due, now or soon."""
        with self._lock:
            return bool(self._waiting)

    def step(self) -> list[str]:
        """Make the repairs that are due; what was done or not, a line each. ConsoleError."""
        now = clock.elapsed()
        with self._lock:
            due = {k: w for k, w in self._waiting.items() if now - w.since >= self.again_seconds}
        if not due or not self.may_act or not self._hold():
            return []
        lines = []
        for key, waiting in due.items():
            with self._lock:
                if self._waiting.pop(key, None) is None:
                    continue  # not found any more
            with time_limit(_STEP_SECONDS):
                lines += self._repair(waiting)
        return lines

    def give_back(self) -> list[str]:
        """Let another recorder take over at once; nothing to report. ConsoleError."""
        if self._prepared and not self.held_by:
            with self.database.transaction("give the lease back") as connection:
                catalog.end_lease(connection, _LEASE, self._holder)
        return []

    def _to_repair(self, queue: Queue, finding: Finding, since: float) -> _Waiting | None:
        policy = self._policy_of(queue.name)
        kind = policy.kind_of(finding.code.name)
        if kind is None or not self.may_act or policies.why_not(queue, finding, kind, policy):
            return None
        if kind is policies.CLAIMS_GONE and self.database.pooled:
            return None
        if finding.repair is None or finding.repair.rights > self._rights:
            return None
        waiting = _Waiting(queue, finding, kind, policy, since)
        return waiting if TwiceProven(finding).possible else None

    def _mark(self, finding: Finding, waiting: _Waiting, clock_ahead: timedelta) -> Finding:
        lasted = clock.elapsed() - waiting.since
        stopped = (*_name(waiting.queue), waiting.kind.key) in self._stopped
        if stopped or lasted > LEFT_SECONDS:
            return finding
        since = datetime.now(UTC) + clock_ahead - timedelta(seconds=lasted)
        left = Decision(
            kind="unattended",
            code=finding.code.name,
            schema=waiting.queue.schema,
            queue=waiting.queue.name,
            operator=self.me,
            database_user="",
            reason=waiting.policy.text(waiting.kind),
            since=since,
            until=since + timedelta(seconds=LEFT_SECONDS),
            push=False,
            severity=finding.code.severity.word,
        )
        return replace(finding, silenced=left)

    def _hold(self) -> bool:
        """Take or renew the lease; whether it is ours."""
        with self.database.transaction("take the lease for repairs") as connection:
            if not self._prepared:
                audit.prepare_decisions(connection)
            taken = catalog.take_lease(connection, _LEASE, self._holder, LEASE_SECONDS)
        self._prepared = True
        self.held_by = "" if taken.holder == self._holder else taken.holder
        return not self.held_by

    def _repair(self, waiting: _Waiting) -> list[str]:
        queue, kind, finding = waiting.queue, waiting.kind, waiting.finding
        repair = TwiceProven(finding)
        about = policies.subjects(finding)
        name = f"{queue.label}: {finding.code.name}"
        with self.database.transaction("read the decisions", read_only=True) as connection:
            now = sql.value(connection, datetime, "actions.server_time")
            known = catalog.queues(connection)
            held = [one for one in decisions.active(connection) if policies.keeps_away(one, queue)]
            of = EntryFilter(queue.schema, queue.name, since=policies.USUAL_SECONDS)
            entries = audit.entries(connection, of)
        if not any(_name(one) == _name(queue) for one in known):
            return []
        if held:
            return [f"{name}: left to a person: {held[0].words}"]
        stopped = policies.stops_of(entries, now).get(kind.key)
        past = policies.repairs_of(entries)
        if stopped is None:
            stop = policies.must_stop(waiting.policy, kind, about, repair.rows, past, now)
            if stop is not None:
                self._record(queue, stop)
        else:
            stop = stopped[1]
        of_stop = (*_name(queue), kind.key)
        if stop is not None:
            self._stopped.add(of_stop)
            return [f"{name}: {stop.text}"]
        self._stopped.discard(of_stop)
        agent = Agent(self.me, policies.detail(waiting.policy, kind, about))
        target = Target(self.database, queue, self._rights, self._thresholds_of)
        with audit.acting_as(agent):
            plan = repair.plan(target)
            lines = try_repair(repair, target, plan).lines if plan.needed else ()
        return [f"{name}: {line}" for line in lines]

    def _record(self, queue: Queue, stop: Stop) -> None:
        """That it stops, for the doctor of every console. ConsoleError."""
        subject = Subject.of(self.database, queue, "unattended", stop.text)
        with (
            audit.acting_as(Agent(self.me, "")),
            self.database.transaction("record that repairs stop") as connection,
        ):
            record = audit.ActionRecord.begin(connection, subject)
            record.end(connection, Outcome.STOPPED)
            record.log_locally(Outcome.STOPPED, audit.Ledger())


def _name(queue: Queue) -> tuple[str, str]:
    return queue.schema, queue.name


class RepairThread:
    """Runs a repairer beside a recorder (`Companion`)."""

    def __init__(
        self, repairer: Repairer, on_message: Callable[[str], None], poll_seconds: float = 1.0
    ) -> None:
        """`on_message` gets lines for the operator, in any thread."""
        self._repairer = repairer
        self._on_message = on_message
        self._poll_seconds = poll_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"unattended {repairer.database.label}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def marked(self, update: DoctorUpdate) -> DoctorUpdate:
        if update.error is not None:
            self._repairer.forget()
        diagnoses = tuple(map(self._repairer.marked, update.diagnoses))
        return replace(update, diagnoses=diagnoses)

    def examined(self, update: DoctorUpdate) -> None:
        """Nothing more: `marked` has seen it."""

    def stop(self, timeout_seconds: float) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            if self._repairer.waits:
                self._guarded(self._repairer.step)
        self._guarded(self._repairer.give_back)

    def _guarded(self, step: Callable[[], Sequence[str]]) -> None:
        label = self._repairer.database.label
        try:
            lines = step()
        except ConsoleError as error:
            self._repairer.forget()  # a lost connection is reported by the samples
            _LOG.warning("%s: a repair without a person was not made: %s", label, error)
        except Exception:  # noqa: BLE001  # a dead thread repairs nothing
            self._repairer.forget()
            _LOG.exception("%s: a repair without a person failed", label)
        else:
            for line in lines:
                _LOG.info("%s: %s", label, line)
                self._on_message(f"{label}: repaired automatically: {line}")


def run_once(
    repairer: Repairer, diagnose: Callable[[], Sequence[Diagnosis]]
) -> tuple[list[Diagnosis], list[str]]:
    """Examine, wait for the second proof, repair: for cron. Returns the diagnoses as marked, and
    what was done. ConsoleError."""
    diagnoses = [repairer.marked(diagnosis) for diagnosis in diagnose()]
    lines: list[str] = []
    if repairer.waits:
        time.sleep(repairer.again_seconds)
        lines = repairer.step()
        repairer.give_back()
    return diagnoses, lines
