"""Indexes, keys and code that are missing or were changed."""

from contextlib import closing
from dataclasses import replace
from typing import Any, LiteralString

import pytest

from console.actions.forget import forget
from console.catalog import INTERFACE_VERSION, Kind
from console.designs import DESIGNS
from console.doctor import indexes
from console.doctor.finding import Finding
from console.doctor.verbs import plan_repairs
from console.engines import PRODUCTS, open_database
from console.errors import ConsoleError
from console.features.presets.adopt import adopt
from console.monitor.limits import Severity
from console.plan import Control
from console.rights import Rights
from console.verbs.verb import Target
from tests.contract.variants import ALL, DEFAULTS, Variant
from tests.faults.harness.doctor import codes_of, evidence_of, finding_of
from tests.faults.harness.queue import (
    CLAIM,
    FIFO,
    IN_HAND,
    NAIVE,
    PENDING,
    SPLIT,
    STATUS,
    TWO_STEP,
    FaultyQueue,
    Use,
)
from tests.servers import READ_CATALOG, connect, execute, login, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.thinned(3)]

# -------------------------------------------------------------------------------------- indexes


@pytest.mark.parametrize("variant", [CLAIM, IN_HAND, STATUS], ids=str)
def test_a_missing_index_is_created_and_an_invalid_one_rebuilt(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    client.drop_indexes()
    assert len(evidence_of(client.repaired("index_missing"))["missing"]) >= 3
    index, *_ = client.indexes()
    client.invalidate(index)
    assert client.repaired("index_invalid").evidence["invalid"] == [index]


def test_bloat_is_a_note_and_is_repaired(use: Use) -> None:
    client = use(FIFO, 5)
    client.invalidate(f"{client.queue.name}_pkey")
    assert client.diagnosed().verdict == "notes"
    client.repaired("bloat")


PLANNED = [v for v in DEFAULTS if v.design.name not in {"heap", "ring", "broker"}] + [TWO_STEP]
"""Designs whose pops use an index, as PostgreSQL's planner says."""


def index_findings(client: FaultyQueue) -> dict[str, Finding]:
    return {finding.code.name: finding for finding in client.found(indexes.INDEX_CHECKS)}


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """No queue is too short to be checked."""
    monkeypatch.setattr(indexes, "ENOUGH_PAGES", 1)


def index_of_pop(client: FaultyQueue) -> str:
    expected = indexes.pop_index(client.database.product, client.queue)
    assert expected is not None
    rows = execute(
        client.url,
        "SELECT c.relname, pg_get_indexdef(c.oid) FROM pg_index AS i "
        "JOIN pg_class AS c ON c.oid = i.indexrelid WHERE i.indrelid = %s::regclass",
        [f'"{expected.table}"'],
    )
    condition = expected.condition.replace(" ", "").lower()
    (name,) = [
        name
        for name, definition in rows
        if f"({', '.join(expected.columns)})" in definition
        and condition in definition.replace(" ", "").lower()
        and ("WHERE" in definition) == bool(condition)
    ]
    return str(name)


@pytest.mark.parametrize("variant", PLANNED, ids=str)
def test_a_pop_that_does_not_use_its_index_is_found(
    use: Use, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found if it matters; a deep queue without statistics raises no alarm."""
    client = use(variant)
    index = index_of_pop(client)
    client.invalidate(index)
    # A short queue is not checked, even if the planner chooses a sequential scan.
    for _ in range(2):
        assert "index_unused" not in index_findings(client)
        client.push_many(client.payloads(*range(25)))
    with monkeypatch.context() as any_size:
        any_size.setattr(indexes, "ENOUGH_PAGES", 1)
        findings = index_findings(client)
        finding = findings.pop("index_unused")
        assert findings.keys() <= {"index_invalid"}
        assert finding.code.severity is Severity.WARNING
        assert f"{index} is invalid" in finding.cause
        assert finding.consequence
        plan: list[dict[str, Any]] = evidence_of(finding)["plan"]
        assert {"Sort", "Seq Scan"} & {node["Node Type"] for node in plan}
        assert client.repair(finding)
        assert index_findings(client) == {}
    client.push_many(["x" * 500] * 4000)
    assert index_findings(client) == {}
    client.run("ANALYZE {table}")
    assert len(client.pop_many(1000)) == 1000
    assert index_findings(client) == {}


@pytest.mark.usefixtures("any_size")
def test_an_index_younger_than_an_open_snapshot_is_reported_as_unused(use: Use) -> None:
    """As after a CREATE INDEX, while an older snapshot may see earlier rows."""
    client = use(CLAIM, 50)
    with closing(connect(client.url)) as older:
        older.execute("BEGIN")
        older.execute("SELECT pg_current_xact_id()")
        client.run(
            "UPDATE pg_index SET indcheckxmin = true WHERE indexrelid = %s::regclass",
            f'"{index_of_pop(client)}"',
        )
        (finding,) = index_findings(client).values()
        assert finding.code is indexes.UNUSED
        assert "an older transaction" in finding.cause
        assert finding.repair is None
    wait_until(lambda: not index_findings(client), "the older one has ended")


@pytest.mark.usefixtures("any_size")
def test_a_better_index_suffices_and_a_missing_one_is_reported_once(use: Use) -> None:
    """The complete diagnosis also reports it."""
    client = use(CLAIM, 50)
    index = index_of_pop(client)
    client.invalidate(index)
    assert "index_unused" in client.codes()
    client.run(
        "CREATE INDEX better ON {table} (created_at, id, claimed_by) "
        "WHERE processing_started_at IS NULL"
    )
    assert index_findings(client).keys() == {"index_invalid"}
    client.run("DROP INDEX {index}, better", index=index)
    assert index_findings(client).keys() == {"index_missing"}


def test_a_reader_gets_no_false_findings_on_indexes(use: Use) -> None:
    client = use(FIFO, 50)
    grants = (*READ_CATALOG, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}")
    with login(client.url, *grants) as url, closing(open_database(url)) as reader:
        assert index_findings(FaultyQueue(reader, client.queue)) == {}


def test_all_designs_but_heap_and_ring_have_an_index_for_pops() -> None:
    queue = FIFO.queue("s", "q")
    assert indexes.INDEX_CHECKS.applies(queue)
    assert not indexes.INDEX_CHECKS.applies(replace(queue, kind=Kind.ADOPTED))
    for variant in (variant for variant in ALL if variant.design.name != "broker"):
        for engine in variant.engines:
            expected = indexes.pop_index(PRODUCTS[engine], variant.queue("s", "q", engine))
            assert (expected is None) == (variant.design.name in {"heap", "ring"}), variant


# ----------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("variant", [NAIVE, IN_HAND], ids=str)
def test_a_missing_key_is_found_and_created(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    assert client.drop_constraints(client.queue.table, "p", "u")
    finding = client.finding("key_missing")
    assert client.queue.table in finding.summary
    assert finding.evidence["doubled"] == []
    assert "done" in "\n".join(client.repair(finding, unattended=False))
    assert client.diagnosed().verdict == "all clear"


@pytest.mark.parametrize("variant", [FIFO, PENDING, SPLIT], ids=str)
def test_duplicates_keep_a_key_from_being_created(use: Use, variant: Variant) -> None:
    client = use(variant, 5)
    name = f"{client.queue.name}_data" if variant is SPLIT else client.queue.table
    client.drop_constraints(name, "p")
    before = client.finding("key_missing")
    indexes_query: LiteralString = "SELECT indexrelid FROM pg_index WHERE indrelid = %s::regclass"
    others = client.run(indexes_query, f'"{name}"')
    client.run("INSERT INTO {t} SELECT * FROM {t} WHERE id IN (2, 3)", t=name)
    with pytest.raises(ConsoleError, match="failed"):  # they were added after the diagnosis
        client.repair(before)
    assert client.run(indexes_query, f'"{name}"') == others, "nothing is left behind"
    finding = client.finding("key_missing")
    (first, second) = evidence_of(finding)["doubled"]
    assert [first[0], first[2]] == [name, 2]
    assert (first[1].split()[-1], second[1].split()[-1]) == ("2", "3")
    assert f"{name} has {first[1]} 2 times; 1 more"[:40] in finding.summary
    assert finding.repair is None
    client.run(
        "DELETE FROM {t} WHERE ctid = ANY(ARRAY("
        "SELECT max(ctid) FROM {t} WHERE id IN (2, 3) GROUP BY id))",
        t=name,
    )
    client.repaired("key_missing")


def test_subscribers_that_have_the_same_message_are_no_duplicates(use: Use) -> None:
    client = use(Variant(DESIGNS["ring"], {"size": "16", "in_hand": "on", "subscribers": "a,b"}))
    name = f"{client.queue.name}_in_hand"
    client.drop_constraints(name, "p")
    columns: LiteralString = "(subscriber, id, payload, pushed_at, attempts)"
    for subscriber in (1, 2, 2):
        client.run(
            "INSERT INTO {t} " + columns + " VALUES (%s, 7, 'x', now(), 1)", subscriber, t=name
        )
    assert evidence_of(client.finding("key_missing"))["doubled"] == [[name, "2 7", 2]]


# ----------------------------------------------------------------------------------------- code


@pytest.mark.parametrize("variant", [CLAIM, IN_HAND, FIFO], ids=str)
def test_a_missing_function_is_installed_again(use: Use, variant: Variant) -> None:
    client = use(variant, 1)
    client.run("DROP FUNCTION {pop}")
    finding = client.repaired("code_missing", unattended=True)
    assert finding.code.severity is Severity.CRITICAL
    assert client.pop() is not None


@pytest.mark.usefixtures("any_size")
def test_what_several_findings_want_is_made_once(use: Use) -> None:
    """A function and an index that an older version lacks: the upgrade would create both, but it
    may fail, and then the other repair continues."""
    client = use(CLAIM, 50)
    index = index_of_pop(client)
    client.run("DROP INDEX {index}", index=index)
    client.run("DROP FUNCTION {pop}")
    client.make_older()
    queue = client.known
    diagnosis = client.diagnosed(queue=queue)
    assert {"code_older", "index_missing"} <= set(codes_of(diagnosis))
    target = Target(client.database, queue, Rights.ADMIN)
    plan = plan_repairs(target, diagnosis, {"subscriber": None, "code": ()})
    summaries = [one["summary"] for one in plan.data["repairs"]]
    assert summaries == [
        "create what is missing (1), while callers continue",
        "install the code of this console's version (upgrade)",
    ]
    alone = plan_repairs(target, diagnosis, {"subscriber": None, "code": ("index_missing",)})
    assert [one["summary"] for one in alone.data["repairs"]] == [
        "create what is missing (1), while callers continue"
    ]
    plan.run(Control(), lambda _: None)
    assert not {"code_older", "index_missing"} & set(client.codes())
    assert execute(
        client.url,
        "SELECT count(*) FROM pg_indexes WHERE tablename = %s AND indexdef LIKE %s",
        [client.queue.table, "%(created_at%WHERE%processing_started_at IS NULL%"],
    ) == [(1,)]


def test_findings_with_the_same_repair_have_it_once(use: Use) -> None:
    client = use(FIFO, 5)
    client.change_code()
    client.run("DROP FUNCTION {push}")
    diagnosis = client.diagnosed()
    assert {"code_missing", "code_changed"} <= set(codes_of(diagnosis))
    target = Target(client.database, client.queue, Rights.ADMIN)
    codes = ("code_missing", "code_changed")
    plan = plan_repairs(target, diagnosis, {"subscriber": None, "code": codes})
    assert len(plan.data["repairs"]) == 1
    plan.run(Control(), lambda _: None)
    assert not {"code_missing", "code_changed"} & set(client.codes())


def test_locally_modified_code_is_shown_and_not_upgraded_unattended(use: Use) -> None:
    client = use(FIFO, 5)
    client.change_code()
    finding = client.repaired("code_changed", unattended=False)
    (difference,) = evidence_of(finding)["differences"]
    assert "SKIP LOCKED" in difference["shipped"]
    assert "SKIP LOCKED" not in difference["installed"]


def test_an_older_version_is_a_note_and_a_newer_one_is_not_repaired(use: Use) -> None:
    client = use(FIFO, 5)
    newer = client.diagnosed(queue=replace(client.queue, version=INTERFACE_VERSION + 1))
    assert newer.verdict == "notes"
    assert finding_of(newer, "code_older").repair is None
    client.make_older()
    older = client.diagnosed(queue=client.known)
    assert older.healthy
    client.repair(finding_of(older, "code_older"))
    assert client.diagnosed(queue=client.known).verdict == "all clear"


def test_a_missing_table_can_only_be_restored(use: Use) -> None:
    client = use(CLAIM, 5)
    client.run("ALTER TABLE {archive} RENAME TO aside")
    finding = client.finding("code_missing")
    assert "_archive is missing" in finding.summary
    assert finding.repair is None
    client.run("ALTER TABLE aside RENAME TO {name}", name=f"{client.queue.name}_archive")
    assert client.diagnosed().verdict == "all clear"


# ------------------------------------------------------------------------------ adopted tables


def test_an_adopted_table_is_checked_by_its_mapped_roles(use: Use) -> None:
    client = use(FIFO, 1)
    client.run(
        "CREATE TABLE jobs (n int PRIMARY KEY, state int, body text, who text, "
        "at timestamptz, tries int)"
    )
    client.run("INSERT INTO jobs SELECT i, 0, 'x' FROM generate_series(1, 5) AS s (i)")
    roles = {"id": "n", "status": "state", "payload": "body"}
    bare = adopt(client.database, "public", "jobs", DESIGNS["status"], roles)
    diagnosis = client.diagnosed(queue=bare)
    assert (diagnosis.findings, diagnosis.verdict) == ((), "unknown")
    assert "no column has their time" in "\n".join(diagnosis.unseen)
    forget(client.database, bare)

    roles |= {"claimed_by": "who", "claimed_at": "at", "attempts": "tries"}
    status = DESIGNS["status"]
    adopted = adopt(client.database, "public", "jobs", status, roles, consumers="direct")
    diagnosis = client.diagnosed(queue=adopted)
    assert diagnosis.findings == ()
    # No column has their waiting time, and no order defines the next one.
    assert all(why.startswith("consumption not known") for why in diagnosis.unseen)
    client.run("UPDATE jobs SET state = 9 WHERE n = 1")
    client.run(
        "UPDATE jobs SET state = 1, who = 'me', at = now() - interval '1 day', tries = 6 "
        "WHERE n = 2"
    )
    found = client.diagnosed(queue=adopted)
    assert set(codes_of(found)) == {"status_unknown", "claims_unknown", "poison"}
    forget(client.database, adopted)
    client.run("DROP TABLE jobs")
