"""T-SQL without a server: each batch through sqlfluff's parser, and the rules that decide."""

import dataclasses
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from sqlfluff.core import FluffConfig, Linter

from console import sql
from console.actions import install
from console.catalog import Kind, Queue
from console.designs import DESIGNS
from console.doctor.claims import IN_HAND, scope_of
from console.engines.mssql import PRODUCT
from tests.contract.variants import ALL, Variant, on
from tests.looks import adopted as somebody_elses
from tests.moves import moves
from tests.pipeline.statements import asked

NAME = r"\[(?:[^\]]|\]\])+\]"
OBJECT = rf"{NAME}\.{NAME}"
VALUE = r"(?:@\w+|\d+)"
RECEIVE = (
    rf"RECEIVE TOP \({VALUE}\) (?:@\w+ = )?\w+(?:, (?:@\w+ = )?\w+)*\s+FROM {OBJECT}(?: INTO @\w+)?"
    r"(?: WHERE conversation_handle = @\w+)?"
)
BROKER = "of Service Broker it knows END CONVERSATION only"
TEMPORAL = "of ALTER TABLE ... SET it knows temporal tables only"

UNPARSED = {
    rf"ALTER TABLE {OBJECT} SET \(LOCK_ESCALATION = DISABLE\);": TEMPORAL,
    rf"ALTER TABLE {OBJECT} REBUILD WITH \(\s+ONLINE = ON \(WAIT_AT_LOW_PRIORITY "
    r"\(MAX_DURATION = 1 MINUTES, ABORT_AFTER_WAIT = SELF\)\)\s+\);": "of it it knows REBUILD",
    rf"ALTER QUEUE {OBJECT} (?:REBUILD|REORGANIZE|WITH STATUS = ON);": BROKER,
    rf"CREATE MESSAGE TYPE {NAME} VALIDATION = NONE;": BROKER,
    rf"CREATE CONTRACT {NAME} \({NAME} SENT BY INITIATOR\);": BROKER,
    rf"CREATE QUEUE {OBJECT} WITH STATUS = ON"
    r"(?:, POISON_MESSAGE_HANDLING \(STATUS = OFF\))?;": BROKER,
    rf"CREATE SERVICE {NAME} ON QUEUE {OBJECT}(?: \({NAME}\))?;": BROKER,
    rf"ALTER QUEUE {OBJECT} WITH ACTIVATION \(\s+STATUS = OFF, PROCEDURE_NAME = {OBJECT}, "
    r"MAX_QUEUE_READERS = 1, EXECUTE AS OWNER\s+\);": BROKER,
    rf"BEGIN DIALOG CONVERSATION @\w+\s+FROM SERVICE {NAME}\s+TO SERVICE N'(?:[^']|'')+', "
    rf"'CURRENT DATABASE'\s+ON CONTRACT {NAME}\s+WITH ENCRYPTION = OFF;": BROKER,
    rf"SEND ON CONVERSATION @\w+ MESSAGE TYPE {NAME} \(@\w+\);": BROKER,
    rf"{RECEIVE};": BROKER,
    rf"WAITFOR \(\s*{RECEIVE}\s*\), TIMEOUT {VALUE};": "of WAITFOR it knows DELAY and TIME only",
    rf"DROP SERVICE {NAME};": BROKER,
    rf"DROP QUEUE {OBJECT};": BROKER,
    rf"DROP CONTRACT {NAME};": BROKER,
    rf"DROP MESSAGE TYPE {NAME};": BROKER,
}
"""Statements that sqlfluff's tsql dialect cannot read, whole, and what it lacks."""

KINDS = "TABLE|SEQUENCE|PROCEDURE|FUNCTION|VIEW|TYPE|QUEUE|MESSAGE TYPE|CONTRACT|SERVICE"
CREATED = re.compile(rf"^\s*CREATE (?:OR ALTER )?({KINDS}) ({NAME}(?:\.{NAME})?)", re.MULTILINE)
DROPPED = re.compile(rf"^\s*DROP ({KINDS})\s+([^;]+);", re.MULTILINE)
INDEX = re.compile(r"(?=\b(?:PRIMARY KEY|UNIQUE CLUSTERED|CREATE (?:\w+ )*INDEX)\b)")
COMMENT = re.compile(r"--[^\n]*")
BIND = re.compile(r"(?<![:\w]):(\w+)")
NUMBER = re.compile(r"N'\d+'")
"""A number that an option chose: another one parses as well."""

PUT_TOGETHER = {
    "EXEC (N'CREATE SCHEMA dbq')": "has to be alone in its batch, and is wanted once only",
    "EXEC (@restart)": "ALTER SEQUENCE ... RESTART WITH takes a constant",
    "EXEC (@kill)": "so does KILL",
}
"""All SQL that is run as text, and why."""

MORE = {
    "kind": "installed",
    "options_json": "{}",
    "roles_json": "{}",
    "version": "1",
    "installed_from": "me@here",
    **dict.fromkeys(("relation", "index", "session"), "name"),
    **dict.fromkeys(("rows", "width"), "10"),
}
VARIANTS = on("mssql", ALL)
ADOPTED = {"status", "claims", "estimate"}
"""Statements that are also asked of tables that somebody else made."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """One text that a server would get, and where it comes from."""

    where: str
    text: str


def scopes(queue: Queue) -> Iterator[sql.Scope]:
    """On a server that shows its counters, and on another one that does not."""
    scope = queue.scope(PRODUCT, **MORE)
    for counters, waits_of in (("yes", "server"), ("no", "database")):
        told = {"counters": counters, "waits_of": waits_of}
        yield dataclasses.replace(scope, options={**scope.options, **told})


def files(queue: Queue) -> list[str]:
    """The design's own, and those that belong to no design."""
    folder = Path(str(sql.queries_folder())) / "mssql"
    house = {path.stem for path in folder.glob("*.sql")} - DESIGNS.keys()
    return [queue.design.name, *sorted(house - {"actions", "doctor", "pipeline"})]


def rendered(queue: Queue, file: str) -> Iterator[Batch]:
    """Every statement of a file; what is bound is NULL."""
    for statement in sql.statements("mssql", file).values():
        for scope in scopes(queue):
            yield from one(statement, scope)


def acting(queue: Queue) -> Iterator[Batch]:
    """Every statement that acts on the queue's messages."""
    for statement, scope in moves(PRODUCT, queue):
        yield from one(statement, scope)


def doctoring(queue: Queue) -> Iterator[Batch]:
    """What the doctor asks of it: of a ring's claims, where those lie."""
    for statement in sql.statements("mssql", "doctor").values():
        in_hand = statement.name in IN_HAND and queue.finishes
        yield from one(statement, scope_of(PRODUCT, queue) if in_hand else queue.scope(PRODUCT))


def piping(queue: Queue) -> Iterator[Batch]:
    """What the pipeline asks of it."""
    for statement, scope in asked(PRODUCT, queue):
        yield from one(statement, scope)


def one(statement: sql.Statement, scope: sql.Scope) -> Iterator[Batch]:
    """What one statement sends."""
    texts = sql.batches(statement, PRODUCT.dialect, scope)
    if not statement.comment.startswith("script: "):
        assert len(texts) == 1, statement.label
        texts = [BIND.sub("NULL", COMMENT.sub("", texts[0]))]
    for text in texts:
        yield Batch(statement.label, text)


def installed() -> Iterator[Batch]:
    """The printed script of each variant, split as sqlcmd splits it, and all else that it needs."""
    for variant in VARIANTS:
        queue = variant.queue("sales", "orders", "mssql")
        for number, text in enumerate(re.split(r"(?m)^GO$", install.script(PRODUCT, queue))):
            yield Batch(f"{variant} batch {number}", text)
        for file in files(queue):
            yield from rendered(queue, file)
        yield from acting(queue)
        yield from doctoring(queue)
        yield from piping(queue)


def adopted() -> Iterator[Batch]:
    """The look at somebody else's table, with all roles and with no more than needed."""
    for design in DESIGNS.values():
        if "mssql" in design.engines:
            needed = dict.fromkeys(design.needed_roles, "column") | {"size": "5"}
            for roles in (needed, dict.fromkeys(design.roles, "column") | {"size": "5"}):
                queue = Queue("sales", "orders", design, {}, roles, kind=Kind.ADOPTED)
                looks = sql.statements("mssql", design.name)
                for name in sorted(ADOPTED & looks.keys()):
                    for scope in scopes(queue):
                        yield Batch(
                            looks[name].label, sql.script(looks[name], PRODUCT.dialect, scope)
                        )
    for queue in somebody_elses(PRODUCT):
        yield from acting(queue)


@cache
def batches() -> dict[str, str]:
    """Each text once, with one of its places."""
    found: dict[str, str] = {}
    for batch in (*installed(), *adopted()):
        text = NUMBER.sub("N'1'", batch.text).strip()
        if COMMENT.sub("", text).strip():
            found.setdefault(text, batch.where)
    return found


def telling() -> dict[str, str]:
    """Of each statement, and of each batch of a design's script, the longest text."""
    alike: dict[tuple[str, str], list[str]] = {}
    for text, where in batches().items():
        of, _, number = where.partition(" batch ")
        alike.setdefault((of.split("-")[0], number), []).append(text)
    longest = (max(texts, key=len) for texts in alike.values())
    return {text: batches()[text] for text in longest}


@pytest.fixture(scope="module")
def linter() -> Linter:
    return Linter(
        config=FluffConfig(
            configs={
                "core": {"dialect": "tsql", "templater": "raw", "large_file_skip_byte_limit": 0}
            }
        )
    )


def complaints(linter: Linter, text: str) -> list[str]:
    """What sqlfluff cannot read in it."""
    parsed = linter.parse_string(text + "\n")
    found = [f"line {v.line_no}: {v.desc()[:200]}" for v in parsed.violations]
    if parsed.tree is None or any(parsed.tree.recursive_crawl("unparsable")):
        found.append("there is an unparsable section")
    return found


def without_unparsed(text: str) -> tuple[str, set[str]]:
    """The text with a plain statement for each that is on the list, and which those are."""
    met = set()
    for pattern in UNPARSED:
        text, count = re.subn(rf"(?m)^( *){pattern}", r"\1SELECT 1;", text)
        if count:
            met.add(pattern)
    return text, met


@pytest.mark.long  # the SQL linter, which CI runs too, parses each statement's text once
def test_every_batch_parses_but_for_the_listed_statements(linter: Linter, long: bool) -> None:
    """With --long each text; else the longest of each statement."""
    met: set[str] = set()
    bad: list[str] = []
    for text, where in (batches() if long else telling()).items():
        plain, listed = without_unparsed(text)
        met |= listed
        bad += [f"{where}: {complaint}" for complaint in complaints(linter, plain)]
    assert not bad, "\n".join(bad)
    everywhere = {pattern for text in batches() for pattern in without_unparsed(text)[1]}
    assert met <= everywhere == set(UNPARSED), "a pattern that nothing matches has to go"


def test_what_is_listed_cannot_be_parsed(linter: Linter) -> None:
    """A newer sqlfluff may have learned one; then it can go from the list."""
    learned = []
    for pattern in UNPARSED:
        found = (re.search(rf"(?m)^ *{pattern}", text) for text in batches())
        example = next(match[0] for match in found if match)
        if not complaints(linter, example.strip()):
            learned.append(example)
    if learned:
        pytest.skip(f"sqlfluff reads now: {learned}")


def test_no_sql_is_hidden_in_text() -> None:
    for text, where in batches().items():
        plain = COMMENT.sub("", text)
        assert "sp_executesql" not in plain.lower(), where
        for found in re.finditer(r"\bEXEC(?:UTE)?\s*\((?:[^()']|'[^']*')*\)", plain, re.IGNORECASE):
            assert found[0] in PUT_TOGETHER, f"{where}: {found[0]}"
        for found in re.finditer(r"SET @restart = (.*)", plain):
            assert found[1].startswith("CONCAT(N'ALTER SEQUENCE [sales].[orders_"), where


def script_of(variant: Variant, *names: tuple[str, str]) -> str:
    """Some scripts of the variant's queue, without comments."""
    queue = variant.queue("sales", "orders", "mssql")
    found = (sql.statements("mssql", file)[name] for file, name in names)
    texts = (sql.script(s, PRODUCT.dialect, queue.scope(PRODUCT)) for s in found)
    return COMMENT.sub("", "\n".join(texts))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_uninstall_drops_what_install_creates(variant: Variant) -> None:
    name = variant.design.name
    made = script_of(variant, (name, "tables"), ("common", "archive"), (name, "functions"))
    gone = script_of(variant, (name, "drop"), ("common", "drop_archive"))
    created = CREATED.findall(made)
    dropped = [(kind, n.strip()) for kind, names in DROPPED.findall(gone) for n in names.split(",")]
    assert len(created) >= 6
    assert len(created) == len(re.findall(r"\bCREATE (?!(?:\w+ )*INDEX\b)", made))
    assert sorted(created) == sorted(dropped)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_row_locks_stay_row_locks(variant: Variant) -> None:
    """READPAST skips those and nothing else: no page locks, no escalation."""
    made = script_of(variant, (variant.design.name, "tables"), ("common", "archive"))
    for kind, table in CREATED.findall(made):
        if kind == "TABLE":
            assert f"ALTER TABLE {table} SET (LOCK_ESCALATION = DISABLE);" in made
    for index in re.split(r"(?=\b(?:PRIMARY KEY|UNIQUE CLUSTERED|CREATE (?:\w+ )*INDEX)\b)", made)[
        1:
    ]:
        assert "ALLOW_PAGE_LOCKS = OFF" in index.split(";")[0].split("CONSTRAINT")[0], index[:80]


def test_hints_and_procedures_keep_the_rules() -> None:
    for text, where in batches().items():
        plain = COMMENT.sub("", text)
        for hints in re.findall(r"\(([A-Z, ]*\bREADPAST\b[A-Z, ]*)\)", plain):
            assert "READCOMMITTEDLOCK" in hints, f"{where}: {hints}"
        assert not re.search(r"\bSELECT \*|\.\*", plain), where
        if re.match(r"CREATE OR ALTER PROCEDURE", plain.strip()):
            begins = r"AS\s+BEGIN\s+SET NOCOUNT ON;\s+SET XACT_ABORT ON;"
            assert re.search(begins, plain), where
