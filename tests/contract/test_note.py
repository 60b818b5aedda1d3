"""A note: kept in the database, audited, and a mark in whatever tells of a queue's past."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from console import audit
from console.actions.install import install
from console.designs import DESIGNS
from console.doctor.recording import action
from console.engines import Database
from console.errors import UsageError
from console.monitor.recording.history import History, history, since
from console.monitor.recording.recorder import Recorder
from console.monitor.recording.segments import ACTIONS
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.rights import Rights
from console.verbs import named
from console.verbs.decisions import note
from console.verbs.verb import Target
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.variants import Variant
from tests.servers import connect
from tests.tui.feeds import queue as figures


@pytest.fixture
def orders(virgin: Database) -> Client:
    client = Client(virgin, Variant(DESIGNS["fifo"], {}).queue("public", "orders", "postgresql"))
    install(virgin, client.queue)
    return client


def test_a_note_is_kept_and_audited_and_in_the_report(orders: Client) -> None:
    """Of the whole database, or of one queue; an empty one is none; a reader may keep none."""
    url = orders.url
    said = call("note", "deployed 1.4", "--json", "--url", url).json
    assert said.keys() == {"note", "queue", "schema", "noted_at"}
    assert (said["note"], said["queue"]) == ("deployed 1.4", None)
    assert call("note", "moved to host b", "orders", "--url", url).status == 0
    assert call("note", " ", "--url", url).status == 2
    assert call("note", "x", "nobody", "--url", url).status == 2
    assert call("note", "x", "--rights", "read-only", "--url", url).status == 4
    with connect(url) as connection:
        kept = connection.execute("SELECT queue_name, note FROM dbq.note ORDER BY note_id")
        assert kept.fetchall() == [("", "deployed 1.4"), ("orders", "moved to host b")]
    told = call("audit", "--verb", "note", "--json", "--url", url).json["actions"]
    assert [(one["queue"], one["detail"], one["outcome"]) for one in told] == [
        ("orders", "moved to host b", "done"),
        ("", "deployed 1.4", "done"),
    ]
    text = call("audit", "--verb", "note", "--url", url).text
    assert "note: done" in text
    assert "note public.orders: done" in text
    found = call("report", "orders", "--idle-for", "0s", "--json", "--url", url).json
    assert [one["note"] for one in found["notes"]] == ["moved to host b", "deployed 1.4"]
    assert "deployed 1.4" in found["markdown"].partition("## Notes")[2]


def past(database: Database, root: Path) -> History:
    """What a recorder keeps of the audit, beside a sample of the queue."""
    recorder = Recorder(root, "prod")
    seen: QueueSnapshot = figures("orders", ready=1)
    recorder.reading(Reading("prod", (seen,)))
    with database.transaction("read the audit", read_only=True) as connection:
        recorder.add(ACTIONS, map(action, audit.entries(connection, audit.EntryFilter())))
    recorder.close(60.0)
    return history(root, "prod", "orders", since(datetime.now(UTC), 3600.0))


def test_history_has_the_notes_of_the_queue_and_of_the_database(
    orders: Client, tmp_path: Path
) -> None:
    """As marks of their own, and no action of another queue's."""
    other = Variant(DESIGNS["fifo"], {}).queue("public", "mail", "postgresql")
    install(orders.database, other)
    note(orders.database, "deployed 1.4", None)
    note(orders.database, "moved to host b", orders.queue)
    note(orders.database, "of another", other)
    marks = past(orders.database, tmp_path).marks
    noted = [(one.kind, one.words) for one in marks if one.kind == "note"]
    assert noted == [("note", "deployed 1.4"), ("note", "moved to host b")]
    assert "of another" not in {one.words for one in marks}
    for more in ((), ("--plot",)):
        text = call("history", "orders", *more, "--recordings", str(tmp_path), "--since", "1h").text
        assert "deployed 1.4" in text
        assert "note " in text


def test_the_form_notes_of_one_queue_or_of_all(orders: Client) -> None:
    target = Target(orders.database, orders.queue, Rights.OPERATOR)
    plan = named("note").plan(target, {"text": "a", "all": False})
    assert "the charts of public.orders" in plan.lines[0]
    plan.done()
    named("note").plan(target, {"text": "b", "all": True}).done()
    with connect(orders.url) as connection:
        kept = connection.execute("SELECT queue_name, note FROM dbq.note ORDER BY note_id")
        assert kept.fetchall() == [("orders", "a"), ("", "b")]
    with pytest.raises(UsageError, match="empty"):
        note(orders.database, "", None)
