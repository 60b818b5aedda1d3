"""Notifications: each finding and its end arrive once, from one of several recorders, whatever the
receiver does. Recorders as processes: see cli/test_notifications."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from console.catalog import Queue
from console.catalog.decisions import Decision
from console.clock import utc
from console.designs import DESIGNS
from console.doctor.finding import Code, Diagnosis, Finding
from console.doctor.watcher import DoctorUpdate
from console.engines import Database
from console.errors import ConnectionFailedError
from console.features.notify import outbox
from console.features.notify.notifier import Intervals, Notifier
from console.features.notify.outbox import Outbox, prepare
from console.features.notify.targets import Source, Target, Webhook
from console.monitor.limits import Severity
from console.sql import templates
from tests.contract.client import Client
from tests.contract.test_every_statement import labels_run, rows_checked
from tests.contract.variants import Variant
from tests.servers import wait_until
from tests.servers.receivers import Receiver, receiving

pytestmark = pytest.mark.slow

INTERVALS = Intervals(renew=0.2, poll=0.02, first_back_off=0.1, longest_back_off=0.2)
"""With the real lease, which is not lost on a slow machine."""
HOUR = 3600.0
STOPPED = Code("consumer_stopped", Severity.WARNING, "messages wait")
FULL = Code("full", Severity.CRITICAL, "no push fits")


@pytest.fixture
def queue(use: Callable[[Variant], Client], database: Database) -> Queue:
    """An installed queue, so that the catalog exists; nothing was sent, and no recorder runs."""
    client = use(Variant(DESIGNS["fifo"], {}))
    with database.transaction("begin anew") as connection:
        prepare(connection)
        for table in ("notification", "lease"):
            connection.exec_driver_sql(f"DELETE FROM dbq.{table}")
    return client.queue


def target(receiver: Receiver, name: str = "hook", within: float = 0.0) -> Target:
    return Target(name, Webhook(receiver.url, str), within_seconds=within)


class Recorder:
    """The notifier of a recorder, and what it reported."""

    def __init__(self, database: Database, *targets: Target) -> None:
        self.reported: list[str] = []
        self.notifier = Notifier(
            database, targets, Source("orders"), self.reported.append, INTERVALS
        )

    def has_findings(self, queue: Queue, *codes: Code, unproven: str = "") -> None:
        """Pass it the doctor's findings."""
        findings = tuple(Finding(code, f"{code.name} it is") for code in codes)
        diagnosis = Diagnosis(queue, findings, unproven=frozenset({unproven}))
        self.notifier.examined(DoctorUpdate((diagnosis,), complete_round=True))

    def is_sender(self) -> bool:
        return any("it sends the notifications" in words for words in self.reported)


@contextmanager
def recorder(database: Database, *targets: Target, first: bool = True) -> Iterator[Recorder]:
    """`first`: no other recorder sends, so this one does."""
    new_recorder = Recorder(database, *targets)
    new_recorder.notifier.start()
    try:
        if first:
            wait_until(new_recorder.is_sender, "it sends")
        yield new_recorder
    finally:
        new_recorder.notifier.stop(60.0)


def arrived(receiver: Receiver, *events: tuple[str, str]) -> Callable[[], bool]:
    return lambda: sorted(receiver.events_and_codes()) == sorted(events)


def more_than(receiver: Receiver, events: int) -> bool:
    return len(receiver.events) > events


def has_unfinished(database: Database, number: int) -> bool:
    return len(unfinished(database)) == number


def unfinished(database: Database) -> list[outbox.Entry]:
    return list(Outbox(database).unfinished().values())


def test_a_finding_and_its_end_arrive_once_each_despite_restarts(
    database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every statement for notifications returns its row type."""
    with receiving(Receiver()) as receiver, labels_run() as labels, rows_checked(monkeypatch):
        for _ in range(2):
            with recorder(database, target(receiver)) as one:
                one.has_findings(queue, STOPPED)
                wait_until(arrived(receiver, ("begun", STOPPED.name)), "it begins")
                wait_until(lambda: all(not it.waits for it in unfinished(database)), "it is kept")
        with recorder(database, target(receiver)) as one:
            one.has_findings(queue, unproven=STOPPED.name)
            one.has_findings(queue, FULL, unproven=STOPPED.name)
            expected = [("begun", STOPPED.name), ("begun", FULL.name)]
            wait_until(arrived(receiver, *expected), "nobody knows whether the first has ended")
            one.has_findings(queue)
            expected += [("ended", STOPPED.name), ("ended", FULL.name)]
            wait_until(arrived(receiver, *expected), "they end")
            one.has_findings(queue, FULL)
            wait_until(arrived(receiver, *expected, ("begun", FULL.name)), "it begins anew")
            one.notifier.examined(DoctorUpdate(complete_round=True))
            again = *expected, ("begun", FULL.name), ("ended", FULL.name)
            wait_until(arrived(receiver, *again), "its queue is gone")
        wait_until(lambda: not unfinished(database), "all is kept")
    keys: dict[str, list[str]] = {}
    for event in receiver.events:
        keys.setdefault(event["key"], []).append(event["event"])
    assert sorted(keys.values()) == [["begun", "ended"]] * 3
    assert {one["connection"] for one in receiver.events} == {"orders"}
    every = {
        statement.label
        for statement in templates.statements(database.product.name, "notify").values()
    }
    assert labels >= every - {"notify.withdraw"}


@pytest.mark.parametrize("fault", ["down", "error", "garbage", "refused"])
def test_a_notification_is_sent_until_its_receiver_accepts_it(
    database: Database, queue: Queue, fault: str
) -> None:
    receiver = Receiver()
    with receiving(receiver):
        port = int(receiver.url.rpartition(":")[2])
    receiver.status = {"error": 503, "refused": 400}.get(fault, 200)
    receiver.garbage = fault == "garbage"
    with (
        receiving(Receiver()) as other,
        recorder(database, target(receiver), target(other, "b")) as a,
    ):
        with receiving(receiver, port) if fault != "down" else threading.Lock():
            a.has_findings(queue, STOPPED)
            wait_until(arrived(other, ("begun", STOPPED.name)), "no other receiver waits")
            wait_until(
                lambda: any("hook are not sent" in words for words in a.reported), "it is said"
            )
            wait_until(lambda: unfinished(database)[0].tries > 1, "it is tried again")
            a.has_findings(queue)  # both are still unsent
            wait_until(lambda: unfinished(database)[0].ended_at is not None, "it ends")
        receiver.status, receiver.garbage = 200, False
        with receiving(receiver, port):
            expected = ("begun", STOPPED.name), ("ended", STOPPED.name)
            wait_until(arrived(receiver, *expected), "it comes, in its order")
            assert receiver.events_and_codes() == [*expected]
            wait_until(lambda: any("arrive again" in words for words in a.reported), "it is said")
    assert len(other.events) == 2
    assert sum("are not sent" in words for words in a.reported) == 1


def test_a_receiver_that_does_not_answer_delays_no_other(database: Database, queue: Queue) -> None:
    slow = Receiver(silent=threading.Event())
    with (
        receiving(Receiver()) as other,
        receiving(slow),
        recorder(database, target(slow), target(other, "b")) as one,
    ):
        for codes in ((STOPPED,), (), (FULL,), ()):
            events = len(other.events)
            one.has_findings(queue, *codes)
            wait_until(partial(more_than, other, events), "another is told")
        assert slow.silent is not None
        slow.silent.set()
        expected = [(one, code.name) for code in (STOPPED, FULL) for one in ("begun", "ended")]
        wait_until(arrived(slow, *expected), "each has come once in the end")


def test_findings_within_the_interval_arrive_in_one_notification(
    database: Database, queue: Queue
) -> None:
    with receiving(Receiver()) as receiver, recorder(database, target(receiver, within=HOUR)) as a:
        for codes in ((STOPPED,), (STOPPED, FULL)):
            a.has_findings(queue, *codes)
            wait_until(partial(has_unfinished, database, len(codes)), "it is kept")
        assert not receiver.bodies
        a.notifier._states[0].target = target(receiver)  # the interval is over
        wait_until(arrived(receiver, ("begun", STOPPED.name), ("begun", FULL.name)), "they come")
        assert len(receiver.bodies) == 1


def test_one_recorder_holds_the_lease_until_it_expires(database: Database, queue: Queue) -> None:
    assert queue
    first, second = Outbox(database).lease, Outbox(database).lease
    assert first.hold()
    assert first.hold()
    assert not second.hold()
    assert second.holder == first.me
    assert first.left_seconds > 0 == second.left_seconds
    first.seconds = 0.0
    assert first.hold()
    assert first.left_seconds <= 0
    wait_until(second.hold, "it has ended by the database's clock")
    assert not first.hold()
    second.give_back()
    wait_until(first.hold, "it was given back")


def test_one_of_two_recorders_sends_and_the_other_takes_over(
    database: Database, queue: Queue
) -> None:
    with receiving(Receiver()) as receiver:
        first = Recorder(database, target(receiver))
        first.notifier.start()
        wait_until(first.is_sender, "the first sends")
        with recorder(database, target(receiver), first=False) as second:
            for one in (first, second):
                one.has_findings(queue, STOPPED)
            wait_until(arrived(receiver, ("begun", STOPPED.name)), "it begins")
            wait_until(lambda: "another recorder" in "".join(second.reported), "the second waits")
            assert not second.is_sender()
            first.notifier.stop(60.0)
            wait_until(second.is_sender, "the second sends")
            second.has_findings(queue)
            expected = ("begun", STOPPED.name), ("ended", STOPPED.name)
            wait_until(arrived(receiver, *expected), "it ends")


def test_an_event_that_was_not_recorded_as_sent_arrives_again_with_its_key(
    database: Database, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder died, or lost its connection, between the response and its commit."""

    def lost(self: Outbox, arrived: object) -> None:
        raise ConnectionFailedError("Could not keep what was sent.")

    with receiving(Receiver()) as receiver:
        with monkeypatch.context() as patch:
            patch.setattr(Outbox, "sent", lost)
            with recorder(database, target(receiver)) as one:
                one.has_findings(queue, STOPPED)
                wait_until(lambda: len(receiver.events) == 1, "it has come")
        with recorder(database, target(receiver)) as one:
            wait_until(lambda: len(receiver.events) == 2, "it has come again")
            wait_until(lambda: all(not it.waits for it in unfinished(database)), "it is kept")
    first, second = receiver.events
    assert first == second


def test_silenced_findings_are_not_sent(database: Database, queue: Queue) -> None:
    """Nor are pending ones; if the beginning was sent, the end is sent too."""
    by = ("ann@etl01", "ann", "known", utc(), None, False, "")
    silence = Decision("silence", STOPPED.name, "", "", *by)
    quiet = Diagnosis(queue, (Finding(STOPPED, "so", silenced=silence),))
    with receiving(Receiver()) as receiver:
        with recorder(database, target(receiver, within=HOUR)) as one:
            one.has_findings(queue, STOPPED)
            wait_until(lambda: len(unfinished(database)) == 1, "it has to be sent")
            one.notifier.examined(DoctorUpdate((quiet,)))
            wait_until(lambda: not unfinished(database), "it is withdrawn")
        with recorder(database, target(receiver)) as one:
            one.has_findings(queue, FULL, STOPPED)
            wait_until(lambda: len(receiver.events) == 2, "both have come")
            one.notifier.examined(DoctorUpdate((quiet,)))
            wait_until(lambda: len(receiver.events) == 3, "one has ended")
            one.has_findings(queue)
            wait_until(lambda: len(receiver.events) == 4, "what was told ends")
    assert receiver.events_and_codes()[2:] == [("ended", FULL.name), ("ended", STOPPED.name)]


def test_a_recorder_without_write_access_says_so_and_sends_nothing(
    database: Database, queue: Queue
) -> None:
    with receiving(Receiver()) as receiver:
        database.read_only = True
        with recorder(database, target(receiver), first=False) as one:
            one.has_findings(queue, STOPPED)
            (message,) = one.reported
        database.read_only = False
        assert 'rights = "operator"' in message
        assert not receiver.events
        assert not unfinished(database)


def test_the_outbox_is_added_to_an_older_catalog(database: Database, queue: Queue) -> None:
    with database.transaction("as it was") as connection:
        connection.exec_driver_sql("DROP TABLE dbq.notification")
    with receiving(Receiver()) as receiver, recorder(database, target(receiver)) as one:
        one.has_findings(queue, STOPPED)
        wait_until(arrived(receiver, ("begun", STOPPED.name)), "it begins")
