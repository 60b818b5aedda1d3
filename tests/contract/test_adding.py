"""The instructions for additions in console/README.md suffice: each test follows them on a copy.

`touched` has every file that had to be added or edited.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from console.features import NAMES, features
from tests.cli.calls import Console
from tests.contract import pgmq_library
from tests.contract.adding.copied import OWN, ROOT, Copy
from tests.servers import execute

pytestmark = pytest.mark.slow

DESIGNS = "console/designs/__init__.py"
QUERIES = "queries/postgresql"
T_SQL = "queries/mssql"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def add_design(copy: Copy, name: str) -> None:
    copy.add(OWN / f"{name}.py", f"console/designs/{name}.py")
    copy.edit(
        DESIGNS,
        ("designs import shipped\n", f"designs import {name}, shipped\n"),
        ("        shipped.BROKER,\n", f"        shipped.BROKER,\n        {name}.{name.upper()},\n"),
    )


@pytest.mark.long
def test_a_design_like_another_can_be_added(copy: Copy, database_url: str) -> None:
    add_design(copy, "lanes")
    copy.add(OWN / "lanes.sql", f"{QUERIES}/lanes.sql")
    copy.use("use_lanes", database_url)
    assert copy.touched == ["console/designs/lanes.py", DESIGNS, f"{QUERIES}/lanes.sql"]


def test_a_design_unlike_the_others_can_be_added(copy: Copy, database_url: str) -> None:
    """It has the tables of `status`, without `like`.

    For SQL Server only the text is checked: no shared T-SQL file is edited, and the rendered SQL
    equals that of `status`, which Microsoft's tools have checked in `tests/microsoft`.
    """
    add_design(copy, "marked")
    added = []
    for folder in (QUERIES, T_SQL):
        added.append(f"{folder}/marked.sql")
        copy.add(copy.folder / folder / "status.sql", added[-1])
    copy.use("use_claims", "marked", database_url)
    copy.use("use_tsql", "marked")
    assert copy.touched == ["console/designs/marked.py", DESIGNS, *added]


def test_an_engine_can_be_added(copy: Copy, database_url: str) -> None:
    copy.add(OWN / "otherpg.py", "console/engines/otherpg.py")
    copy.edit(
        "console/engines/__init__.py",
        ("import mssql, postgresql\n", "import mssql, otherpg, postgresql\n"),
        (
            "(postgresql.PRODUCT, mssql.PRODUCT)",
            "(postgresql.PRODUCT, mssql.PRODUCT, otherpg.PRODUCT)",
        ),
    )
    shutil.copytree(copy.folder / QUERIES, copy.folder / "queries" / "otherpg")
    waits = "console/monitor/known_waits"
    copy.add(copy.folder / waits / "postgresql.toml", f"{waits}/otherpg.toml")
    url = make_url(database_url).set(drivername="otherpg")
    copy.use("use_claims", "status", url.render_as_string(hide_password=False))
    assert copy.touched == [
        "console/engines/otherpg.py",
        "console/engines/__init__.py",
        f"{waits}/otherpg.toml",
    ]


def test_a_verb_can_be_added(copy: Copy, database_url: str) -> None:
    copy.add(OWN / "tell.py", "console/verbs/tell.py")
    copy.edit(
        "console/verbs/index.py",
        ("VERBS = {\n", 'VERBS = {\n    "tell": ("verbs.tell", "leave a word about it"),\n'),
    )
    copy.edit(
        "console/designs/model.py", ('    "end-session",\n', '    "end-session",\n    "tell",\n')
    )
    copy.use("use_tell", database_url)
    assert copy.touched == [
        "console/verbs/tell.py",
        "console/verbs/index.py",
        "console/designs/model.py",
    ]


def test_a_command_about_no_queue_can_be_added(copy: Copy) -> None:
    copy.add(OWN / "engines.py", "console/cli/commands/engines.py")
    copy.use("use_engines")
    assert copy.touched == ["console/cli/commands/engines.py"]


def test_a_list_can_be_added(copy: Copy, database_url: str) -> None:
    copy.add(OWN / "sizes.py", "console/views/sizes.py")
    copy.add(OWN / "sizes.sql", f"{QUERIES}/sizes.sql")
    copy.use("use_sizes", database_url)
    assert copy.touched == ["console/views/sizes.py", f"{QUERIES}/sizes.sql"]


SCREEN = """
def _names(site: CommandContext, words: list[str]) -> None:
    from console.tui.screens.names import NamesScreen

    site.context.navigator.push_screen(NamesScreen(site.context))


COMMANDS: tuple"""


def test_a_screen_can_be_added(copy: Copy) -> None:
    copy.add(OWN / "names.py", "console/tui/screens/names.py")
    copy.edit(
        "console/tui/commands.py",
        ("\nCOMMANDS: tuple", SCREEN),
        (
            '    Command(\n        "quit"',
            '    Command("names", "", "all names", _names, in_palette=True),\n'
            '    Command(\n        "quit"',
        ),
    )
    copy.use("use_names")
    assert copy.touched == ["console/tui/screens/names.py", "console/tui/commands.py"]


def test_a_preset_can_be_added(copy: Copy, database_url: str) -> None:
    copy.add(
        copy.folder / QUERIES / "pgmq.sql",
        f"{QUERIES}/mine.sql",
        ("preset: pgmq", "preset: mine"),
        ("schema: pgmq", "schema: mine"),
        ("pgmq.", "mine."),
    )
    sql = pgmq_library.SQL.read_text().replace("pgmq", "mine")
    execute(database_url, sql)
    execute(database_url, "SELECT mine.create('orders'); SELECT mine.send('orders', '{}')")
    copy.use("use_mine", database_url)
    assert copy.touched == [f"{QUERIES}/mine.sql"]


WORKING = """
WORKING = Figure(
    "working", "working", MESSAGES, needs="claimed", width=7, narrow=False, add_up=sum,
    of=lambda row: None if None in (row.claimed, row.stuck) else row.claimed - row.stuck,
    gauge="working_messages", help="Claims at work.",
)  # fmt: skip


@dataclass(frozen=True)
class SampledFigures:
"""
FIELD = """    working: int | None = field(default=None, kw_only=True, metadata=WORKING.declared)


def _declared("""
LIMIT = """
    Limit(
        "working", MESSAGES, "{} working", WORKING,
        maximum="More claims at work than this are CRITICAL.", cause="many consumers",
    ),
)  # fmt: skip
LIMITS ="""


def test_a_figure_can_be_added(copy: Copy, database_url: str, tmp_path: Path) -> None:
    """One that follows from others; a statement's column would be added to each engine's SQL."""
    copy.edit(
        "console/figures.py",
        ("\n\n@dataclass(frozen=True)\nclass SampledFigures:\n", WORKING),
        ("\n\ndef _declared(", FIELD),
        ('DONE, SCHEDULED)\n"', 'DONE, SCHEDULED, WORKING)\n"'),
        (
            '    "push/pop sequence gap": (GAP,),\n',
            '    "push/pop sequence gap": (GAP,),\n    "claims at work": (WORKING,),\n',
        ),
        ("\n)  # fmt: skip\nLIMITS =", LIMIT),
    )
    own = tmp_path / "own"
    own.mkdir()
    copy.use("use_working", database_url, str(own))
    assert copy.touched == ["console/figures.py"]


NO_GOOD = """
NO_GOOD = Code("errors_no_good", Severity.WARNING, "errors whose text says that they are no good")


@dataclass(frozen=True)
class _NoGood:
    errors: int


def _check_no_good(context: CheckContext) -> Iterator[Finding]:
    if not context.can_query("errors that are no good", "no_good"):
        return
    (row,) = context.query(_NoGood, "no_good")
    if row.errors:
        texts = {"filter": "state=error"}
        repair = VerbRepair(context.queue, "requeue", texts, "requeue them", unattended=True)
        summary = f"{counted(row.errors, 'error')} are no good"
        yield Finding(NO_GOOD, summary, evidence={"errors": row.errors}, repair=repair)


ATTEMPT_CHECKS ="""
NO_GOOD_SQL = """
-- name: no_good
-- one row: how many errors say that they are no good, up to 10,001
SELECT count(*) AS errors FROM (
    SELECT FROM "{schema}"."{table}" AS m
    WHERE {is_error} AND m."{error}" LIKE '%good%' LIMIT 10001
) AS bounded;

-- name: far_times
"""


def test_a_finding_with_its_repair_can_be_added(copy: Copy, database_url: str) -> None:
    """Among those of its subject. A new subject is a module and its line in `checks.py`, where the
    order of the checks is decided: of what is equally severe, and who meets a lock first."""
    copy.edit(
        "console/doctor/messages.py",
        ("\nATTEMPT_CHECKS =", NO_GOOD),
        ("    (POISON,), {", "    (POISON, NO_GOOD), {"),
        (
            "context.for_each_view(_check_poison)}",
            'context.for_each_view(_check_poison), "errors that are no good": _check_no_good}',
        ),
        ("MarkAsErrors, incomplete_messages", "MarkAsErrors, VerbRepair, incomplete_messages"),
    )
    copy.edit(f"{QUERIES}/doctor.sql", ("\n-- name: far_times\n", NO_GOOD_SQL))
    copy.use("use_no_good", database_url)
    assert copy.touched == ["console/doctor/messages.py", f"{QUERIES}/doctor.sql"]


COLUMN = """        _number(
            "error bytes", "quiet", 7, lambda m: or_unknown(m.error_bytes, count, NOT_APPLICABLE)
        ),
"""
ROW = "    error_hash: str | None\n"
HISTORY = "    history: tuple[PastAttempt, ...] | None = None\n"
HASH = "    -- Of the whole text: it distinguishes a message's failures.\n"


def test_a_column_of_messages_can_be_added(copy: Copy, database_url: str, tmp_path: Path) -> None:
    """Three files, and two of each engine's SQL; here of PostgreSQL's."""
    copy.edit(
        "console/monitor/message.py",
        (ROW, f"    error_bytes: int | None\n{ROW}"),
        (HISTORY, f"    error_bytes: int | None = None\n{HISTORY}"),
    )
    figure = '        _number("bytes", "quiet", 7, lambda m: or_unknown(m.payload_bytes, count)),\n'
    copy.edit(
        "console/views/messages.py",
        (figure, COLUMN + figure),
        ('*tries, "bytes"', '*tries, "error bytes", "bytes"'),
    )
    last = '        pa.field("more", pa.string()),\n'
    copy.edit(
        "console/features/lake/archive/files.py",
        (last, f'{last}        pa.field("error_bytes", pa.int64()),\n'),
    )
    copy.edit(
        f"{QUERIES}/common.sql",
        (HASH, f"    CAST(octet_length(l.error) AS bigint) AS error_bytes,\n{HASH}"),
    )
    stored = "    a.error AS error,\n"
    copy.edit(
        f"{QUERIES}/pipeline.sql",
        (stored, f"{stored}    CAST(octet_length(a.error) AS bigint) AS error_bytes,\n"),
    )
    copy.use("use_error_bytes", database_url, str(tmp_path / "lake"))
    assert len(copy.touched) == 5


FEATURES = "console/features/__init__.py"
COMMANDS = {
    "bench": "bench",
    "demo": "demo",
    "history": "history,record",
    "lake": "pipeline",
    "metrics": "serve-metrics",
    "notify": "notify",
    "presets": "adopt,discover,preset",
    "prove": "prove",
    "why": "why,timeline",
}
"""Feature -> commands that go with it."""


@pytest.mark.thinned(3)
@pytest.mark.parametrize("feature", NAMES)
def test_a_feature_can_be_taken_away(copy: Copy, feature: str, database_url: str) -> None:
    """Its folder and its line."""
    shutil.rmtree(copy.folder / "console" / "features" / feature)
    copy.edit(FEATURES, (f'    "{feature}",\n', ""))
    copy.use("use_without", feature, COMMANDS[feature], database_url)
    assert copy.touched == [FEATURES]


@pytest.mark.long
@pytest.mark.parametrize("feature", NAMES)
def test_without_a_feature_all_that_is_left_passes_its_own_tests(copy: Copy, feature: str) -> None:
    """`tests/unit`, except what tests this feature or one that needs it, itself or by its tools."""
    shutil.rmtree(copy.folder / "console" / "features" / feature)
    copy.edit(FEATURES, (f'    "{feature}",\n', ""))
    gone = [name for name in NAMES if name == feature or feature in needed_by(name)]
    for name in ("tests", "README.md", "pyproject.toml", ".github"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy.folder / name)
    ignored = [f"--ignore={path}" for path in about(gone)]
    # The documents name all features; of one that is off, the imports are not there.
    ignored += ["--ignore=tests/unit/test_documents.py", "--ignore=tests/unit/test_features.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/unit", *ignored],
        cwd=copy.folder,
        env=os.environ | {"PYTHONPATH": str(copy.folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    print(f"without {feature}: {passed[0]}, {len(ignored)} files left out")  # pytest -rP shows it
    assert int(passed[1]) > 500


def needed_by(name: str) -> set[str]:
    needs = set(features()[name].needs)
    return needs.union(*map(needed_by, needs))


def about(names: list[str]) -> list[str]:
    """The files of tests/unit that name one of these features, or import such a file of tests."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    words = [f"{before}{name}" for name in names for before in ("console.features.", "features/")]
    words += [f"features import {name}" for name in names]
    reached = {path for path, text in texts.items() if any(word in text for word in words)}
    while True:
        modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in reached}
        modules |= {module.removesuffix(".__init__") for module in modules}
        more = {
            path
            for path, text in texts.items()
            if any(module in modules for module in re.findall(r"from (tests[\w.]*) import", text))
            or any(
                f"{package}.{name}" in modules
                for package, some in re.findall(r"from (tests[\w.]*) import \(?([^)]*?)\n\n", text)
                for name in re.findall(r"\w+", some)
            )
        }
        if more <= reached:
            break
        reached |= more
    return [str(p.relative_to(ROOT)) for p in sorted(reached) if "unit" in p.parts]


def test_without_the_past_the_screens_and_all_that_is_present_work(
    copy: Copy, database_url: str
) -> None:
    shutil.rmtree(copy.folder / "console" / "features" / "history")
    copy.edit(FEATURES, ('    "history",\n', ""))
    copy.use("use_without_history", database_url)


PARCEL = """-- preset: Parcel
-- queue: lane
-- roles: id=parcel_id status=phase payload=goods

-- define: is_ready
m.phase = 'new'
"""
TABLES = """
CREATE TABLE jobs (id bigint PRIMARY KEY, body text);
INSERT INTO jobs VALUES (1, 'card');
CREATE TABLE parcels (parcel_id bigint PRIMARY KEY, lane text, phase text, goods text);
"""


def test_without_its_feature_an_adopted_queue_says_why_it_is_unknown(
    copy: Copy, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database_url, pgmq_library.SQL.read_text())
    execute(database_url, f"SELECT pgmq.create('orders'); {TABLES}")
    file = tmp_path / "own" / "parcel.sql"
    file.parent.mkdir(mode=0o700)
    file.write_text(PARCEL)
    for variable in ("DBQ_PRESETS", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(variable, str(file.parent))
    here = Console(database_url)
    here.done("preset", "trust", str(file))
    here.done("adopt", "jobs", "--design", "fifo", "--map", "id=id", "--map", "payload=body")
    here.done("adopt", "orders", "--preset", "pgmq")
    here.done("adopt", "parcels", "--preset", "parcel")
    shutil.rmtree(copy.folder / "console" / "features" / "presets")
    copy.edit(FEATURES, ('    "presets",\n', ""))
    copy.use("use_presets_off", database_url)


def test_without_its_feature_a_recorder_says_that_receivers_are_not_read(
    copy: Copy, database_url: str, tmp_path: Path
) -> None:
    shutil.rmtree(copy.folder / "console" / "features" / "notify")
    copy.edit(FEATURES, ('    "notify",\n', ""))
    own = tmp_path / "own"
    own.mkdir()
    copy.use("use_unread", database_url, str(own))


def test_a_feature_can_be_added(copy: Copy, database_url: str, tmp_path: Path) -> None:
    """A folder and a line: here a command, a page of help, a value, tables of the configuration, a
    tab of a queue and what runs beside a recorder."""
    folder = "console/features/greeting"
    for kind in ("commands", "config", "help", "recorder", "tabs"):
        (copy.folder / folder / kind).mkdir(parents=True)
    for name in (
        *("__init__.py", "commands/__init__.py", "commands/greet.py", "help/greetings.md"),
        *("config/__init__.py", "config/example.toml", "recorder/__init__.py"),
        *("tabs/__init__.py", "tabs/greetings.py"),
    ):
        copy.add(OWN / "greeting" / name, f"{folder}/{name}")
    copy.edit(FEATURES, ('    "demo",\n', '    "demo",\n    "greeting",\n'))
    own = tmp_path / "own"
    own.mkdir()
    copy.use("use_greeting", database_url, str(own))
    assert copy.touched[-1] == FEATURES
    assert all(path.startswith(folder) for path in copy.touched[:-1])
