"""A password is given in each possible way, and searched for in everything that is left.

Every verb is called, correctly and wrongly, with all logging on. The password must be in
nothing that is printed, logged or written to a file, and in no process's command line.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest
from psycopg.sql import SQL, Identifier, Literal
from sqlalchemy import URL, make_url

from tests.cli.calls import call
from tests.servers import PATIENCE_SECONDS, Server, connect, execute, fresh_database

pytestmark = pytest.mark.slow

CORE = "Pl4ntedC0re"
SECRET = f"a@/:%7B{{{CORE}}};'\" $x\u2603"
"""However the characters around it are escaped, the core stays."""

USER = "dbq planted"
ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import json, logging, sys, traceback
from console.cli import main
from console.cli.verbs import cli

logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.getLogger("sqlalchemy").setLevel(logging.DEBUG)
def seen(event, arguments):
    if event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"}:
        print("starts:", arguments[:2], file=sys.stderr)

sys.addaudithook(seen)
calls = json.loads(sys.argv[1])
known = {call[0] for call in calls}
if "designs" in known:  # the whole list
    calls += [[verb, "hunted", "--json"] for verb in sorted(cli.commands.keys() - known - {"demo"})]
for call in calls:
    sys.argv = ["dbq-console", *call]
    try:
        main()
    except SystemExit as end:
        status = end.code
    except Exception:
        traceback.print_exc()
        status = "crash"
    sys.stdout.flush()
    print(f"<{status}> {' '.join(call)}", file=sys.stderr)
"""
"""Calls the verbs one after the other as the command does; after the full list, the others too.
The command lines of the processes that it starts are printed."""

CALLS = [
    ["config", "path"],
    ["config", "validate"],
    ["config", "show"],
    ["config", "show", "--json"],
    ["config", "show", "--profile", "none"],
    ["designs"],
    ["install", "fifo", "hunted"],
    ["install", "fifo", "hunted"],
    ["install", "ring", "slots", "--option", "size=10", "--json"],
    ["install", "ring", "slots", "--print"],
    ["push", "hunted", "x", "--json"],
    ["push", "hunted"],
    ["push", "hunted", "x", "--rights", "read-only"],
    ["status"],
    ["status", "--json"],
    ["status", "none"],
    ["check", "--json"],
    ["serve-metrics", "--print-alerts"],
    ["pop", "hunted"],
    ["pop", "hunted", "--json"],
    ["smoke", "hunted"],
    ["resize", "slots", "20"],
    ["resize", "slots", "20", "--yes", "slots"],
    ["relay", "slots", "--dry-run"],
    ["relay", "hunted", "--yes", "hunted"],
    ["adopt", "none", "--design", "fifo", "--map", "id=a", "--map", "payload=b"],
    ["forget", "hunted"],
    ["roles"],
    ["status", "--no-such-option"],
    ["uninstall", "slots", "--json"],
    ["uninstall", "hunted", "--with-messages", "--yes", "hunted", "--json"],
]
SHORT_LIST = [["install", "fifo", "hunted"], ["push", "hunted", "x", "--json"], ["status"]]
SHORT_LIST += [["config", "show"], ["uninstall", "hunted", "--with-messages", "--yes", "hunted"]]
WRONG = [
    ["status"],
    ["status", "--json"],
    ["check", "--plugin"],
    ["install", "fifo", "hunted"],
    ["config", "show"],
]
"""Enough for a connection that fails."""


@dataclass
class Planted:
    """How the password reaches the console in one of the ways."""

    url: str
    password: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """In the home directory: files that may contain it."""

    def profile(self, name: str) -> str:
        table = f"[profiles.{name}]\nurl = {_quoted(self.url)}\nrights = 'admin'\n"
        return table + (f"password = {_quoted(self.password)}\n" if self.password else "")


def _quoted(text: str) -> str:
    assert "'" not in text
    return f"'{text}'"


def _url(base: URL, text: str = "") -> str:
    """The URL without a password, or with this text as one."""
    shown = base.set(password="PASSWORD").render_as_string(hide_password=False)
    return shown.replace(":PASSWORD@", f":{text}@" if text else "@")


def _keyring(folder: Path) -> dict[str, str]:
    (folder / "keyring.py").write_text(
        f"def get_password(service, user):\n    return {SECRET!r}\n", encoding="utf-8"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def _pgpass(base: URL) -> str:
    parts = [base.host, base.port or 5432, base.database, base.username, SECRET]
    return ":".join(re.sub(r"([:\\])", r"\\\1", str(part)) for part in parts) + "\n"


def _file(folder: Path) -> str:
    path = folder / "secret"
    path.write_text(f"{SECRET}\nmore\n", encoding="utf-8")
    return str(path)


def _service(base: URL) -> tuple[str, str]:
    """The name and the text of a section of libpq's service file."""
    name = f"{base.port} {base.database} {base.username}".replace(" ", "_")
    return name, (
        f"[{name}]\nhost={base.host}\nport={base.port or 5432}\ndbname={base.database}\n"
        f"user={base.username}\npassword={SECRET}\n"
    )


def _by_service(base: URL) -> Planted:
    name, section = _service(base)
    url = f"postgresql+psycopg:///?service={name}"
    return Planted(url, files={".pg_service.conf": section})


def _by_complete_url(base: URL) -> Planted:
    name = f"PLANTED_{base.port}_{base.database}_{base.username}".replace(" ", "_")
    complete = base.set(password=SECRET).render_as_string(hide_password=False)
    return Planted(f"${{env:{name}}}", environment={name: complete})


_SET = {"PLANTED": SECRET}
SOURCES: dict[str, Callable[[URL, Path], Planted]] = {
    "in the url": lambda at, _: Planted(_url(at, "${env:PLANTED}"), environment=_SET),
    "in the query": lambda at, _: Planted(
        f"{_url(at)}?password=${{env:PLANTED}}", environment=_SET
    ),
    "the whole url": lambda at, _: _by_complete_url(at),
    "password": lambda at, _: Planted(_url(at), "${env:PLANTED}", _SET),
    "command": lambda at, folder: Planted(_url(at), f"command:cat {shlex.quote(_file(folder))}"),
    "keyring": lambda at, folder: Planted(_url(at), "keyring:x/y", _keyring(folder)),
    "pgpass": lambda at, _: Planted(_url(at), files={".pgpass": _pgpass(at)}),
    "service": lambda at, _: _by_service(at),
}


@pytest.fixture(scope="module")
def base(server: Server) -> Iterator[URL]:
    """The URL of a database whose owner has the planted password; without it."""
    owner = Identifier(USER)
    with connect(server.url) as connection:
        connection.execute(SQL("DROP ROLE IF EXISTS {}").format(owner))
        connection.execute(SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(owner, Literal(SECRET)))
        try:
            with fresh_database(server.url) as url:
                at = make_url(url)
                connection.execute(
                    SQL("ALTER DATABASE {} OWNER TO {}").format(
                        Identifier(at.database or ""), owner
                    )
                )
                execute(url, SQL("ALTER SCHEMA public OWNER TO {}").format(owner))
                yield URL.create(
                    "postgresql+psycopg",
                    username=USER,
                    host=at.host,
                    port=at.port,
                    database=at.database,
                )
        finally:
            connection.execute(SQL("DROP ROLE {}").format(owner))


class LeakSearch:
    """A home directory with profiles p0, p1... to run in, and all files and output of the runs."""

    def __init__(self, folder: Path, *planted: Planted) -> None:
        self.folder = folder
        self.planted = planted
        self.home = folder / "home"
        for name in ("home", "tmp", "work"):
            (folder / name).mkdir(parents=True)
        self.config = self.home / ".config" / "dbq-console" / "config.toml"
        self.config.parent.mkdir(parents=True)
        for number, one in enumerate(planted):
            with self.config.open("a", encoding="utf-8") as file:
                file.write(one.profile(f"p{number}"))
            for name, text in one.files.items():
                with (self.home / name).open("a", encoding="utf-8") as file:
                    file.write(text)
                (self.home / name).chmod(0o600)

    @property
    def environment(self) -> dict[str, str]:
        """None of the developer's variables, and no other password."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DBQ_", "PG", "XDG_"))}
        more = {"HOME": str(self.home), "TMPDIR": str(self.folder / "tmp")}
        more["DBQ_LOG_LEVEL"] = "debug"
        found = kept | {"PYTHONPATH": str(ROOT)} | more
        for one in self.planted:
            found |= one.environment
        return found

    @staticmethod
    def command(calls: list[list[str]]) -> list[str]:
        return [sys.executable, "-c", DRIVER, json.dumps(calls)]

    def run(self, calls: list[list[str]], **environment: str) -> str:
        """Make the calls; what they printed and logged."""
        with _watched_command_lines() as leaks:
            done = subprocess.run(
                self.command(calls),
                env=self.environment | environment,
                cwd=self.folder / "work",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=300,
                check=False,
            )
        assert leaks == set()
        return (done.stdout + done.stderr).decode()

    def written(self) -> Iterator[tuple[Path, bytes]]:
        """The files that exist now, without those that may contain it."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name not in {
                n for planted in self.planted for n in planted.files
            }:
                yield path, path.read_bytes()

    def assert_clean(self, output: str) -> None:
        assert CORE not in output, [line for line in output.splitlines() if CORE in line]
        assert [path for path, data in self.written() if CORE.encode() in data] == []


class _watched_command_lines:  # noqa: N801  # used as a statement
    """Polls the command lines of all processes; collects those with the password."""

    def __init__(self, password: str = CORE) -> None:
        self._password = password

    def __enter__(self) -> set[str]:
        self._found: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()
        return self._found

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if self._password in line:
                    self._found.add(line)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plant").mkdir()
    return tmp_path


def _statuses(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for status, words in re.findall(r"^<(\w+)> (.*)$", output, re.MULTILINE):
        found.setdefault(status, []).append(words)
    return found


def test_a_leak_search_finds_a_password_in_output_files_and_command_lines(tmp_path: Path) -> None:
    search = LeakSearch(tmp_path / "hunt", Planted("postgresql://u@h/d"))
    search.assert_clean("")
    other = CORE[::-1]  # other tests may be watching
    with _watched_command_lines(other) as leaks:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep(1) # {other}"], check=True)
    assert len(leaks) == 1
    with pytest.raises(AssertionError):
        search.assert_clean(f"x{CORE}x")
    (search.home / "log").write_text(CORE)
    with pytest.raises(AssertionError):
        search.assert_clean("")


ONE = "the whole url"
OTHERS = [pytest.param(way, marks=pytest.mark.long) for way in SOURCES if way != ONE]


@pytest.mark.parametrize("way", [ONE, *OTHERS])
def test_no_verb_shows_a_password(way: str, base: URL, folder: Path) -> None:
    planted = [SOURCES[one](base, folder / "plant") for one in (way, *SOURCES)]
    search = LeakSearch(folder / "hunt", *planted)
    each = [["status", "--profile", f"p{number}"] for number in range(len(planted))]
    output = search.run([*CALLS, *each], DBQ_PROFILE="p0")
    search.assert_clean(output)
    assert "DEBUG:sqlalchemy" in output
    assert "starts: ('cat'" in output
    log = (search.home / ".local" / "state" / "dbq-console" / "dbq-console.log").read_text()
    assert "push begins" in log
    assert "INSERT" not in log
    statuses = _statuses(output)
    assert set(statuses) == {"0", "1", "2", "4"}, statuses
    done = {"install fifo hunted", "push hunted x --json", "smoke hunted", *map(" ".join, each)}
    assert done <= set(statuses["0"])
    assert "uninstall slots --json" in statuses["4"]
    search.run([["uninstall", "slots", "--with-messages", "--yes", "slots"]], DBQ_PROFILE="p0")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("way", SOURCES)
def test_no_failure_shows_a_password(way: str, base: URL, folder: Path) -> None:
    """No server; no such database; no such user."""
    wrong = (base.set(port=1), base.set(database="none"), base.set(username="nobody at all"))
    planted = [SOURCES[way](one, folder / "plant") for one in wrong]
    search = LeakSearch(folder / "hunt", *planted)
    calls = [[*call, "--profile", f"p{number}"] for call in WRONG for number in range(len(wrong))]
    output = search.run(calls)
    search.assert_clean(output)
    failed = _statuses(output)["3"]
    assert set(failed) >= {" ".join(call) for call in calls if call[0] != "config"}


def test_no_verb_shows_the_password_of_a_url(base: URL, folder: Path) -> None:
    in_url = base.set(password=SECRET).render_as_string(hide_password=False)
    in_query = base.update_query_dict({"password": SECRET}).render_as_string(hide_password=False)
    search = LeakSearch(folder / "hunt", Planted(_url(base)))
    output = search.run(SHORT_LIST, DBQ_URL=in_url)
    search.assert_clean(output)
    assert "push hunted x --json" in _statuses(output)["0"]
    calls = [["status", "--json"], ["status", "--url", _url(base, "${env:PLANTED}")]]
    output = search.run(calls, DBQ_URL=in_query, **_SET)
    search.assert_clean(output)
    assert set(_statuses(output)["0"]) == {" ".join(call) for call in calls}


MISTAKES = [
    ("url", f"postgresql://u:{CORE}@h/d"),
    ("url", f"postgresql://u:{CORE}@x@h/d"),
    ("url", f"postgresql://u@h/d?password={CORE}"),
    ("url", f"postgresql:///?odbc_connect=PWD={CORE}"),
    ("url", f"postgres {CORE}"),
    ("password", CORE),
    ("password", f'command:"{CORE}'),
    ("pasword", CORE),
]


def test_no_mistake_in_the_file_shows_a_password(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for key, value in MISTAKES:
        file.write_text(f"[profiles.p]\n{key} = {_quoted(value)}\n", encoding="utf-8")
        for arguments in (["config", "show"], ["config", "validate"], ["status", "--profile", "p"]):
            answer = call(*arguments, environment={"DBQ_CONFIG": str(file)})
            assert (answer.status, answer.out) == (2, b"")
            assert f"profiles.p.{key}" in answer.err
            assert CORE not in answer.err


def test_a_password_typed_at_the_prompt_is_not_shown(base: URL, folder: Path) -> None:
    search = LeakSearch(folder / "hunt", Planted(_url(base), "prompt"))
    calls = [
        *(["install", "fifo", "typed"], ["status"], ["push", "typed", "x"]),
        *(["config", "show"], ["uninstall", "typed", "--with-messages", "--yes", "typed"]),
    ]
    command, *arguments = search.command(calls)
    terminal = pexpect.spawn(
        command,
        arguments,
        env=search.environment | {"DBQ_PROFILE": "p0"},
        cwd=str(folder / "hunt" / "work"),
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        dimensions=(50, 200),
    )
    output = ""
    with _watched_command_lines() as leaks:
        while terminal.expect(["Password for p0: ", pexpect.EOF]) == 0:
            output += str(terminal.before)
            terminal.sendline(SECRET)
        output += str(terminal.before)
    terminal.close()
    assert leaks == set()
    output = output.replace("\r\n", "\n")
    search.assert_clean(output)
    statuses = _statuses(output)
    assert "uninstall typed --with-messages --yes typed" in statuses["0"], output
    assert "install fifo typed" in statuses["0"]
