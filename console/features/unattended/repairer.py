"""Repairs, without a person, what the policy allows: proven when it was found and again at least
`AGAIN_SECONDS` later, by one recorder of the database at a time."""

import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from console import catalog, clock
from console.catalog import Queue, audit, decisions
from console.catalog.audit import Agent, Outcome, Subject
from console.catalog.decisions import Decision
from console.catalog.leases import Lease
from console.doctor.finding import Diagnosis, Finding
from console.doctor.repairs import try_repair
from console.doctor.watcher import DoctorUpdate, QueueName
from console.engines import Database, time_limit
from console.engines.database import reason_to_stop
from console.errors import ConnectionFailedError, ConsoleError
from console.features.unattended import audited
from console.features.unattended import policy as policies
from console.features.unattended.policy import Audited, Policy, Repairable, Stop
from console.features.unattended.repairs import TwiceProven
from console.monitor.limits import ThresholdsOf, silence_for, silences_of
from console.rights import Rights
from console.verbs.verb import Target

_LOG = logging.getLogger(__name__)
LEASE_SECONDS = 60.0
"""The longest time without repairs after the recorder that makes them was killed."""
_REPAIR_SECONDS = 40.0
"""Time-out of one repair: with what has to be recorded after it, it ends before the lease does."""
LEFT_SECONDS = 60.0
"""A finding that is not repaired by then is reported like any other."""

_FIGURES = re.compile(r"\d[\d.,:]*")

Key = tuple[str, str, str, str]
"""Schema and name of a queue, code and subject of a finding."""


@dataclass(frozen=True)
class _Found:
    """A finding of the last diagnosis of its queue that the policy allows to repair."""

    queue: Queue
    finding: Finding
    """As it was first proven, since the last attempt to repair it."""
    kind: Repairable
    policy: Policy
    since: float
    """When it was found first, by `clock.elapsed`."""
    proven: float | None
    """When `finding` was; None: an attempt has used that up, or the connection was lost."""
    left: str = ""
    """Why the last attempt has left it to a person; empty: it has not."""
    marked: bool = False
    """Whether it is shown as left to the recorder."""

    @property
    def may_be_marked(self) -> bool:
        return not self.left and clock.elapsed() - self.since <= LEFT_SECONDS


@dataclass(frozen=True)
class Attempt:
    """The result of an attempt to repair a finding."""

    queue: Queue
    code: str
    lines: tuple[str, ...]
    """What was done, or why not; empty: nothing was left to repair."""
    repaired: bool = False
    news: bool = True
    """Whether the last attempt ended differently."""

    @property
    def texts(self) -> Iterator[str]:
        for line in self.lines:
            yield f"{self.queue.label}: {self.code}: {line}"


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
        self._lease = Lease(
            database,
            "unattended",
            LEASE_SECONDS,
            purpose="repairs",
            me=f"{self.me} {secrets.token_hex(4)}",
            prepare=audit.prepare_decisions,
        )
        self._ask_at = 0.0
        """When to ask again whether the lease is free, by `clock.elapsed`."""
        self._lock = threading.Lock()
        self._found: dict[Key, _Found] = {}
        self._outdated: set[QueueName] = set()

    @property
    def held_by(self) -> str:
        """Who repairs; empty: not known yet, or this one."""
        return "" if self._lease.is_ours else self._lease.holder

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
        with self._lock:
            before = {key: self._found.pop(key) for key in [*self._found] if _of(key, queue)}
            # What could not be proven this time may be there: its last attempt is not forgotten.
            self._found |= {
                key: replace(one, proven=None)
                for key, one in before.items()
                if one.finding.code.name in diagnosis.unproven
            }
            findings = []
            for finding in diagnosis.findings:
                key = (*_name(queue), finding.code.name, finding.subject)
                found = self._to_repair(queue, finding, before.get(key))
                if found is not None:
                    self._found[key] = found
                    if found.marked:
                        finding = self._mark(finding, found, diagnosis.clock_ahead)  # noqa: PLW2901
                findings.append(finding)
            self._outdated.discard(_name(queue))
        return replace(diagnosis, findings=tuple(findings))

    def forget_proofs(self) -> None:
        """After a lost connection everything has to be proven again."""
        with self._lock:
            self._found = {key: replace(one, proven=None) for key, one in self._found.items()}

    @property
    def waits(self) -> bool:
        """Whether a repair is due, now or soon."""
        with self._lock:
            return any(found.proven is not None for found in self._found.values())

    def outdated(self) -> Collection[QueueName]:
        """Queues whose last diagnosis shows as left to the recorder what was so for too long, or is
        left to a person by now. What is repaired waits for the next round: where rolled-back calls
        leave numbers all the time, an extra one would spend a repair of the hour's budget."""
        with self._lock:
            late = {
                key[:2] for key, one in self._found.items() if one.marked and not one.may_be_marked
            }
            return self._outdated | late

    def step(self) -> list[Attempt]:
        """Make the repairs that are due. ConnectionFailedError; any other error is an attempt's."""
        now = clock.elapsed()
        with self._lock:
            due = {
                key: found
                for key, found in self._found.items()
                if found.proven is not None and now - found.proven >= self.again_seconds
            }
        attempts: list[Attempt] = []
        for key, found in due.items():
            attempt = self._attempt(found) if self.may_act else None
            if attempt is None:  # another one repairs
                break
            attempts.append(attempt)
            self._keep(key, found, attempt)
        return attempts

    def give_back(self) -> None:
        """Let another recorder take over at once. ConsoleError."""
        self._lease.give_back()

    def _to_repair(self, queue: Queue, finding: Finding, before: _Found | None) -> _Found | None:
        policy = self._policy_of(queue.name)
        kind = policy.kind_of(finding.code.name)
        repair = finding.repair
        if kind is None or repair is None or not self.may_act or finding.silenced is not None:
            return None
        if not repair.unattended or repair.rights > self._rights:
            return None
        if self._why_not(queue, kind, policy) or not TwiceProven(finding).possible:
            return None
        now = clock.elapsed()
        if before is None or not policies.is_same(kind, before.finding, finding):
            # Another recorder has repaired those that were found before.
            before = _Found(queue, finding, kind, policy, now, now)
        found = before
        if found.proven is None or found.queue != queue:
            found = replace(found, queue=queue, finding=finding, proven=now)
        return replace(found, marked=found.may_be_marked)

    def _why_not(
        self, queue: Queue, kind: Repairable, policy: Policy, held: Sequence[Decision] = ()
    ) -> str:
        return policies.why_not(queue, kind, policy, held, self.database)

    def _mark(self, finding: Finding, found: _Found, clock_ahead: timedelta) -> Finding:
        lasted = timedelta(seconds=clock.elapsed() - found.since)
        since = datetime.now(UTC) + clock_ahead - lasted
        left = Decision(
            kind="unattended",
            code=finding.code.name,
            schema=found.queue.schema,
            queue=found.queue.name,
            operator=self.held_by or self.me,
            database_user="",
            reason=found.policy.text(found.kind),
            since=since,
            until=since + timedelta(seconds=LEFT_SECONDS),
            push=False,
            severity=finding.code.severity.word,
        )
        return replace(finding, silenced=left)

    def _attempt(self, found: _Found) -> Attempt | None:
        """None: another one holds the lease."""
        queue, code = found.queue, found.finding.code.name
        with time_limit(_REPAIR_SECONDS):
            try:
                return self._repair(found) if self._hold() else None
            except ConnectionFailedError:
                if not (late := reason_to_stop()):
                    raise
                why = f"{late} for this repair"
            except ConsoleError as error:
                why = " ".join(filter(None, (error.what, error.why, error.next_step)))
            except Exception as error:  # noqa: BLE001  # the others are repaired
                _LOG.exception("%s: the repair of %s failed", queue.label, code)
                why = f"{type(error).__name__}: {error}"
        return self._left(found, f"not done: {why}")

    def _keep(self, key: Key, found: _Found, attempt: Attempt) -> None:
        """Each attempt takes a new proof."""
        with self._lock:
            present = self._found.get(key)
            if present is not None and attempt.repaired:
                del self._found[key]
            elif present is not None:
                left = "; ".join(attempt.lines)
                self._found[key] = replace(present, proven=None, left=left)
            if present is not None and found.marked and not attempt.repaired:
                self._outdated.add(_name(found.queue))

    def _hold(self) -> bool:
        """Take or renew the lease; whether it is ours."""
        if self.held_by and clock.elapsed() < self._ask_at:
            return False
        self._ask_at = clock.elapsed() + self.again_seconds / 2
        return self._lease.hold()

    def _repair(self, found: _Found) -> Attempt:
        queue, code = found.queue, found.finding.code.name
        with self.database.transaction("read the decisions", read_only=True) as connection:
            past = audited.read(connection, queue)
            known = catalog.queues(connection)
            held = decisions.active(connection)
        if queue not in known:  # dropped, or changed since, which the next diagnosis shows
            if not any(_name(one) == _name(queue) for one in known):
                self._forget(queue)
            return Attempt(queue, code, ())
        if why := self._refusal(found, past, held):
            return self._left(found, why)
        repair = TwiceProven(found.finding)
        about = policies.subjects(found.finding)
        target = Target(self.database, queue, self._rights, self._thresholds_of)
        with audit.acting_as(Agent(self.me, policies.detail(found.policy, found.kind, about))):
            plan = repair.plan(target)
            if not plan.needed:
                return Attempt(queue, code, ())
            result = try_repair(repair, target, plan)
        lines = tuple(line.strip() for line in result.lines)
        with self.database.transaction("read what was repaired", read_only=True) as connection:
            lately = audited.read(connection, queue, LEASE_SECONDS)
            done = sum(one.rows for one in lately.since(past.now))
        if result.outcome is Outcome.DONE and done:
            return Attempt(queue, code, lines, repaired=True)
        nothing = "" if result.outcome is Outcome.FAILED else "nothing done: "
        return self._left(found, nothing + "; ".join(lines))

    def _forget(self, queue: Queue) -> None:
        with self._lock:
            self._found = {key: one for key, one in self._found.items() if not _of(key, queue)}

    def _refusal(self, found: _Found, past: Audited, held: Sequence[Decision]) -> str:
        """Why it is not repaired now; a new stop is recorded. ConsoleError."""
        queue, kind, finding = found.queue, found.kind, found.finding
        code, silences = finding.code, silences_of(held, queue)
        if silenced := silence_for(silences, code.name, code.severity, finding.subject):
            return f"left to a person: {silenced.words}"
        if why := self._why_not(queue, kind, found.policy, held):
            return f"left to a person: {why}"
        if stopped := past.stops.get(kind.key):
            return stopped[1].text
        about, rows = policies.subjects(finding), TwiceProven(finding).rows
        if stop := policies.must_stop(found.policy, kind, about, rows, past):
            self._record(queue, stop)
            return stop.text
        return ""

    def _left(self, found: _Found, why: str) -> Attempt:
        """The same reason with other figures, such as a duration, is no news."""
        news = _FIGURES.sub("", why) != _FIGURES.sub("", found.left)
        return Attempt(found.queue, found.finding.code.name, (why,), news=news)

    def _record(self, queue: Queue, stop: Stop) -> None:
        """That it stops, for the doctor of every console. ConsoleError."""
        subject = Subject.of(self.database, queue, policies.STOP, stop.text)
        with (
            audit.acting_as(Agent(self.me, "")),
            self.database.transaction("record that repairs stop") as connection,
        ):
            record = audit.ActionRecord.begin(connection, subject)
            record.end(connection, Outcome.STOPPED)
            record.log_locally(Outcome.STOPPED, audit.Ledger())


def _name(queue: Queue) -> QueueName:
    return queue.schema, queue.name


def _of(key: Key, queue: Queue) -> bool:
    return key[:2] == _name(queue)


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
        self._examine: Callable[[Collection[QueueName]], None] = lambda _: None

    def start(self, examine: Callable[[Collection[QueueName]], None]) -> None:
        self._examine = examine
        self._thread.start()

    def marked(self, update: DoctorUpdate) -> DoctorUpdate:
        if isinstance(update.error, ConnectionFailedError):
            self._repairer.forget_proofs()
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
            self._guarded(self._step)
        self._guarded(self._repairer.give_back)

    def _step(self) -> None:
        label = self._repairer.database.label
        for attempt in self._repairer.step():
            done = "repaired automatically" if attempt.repaired else "not repaired"
            for text in attempt.texts if attempt.news else ():
                _LOG.info("%s: %s: %s", label, done, text)
                self._on_message(f"{label}: {done}: {text}")
        if outdated := self._repairer.outdated():
            self._examine(outdated)

    def _guarded(self, step: Callable[[], None]) -> None:
        label = self._repairer.database.label
        try:
            step()
        except ConsoleError as error:
            self._repairer.forget_proofs()  # a lost connection is reported by the samples
            _LOG.warning("%s: a repair without a person was not made: %s", label, error)
        except Exception:  # noqa: BLE001  # a dead thread repairs nothing
            _LOG.exception("%s: repairs without a person failed", label)


def run_once(
    repairer: Repairer, diagnose: Callable[[], Sequence[Diagnosis]]
) -> tuple[Sequence[Diagnosis], list[Attempt], bool]:
    """Examine, wait for the second proof, repair, for cron. Returns the diagnoses afterwards, what
    was done or left, and whether what the policy allows to repair is still there. ConsoleError."""
    diagnoses, attempts = diagnose(), []
    for diagnosis in diagnoses:
        repairer.marked(diagnosis)
    if repairer.waits:
        clock.sleep(repairer.again_seconds)
        try:
            attempts = repairer.step()
        finally:
            repairer.give_back()
        diagnoses = diagnose()
        for diagnosis in diagnoses:
            repairer.marked(diagnosis)
    return diagnoses, attempts, repairer.waits
