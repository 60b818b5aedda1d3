"""A hunt: a password is planted by each way that there is, and looked for in all that is left.

Every verb is called, well and badly, with all logging on. The password must be in nothing that is
printed, logged or written to a file, and in no process's command line.
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
from tests.servers import PATIENCE_SECONDS, Server, connect, fresh_database

CORE = "Pl4ntedC0re"
SECRET = f"a@/:%7B{{{CORE}}};'\" $x\u2603"
"""Whatever is done to the signs around it, the core stays."""

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
"""Calls the verbs one after the other as the command does; after the whole list, the others too.
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
FEW = [["install", "fifo", "hunted"], ["push", "hunted", "x", "--json"], ["status"]]
FEW += [["config", "show"], ["uninstall", "hunted", "--with-messages", "--yes", "hunted"]]
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
    """How the password gets to the console in one of the ways."""

    url: str
    password: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """In the home directory: those that may hold it."""

    def profile(self, name: str) -> str:
        table = f"[profiles.{name}]\nurl = {_quoted(self.url)}\nrights = 'admin'\n"
        return table + (f"password = {_quoted(self.password)}\n" if self.password else "")


def _quoted(text: str) -> str:
    assert "'" not in text
    return f"'{text}'"


def _url(place: URL, text: str = "") -> str:
    """The URL of the place without a password, or with this text for one."""
    shown = place.set(password="PASSWORD").render_as_string(hide_password=False)
    return shown.replace(":PASSWORD@", f":{text}@" if text else "@")


def _keyring(folder: Path) -> dict[str, str]:
    (folder / "keyring.py").write_text(
        f"def get_password(service, user):\n    return {SECRET!r}\n", encoding="utf-8"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def _pgpass(place: URL) -> str:
    parts = [place.host, place.port or 5432, place.database, place.username, SECRET]
    return ":".join(re.sub(r"([:\\])", r"\\\1", str(part)) for part in parts) + "\n"


def _file(folder: Path) -> str:
    path = folder / "secret"
    path.write_text(f"{SECRET}\nmore\n", encoding="utf-8")
    return str(path)


def _service(place: URL) -> tuple[str, str]:
    """The name and the text of a section of libpq's file of services."""
    name = f"{place.port} {place.database} {place.username}".replace(" ", "_")
    return name, (
        f"[{name}]\nhost={place.host}\nport={place.port or 5432}\ndbname={place.database}\n"
        f"user={place.username}\npassword={SECRET}\n"
    )


def _by_service(place: URL) -> Planted:
    name, section = _service(place)
    url = f"postgresql+psycopg:///?service={name}"
    return Planted(url, files={".pg_service.conf": section})


def _by_whole_url(place: URL) -> Planted:
    name = f"PLANTED_{place.port}_{place.database}_{place.username}".replace(" ", "_")
    whole = place.set(password=SECRET).render_as_string(hide_password=False)
    return Planted(f"${{env:{name}}}", environment={name: whole})


_SET = {"PLANTED": SECRET}
WAYS: dict[str, Callable[[URL, Path], Planted]] = {
    "in the url": lambda at, _: Planted(_url(at, "${env:PLANTED}"), environment=_SET),
    "in the query": lambda at, _: Planted(
        f"{_url(at)}?password=${{env:PLANTED}}", environment=_SET
    ),
    "the whole url": lambda at, _: _by_whole_url(at),
    "password": lambda at, _: Planted(_url(at), "${env:PLANTED}", _SET),
    "command": lambda at, folder: Planted(_url(at), f"command:cat {shlex.quote(_file(folder))}"),
    "keyring": lambda at, folder: Planted(_url(at), "keyring:x/y", _keyring(folder)),
    "pgpass": lambda at, _: Planted(_url(at), files={".pgpass": _pgpass(at)}),
    "service": lambda at, _: _by_service(at),
}


@pytest.fixture(scope="module")
def place(server: Server) -> Iterator[URL]:
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
                with connect(url) as inside:
                    inside.execute(SQL("ALTER SCHEMA public OWNER TO {}").format(owner))
                yield URL.create(
                    "postgresql+psycopg",
                    username=USER,
                    host=at.host,
                    port=at.port,
                    database=at.database,
                )
        finally:
            connection.execute(SQL("DROP ROLE {}").format(owner))


class Hunt:
    """A home directory with profiles p0, p1... to run in, and everything that came out of it."""

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
        """Nothing of the developer's own, and no other password."""
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
        with _watched_command_lines() as seen:
            done = subprocess.run(
                self.command(calls),
                env=self.environment | environment,
                cwd=self.folder / "work",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=300,
                check=False,
            )
        assert seen == set()
        return (done.stdout + done.stderr).decode()

    def written(self) -> Iterator[tuple[Path, bytes]]:
        """The files that are there now, without those that hold it by right."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name not in {n for one in self.planted for n in one.files}:
                yield path, path.read_bytes()

    def is_clean(self, told: str) -> None:
        assert CORE not in told, [line for line in told.splitlines() if CORE in line]
        assert [path for path, data in self.written() if CORE.encode() in data] == []


class _watched_command_lines:  # noqa: N801  # used as a statement
    """Looks again and again at the command lines of all processes; those with the password."""

    def __init__(self, password: str = CORE) -> None:
        self._password = password

    def __enter__(self) -> set[str]:
        self._seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if self._password in line:
                    self._seen.add(line)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plant").mkdir()
    return tmp_path


def _statuses(told: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for status, words in re.findall(r"^<(\w+)> (.*)$", told, re.MULTILINE):
        found.setdefault(status, []).append(words)
    return found


def test_the_hunter_sees_what_is_there(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "hunt", Planted("postgresql://u@h/d"))
    hunt.is_clean("")
    other = CORE[::-1]  # others may watch meanwhile
    with _watched_command_lines(other) as seen:
        subprocess.run([sys.executable, "-c", f"import time; time.sleep(1) # {other}"], check=True)
    assert len(seen) == 1
    with pytest.raises(AssertionError):
        hunt.is_clean(f"x{CORE}x")
    (hunt.home / "log").write_text(CORE)
    with pytest.raises(AssertionError):
        hunt.is_clean("")


ONE = "the whole url"
OTHERS = [pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != ONE]


@pytest.mark.parametrize("way", [ONE, *OTHERS])
def test_no_verb_shows_a_password(way: str, place: URL, folder: Path) -> None:
    planted = [WAYS[one](place, folder / "plant") for one in (way, *WAYS)]
    hunt = Hunt(folder / "hunt", *planted)
    each = [["status", "--profile", f"p{number}"] for number in range(len(planted))]
    told = hunt.run([*CALLS, *each], DBQ_PROFILE="p0")
    hunt.is_clean(told)
    assert "DEBUG:sqlalchemy" in told
    assert "starts: ('cat'" in told
    log = (hunt.home / ".local" / "state" / "dbq-console" / "dbq-console.log").read_text()
    assert "push begins" in log
    assert "INSERT" not in log
    statuses = _statuses(told)
    assert set(statuses) == {"0", "1", "2", "4"}, statuses
    done = {"install fifo hunted", "push hunted x --json", "smoke hunted", *map(" ".join, each)}
    assert done <= set(statuses["0"])
    assert "uninstall slots --json" in statuses["4"]
    hunt.run([["uninstall", "slots", "--with-messages", "--yes", "slots"]], DBQ_PROFILE="p0")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("way", WAYS)
def test_no_failure_shows_a_password(way: str, place: URL, folder: Path) -> None:
    """Nobody listens; no such database; no such user."""
    wrong = place.set(port=1), place.set(database="none"), place.set(username="nobody at all")
    planted = [WAYS[way](one, folder / "plant") for one in wrong]
    hunt = Hunt(folder / "hunt", *planted)
    calls = [[*call, "--profile", f"p{number}"] for call in WRONG for number in range(len(wrong))]
    told = hunt.run(calls)
    hunt.is_clean(told)
    failed = _statuses(told)["3"]
    assert set(failed) >= {" ".join(call) for call in calls if call[0] != "config"}


def test_no_verb_shows_the_password_of_a_url(place: URL, folder: Path) -> None:
    whole = place.set(password=SECRET).render_as_string(hide_password=False)
    apart = place.update_query_dict({"password": SECRET}).render_as_string(hide_password=False)
    hunt = Hunt(folder / "hunt", Planted(_url(place)))
    told = hunt.run(FEW, DBQ_URL=whole)
    hunt.is_clean(told)
    assert "push hunted x --json" in _statuses(told)["0"]
    calls = [["status", "--json"], ["status", "--url", _url(place, "${env:PLANTED}")]]
    told = hunt.run(calls, DBQ_URL=apart, **_SET)
    hunt.is_clean(told)
    assert set(_statuses(told)["0"]) == {" ".join(call) for call in calls}


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


def test_a_password_that_is_typed_in(place: URL, folder: Path) -> None:
    hunt = Hunt(folder / "hunt", Planted(_url(place), "prompt"))
    calls = [
        *(["install", "fifo", "typed"], ["status"], ["push", "typed", "x"]),
        *(["config", "show"], ["uninstall", "typed", "--with-messages", "--yes", "typed"]),
    ]
    command, *arguments = hunt.command(calls)
    terminal = pexpect.spawn(
        command,
        arguments,
        env=hunt.environment | {"DBQ_PROFILE": "p0"},
        cwd=str(folder / "hunt" / "work"),
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        dimensions=(50, 200),
    )
    told = ""
    with _watched_command_lines() as seen:
        while terminal.expect(["Password for p0: ", pexpect.EOF]) == 0:
            told += str(terminal.before)
            terminal.sendline(SECRET)
        told += str(terminal.before)
    terminal.close()
    assert seen == set()
    told = told.replace("\r\n", "\n")
    hunt.is_clean(told)
    statuses = _statuses(told)
    assert "uninstall typed --with-messages --yes typed" in statuses["0"], told
    assert "install fifo typed" in statuses["0"]
