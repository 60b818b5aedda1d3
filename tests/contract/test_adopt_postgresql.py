"""Adopted tables: monitored correctly, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from psycopg.sql import SQL, Identifier

from console import catalog
from console.actions import maintenance, pop, push, relay
from console.actions.forget import forget
from console.actions.install import uninstall
from console.catalog import Kind, Queue
from console.designs import DESIGNS, design
from console.engines import Database
from console.errors import RefusedError, UsageError
from console.features.presets.adopt import adopt
from console.monitor.sample import take_sample
from console.monitor.snapshot import QueueSnapshot, snapshot
from tests.cli.calls import Console
from tests.contract.installs import installed
from tests.contract.leftovers import objects_of
from tests.contract.variants import default
from tests.servers import connect, execute, value, wait_until

pytestmark = pytest.mark.thinned(3)

RATES = {"push_per_second", "pop_per_second"}
"""Figures that a single sample cannot have."""

_STATES = """
    INSERT INTO "Their Queue" VALUES
        (1, 'ready', now() - interval '100 s', 0, NULL, NULL, NULL, NULL, 0),
        (2, 'ready', now() - interval '50 s', 0, NULL, NULL, NULL, NULL, 0),
        (3, 'ready', now() - interval '10 s', 0, NULL, NULL, NULL, NULL, 0),
        (4, 'just claimed', now() - interval '200 s', 1, now(), 'w', NULL, NULL, 1),
        (5, 'stuck', now() - interval '900 s', 1, now() - interval '600 s', 'w', NULL, NULL, 1),
        (6, 'done', now() - interval '900 s', 2, now() - interval '600 s', 'w', NULL, now(), 1),
        (7, 'done', now() - interval '900 s', 2, now() - interval '600 s', 'w', NULL, now(), 1),
        (8, 'archived', now() - interval '999 s', 3, now() - interval '600 s', 'w', NULL, now(), 1),
        (9, 'error', now() - interval '900 s', 4, now() - interval '600 s', 'w', 'no', now(), 1);
"""
_STATUS_TABLE = """
    CREATE TABLE "Their Queue" (
        "the id" integer, "Payload" text, "queued at" timestamp, "STATE" smallint,
        "started" timestamp, "who" text, "why" text, "ended" timestamp, "tries" integer
    );
"""
_PLAIN_TABLE = """
    CREATE TABLE "Their Queue" ("the id" integer, "Payload" text, "queued at" timestamp);
    INSERT INTO "Their Queue" VALUES
        (1, 'a', now() - interval '100 s'), (2, 'b', now() - interval '50 s'), (3, 'c', now());
"""
_PLAIN_ROLES = {"id": "the id", "payload": "Payload", "pushed_at": "queued at"}


@dataclass(frozen=True)
class ForeignTable:
    """An adopted table, its columns by role, and its correct figures."""

    script: str
    roles: Mapping[str, str]
    figures: Mapping[str, int | None]
    """All counts; age_seconds: a minimum."""
    without_roles: Mapping[str, int | None] = field(default_factory=dict)
    """Figures that differ if only the required roles are mapped. None: unknown."""


_PLAIN = ForeignTable(
    _PLAIN_TABLE, _PLAIN_ROLES, {"ready": 3, "age_seconds": 100}, {"age_seconds": None}
)
_STATUS = ForeignTable(
    _STATUS_TABLE + _STATES,
    {
        "id": "the id",
        "payload": "Payload",
        "pushed_at": "queued at",
        "status": "STATE",
        "claimed_at": "started",
        "claimed_by": "who",
        "error": "why",
        "done_at": "ended",
        "attempts": "tries",
    },
    {"ready": 3, "claimed": 2, "stuck": 1, "errors": 1, "done": 2, "age_seconds": 100},
    {"stuck": None, "age_seconds": None},
)

TABLES = {
    "naive": _PLAIN,
    "fifo": _PLAIN,
    "stack": _PLAIN,
    "heap": ForeignTable(_PLAIN_TABLE, _PLAIN_ROLES, {"ready": 3, "age_seconds": None}),
    "pending": ForeignTable(
        """
        CREATE TABLE "Their Queue" (
            "the id" integer, "Payload" text, "at" timestamp, "due" timestamp
        );
        INSERT INTO "Their Queue" VALUES
            (1, 'a', now() - interval '100 s', now() - interval '60 s'),
            (2, 'b', now() - interval '500 s', now() - interval '20 s'),
            (3, 'c', now() - interval '900 s', now() + interval '1 day'),
            (4, 'd', now() - interval '900 s', now() + interval '2 days');
        """,
        {"id": "the id", "payload": "Payload", "pushed_at": "at", "due_at": "due"},
        {"ready": 2, "scheduled": 2, "age_seconds": 60},
        {"age_seconds": None},
    ),
    "claim": ForeignTable(
        _STATUS_TABLE + _STATES + """DELETE FROM "Their Queue" WHERE "STATE" IN (2, 3);""",
        {role: column for role, column in _STATUS.roles.items() if role != "status"},
        {"ready": 3, "claimed": 2, "stuck": 1, "errors": 1, "age_seconds": 100},
        # Without a column for errors a failed claim looks like any other.
        {"claimed": 3, "stuck": 2, "errors": None, "age_seconds": None},
    ),
    "status": _STATUS,
    "split": _STATUS,
    "ring": ForeignTable(
        """
        CREATE TABLE "Their Queue" (
            "the slot" integer, "number" bigint, "Payload" text, "at" timestamp, "refs" integer
        );
        INSERT INTO "Their Queue" SELECT i, NULL, NULL, now(), 0 FROM generate_series(0, 7) AS i;
        UPDATE "Their Queue" SET "refs" = 1, "Payload" = 'x', "number" = "the slot" + 8,
            "at" = now() - (20 - "the slot") * interval '10 s'
        WHERE "the slot" BETWEEN 2 AND 5;
        CREATE SEQUENCE "their push's numbers" START 14;
        CREATE SEQUENCE "their pop's numbers";
        SELECT setval('"their pop''s numbers"', 10);
        """,
        {
            "slot": "the slot",
            "id": "number",
            "payload": "Payload",
            "pushed_at": "at",
            "reference_count": "refs",
            "push_sequence": "their push's numbers",
            "pop_sequence": "their pop's numbers",
            "size": "8",
        },
        # Pop number 10 is consumed, its message still stored: not ready, and no hole in the gap.
        {"ready": 3, "gap": 3, "capacity": 8, "age_seconds": 170},
        {"age_seconds": None},
    ),
}


@pytest.fixture(params=sorted(TABLES))
def name(request: pytest.FixtureRequest) -> str:
    """The name of a design."""
    param: str = request.param
    return param


def run(database: Database, script: str) -> None:
    with connect(database.url.render_as_string(hide_password=False)) as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(script.encode())


def make(database: Database, name: str, roles: Mapping[str, str] | None = None) -> Queue:
    """Create and adopt the table of a design."""
    theirs = TABLES[name]
    run(database, theirs.script)
    return adopt(database, "public", "Their Queue", DESIGNS[name], roles or theirs.roles)


def sampled_queue(database: Database) -> QueueSnapshot:
    (sample,) = take_sample(database).queues
    assert sample.problem == ""
    return snapshot(sample, "test")


def check_figures(observed: QueueSnapshot, expected: Mapping[str, int | None]) -> None:
    unknown = set(RATES)
    for figure, wanted in expected.items():
        found = getattr(observed, figure)
        if wanted is None:
            unknown.add(figure)
            assert found is None
        elif figure == "age_seconds":
            assert wanted <= found < wanted + 10_000
        else:
            assert found == wanted, figure
    assert set(observed.unknown) == unknown
    others = {"ready", "claimed", "stuck", "errors", "done", "scheduled", "gap", "capacity"}
    assert all(getattr(observed, figure) is None for figure in others - set(expected))
    assert observed.estimated == ()


def test_every_design_is_covered() -> None:
    assert set(TABLES) == {d.name for d in DESIGNS.values() if "postgresql" in d.engines}


def rows_of(database: Database) -> list[tuple[object, ...]]:
    return execute(
        database.url.render_as_string(hide_password=False),
        SQL('SELECT * FROM "Their Queue" ORDER BY 1'),
    )


def test_an_adopted_table_is_monitored_correctly_and_never_changed(
    new_database: Database, name: str
) -> None:
    roles = TABLES[name].roles
    run(new_database, TABLES[name].script)
    before, contents = objects_of(new_database), rows_of(new_database)
    queue = adopt(new_database, "public", "Their Queue", DESIGNS[name], roles)
    with new_database.transaction("look") as connection:
        found = catalog.find(connection, "Their Queue")
    assert (found.kind, found.design) == (Kind.ADOPTED, DESIGNS[name])
    assert (found.roles, set(found.options)) == (dict(roles), {"search_path"})
    assert found.table == queue.table == "Their Queue"
    for attempt in (
        lambda: pop.pop(new_database, queue, lambda _: None),
        lambda: push.push_waiting(new_database, queue, "x", 0.0),
        lambda: push.push_all(new_database, queue, ["x"], 0.0),
        lambda: uninstall(new_database, queue, keep_archive=False, with_messages=True),
    ):
        with pytest.raises(UsageError, match="was adopted"):
            attempt()
    for size in (None, 100):
        with pytest.raises(RefusedError if name == "ring" else UsageError):
            relay.relay(new_database, queue, size)
        with pytest.raises(RefusedError if name == "ring" else UsageError):
            relay.plan(new_database, queue, size)
    check_figures(sampled_queue(new_database), TABLES[name].figures)
    assert (objects_of(new_database), rows_of(new_database)) == (before, contents)
    forget(new_database, queue)
    assert (objects_of(new_database), rows_of(new_database)) == (before, contents)
    assert take_sample(new_database).queues == ()
    adopt(new_database, "public", "Their Queue", DESIGNS[name], roles)


def refuse(
    database: Database, name: str, roles: Mapping[str, str], reason: str, table: str = ""
) -> None:
    before = objects_of(database, with_own=True)
    with pytest.raises(UsageError, match=reason):
        adopt(database, "public", table or "Their Queue", DESIGNS[name], roles)
    assert objects_of(database, with_own=True) == before


def test_roles_of_an_adopted_table_are_checked(new_database: Database, name: str) -> None:
    theirs = TABLES[name]
    run(new_database, theirs.script)
    refuse(new_database, name, {**theirs.roles, "colour": "Payload"}, "no role 'colour'")
    refuse(new_database, name, {**theirs.roles, "payload": "payload"}, "no column 'payload'")
    for role in DESIGNS[name].needed_roles:
        others = {r: column for r, column in theirs.roles.items() if r != role}
        refuse(new_database, name, others, f"needs the roles: {role}")
    refuse(new_database, name, theirs.roles, "no table 'their queue'", "their queue")
    refuse(new_database, name, theirs.roles, "no table 'public.Their Queue'", "public.Their Queue")
    with pytest.raises(UsageError, match="no schema 'nowhere'"):
        adopt(new_database, "nowhere", "Their Queue", DESIGNS[name], theirs.roles)


def test_size_and_sequences_of_a_ring_are_checked_and_its_numbers_stay(
    new_database: Database,
) -> None:
    theirs = TABLES["ring"]
    run(new_database, theirs.script)
    for size in ("0", "-1", "many", "", "1.5"):
        refuse(new_database, "ring", {**theirs.roles, "size": size}, "number of slots")
    for role in ("push_sequence", "pop_sequence"):
        refuse(
            new_database, "ring", {**theirs.roles, role: "Their Queue"}, "no sequence 'Their Queue'"
        )
        refuse(new_database, "ring", {**theirs.roles, role: "number"}, "no sequence 'number'")
    queue = adopt(new_database, "public", "Their Queue", DESIGNS["ring"], theirs.roles)
    contents = rows_of(new_database)
    for wanted in (None, 100):
        with pytest.raises(RefusedError, match="never renumbered"):
            relay.relay(new_database, queue, wanted)
        with pytest.raises(RefusedError, match="never renumbered"):
            relay.plan(new_database, queue, wanted)
    check_figures(sampled_queue(new_database), theirs.figures)
    assert rows_of(new_database) == contents


def test_an_adopted_or_installed_queue_cannot_be_adopted(new_database: Database) -> None:
    make(new_database, "fifo")
    with pytest.raises(UsageError, match="already a queue named 'Their Queue'"):
        adopt(new_database, "public", "Their Queue", design("heap"), {"payload": "Payload"})
    installed(new_database, default("fifo"), "ours")
    with pytest.raises(UsageError, match="already a queue named 'ours'"):
        adopt(new_database, "public", "ours", design("fifo"), {"id": "id", "payload": "payload"})


def test_a_name_that_the_server_would_truncate_is_not_found(new_database: Database) -> None:
    longest = "t" * new_database.product.name_limit
    run(new_database, f'CREATE SCHEMA {longest}; CREATE TABLE {longest}.{longest} ("b" text)')
    of, roles = design("heap"), {"payload": "b"}
    for extra in ("x", "\N{SNOWMAN}"):
        with pytest.raises(UsageError):
            adopt(new_database, longest, longest + extra, of, roles)
        with pytest.raises(UsageError):
            adopt(new_database, longest + extra, longest, of, roles)
    assert adopt(new_database, longest, longest, of, roles).name == longest


def test_a_view_can_be_adopted(new_database: Database) -> None:
    run(new_database, TABLES["status"].script + 'CREATE VIEW v AS SELECT * FROM "Their Queue"')
    view = adopt(new_database, "public", "v", DESIGNS["status"], TABLES["status"].roles)
    observed = sampled_queue(new_database)
    assert (observed.ready, observed.claimed, observed.done) == (3, 2, 2)
    # No engine can sample the pages of a view, so no query may do that.
    assert view.scope(new_database.product).options["counters"] == "no"


def test_a_missing_table_hides_no_other_queue(new_database: Database) -> None:
    make(new_database, "fifo")
    installed(new_database, default("ring"), "ours")
    run(new_database, 'DROP TABLE "Their Queue"')
    theirs, ours = sorted(
        take_sample(new_database).queues, key=lambda observed: observed.queue.name
    )
    assert theirs.row is None
    assert "Their Queue" in theirs.problem
    assert ours.row is not None
    missing = snapshot(theirs, "test")
    assert missing.ready is None
    assert "ready" in missing.unknown


def test_rows_of_tables_that_inherit_from_it_are_estimated_too(new_database: Database) -> None:
    console = Console(new_database.url.render_as_string(hide_password=False))
    execute(console.url, "CREATE TABLE parent (id bigint, body text)")
    execute(console.url, "CREATE TABLE child () INHERITS (parent)")
    execute(console.url, "CREATE TABLE grandchild () INHERITS (child)")
    for table, rows in (("child", 40_000), ("grandchild", 20_000)):
        filled = SQL("INSERT INTO {} SELECT i, 'x' FROM generate_series(1, {}) AS s (i)")
        execute(console.url, filled.format(Identifier(table), rows))
    console.done("adopt", "parent", "--design", "heap", "--map", "payload=body")
    execute(console.url, "ANALYZE parent, child, grandchild")
    (found,) = console.done("status", "parent", "--json").json["queues"]
    assert found["ready"] == pytest.approx(60_000, rel=0.15)


def test_dead_rows_of_tables_that_inherit_from_it_are_maintained_too(
    new_database: Database,
) -> None:
    console = Console(new_database.url.render_as_string(hide_password=False))
    never = "WITH (autovacuum_enabled = off)"
    execute(console.url, f"CREATE TABLE parent (id bigint, body text) {never}")
    execute(console.url, f"CREATE TABLE child () INHERITS (parent) {never}")
    execute(console.url, f"CREATE TABLE grandchild () INHERITS (child) {never}")
    execute(console.url, "INSERT INTO grandchild SELECT i FROM generate_series(1, 60000) AS s (i)")
    execute(console.url, "DELETE FROM grandchild WHERE id > 100")
    console.done("adopt", "parent", "--design", "heap", "--map", "payload=body")
    counted = "SELECT pg_stat_get_dead_tuples('grandchild'::regclass) > 50000"
    wait_until(lambda: bool(value(console.url, counted)), "the server has counted the dead rows")
    measured = maintenance.measure(new_database, catalog.look_up(new_database, "parent"))
    assert [table.name for table in measured.tables] == ["child", "grandchild", "parent"]
    assert "VACUUM grandchild" in console("maintain", "parent").text
    console.done("maintain", "parent", "--yes")
    assert not value(console.url, counted)
