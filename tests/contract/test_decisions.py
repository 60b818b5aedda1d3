"""Notes, protections, silences: stored, audited, shown, and what they prevent."""

import re
import signal
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from psycopg.rows import dict_row

from console import catalog
from console.actions.install import uninstall
from console.actions.relay import relay
from console.catalog import audit
from console.catalog.audit import Outcome
from console.doctor.finding import Diagnosis
from console.doctor.watcher import Doctor
from console.engines import Database, open_database
from console.errors import RefusedError
from console.features.history.points import History, history, since
from console.features.history.recorder import Recorder
from console.features.history.recording import action
from console.features.history.segments import ACTIONS
from console.features.metrics.exporter import ConnectionState, families
from console.monitor.limits import DEFAULTS, Limits, Thresholds
from console.monitor.sampler import Reading
from console.monitor.snapshot import QueueSnapshot
from console.plan import Control, Progress, Result
from console.rights import Rights
from console.verbs import get_verb
from console.verbs.decisions import note
from console.verbs.verb import Target, values_from_texts
from tests.cli.calls import Console, call
from tests.contract.client import Client
from tests.contract.installs import installed
from tests.contract.variants import default
from tests.servers import READ_CATALOG, connect, execute, login
from tests.tui.feeds import queue as figures

pytestmark = pytest.mark.slow


@pytest.fixture
def orders(new_database: Database) -> Client:
    return installed(new_database, default("fifo"), "orders")


def test_a_note_is_stored_audited_and_reported(orders: Client) -> None:
    """For the database or one queue; an empty note is refused, and so is one by a reader."""
    here = Console(orders.url)
    said = here("note", "deployed 1.4", "--json").json
    assert said.keys() == {"note", "queue", "schema", "noted_at"}
    assert (said["note"], said["queue"]) == ("deployed 1.4", None)
    assert here("note", "moved to host b", "orders").status == 0
    assert here("note", " ").status == 2
    assert here("note", "x", "nobody").status == 2
    assert here("note", "x", "--rights", "read-only").status == 4
    target = Target(orders.database, orders.queue, Rights.OPERATOR)  # as the form has it
    plan = get_verb("note").plan(target, {"text": "a", "all": False})
    assert "the charts of public.orders" in plan.lines[0]
    get_verb("note").plan(target, {"text": "of all", "all": True}).run_to_end()
    with connect(orders.url) as connection:
        stored_notes = connection.execute("SELECT queue_name, note FROM dbq.note ORDER BY note_id")
        noted = [("", "deployed 1.4"), ("orders", "moved to host b"), ("", "of all")]
        assert stored_notes.fetchall() == noted
    actions = here("audit", "--verb", "note", "--json").json["actions"]
    assert [(action["queue"], action["detail"]) for action in actions] == noted[::-1]
    assert {action["outcome"] for action in actions} == {"done"}
    text = here("audit", "--verb", "note").text
    assert "note: done" in text
    assert "note public.orders: done" in text
    json = here("report", "orders", "--idle-for", "0s", "--json").json
    assert [one["note"] for one in json["notes"]] == [words for _, words in noted[::-1]]
    assert "deployed 1.4" in json["markdown"].partition("## Notes")[2]


def recorded_history(database: Database, root: Path) -> History:
    """The history of a recording with the audit and a sample of the queue."""
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
    """Notes are marks of their own kind; notes of other queues are left out."""
    other = installed(orders.database, default("fifo"), "mail").queue
    note(orders.database, "deployed 1.4", None)
    note(orders.database, "moved to host b", orders.queue)
    note(orders.database, "of another", other)
    marks = recorded_history(orders.database, tmp_path).marks
    noted = [(mark.kind, mark.words) for mark in marks if mark.kind == "note"]
    assert noted == [("note", "deployed 1.4"), ("note", "moved to host b")]
    assert "of another" not in {mark.words for mark in marks}
    for more in ((), ("--plot",)):
        text = call("history", "orders", *more, "--recordings", str(tmp_path), "--since", "1h").text
        assert "deployed 1.4" in text
        assert "note " in text


@pytest.fixture
def ring(new_database: Database) -> Client:
    """Ten slots, three messages."""
    client = installed(new_database, default("ring", size="10"), "r")
    client.push_many(client.payloads(0, 1, 2))
    return client


def test_verbs_that_lose_messages_are_refused_on_a_protected_queue(ring: Client) -> None:
    """Refused in the plan and at execution, for every operator; pops continue."""
    here = Console(ring.url)
    because = ("--reason", "evidence of incident 4711")
    assert here("protect", "r", *because, "--yes").status == 0
    for words in (("purge", "r"), ("uninstall", "r", "--with-messages"), ("resize", "r", "5")):
        here(*words, "--yes", "r").failed(4, "evidence of incident 4711", "unprotect r")
    assert here("resize", "r", "20", "--yes", "r").status == 0
    assert ring.pop() is not None
    assert here("protect", "r", "--yes").status == 2
    refused = here("unprotect", "r", "--yes", "y")
    assert refused.status in {2, 4}
    assert here("unprotect", "r", "--yes", "r").status == 0
    assert here("purge", "r", "--yes", "r").status == 0
    assert here("unprotect", "r", "--yes", "r").status == 2


def test_a_plan_made_before_the_protection_is_refused_when_executed(ring: Client) -> None:
    """Another console protects the queue between the plan and its confirmation."""
    target = Target(ring.database, ring.queue, Rights.ADMIN)
    purge = get_verb("purge")
    planned = purge.plan(target, values_from_texts(purge, {}))
    get_verb("protect").plan(target, {"reason": None}).run_to_end()
    with pytest.raises(RefusedError, match="protected"):
        planned.run_to_end()
    with pytest.raises(RefusedError, match="protected"):
        relay(ring.database, ring.queue, 5)
    with pytest.raises(RefusedError, match="protected"):
        uninstall(ring.database, ring.queue, keep_archive=True, with_messages=True)
    relay(ring.database, ring.queue, None)
    assert len(ring.drain()) == 3


def test_a_running_verb_stops_before_its_next_batch_once_the_queue_is_protected(
    ring: Client,
) -> None:
    """Or paused, where the verb adds messages to it."""
    target = Target(ring.database, ring.queue, Rights.ADMIN)

    errors = installed(ring.database, default("claim"), "c")
    errors.push_many(errors.payloads(0, 1, 2))
    for message in errors.pop_many(3):
        assert errors.fail(message, "no")

    def stopped_by(decision: str, verb: str, acting_on: Target = target, **texts: str) -> Result:
        acting = get_verb(verb)
        values = {"reason": None, "for": None, "push": True}
        decisions = iter([get_verb(decision).plan(target, values)])

        def decide(_: Progress) -> None:
            for decided in decisions:
                decided.run_to_end()

        planned = acting.plan(acting_on, values_from_texts(acting, {"batch": "1", **texts}))
        return planned.run(Control(), decide)

    def undo(verb: str) -> None:
        get_verb(verb).plan(target, {}).run_to_end()

    def check(result: Result, words: str) -> None:
        assert (result.outcome, result.done) == (Outcome.STOPPED, 1)
        assert words in result.problem
        assert not result.ledger.failed, "it was not full"

    check(stopped_by("protect", "purge"), "r is protected by")
    undo("unprotect")
    get_verb("purge").plan(target, values_from_texts(get_verb("purge"), {})).run_to_end()
    check(stopped_by("pause", "restore"), "r is paused, its pushes too, by")
    undo("resume")
    from_errors = Target(errors.database, errors.queue, Rights.ADMIN)
    check(stopped_by("pause", "requeue", from_errors, to="r"), "r is paused, its pushes too, by")


def test_a_login_that_may_not_read_decisions_can_read_the_catalog(ring: Client) -> None:
    """A login with the grants that an older console needed."""
    get_verb("protect").plan(
        Target(ring.database, ring.queue, Rights.ADMIN), {"reason": None}
    ).run_to_end()
    older = "GRANT SELECT ON dbq.queue, dbq.setting, dbq.action TO {}"
    with login(ring.url, READ_CATALOG[0], older) as url, closing(open_database(url)) as theirs:
        for database, kinds in ((ring.database, ["protection"]), (theirs, [])):
            with database.transaction("read", read_only=True) as connection:
                assert [decision.kind for decision in catalog.read(connection).decisions] == kinds


LIMITED = DEFAULTS.with_limits(depth=Limits(2, 4), errors_share=Limits())


@pytest.fixture
def claims(new_database: Database) -> Client:
    """A message that was claimed an hour ago, by an unknown owner."""
    client = installed(new_database, default("claim"), "orders")
    client.push_many(client.payloads(0))
    with connect(client.url) as connection:
        connection.execute("SELECT * FROM orders_pop()")
        connection.execute(
            "UPDATE orders SET claimed_by = NULL, processing_started_at = now() - interval '1 hour'"
        )
    return client


def stored_silences(client: Client) -> list[dict[str, object]]:
    with connect(client.url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT * FROM dbq.silence ORDER BY silence_id")
        return cursor.fetchall()


def examined(
    client: Client, rights: Rights = Rights.READ_ONLY, limits: Thresholds = DEFAULTS
) -> Diagnosis:
    (diagnosis,) = Doctor(client.database, lambda _: limits, rights=rights).diagnose(
        [client.queue], ()
    )
    return diagnosis


def test_a_silenced_finding_is_shown_with_its_reason_and_is_no_problem(claims: Client) -> None:
    """In doctor, report, check and metrics, until it is revoked, which is audited."""
    here = Console(claims.url)
    quick = ("--idle-for", "0s")
    assert here("doctor", "orders", *quick).status == 1
    assert here("check", "orders").status == 1
    why = ("--for", "4h", "--reason", "a long import")
    assert here("silence", "claims_nobody", "orders", *why).status == 0

    doctor = here("doctor", "orders", *quick)
    assert doctor.status == 0
    assert "orders (claim): silenced" in doctor.text
    assert "warning, silenced: " in doctor.text
    assert ", until " in doctor.text
    assert ": a long import" in doctor.text
    diagnosis = here("doctor", "orders", *quick, "--json").json["queues"][0]
    (finding,) = (
        diagnosi for diagnosi in diagnosis["findings"] if diagnosi["code"] == "claims_nobody"
    )
    assert finding["severity"] == "warning"
    assert list(finding["silenced"]) == ["kind", "operator", "since", "until", "reason"]
    assert finding["silenced"]["kind"] == "silence"
    assert "### warning, silenced" in here("report", "orders", *quick).text
    check = here("check", "orders", "--plugin")
    assert check.status == 0
    assert "a long import" in check.text
    figures = here("check", "orders", "--json").json["queues"][0]["figures"]
    assert figures["stuck"]["silenced"]["reason"] == "a long import"
    assert figures["depth"]["silenced"] is None

    seen = ConnectionState(Reading("c"), 1.0, (examined(claims),), 1.0)
    metrics = {family.name: family.samples for family in families([seen])}
    (silenced,) = metrics["dbq_queue_findings_silenced"]
    assert silenced.labels["code"] == "claims_nobody"
    counted = {metric.labels["severity"]: metric.value for metric in metrics["dbq_queue_findings"]}
    assert counted["warning"] == 0
    assert not any(
        metric.labels["code"] == "claims_nobody" for metric in metrics["dbq_queue_findings_by_code"]
    )

    assert here("unsilence", "claims_nobody", "orders").status == 0
    assert here("doctor", "orders", *quick).status == 1
    assert here("unsilence", "claims_nobody", "orders").status == 2
    (row,) = stored_silences(claims)
    assert row["ended_at"] is not None
    assert row["ended_by"] == row["operator"] != ""
    verbs = [one["verb"] for one in here("audit", "--json").json["actions"]]
    assert verbs[:2] == ["unsilence", "silence"]


def test_a_silence_can_apply_to_every_queue_and_expires(claims: Client) -> None:
    here = Console(claims.url)
    assert here("silence", "claims_nobody").status == 0
    (finding,) = (one for one in examined(claims).findings if one.code.name == "claims_nobody")
    assert finding.silenced is not None
    assert finding.silenced.until is not None
    duration = finding.silenced.until - finding.silenced.since
    assert abs(duration - timedelta(hours=4)) < timedelta(minutes=1)
    assert here("unsilence", "claims_nobody", "orders").status == 2  # it applies to every queue
    execute(claims.url, "UPDATE dbq.silence SET until = silenced_at")
    assert not examined(claims).healthy
    assert here("silence", "claims_nobody", "orders").status == 0
    assert here("silence", "claims_nobody", "orders", "--for", "1h").status == 0
    ended = [row["ended_by"] for row in stored_silences(claims)]
    assert ended[0] == ended[2] == ""
    assert ended[1] != ""


def test_silencing_a_critical_finding_requires_a_reason_and_an_existing_code(
    claims: Client,
) -> None:
    here = Console(claims.url)
    for verb in ("silence", "ack"):
        here(verb, "limit_critical", "orders").failed(2, "--reason")
        here(verb, "claims_nobodi", "orders").failed(2, "claims_nobody")
    known = ("limit_critical", "orders", "--reason", "known")
    assert here("silence", *known).status == 0  # in advance
    assert here("silence", "bloat", "orders", "--rights", "read-only").status == 4


def test_only_a_finding_that_there_is_can_be_acknowledged(claims: Client) -> None:
    here = Console(claims.url)
    refused = here("ack", "bloat", "orders")
    assert (refused.status, refused.text) == (2, "")
    assert refused.err.splitlines() == [
        "public.orders has no finding bloat now.",
        "It has: claims_nobody.",
        "In advance, for a time: dbq-console silence bloat orders",
    ]
    assert "No queue has the finding bloat now." in here("ack", "bloat").err
    assert not stored_silences(claims)
    assert here("ack", "claims_nobody", "orders").status == 0
    assert here("ack", "claims_nobody", "orders").status == 0, "again, for another reason"


def test_consumption_that_one_sample_cannot_show_can_be_acknowledged(orders: Client) -> None:
    here = Console(orders.url)
    assert here("ack", "consumer_stopped", "orders").status == 2, "nothing waits"
    here.done("push", "orders", "x")
    execute(orders.url, "UPDATE orders SET pushed_at = now() - interval '1 hour'")
    assert here("ack", "consumer_stopped", "orders").status == 0


def test_an_acknowledgement_on_every_queue_says_what_it_waits_for(orders: Client) -> None:
    here = Console(orders.url)
    here.done("push", "orders", "x")
    execute(orders.url, "UPDATE orders SET pushed_at = now() - interval '1 hour'")
    with here.process("ack", "consumer_stopped") as acknowledging:
        assert acknowledging.stderr is not None
        line = acknowledging.stderr.readline().decode()
        acknowledging.send_signal(signal.SIGINT)
    assert re.fullmatch(r"consumption of public\.orders: asked again in (30|29) s\n", line)
    assert not stored_silences(orders)


def test_an_acknowledgement_is_ended_with_its_finding_by_a_console_with_rights(
    claims: Client,
) -> None:
    here = Console(claims.url)
    assert here("ack", "claims_nobody").status == 0
    assert examined(claims).healthy
    (row,) = stored_silences(claims)
    assert (row["queue_name"], row["severity"], row["until"]) == ("orders", "warning", None)
    execute(claims.url, "UPDATE orders SET processing_started_at = now()")
    examined(claims)
    assert stored_silences(claims)[0]["ended_at"] is None  # a reader's console writes nothing
    examined(claims, Rights.OPERATOR)
    assert stored_silences(claims)[0]["ended_by"] == "ended"
    assert here("ack", "claims_nobody").status == 2  # no queue has it


def test_an_acknowledgement_ends_when_its_finding_worsens(claims: Client) -> None:
    """Also for a reader's console, which writes nothing."""
    claims.push_many(claims.payloads(1, 2))
    here = Console(claims.url)
    assert here("silence", "claims_nobody", "orders").status == 0
    limited = Target(claims.database, claims.queue, Rights.OPERATOR, lambda _: LIMITED)
    known = {"code": "limit_reached:depth", "reason": None}
    get_verb("ack").plan(limited, known).run_to_end()
    assert examined(claims, limits=LIMITED).healthy
    claims.push_many(claims.payloads(3, 4))
    worse = examined(claims, limits=LIMITED)
    assert {finding.code.name for finding in worse.findings if finding.silenced is None} >= {
        "limit_critical"
    }
    assert not worse.healthy
    assert stored_silences(claims)[1]["ended_at"] is None
    examined(claims, Rights.OPERATOR, LIMITED)
    assert [row["ended_by"] for row in stored_silences(claims)] == ["", "worsened"]


def test_an_acknowledgement_of_a_lower_severity_does_not_apply(claims: Client) -> None:
    """The same code had another severity: in another version, or on the screens."""
    assert Console(claims.url)("ack", "claims_nobody", "orders").status == 0
    execute(claims.url, "UPDATE dbq.silence SET severity = 'note'")
    assert not examined(claims).healthy
    examined(claims, Rights.OPERATOR)
    assert stored_silences(claims)[0]["ended_by"] == "worsened"
