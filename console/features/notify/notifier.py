"""Sends a recorder's notifications of findings, in threads of its own.

One thread queries the database; each delivery has another, so that a slow receiver delays neither
the recording nor other receivers.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from console.doctor.finding import Diagnosis
from console.doctor.watcher import DoctorUpdate
from console.engines import Database, time_limit
from console.errors import ConsoleError
from console.features.notify.outbox import (
    LEASE_SECONDS,
    Entry,
    Outbox,
    Pair,
    changes,
    endings_of_missing_queues,
    lacks_rights,
)
from console.features.notify.sending import NotSentError
from console.features.notify.targets import SECONDS, Event, Source, Target
from console.formats import duration

_LOG = logging.getLogger(__name__)
_TOGETHER = 50
"""The most events in one delivery."""
_STATEMENTS_SECONDS = 10.0
_RELOAD_SECONDS = 600.0
_REFUSED_SECONDS = 300.0
"""Rights may be granted meanwhile."""
_LONGEST_RETRY_AFTER = 3_600.0


@dataclass(frozen=True)
class Intervals:
    """In seconds."""

    lease: float = LEASE_SECONDS
    renew: float = LEASE_SECONDS / 3
    poll: float = 1.0
    first_back_off: float = 2.0
    longest_back_off: float = 300.0
    least_lease: float = SECONDS
    """Nothing is sent when less of the lease is left."""


INTERVALS = Intervals()


def back_off(failures: int, intervals: Intervals = INTERVALS) -> float:
    """How long to wait after that many failures in a row, with jitter."""
    longest = min(
        intervals.first_back_off * 2.0 ** min(failures - 1, 30), intervals.longest_back_off
    )
    return longest * random.uniform(0.75, 1.0)  # noqa: S311  # no secret


@dataclass
class _Delivery:
    """A delivery to one target, in a thread of its own."""

    target: Target
    source: Source
    entries: Sequence[Entry]
    is_last: bool
    """Whether nothing else waits for the target."""
    arrived: list[Event] = field(default_factory=list)
    error: NotSentError | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(
            target=self._run, name=f"notify {self.target.name}", daemon=True
        )
        self.thread.start()

    def _run(self) -> None:
        events = [event for entry in self.entries for event in entry.events]
        try:
            for event, _ in self.target.send(self.source, events):
                self.arrived.append(event)
        except NotSentError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001  # else it would count as sent
            _LOG.exception("a notification could not be sent")
            self.error = NotSentError(f"failed: {type(error).__name__}")

    @property
    def sent(self) -> dict[int, bool]:
        """notification_id -> whether the end of the finding has arrived too."""
        ended = {event.key: False for event in self.arrived}
        ended |= {event.key: True for event in self.arrived if event.ended}
        return {
            entry.notification_id: ended[entry.event_key]
            for entry in self.entries
            if entry.event_key in ended
        }


@dataclass
class _TargetState:
    target: Target
    delivery: _Delivery | None = None
    waiting_since: float | None = None
    failures: int = 0
    not_before: float = 0.0


class Notifier:
    """Notifies the targets of one connection of the doctor's findings while it holds the lease."""

    def __init__(
        self,
        database: Database,
        targets: Sequence[Target],
        source: Source,
        on_message: Callable[[str], None],
        intervals: Intervals = INTERVALS,
    ) -> None:
        """`on_message` gets lines for the operator, in any thread."""
        self._database = database
        self._source = source
        self._on_message = on_message
        self._intervals = intervals
        self._outbox = Outbox(database, intervals.lease)
        self._states = [_TargetState(target) for target in targets]
        self._targets = tuple(targets)
        self._entries: dict[int, Entry] | None = None
        """As in the outbox; None: to be read."""
        self._reload_at = 0.0
        self._next_hold = 0.0
        self._reported = ""
        self._lock = threading.Lock()
        self._diagnoses: dict[Pair, Diagnosis] = {}
        """The newest of each queue, if this recorder sends."""
        self._examined_pairs: set[Pair] = set()
        self._present: set[Pair] | None = None
        """The queues that the last whole round examined."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"notifier {database.label}", daemon=True
        )

    def start(self, *_: object) -> None:
        """Sends nothing on a read-only connection, which cannot hold the lease."""
        if not self._targets:
            return
        if self._database.read_only:
            self._report(
                'notifications are not sent: they need rights = "operator", for the lease that '
                "lets only one of several recorders send, and to record what was sent"
            )
            return
        self._thread.start()

    def marked(self, update: DoctorUpdate) -> DoctorUpdate:
        """As it is."""
        return update

    def examined(self, examined: DoctorUpdate) -> None:
        """Takes the doctor's diagnoses, in its thread."""
        with self._lock:
            if examined.error is not None:
                self._examined_pairs = set()
            for one in examined.diagnoses:
                pair = (one.queue.schema, one.queue.name)
                self._diagnoses[pair] = one
                self._examined_pairs.add(pair)
                if self._present is not None:
                    self._present = self._present | {pair}  # created since
            if examined.complete_round:
                self._present, self._examined_pairs = self._examined_pairs, set()
                self._diagnoses = {
                    k: diagnosis for k, diagnosis in self._diagnoses.items() if k in self._present
                }

    def stop(self, timeout_seconds: float) -> None:
        """Wait for deliveries and record them, at most that long; then give the lease back."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopped.wait(self._intervals.poll):
            self._guarded(self._step)
        for target_state in self._states:
            if target_state.delivery is not None:
                target_state.delivery.thread.join(SECONDS)
        self._guarded(self._collect)
        self._guarded(self._outbox.lease.give_back)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            with time_limit(_STATEMENTS_SECONDS):
                step()
        except ConsoleError as error:
            # A lost connection is reported by the samples.
            self._entries = None
            self._next_hold = time.monotonic() + self._intervals.renew
            if lacks_rights(error):
                self._next_hold = time.monotonic() + _REFUSED_SECONDS
                self._report(f"notifications are not sent: {str(error).replace(chr(10), ' ')}")
        except Exception:  # noqa: BLE001  # a dead thread sends nothing
            _LOG.exception("the notifier failed")
            self._entries = None
            self._next_hold = time.monotonic() + self._intervals.renew

    def _step(self) -> None:
        self._collect()
        if time.monotonic() >= self._next_hold:
            self._hold()
        if self._outbox.lease.left_seconds <= 0:
            self._entries = None  # another recorder writes them
            with self._lock:
                self._diagnoses, self._present = {}, None
            return
        if self._entries is None or time.monotonic() >= self._reload_at:
            self._entries = self._outbox.unfinished()
            self._reload_at = time.monotonic() + _RELOAD_SECONDS
        self._entries = self._updated(self._entries)
        if self._outbox.lease.left_seconds > self._intervals.least_lease:
            self._deliver(self._entries)

    def _hold(self) -> None:
        ours = self._outbox.lease.hold()
        self._next_hold = time.monotonic() + self._intervals.renew
        names = ", ".join(target.name for target in self._targets)
        self._report(
            f"it sends the notifications to {names}"
            if ours
            else f"notifications are sent by another recorder: {self._outbox.lease.holder}"
        )

    def _updated(self, entries: dict[int, Entry]) -> dict[int, Entry]:
        """The entries with the changes of the diagnoses since the last time."""
        with self._lock:
            diagnoses, present = dict(self._diagnoses), self._present
        found = tuple(diagnoses.values())
        if made := changes(tuple(entries.values()), self._targets, found, datetime.now(UTC)):
            entries = self._outbox.write(made, entries)
        if present is not None:
            gone = endings_of_missing_queues(tuple(entries.values()), self._targets, present)
            entries = self._outbox.write(gone, entries) if gone else entries
        with self._lock:  # newer ones are for the next time
            self._diagnoses = {
                k: diagnosis
                for k, diagnosis in self._diagnoses.items()
                if diagnoses.get(k) is not diagnosis
            }
            self._present = None if self._present is present else self._present
        return entries

    def _deliver(self, entries: dict[int, Entry]) -> None:
        now = time.monotonic()
        for target_state in self._states:
            waiting = [
                entry
                for entry in entries.values()
                if entry.target == target_state.target.name and entry.waits
            ]
            if target_state.delivery is not None or not waiting:
                continue
            if target_state.waiting_since is None:
                target_state.waiting_since = now
            if now < max(
                target_state.waiting_since + target_state.target.within_seconds,
                target_state.not_before,
            ):
                continue
            chosen = waiting[:_TOGETHER]
            tries = self._outbox.try_([entry.notification_id for entry in chosen])
            for number, count in tries.items():
                entries[number] = replace(entries[number], tries=count)
            ready = [entry for entry in chosen if entry.notification_id in tries]
            target_state.delivery = _Delivery(
                target_state.target, self._source, ready, len(chosen) == len(waiting)
            )

    def _collect(self) -> None:
        """Record what has arrived; until then nothing else is sent to that target."""
        for target_state in self._states:
            delivery = target_state.delivery
            if delivery is None or delivery.thread.is_alive():
                continue
            if sent := delivery.sent:
                self._mark_sent(self._outbox.sent(sent), sent)
            target_state.delivery = None
            self._finish_delivery(target_state, delivery)

    def _mark_sent(self, at: dict[int, datetime], sent: dict[int, bool]) -> None:
        for number, moment in at.items():
            if self._entries is not None and number in self._entries:
                if sent[number]:
                    del self._entries[number]
                else:
                    self._entries[number] = replace(self._entries[number], sent_at=moment)

    def _finish_delivery(self, target_state: _TargetState, delivery: _Delivery) -> None:
        name = f"notifications to {target_state.target.name}"
        if (error := delivery.error) is None:
            if target_state.failures:
                self._on_message(f"{self._database.label}: {name} arrive again")
                _LOG.warning("%s: %s arrive again", self._database.label, name)
            target_state.failures, target_state.not_before = 0, 0.0
            if delivery.is_last:
                target_state.waiting_since = None
            return
        target_state.failures += 1
        pause = max(
            back_off(target_state.failures, self._intervals),
            min(error.retry_after, _LONGEST_RETRY_AFTER),
        )
        target_state.not_before = time.monotonic() + pause
        # The error text is not for the log.
        _LOG.warning("%s: %s: not sent, try %d", self._database.label, name, target_state.failures)
        if target_state.failures == 1:
            again = f"tried again in {duration(pause)}, then less and less often"
            self._on_message(f"{self._database.label}: {name} are not sent: {error}; {again}")

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            _LOG.info("%s: notifications: what is done has changed", self._database.label)
            self._on_message(f"{self._database.label}: {text}")
