"""Sequences behind their tables, and ids that run out: found, worded and repaired."""

import shlex
from contextlib import closing
from dataclasses import replace
from typing import LiteralString

import pytest

from console.designs import DESIGNS
from console.doctor import sequences
from console.doctor.context import check_context
from console.doctor.finding import Finding
from console.engines import Database, open_database
from console.errors import ConsoleError, UsageError
from console.features.presets.adopt import adopt
from tests.contract.installs import installed
from tests.contract.variants import Variant
from tests.faults.harness.doctor import evidence_of
from tests.faults.harness.queue import (
    FIFO,
    HEAP,
    NAIVE,
    PENDING,
    RING,
    SPLIT,
    STACK,
    STATUS,
    FaultyQueue,
    Use,
    variant,
)
from tests.servers import READ_CATALOG, connect, login

DRAWING = [NAIVE, HEAP, FIFO, STACK, PENDING, STATUS, SPLIT]
ARCHIVING = [variant(name, archive_at_pop="on") for name in ("fifo", "ring", "heap")]


def sequence_of(client: FaultyQueue, table: str = "", column: str = "id") -> str:
    """Its name, as in SQL."""
    queue = client.queue
    if queue.design.name == "naive" and not table:
        return f'"{queue.schema}"."{queue.name}_seq"'
    of = table or f'"{queue.schema}"."{queue.table}"'
    (found,) = client.run("SELECT pg_get_serial_sequence(%s, %s)", of, column)
    return str(found)


def set_back(client: FaultyQueue, sequence: str, to: int = 1) -> None:
    """As after logical replication, or a restore of data alone."""
    client.run("SELECT setval(CAST(%s AS regclass), %s, false)", sequence, to)


def archive_of(client: FaultyQueue) -> str:
    return f'"{client.queue.schema}"."{client.queue.name}_archive"'


def repaired_here(client: FaultyQueue) -> Finding:
    """Repair the finding of its sequence, after which there is none."""
    (finding,) = client.found(sequences.CHECKS)
    assert finding.evidence == client.finding("id_sequence_behind").evidence
    client.repair(finding, unattended=False)
    assert client.found(sequences.CHECKS) == []
    return finding


@pytest.mark.parametrize("variant", DRAWING, ids=str)
def test_a_sequence_behind_its_table_is_found_and_repaired(use: Use, variant: Variant) -> None:
    client = use(variant, 20)
    assert client.found(sequences.CHECKS) == []
    set_back(client, sequence_of(client))
    finding = repaired_here(client)
    (behind,) = evidence_of(finding)["behind"]
    assert (behind["last_value"], behind["highest_id"]) == (None, 20)
    assert "before them" in finding.consequence
    assert client.push(client.payload(21)) == "21", "the next id, neither a taken nor a lost one"


@pytest.mark.parametrize("variant", ARCHIVING, ids=str)
def test_the_archive_s_sequence_is_examined_too(use: Use, variant: Variant) -> None:
    client = use(variant, 9)  # of a ring one is lost to the pop that fails
    assert len(client.pop_many(4)) == 4
    set_back(client, sequence_of(client, archive_of(client), "archive_id"))
    with pytest.raises(ConsoleError) as failed:
        client.pop()
    assert f"dbq-console doctor {shlex.quote(client.queue.name)}" in failed.value.next_step
    repaired_here(client)
    assert client.pop() is not None


def test_the_catalog_s_sequences_are_repaired_although_nothing_can_be_recorded(
    new_database: Database,
) -> None:
    client = FaultyQueue(new_database, installed(new_database, FIFO).queue)
    client.run(
        "INSERT INTO dbq.action (schema_name, queue_name, verb, operator, session, "
        "connection) SELECT 'public', 'q', 'note', '', '', '' FROM generate_series(1, 9)"
    )
    for table, column in (("action", "action_id"), ("note", "note_id")):
        set_back(client, sequence_of(client, f"dbq.{table}", column))
    client.run("INSERT INTO dbq.note (operator, note) OVERRIDING SYSTEM VALUE VALUES ('', '')")
    finding = client.repaired("id_sequence_behind", unattended=False)
    assert "catalog" in finding.consequence
    (detail,) = client.run("SELECT detail FROM dbq.action ORDER BY action_id DESC LIMIT 1")
    assert "dbq.action.action_id: from 1 to " in str(detail)


def test_uncommitted_rows_and_rolled_back_ones_are_no_finding(use: Use) -> None:
    client = use(FIFO, 3)
    with closing(connect(client.url)) as pushing:
        pushing.autocommit = False
        pushing.execute(client.sql("SELECT {push}('x')"))
        assert client.found(sequences.CHECKS) == []
        pushing.rollback()
    assert client.found(sequences.CHECKS) == []


def test_a_repair_never_sets_a_sequence_back_and_waits_for_uncommitted_rows(use: Use) -> None:
    client = use(FIFO, 9)
    sequence = sequence_of(client)
    set_back(client, sequence)
    finding = client.finding("id_sequence_behind")
    with closing(connect(client.url)) as other:
        other.autocommit = False
        other.execute(client.sql("INSERT INTO {table} (id, payload) VALUES (30, '')"))
        with pytest.raises(ConsoleError):
            client.repair(finding)
        other.commit()
    client.repair(finding)
    assert client.push(client.payload(1)) == "31"
    set_back(client, sequence, 100)
    client.repair(finding)
    assert client.push(client.payload(1)) == "100"


def test_a_repair_reads_all_ids_of_a_table_without_an_index(use: Use) -> None:
    client = use(HEAP, 20)
    set_back(client, sequence_of(client))
    finding = client.finding("id_sequence_behind")
    rows = "SELECT n, '' FROM generate_series(21, 10020) AS n"
    client.run(f"INSERT INTO {{table}} (id, payload) {rows}")
    client.repair(finding)
    assert client.push(client.payload(1)) == "10021"


def test_an_id_that_a_caller_chose_far_away_is_no_finding_and_uses_nothing_up(use: Use) -> None:
    client = use(FIFO, 3)
    insert: LiteralString = "INSERT INTO {table} (id, payload) VALUES (%s, '')"
    client.run(insert, 2**63 - 1)
    assert client.found(sequences.CHECKS) == []
    client.run(insert, 50)
    client.repaired("id_sequence_behind")
    assert client.push(client.payload(1)) == "51"


def test_a_taken_id_is_worded_by_what_has_it(use: Use) -> None:
    client = use(FIFO, 3)
    set_back(client, sequence_of(client))
    with pytest.raises(ConsoleError) as failed:
        client.push(client.payload(4))
    assert "not stored twice" not in str(failed.value)
    assert f"dbq-console doctor {shlex.quote(client.queue.name)}" in failed.value.next_step
    assert not isinstance(failed.value, UsageError), "the caller did nothing wrong"


def test_a_reader_sees_it_by_the_roles_grants(use: Use) -> None:
    client = use(FIFO, 3)
    grants = (*READ_CATALOG, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}")
    with login(client.url, *grants) as url, closing(open_database(url)) as reader:
        with check_context(reader, client.queue) as context:
            assert list(sequences.CHECKS.run(context)) == []
        assert "dbq-console roles" in context.unseen[0]


def test_the_rate_of_pushes_tells_for_how_many_days_ids_last(use: Use) -> None:
    client = use(FIFO, 3)
    with check_context(client.database, client.queue) as context:
        for per_second, code in (
            (1e14, sequences.NEARLY_USED),
            (2e12, sequences.RUN_OUT),
            (1.0, None),
        ):
            seen = replace(client.snapshot(), push_per_second=per_second)
            context.snapshot = seen
            assert [finding.code for finding in sequences.CHECKS.run(context)] == [code][
                : code is not None
            ]


ADOPTED_ROLES = {"id": "n", "payload": "body", "pushed_at": "at"}


@pytest.mark.parametrize(
    ("last", "code"),
    [(2**31 - 8, "ids_nearly_used_up"), (2**31 - 10**8, "ids_run_out"), (2**30, "")],
)
def test_ids_that_run_out_are_found_by_the_smaller_of_both_types(
    new_database: Database, last: int, code: str
) -> None:
    """A whole-number column of four bytes that a sequence of eight feeds."""
    client = FaultyQueue(new_database, installed(new_database, FIFO).queue)
    client.run("CREATE SEQUENCE fed AS bigint")
    client.run(
        "CREATE TABLE jobs (n integer PRIMARY KEY DEFAULT nextval('fed'), body text, "
        "at timestamptz DEFAULT now())"
    )
    client.run("SELECT setval('fed', %s)", last)
    adopted = adopt(new_database, "public", "jobs", DESIGNS["fifo"], ADOPTED_ROLES)
    found = client.found(sequences.CHECKS, adopted)
    assert [one.code.name for one in found] == ([code] if code else [])
    if found:
        (column,) = evidence_of(found[0])["columns"]
        assert column["left"] == 2**31 - 1 - last
        assert "bigint" in found[0].code.judgement


def test_other_steps_and_cycles_are_not_judged(new_database: Database) -> None:
    """Two servers that replicate to each other draw odd and even ids."""
    client = FaultyQueue(new_database, installed(new_database, FIFO).queue)
    client.run(
        "CREATE TABLE jobs (n bigint GENERATED BY DEFAULT AS IDENTITY (INCREMENT 2) PRIMARY KEY, "
        "c smallint GENERATED BY DEFAULT AS IDENTITY (CYCLE), body text, at timestamptz)"
    )
    client.run("INSERT INTO jobs (n, c) VALUES (4000, 32767)")
    adopted = adopt(new_database, "public", "jobs", DESIGNS["fifo"], ADOPTED_ROLES)
    assert client.found(sequences.CHECKS, adopted) == []


def test_no_sequence_of_a_ring_is_taken_for_one_of_ids(use: Use) -> None:
    client = use(RING, 3)
    assert client.found(sequences.CHECKS) == []
