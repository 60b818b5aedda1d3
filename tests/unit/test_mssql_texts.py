"""T-SQL without a server: its rules, and that no text has changed without a review."""

import re
from collections.abc import Iterator

import pytest

from console import sql
from console.engines.mssql import PRODUCT
from tests.contract.variants import Variant
from tests.microsoft import digests
from tests.microsoft.texts import COMMENT, VARIANTS, batches, every_text, statements_of
from tests.tools.statements import action_statements

pytestmark = pytest.mark.slow

NAME = r"\[(?:[^\]]|\]\])+\]"
KINDS = "TABLE|SEQUENCE|PROCEDURE|FUNCTION|VIEW|TYPE|QUEUE|MESSAGE TYPE|CONTRACT|SERVICE"
CREATED = re.compile(rf"^\s*CREATE (?:OR ALTER )?({KINDS}) ({NAME}(?:\.{NAME})?)", re.MULTILINE)
DROPPED = re.compile(rf"^\s*DROP ({KINDS})\s+(?:IF EXISTS )?([^;]+);", re.MULTILINE)
INDEX = re.compile(r"(?=\b(?:PRIMARY KEY|UNIQUE CLUSTERED|CREATE (?:\w+ )*INDEX)\b)")
DYNAMIC_SQL = {
    "EXEC (N'CREATE SCHEMA dbq')": "has to be alone in its batch, and is wanted once only",
    "EXEC (N'CREATE SCHEMA dbq AUTHORIZATION dbo')": "the same",
    "EXEC (N'CREATE SCHEMA [sales] AUTHORIZATION dbq_owner')": "the same",
    "EXEC (@alter)": "ALTER SEQUENCE ... RESTART WITH ... CACHE takes constants",
    "EXEC (@change)": "a default's constraint has any name, and its expression is in our scripts",
    "EXEC (@kill)": "so does KILL",
    "EXEC (@exchange)": "a procedure's own head, which only the server has, and another body",
    "EXEC (@restore)": "the same, and its body as it was: that is kept in the catalog, and checked",
}
"""All dynamic SQL, and why."""

IN_MASTER = "EXEC master.sys.sp_executesql N'GRANT VIEW SERVER PERFORMANCE STATE TO [name]'"
"""A server's right, which a proof grants to a login that it rolls back."""


def unlisted_dynamic_sql(text: str) -> Iterator[str]:
    """Dynamic SQL that is not on the list."""
    if "sp_executesql" in text.replace(IN_MASTER, "").lower():
        yield "sp_executesql"
    for match in re.finditer(r"\bEXEC(?:UTE)?\s*\((?:[^()']|'[^']*')*\)", text, re.IGNORECASE):
        if match[0] not in DYNAMIC_SQL:
            yield match[0]
    for match in re.finditer(r"SET @alter = (.*)", text):
        # @pop_sequence: a subscriber's, made of two quoted names
        begins = (
            "CONCAT(N'ALTER SEQUENCE [sales].[orders_",
            "CONCAT(N'ALTER SEQUENCE ', @pop_sequence,",
            "CONCAT(N'ALTER SEQUENCE [name].[name] RESTART WITH ', @highest",
        )
        if not match[1].startswith(begins):
            yield match[0]


def misread_views(text: str) -> Iterator[str]:
    """What the server's own views do not mean."""
    # In Azure SQL Database a database's id there is not DB_ID().
    if re.search(r"sys\.databases AS (\w)\b.*\b\1\.database_id = DB_ID\(\)", text, re.DOTALL):
        yield "its own database by its id"
    # A session that is only hidden would count as gone, and its claims be released.
    if "N'VIEW DATABASE STATE'" in text and "##MS_ServerStateReader##" not in text:
        yield "a right that shows nothing in Azure's elastic pools"
    if "LEFT JOIN sys.dm_exec_requests" in text:
        yield "a session twice that has two requests (MARS)"


def broken_rules(text: str) -> Iterator[str]:
    """In hints and procedures."""
    for hints in re.findall(r"\(([A-Z, ]*\bREADPAST\b[A-Z, ]*)\)", text):
        if "READCOMMITTEDLOCK" not in hints:
            yield f"READPAST without it: {hints}"
    yield from misread_views(text)
    # A row as JSON is meant to have whatever columns others added.
    if re.search(r"\bSELECT \*|\.\*(?! FOR JSON)", text):
        yield "SELECT *"
    # A schema that a role owns cannot hold one that runs as its owner, and a restore may lose it.
    for user in re.findall(r"EXECUTE AS (?!(?:USER|LOGIN)\b)('?\w+'?)", text):
        if user != "'dbq_owner'":
            yield f"runs as {user}"
    if re.match(r"CREATE OR ALTER PROCEDURE", text.strip()):
        if not re.search(r"AS\s+BEGIN\s+SET NOCOUNT, XACT_ABORT ON;", text):
            yield "no XACT_ABORT"
        # A caller's (JDBC's setMaxRows, an option of SSMS) would cut an INSERT or the last SELECT:
        # what a loop received and does not return is lost.
        if "SET ROWCOUNT 0;" not in text:
            yield "the caller's ROWCOUNT"


def test_every_text_keeps_the_rules_and_is_unchanged_since_its_review() -> None:
    """One test, so that one process renders them all. What cannot run here is changed on purpose
    only, and reviewed then: `python -m tests.microsoft.digests`.
    """
    bad = [
        f"{where}: {one}"
        for text, where in batches().items()
        for plain in (COMMENT.sub("", text),)
        for one in (*unlisted_dynamic_sql(plain), *broken_rules(plain))
    ]
    assert not bad, "\n".join(bad)
    changed = digests.changed(digests.of(every_text(everything=False)))
    assert not changed, f"{changed}; if that is intended: python -m tests.microsoft.digests"


def tables_of(variant: Variant) -> list[tuple[str, str]]:
    """The scripts that create its tables."""
    name = variant.design.name
    return [
        (name, script) for script in ("tables", "added") if sql.has(PRODUCT, f"{name}.{script}")
    ]


def script_of(variant: Variant, *names: tuple[str, str]) -> str:
    """Some scripts of the variant's queue, without comments."""
    queue = variant.queue("sales", "orders", "mssql")
    found = (sql.statement("mssql", f"{file}.{name}") for file, name in names)
    texts = (sql.script(s, PRODUCT.dialect, queue.scope(PRODUCT)) for s in found)
    return COMMENT.sub("", "\n".join(texts))


def test_uninstall_drops_what_install_creates() -> None:
    for variant in VARIANTS:
        name = variant.design.name
        install_script = script_of(
            variant, *tables_of(variant), ("common", "archive"), (name, "functions")
        )
        uninstall_script = script_of(variant, (name, "drop"), ("common", "drop_archive"))
        created = CREATED.findall(install_script)
        dropped = [
            (kind, n.strip())
            for kind, names in DROPPED.findall(uninstall_script)
            for n in names.split(",")
        ]
        assert len(created) >= 6, variant
        every = re.findall(r"\bCREATE (?!(?:\w+ )*INDEX\b|USER\b)", install_script)
        assert len(created) == len(every), variant
        assert sorted(created) == sorted(dropped), variant


def test_row_locks_are_never_escalated() -> None:
    """READPAST skips only these: no page locks, no escalation."""
    for variant in VARIANTS:
        install_script = script_of(variant, *tables_of(variant), ("common", "archive"))
        for kind, table in CREATED.findall(install_script):
            if kind == "TABLE":
                assert f"ALTER TABLE {table} SET (LOCK_ESCALATION = DISABLE);" in install_script
        for index in INDEX.split(install_script)[1:]:
            only = index.split(";")[0].split("CONSTRAINT")[0]
            assert "ALLOW_PAGE_LOCKS = OFF" in only, (variant, index[:80])


def test_a_verb_acts_on_the_messages_in_hand_of_its_subscriber_alone() -> None:
    """An id is unique to a subscriber only: that of another must not go with it."""
    (variant,) = (v for v in VARIANTS if v.queue("s", "q", "mssql").subscribers and v.finishes)
    view = variant.queue("sales", "orders", "mssql").views[-1]
    for statement, scope in action_statements(PRODUCT, view):
        restores = re.search("archived|restore", statement.name)
        if scope.options.get("storage") == "in_hand" and not restores:
            text = COMMENT.sub("", sql.script(statement, PRODUCT.dialect, scope))
            read = re.findall(r"\[orders_in_hand\] .*?(?=FROM|JOIN|;|$)", text, re.DOTALL)
            assert all("m.subscriber = " in one for one in read), statement.label


_GRANT = re.compile(r"GRANT ([A-Z, ]+) ON OBJECT::\[sales\]\.\[(\w+)\] TO (\w+);")
_USE = re.compile(
    r"\b(FROM|JOIN|INTO|UPDATE|EXEC|NEXT VALUE FOR|DELETE(?: FROM)?)\s+\[sales\]\.\[(orders\w*)\]"
)
_RIGHTS = {
    "FROM": "SELECT",
    "JOIN": "SELECT",
    "INTO": "INSERT",
    "UPDATE": "UPDATE",
    "EXEC": "EXECUTE",
    "NEXT VALUE FOR": "UPDATE",
    "DELETE FROM": "DELETE",
    "DELETE": "DELETE",
}
_NEEDS_NO_GRANT = {
    "bench.push_each": "its own rings",
    "bench.push_many_each": "its own rings",
    "common.lock_all": "an upgrade's, which an administrator runs: CONTROL on the schema",
    "ring.add_popped": "only of rings with subscribers",
    "ring.consumers_at_work": "only of rings with subscribers",
    "ring.tables": "an installation's",
    "ring.subscriber_status": "only of rings with subscribers",
}


def test_each_object_that_a_statement_names_has_its_grant() -> None:
    """Outside procedures, which reach their objects through their owner."""
    lacking = set()
    for variant in VARIANTS:
        scope = variant.queue("sales", "orders", "mssql").scope(PRODUCT)
        granted = {
            (right.strip(), name): role
            for rights, name, role in _GRANT.findall(
                sql.script("roles.queue", PRODUCT.dialect, scope)
            )
            # Whoever may RECEIVE from a Service Broker queue may read it, and nobody else.
            for right in rights.replace("RECEIVE", "SELECT").split(",")
        }
        for text in statements_of([variant]):
            unquoted = re.sub(r"N'(?:[^']|'')*'", "''", COMMENT.sub("", text.text))
            if text.name in _NEEDS_NO_GRANT or re.search(r"\b(CREATE|ALTER|DROP) ", unquoted):
                continue
            for verb, name in _USE.findall(unquoted):
                if (_RIGHTS[verb], name) not in granted:
                    lacking.add((text.name, _RIGHTS[verb], name))
    assert not lacking
