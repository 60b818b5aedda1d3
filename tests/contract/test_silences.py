"""silence, ack, unsilence: what is known to somebody is shown, and is no problem to anybody."""

from datetime import timedelta

import pytest
from psycopg.rows import dict_row

from console.actions.install import install
from console.designs import DESIGNS
from console.doctor.finding import Diagnosis
from console.doctor.watcher import Doctor
from console.engines import Database
from console.metrics.exporter import ConnectionState, families
from console.monitor.limits import DEFAULTS, Limits, Thresholds
from console.monitor.sampler import Reading
from console.rights import Rights
from tests.cli.calls import call
from tests.contract.client import Client
from tests.contract.variants import Variant
from tests.servers import connect

LIMITED = Thresholds(
    DEFAULTS.stuck_after_seconds, Limits(2, 4), Limits(), DEFAULTS.gap_share, Limits()
)


@pytest.fixture
def claims(virgin: Database) -> Client:
    """A message that was claimed an hour ago, by nobody who has a name."""
    of = Variant(DESIGNS["claim"], {}).queue("public", "orders", "postgresql")
    client = Client(virgin, of)
    install(virgin, of)
    client.push_many(client.payloads(0))
    with connect(client.url) as connection:
        connection.execute("SELECT * FROM orders_pop()")
        connection.execute(
            "UPDATE orders SET claimed_by = NULL, processing_started_at = now() - interval '1 hour'"
        )
    return client


def kept(client: Client) -> list[dict[str, object]]:
    with connect(client.url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT * FROM dbq.silence ORDER BY silence_id")
        return cursor.fetchall()


def examined(
    client: Client, rights: Rights = Rights.READ_ONLY, limits: Thresholds = DEFAULTS
) -> Diagnosis:
    (found,) = Doctor(client.database, lambda _: limits, rights=rights).examine([client.queue], ())
    return found


def test_a_silenced_finding_is_told_with_who_and_why_and_is_no_problem(claims: Client) -> None:
    """By doctor, report, check and metrics; until it is taken back, which leaves a trace."""
    at = ("--url", claims.url)
    quick = ("--idle-for", "0s")
    assert call("doctor", "orders", *quick, *at).status == 1
    assert call("check", "orders", *at).status == 1
    why = ("--for", "4h", "--reason", "a long import")
    assert call("silence", "claims_nobody", "orders", *why, *at).status == 0

    doctor = call("doctor", "orders", *quick, *at)
    assert doctor.status == 0
    assert "orders (claim): silenced" in doctor.text
    assert "warning, silenced: " in doctor.text
    assert ", until " in doctor.text
    assert ": a long import" in doctor.text
    told = call("doctor", "orders", *quick, "--json", *at).json["queues"][0]
    (finding,) = (one for one in told["findings"] if one["code"] == "claims_nobody")
    assert finding["severity"] == "warning"
    assert list(finding["silenced"]) == ["kind", "operator", "since", "until", "reason"]
    assert finding["silenced"]["kind"] == "silence"
    assert "### warning, silenced" in call("report", "orders", *quick, *at).text
    check = call("check", "orders", "--plugin", *at)
    assert check.status == 0
    assert "a long import" in check.text
    figures = call("check", "orders", "--json", *at).json["queues"][0]["figures"]
    assert figures["stuck"]["silenced"]["reason"] == "a long import"
    assert figures["depth"]["silenced"] is None

    seen = ConnectionState(Reading("c"), 1.0, (examined(claims),), 1.0)
    metrics = {family.name: family.samples for family in families([seen])}
    (silenced,) = metrics["dbq_queue_findings_silenced"]
    assert silenced.labels["code"] == "claims_nobody"
    counted = {one.labels["severity"]: one.value for one in metrics["dbq_queue_findings"]}
    assert counted["warning"] == 0
    assert not any(
        one.labels["code"] == "claims_nobody" for one in metrics["dbq_queue_findings_by_code"]
    )

    assert call("unsilence", "claims_nobody", "orders", *at).status == 0
    assert call("doctor", "orders", *quick, *at).status == 1
    assert call("unsilence", "claims_nobody", "orders", *at).status == 2
    (row,) = kept(claims)
    assert row["ended_at"] is not None
    assert row["ended_by"] == row["operator"] != ""
    verbs = [one["verb"] for one in call("audit", "--json", *at).json["actions"]]
    assert verbs[:2] == ["unsilence", "silence"]


def test_of_every_queue_and_until_its_time(claims: Client) -> None:
    at = ("--url", claims.url)
    assert call("silence", "claims_nobody", *at).status == 0
    (found,) = (one for one in examined(claims).findings if one.code.name == "claims_nobody")
    assert found.silenced is not None
    assert found.silenced.until is not None
    lasting = found.silenced.until - found.silenced.since
    assert abs(lasting - timedelta(hours=4)) < timedelta(minutes=1)
    assert call("unsilence", "claims_nobody", "orders", *at).status == 2  # it is of every queue
    with connect(claims.url) as connection:
        connection.execute("UPDATE dbq.silence SET until = silenced_at")
    assert not examined(claims).healthy
    assert call("silence", "claims_nobody", "orders", *at).status == 0
    assert call("silence", "claims_nobody", "orders", "--for", "1h", *at).status == 0
    ended = [row["ended_by"] for row in kept(claims)]
    assert ended[0] == ended[2] == ""
    assert ended[1] != ""


def test_what_is_critical_wants_a_reason_and_a_code_has_to_be_one(claims: Client) -> None:
    at = ("--url", claims.url)
    for verb in ("silence", "ack"):
        refused = call(verb, "limit_critical", "orders", *at)
        assert refused.status == 2
        assert "--reason" in refused.err
        assert call(verb, "limit_critical", "orders", "--reason", "known", *at).status == 0
        unknown = call(verb, "claims_nobodi", "orders", *at)
        assert unknown.status == 2
        assert "claims_nobody" in unknown.err
    assert call("silence", "bloat", "orders", *at, "--rights", "read-only").status == 4


def test_an_acknowledgement_ends_with_its_finding_by_whoever_may_write(claims: Client) -> None:
    at = ("--url", claims.url)
    assert call("ack", "claims_nobody", *at).status == 0
    assert examined(claims).healthy
    (row,) = kept(claims)
    assert (row["queue_name"], row["severity"], row["until"]) == ("orders", "warning", None)
    with connect(claims.url) as connection:
        connection.execute("UPDATE orders SET processing_started_at = now()")
    examined(claims)
    assert kept(claims)[0]["ended_at"] is None  # a reader's console writes nothing
    examined(claims, Rights.OPERATOR)
    assert kept(claims)[0]["ended_by"] == "ended"
    assert call("ack", "claims_nobody", *at).status == 2  # no queue has it


def test_an_acknowledgement_ends_when_its_finding_worsens(claims: Client) -> None:
    """For a reader's console too, which writes nothing."""
    claims.push_many(claims.payloads(1, 2))
    at = ("--url", claims.url)
    assert call("silence", "claims_nobody", "orders", *at).status == 0
    assert call("ack", "limit_reached:depth", "orders", *at).status == 0
    assert examined(claims, limits=LIMITED).healthy
    claims.push_many(claims.payloads(3, 4))
    worse = examined(claims, limits=LIMITED)
    assert {one.code.name for one in worse.findings if one.silenced is None} >= {"limit_critical"}
    assert not worse.healthy
    assert kept(claims)[1]["ended_at"] is None
    examined(claims, Rights.OPERATOR, LIMITED)
    assert [row["ended_by"] for row in kept(claims)] == ["", "worsened"]


def test_what_was_acknowledged_as_less_grave_is_not_acknowledged(claims: Client) -> None:
    """Severity of the same code: by another version's console, or as the screens have it."""
    assert call("ack", "claims_nobody", "orders", "--url", claims.url).status == 0
    with connect(claims.url) as connection:
        connection.execute("UPDATE dbq.silence SET severity = 'note'")
    assert not examined(claims).healthy
    examined(claims, Rights.OPERATOR)
    assert kept(claims)[0]["ended_by"] == "worsened"
