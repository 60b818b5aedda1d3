"""The doctor's and the pipeline's statements return the columns that their row types need, on both
engines.

PostgreSQL's are run on a server and fill their row types; so do statements with the same columns.
"""

import dataclasses
import re
from collections.abc import Iterator

import pytest

from console import sql
from console.actions.rows import ChosenRow, LockedRow
from console.catalog import Queue
from console.designs import DESIGNS, designs_on
from console.doctor import broker, claims, messages, sessions
from console.engines import PRODUCTS, Product
from console.features.lake.archive import delete as deletes
from console.features.lake.archive import files, plan
from console.monitor.message_count import CountedRow
from console.monitor.scan_query import LOCK_NEXT, MessageSource, locks_next, query
from console.monitor.scans import By, Scan, ScanKey, ScanRequest
from console.sql import templates
from tests.contract.variants import ALL, DEFAULTS, Variant, on
from tests.tools.statements import MORE, pipeline_statements

RING = {"next_numbers", "lost", "structure", "broken_slots", "missing_slots", "sequence_settings"}
RING |= {"server_start", "park_orphans", "drop_holes", "void_holes", "park_spent", "drop_voids"}
RING |= {"add_slots", "empty_slots", "raise_numbers", "repair_slots", "slot_map"}
ONLY_ON = {
    "postgresql": {
        *("drawing_transactions", "disable_jit", "pop_plan"),
        "forget_sessions",  # SQL Server's views show each time what is
        *("far_times", "far_times_plan"),  # SQL Server's times are of the years 1 to 9999
    },
    "mssql": {
        "large_caches",  # elsewhere sessions cache, and a ring's have none
        "parameterization",  # PostgreSQL has no such setting
    },
}
"""Statements of one engine alone: who has drawn from a ring, which the other derives from two
samples; and a pop's plan."""
ALONE = "only PostgreSQL has these: write them for SQL Server, or say in ONLY_ON why it has none"
ROW_TYPES = {
    "conversations": broker._States,
    "undelivered": broker.Undelivered,
    "activation": broker.Activation,
    "ghosts": sessions._Ghosts,
}
"""Of statements that only SQL Server has."""

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\[(?:[^\]\n]|\]\])*\]|[(),;]|@?\w+",
    re.DOTALL,
)
_HEADS = {"SELECT", "RETURNING", "OUTPUT"}
_ENDS = {"FROM", "INTO", "ORDER", "OPTION", "WHERE", ";"}


def columns(text: str) -> list[str]:
    """The names in the last named list of columns outside brackets."""
    found: list[str] = []
    depth, listing, head, last = 0, False, "", ""
    for token in _TOKEN.findall(text):
        if token.startswith(("--", "/*")):
            continue
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth == 0 and token.upper() in _HEADS:
            if listing and head == "OUTPUT":  # what an INSERT returns, and not what it reads
                break
            listing, head, found = True, token.upper(), []
        elif listing and depth == 0 and (token in {",", ";"} or token.upper() in _ENDS):
            found.append(last.strip('"[]'))
            listing = token == ","
        last = token
    return [*found, last.strip('"[]')] if listing else found


def columns_of_doctor(product: Product, queue: Queue) -> Iterator[tuple[str, list[str]]]:
    """The name and the columns of each of the doctor's statements for that queue."""
    ring = queue.design.name == "ring"
    of_ring = [sql.statement(product.name, f"ring.{name}") for name in sorted(RING)] if ring else []
    for statement in (*of_ring, *of_the_doctor(product, queue.design.name)):
        scope = queue.scope_of(statement.name, product, **MORE)
        text = sql.script(statement, product.dialect, scope)
        # For some designs a statement is empty.
        if (found := columns(text)) and statement.name not in ONLY_ON[product.name]:
            yield statement.name, found


def of_the_doctor(product: Product, design: str) -> list[sql.Statement]:
    """All of the doctor's statements that such a design has, in any file."""
    names = {name for engine in PRODUCTS for name in templates.statements(engine, "doctor")}
    names |= ROW_TYPES.keys()
    available = sorted(name for name in names if sql.has(product, f"{design}.{name}"))
    return [sql.statement(product.name, f"{design}.{name}") for name in available]


ARCHIVING = [
    Variant(design, {"archive_at_pop": "on"})
    for design in DESIGNS.values()
    if "archive_at_pop" in {option.name for option in design.options}
]


@pytest.mark.parametrize("variant", on("postgresql", [*DEFAULTS, *ARCHIVING]), ids=str)
def test_both_engines_return_the_same_columns(variant: Variant) -> None:
    here, there = (
        dict(columns_of_doctor(product, variant.queue("s", "q", product.name)))
        for product in (PRODUCTS["postgresql"], PRODUCTS["mssql"])
    )
    assert here.keys() - there.keys() == set(), ALONE
    assert {name: there[name] for name in here} == here
    assert there.keys() - here.keys() <= ROW_TYPES.keys()


def test_both_engines_have_the_same_statements() -> None:
    """A ring's and the doctor's; on PostgreSQL a statement for only one design is in its file."""
    names = {engine: set(templates.statements(engine, "ring")) for engine in PRODUCTS}
    for product in PRODUCTS.values():
        designs = designs_on("postgresql")
        found = (
            statement.name for design in designs for statement in of_the_doctor(product, design)
        )
        names[product.name].update(found)
    here, there = (names[e] - ONLY_ON[e] for e in ("postgresql", "mssql"))
    assert here - {"target_state", "contents"} - there == set(), ALONE
    assert there - here <= ROW_TYPES.keys()


def test_statements_only_on_sql_server_fill_their_row_types() -> None:
    product = PRODUCTS["mssql"]
    (variant,) = (one for one in DEFAULTS if one.design.name == "broker")
    found = dict(columns_of_doctor(product, variant.queue("s", "q", "mssql")))
    for name, row_type in ROW_TYPES.items():
        assert found[name] == [field.name for field in dataclasses.fields(row_type)]


SCANNED = {"claimed": claims.ClaimedRow, "contradictions": claims.ContradictionRow}
SCANNED |= {"retried": messages.AttemptsRow, "counted": CountedRow, "chosen": ChosenRow}
SCANNED |= {LOCK_NEXT: LockedRow}


def scanned(product: Product, queue: Queue) -> Iterator[tuple[str, str, str]]:
    """(statement, scan, SQL) of all the doctor's scans."""
    source = MessageSource(
        product, queue, "text", product.id_types[queue.design.id_type or "bigint"]
    )
    for scan in (*claims.scans(queue), Scan("any", By.ID)):
        names = {"retried"} if scan.state in {"ready", "claimed", "error"} else set()
        names |= {"claimed"} if scan.state == "claimed" else set()
        choose = LOCK_NEXT if locks_next(product) else "chosen"
        names |= {"counted", choose} if scan.state else set()
        if queue.design.name in {"status", "split"} or scan.state == "error":
            names |= {"contradictions"} if scan.state != "ready" and not scan.in_hand else set()
        for after in (None, ScanKey(scan.name, "2026-01-01T00:00:00", "1", scan.dated)):
            for name in sorted(names):
                text = query(source, ScanRequest(scan, read_limit=10, after=after), name).text
                yield name, f"{scan} {after}", text.replace("\\:", ":")


KEEPING = [v for v in DEFAULTS if v.design.name in {"claim", "status", "split"}]
KEEPING += [Variant(DESIGNS["ring"], {"in_hand": "on", "size": "10"})]


@pytest.mark.parametrize("variant", KEEPING, ids=str)
def test_scan_statements_fill_their_row_types(variant: Variant) -> None:
    queries = {
        engine: list(scanned(product, variant.queue("s", "q", engine)))
        for engine, product in PRODUCTS.items()
    }
    assert {name for name, _, _ in queries["mssql"]} >= {"claimed", "retried"}
    for name, where, text in (one for some in queries.values() for one in some):
        assert columns(text) == [f.name for f in dataclasses.fields(SCANNED[name])], where


def test_columns_are_read_from_the_last_list() -> None:
    assert columns("WITH a AS (SELECT 1 AS x) SELECT a.x, max(a.y) AS [y] FROM a") == ["x", "y"]
    assert columns("DECLARE @a int; SELECT @a = 1; SELECT @a AS a, 2 AS b;") == ["a", "b"]
    assert columns("INSERT INTO t (a) OUTPUT inserted.a AS slot SELECT 1 AS b") == ["slot"]
    assert columns("UPDATE t SET a = 1 OUTPUT b.c AS c INTO @d (c); SELECT 2 AS e;") == ["e"]
    assert columns("INSERT INTO t SELECT 1 RETURNING slot AS slot;") == ["slot"]


_CHOICE = re.compile(
    r"SELECT (?P<keys>head\.[\w, .]+?) FROM (?P<from>.*?) LIMIT (?:1|greatest\(n, 0\)) FOR UPDATE",
    re.DOTALL,
)


def test_the_explained_plan_is_that_of_a_pop() -> None:
    product = PRODUCTS["postgresql"]
    for variant in on("postgresql", ALL):
        if variant.design.name in {"heap", "ring"}:
            continue
        queue = variant.queue("s", "q", "postgresql")
        scope = queue.scope(product)
        functions = sql.script(f"{queue.design.name}.functions", product.dialect, scope)
        plain = re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", functions))
        choices = {
            f"SELECT {match['keys']}, head.ctid FROM {match['from']} LIMIT 1"
            for match in _CHOICE.finditer(plain)
        }
        explained = sql.query("doctor.pop_plan", product.dialect, scope)
        text = re.sub(r"\s+", " ", explained.text.partition("*/")[2]).strip(" ;")
        text = text.replace("statement_timestamp()", "now_due").replace(" WHERE true", "")
        text = re.sub(r'\bm\.(?:"(\w+)"|(\w+))', r"head.\1\2", text).replace(" AS m ", " AS head ")
        expected = {f"EXPLAIN (SETTINGS, FORMAT JSON) {choice}" for choice in choices}
        assert {text} == expected, variant


def test_a_pop_and_the_doctor_use_the_same_planner_settings() -> None:
    settings = templates.statements("postgresql", "server")["transaction_settings"].template
    for design in ("naive", "fifo", "stack", "pending", "claim", "status", "split"):
        functions = sql.statement("postgresql", f"{design}.functions").template
        pop = functions.partition('FUNCTION "{schema}"."{queue}_pop_many"(')[2].partition("$dbq$")[
            0
        ]
        off = set(re.findall(r"SET (\w+) = off", pop)) - {"enable_hashjoin", "enable_mergejoin"}
        assert off == set(re.findall(r"set_config\('(\w+)', 'off'", settings)), design


PIPELINE_TYPES = {
    "plan": plan.LakePlan,
    "step": plan._Step,
    "reserve": plan._Step,
    "reserved": plan.Rows,
    "part": plan._PartRow,
    "delete_rows": deletes._Deleted,
}
PIPELINE_VALUES = {
    "server_time": "moment",
    "others": "others",
    "set_plan": "plan_id",
    "in_charge": "plan_id",
    "keys": "archive_id",
    "release": "rows",
    "release_all": "rows",
}
PIPELINE_SCRIPTS = {"add_plan", "forget"}


def columns_of_pipeline(
    name: str, queue: Queue, scope: templates.Scope, *, always_json: bool
) -> list[str]:
    if name == "rows":
        lacked = {"kind", "more"} | ({"due_at"} - set(scope.roles))
        lacked |= {"payload" if queue.options.get("payload") == "bytes" else "payload_bytes"}
        if queue.design.name not in {"status", "split"}:
            lacked.add("title")
        row_json = ["row_json"] if always_json or scope.options["others"] == "yes" else []
        return [name for name in files.SCHEMA.names if name not in lacked] + row_json
    if name in PIPELINE_VALUES:
        return [PIPELINE_VALUES[name]]
    return [field.name for field in dataclasses.fields(PIPELINE_TYPES[name])]


def test_each_statement_of_the_pipeline_fills_its_row_type() -> None:
    for engine, variant in [(name, one) for one in ALL for name in one.engines]:
        product, queue = PRODUCTS[engine], variant.queue("s", "q", engine)
        rendered = set()
        for statement, scope in pipeline_statements(product, queue):
            rendered.add(statement.name)
            text = sql.script(statement, product.dialect, scope)
            if statement.name not in PIPELINE_SCRIPTS:
                times = engine == "postgresql"  # elsewhere a file can hold all of them
                expected = columns_of_pipeline(statement.name, queue, scope, always_json=times)
                assert columns(text) == expected, text
        assert rendered == templates.statements(product.name, "pipeline").keys()
