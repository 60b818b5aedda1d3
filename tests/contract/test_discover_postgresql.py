"""What is found of libraries costs one pass over the catalog, however many tables there are."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg.sql import SQL, Literal
from sqlalchemy import Engine, event

from console.actions import libraries
from console.engines import Database, open_database
from tests.contract.stand_in import HANGFIRE, RIVER, SOLID_QUEUE, StandIn
from tests.servers import Server, connect, fresh_database, value

TABLES = 500
_MAKE = """
DO $$ BEGIN
    FOR n IN 1..{} LOOP
        EXECUTE format('CREATE TABLE app_%s (id bigint, name text, status text, payload jsonb,
            queue text, created_at timestamptz, attempts int, max_tries int)', n);
    END LOOP;
END $$
"""


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with fresh_database(server.url) as url, closing(open_database(url)) as database:
        with connect(url) as connection:
            connection.execute(SQL(_MAKE).format(Literal(TABLES)))
            connection.execute(b"ANALYZE pg_catalog.pg_attribute, pg_catalog.pg_class")
        yield database


def test_one_pass_over_the_catalog_finds_all_that_lack_no_column(database: Database) -> None:
    url = database.url.render_as_string(hide_password=False)
    theirs = StandIn(url, "Theirs")
    theirs.install(RIVER + SOLID_QUEUE + HANGFIRE)
    sent: list[tuple[str, Any]] = []

    def note(*called: Any) -> None:
        sent.append((called[2].removeprefix("/* dbq ").partition(" ")[0], called[2:4]))

    libraries.discover(database)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        found = libraries.discover(database)
    finally:
        event.remove(Engine, "before_cursor_execute", note)

    versions = {"hangfire": "23", "river": "7", "solid-queue": None}
    assert {one.of.name: one.version for one in found} == versions
    labels = sorted(label for label, _ in sent if not label.startswith("catalog."))
    each = ["hangfire.queues", "river.queues", "preset.queues"]
    assert labels == sorted(
        [*each, *["preset.find"] * 3, "preset.recognised", *["preset.version"] * 3]
    )
    # The one that sees every table reads their columns once, and hands on next to none of them; the
    # others look their one table up by its name.
    sizes = "SELECT pg_relation_size('pg_attribute') / current_setting('block_size')::int"
    pages = int(str(value(url, sizes)))
    for label, (statement, parameters) in sent:
        if label not in {"preset.recognised", "preset.find"}:
            continue
        with database.transaction("explain", read_only=True) as connection:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}"
            (plan,) = connection.exec_driver_sql(explain, parameters).scalars().one()
        root = plan["Plan"]
        buffers = root["Shared Hit Blocks"] + root["Shared Read Blocks"]
        whole = [one for one in nodes(root) if one["Node Type"] == "Seq Scan"]
        read = {one["Relation Name"] for one in whole} - {"pg_namespace"}
        assert read == ({"pg_attribute"} if label == "preset.recognised" else set()), plan
        assert sum(one["Actual Rows"] for one in whole) < 60, json.dumps(plan)
        assert buffers < (pages + 300 if label == "preset.recognised" else 150)
    theirs.run("ALTER TABLE river_job DROP COLUMN kind")
    assert {one.of.name for one in libraries.discover(database)} == {"hangfire", "solid-queue"}


def nodes(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield root
    for one in root.get("Plans", []):
        yield from nodes(one)
