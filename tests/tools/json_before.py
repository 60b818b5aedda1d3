"""Compares every `--json` of every verb between this console and an earlier revision.

    python -m tests.tools.json_before REVISION

On one server the earlier revision creates and uses a queue of each design, an adopted table and a
library's. Both run verbs that read on one database, and verbs that change something each on its own
copy. Exit statuses, keys, types and values are compared, except values that change with time.
Exit 1: there are differences.
"""

import argparse
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from typing import Any

from psycopg.sql import SQL, Identifier
from sqlalchemy import make_url

from console.features.demo.embedded import EmbeddedServer
from tests.contract import pgmq_library
from tests.servers import PATIENCE_SECONDS, connect, execute

ROOT = Path(__file__).parents[2]
CALLS = Path(__file__).with_name("console_calls.py")

CHANGING_KEYS = re.compile(
    r".*_(seconds|at|bytes|per_second|rate)|seconds|at|since|time|pid|version|commit"
)
"""Keys whose values change with time: only their presence and type are compared."""
MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?|\b\d\d:\d\d(:\d\d)?\b"
    r"|pid=\d+|dbq_\w+_[0-9a-f]{8}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|seconds\W+[\d.]+|\b\d+(\.\d+)? ?(ms|s|m|min|h|d)\b( \d+ ?(ms|s|m|min|h)\b)?"
)
"""In texts: times and durations, process ids, random ids."""
MEASURED = {"smoke", "bench", "prove", "demo", "history", "record", "serve-metrics"}
"""Verbs whose numbers are all measurements."""
SLOW_VERBS = {"doctor", "report"}
"""Verbs that take two samples half a minute apart: both consoles run them concurrently."""

CREATED = """
install {design} {design}
push {design} - --lines
pop {design} --count 2
"""
CLAIMED = """
pop {design} --count 2 --complete
pop {design} --count 1 --fail 'no such mailbox 17'
pop {design} --count 2 --fail 'no such mailbox 18'
pop {design} --count 1 --fail 'HTTP 503'
"""
ADOPTED = """
CREATE TABLE jobs (
    job_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL,
    created timestamptz NOT NULL DEFAULT now(), started timestamptz);
CREATE TABLE mails (mail_id bigint PRIMARY KEY, body text NOT NULL);
INSERT INTO jobs (body) SELECT 'job ' || n FROM generate_series(1, 5) AS n;
UPDATE jobs SET started = now() - interval '1 day' WHERE job_id = 1;
UPDATE status SET claimed_at = claimed_at - interval '1 day' WHERE status = 1;
"""
ADOPTING = """
adopt jobs --design claim --map id=job_id --map payload=body --map pushed_at=created --map claimed_at=started
adopt orders --preset pgmq
"""  # noqa: E501
HELD = "SELECT 1 FROM naive FOR UPDATE"
"""Run by a session that keeps its transaction open."""

READING = """
status
check
check fifo --max-depth 3
doctor
report ring
report split
report jobs
report orders
discover
audit
audit --verb install --limit 3
designs
roles
config show
config show --example
config validate
config path
completion bash
pipeline runs
help
help safety
install fifo other --print --engine mssql
status nothing
pop nothing
no-such-verb
doctor --codes
"""
READING_EACH = """
status {queue}
messages {queue}
messages {queue} --payload --limit 3 --reverse
messages {queue} --filter id=2 --payload --reveal
messages {queue} --state error --filter limit=2
errors {queue}
waits {queue} --seconds 0
history {queue} --since 1h
designs {queue}
sql purge {queue}
install {queue} other --print --engine postgresql
purge {queue} --dry-run
purge {queue} --filter limit=2
requeue {queue} --dry-run
release {queue} --dry-run
archive {queue} --dry-run
restore {queue} --dry-run
maintain {queue} --dry-run
upgrade {queue} --dry-run
relay {queue} --dry-run
resize {queue} 2000 --dry-run
uninstall {queue} --dry-run
uninstall {queue} --dry-run --with-messages
end-session {queue} SESSION --dry-run
doctor {queue} --fix --dry-run --code claims_stuck
"""
CHANGING = """
install fifo another --option order=strict --option payload=json
install fifo another
push another '{{"a": 1}}'
push another 'no json'
end-session naive SESSION --yes naive
smoke --design fifo
bench --designs fifo --seconds 0.5 --warmup 0 --rounds 1 --producers 1 --consumers 1
adopt mails --design fifo --map id=mail_id --map payload=body
doctor status --fix --yes status
demo --headless --seconds 1
"""
CHANGING_EACH = """
push {queue} one
push {queue} - --lines
pop {queue}
pop {queue} --count 2 --complete
pop {queue} --count 2 --fail 'no such mailbox'
complete {queue} 9
fail {queue} 9 --error 'by hand'
requeue {queue} --filter limit=1 --yes {queue}
requeue {queue} --yes {queue} --canary --canary-wait 1s
release {queue} --yes {queue} --force --unknown
archive {queue} --yes {queue}
purge {queue} --filter limit=2 --yes
purge {queue} --yes {queue}
restore {queue} --yes {queue}
maintain {queue} --yes {queue}
upgrade {queue} --yes {queue}
relay {queue} --yes {queue}
resize {queue} 2000 --yes {queue}
smoke {queue}
audit --limit 5
forget {queue}
uninstall {queue} --yes {queue}
uninstall {queue} --yes {queue} --with-messages
"""
UNENDING = """
status --watch
record
serve-metrics --listen 127.0.0.1:0
"""
NOT_CALLED = {
    "pipeline archive": "needs a JVM",
    "pipeline replay": "needs a JVM",
    "pipeline rollup": "needs a JVM",
    "pipeline verify": "needs a JVM",
}
STDIN = "".join(f"message {number}\n" for number in range(1, 13))


@dataclass(frozen=True)
class Response:
    """The response to one call."""

    status: int
    out: str
    err: str


@dataclass
class Console:
    """The console of a checkout, with a state folder of its own."""

    name: str
    checkout: Path
    state: Path
    _process: "subprocess.Popen[str] | None" = None

    @property
    def _environment(self) -> dict[str, str]:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("DBQ_")}
        folders = dict.fromkeys(("XDG_STATE_HOME", "XDG_CONFIG_HOME"), str(self.state))
        return {**ours, **folders, "PYTHONPATH": str(self.checkout), "COLUMNS": "100"}

    @contextmanager
    def open(self) -> Iterator["Console"]:
        self.state.mkdir(exist_ok=True)
        with subprocess.Popen(
            [sys.executable, "-P", str(CALLS)],
            cwd=self.checkout,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as self._process:
            yield self

    def __call__(self, words: Sequence[str], url: str, stdin_text: str = STDIN) -> Response:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"words": words, "stdin_text": stdin_text, "url": url})
        print(line, file=self._process.stdin, flush=True)
        return Response(**json.loads(self._process.stdout.readline()))

    def interrupted(self, words: Sequence[str], url: str) -> Response:
        """Run an endless verb in a new process; Ctrl-C after its first output."""
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "console.cli", *words],
            cwd=self.checkout,
            env={**self._environment, "DBQ_URL": url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            with selectors.DefaultSelector() as either:
                for stream in (running.stdout, running.stderr):
                    assert stream is not None
                    either.register(stream, selectors.EVENT_READ)
                assert either.select(PATIENCE_SECONDS), f"{shlex.join(words)} says nothing"
            running.send_signal(signal.SIGINT)
            out, err = running.communicate()
        return Response(running.returncode, out, err)

    def run_all(self, calls: str, url: str, **names: str) -> None:
        for words in words_of(calls, **names):
            response = self(words, url)
            assert response.status == 0, (words, response)

    def verbs(self, *group: str) -> Iterator[str]:
        """The verbs with --json, according to the help."""
        text = self([*group, "--help"], "").out
        _, listed, commands = text.partition("\nCommands:\n")
        if not listed:
            if "--json" in text:
                yield " ".join(group)
            return
        for name in re.findall(r"^  (\S+)", commands, re.MULTILINE):
            yield from self.verbs(*group, name)


def words_of(calls: str, **names: str) -> list[list[str]]:
    """A call per line."""
    return [shlex.split(line.format(**names)) for line in calls.strip().splitlines()]


def differences(before: Any, after: Any, path: str = "", *, measured: bool) -> Iterator[str]:
    """The differences between two responses, as text."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() & after.keys():
            changes = measured or CHANGING_KEYS.fullmatch(key) is not None
            yield from differences(before[key], after[key], f"{path}.{key}", measured=changes)
        for key in before.keys() - after.keys():
            yield f"{path}.{key}: lost, was {_short(before[key])}"
        for key in after.keys() - before.keys():
            yield f"{path}.{key}: new, is {_short(after[key])}"
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after) and not measured:
            yield f"{path}: {len(before)} of them, now {len(after)}"
        for number, (one, two) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, two, f"{path}[{number}]", measured=measured)
    elif measured and (_kind(before) == _kind(after) or None in (before, after)):
        return
    elif (_kind(before), before) != (_kind(after), after):
        yield f"{path}: " + ", now ".join(_around_first_difference(repr(before), repr(after)))


def _kind(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:160]}..."


def _around_first_difference(*texts: str) -> list[str]:
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    begin = max(0, common - 60)
    return [("..." if begin else "") + text[begin : begin + 160] for text in texts]


def read(response: Response, replaced: Mapping[str, str]) -> Any:
    """Its JSON, or its lines of JSON, without names that only this run has."""
    text = response.out
    for name, instead in replaced.items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
    try:
        found = [json.loads(line) for line in text.splitlines()]
    except ValueError:
        return {"no JSON": _without_times(text)}
    return _without_times(found[0] if len(found) == 1 else found)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_times(one) for one in value]
    return MOMENT.sub("#", value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Database:
    """A database, and the session that holds rows in it."""

    url: str
    session: int

    @property
    def replaced(self) -> dict[str, str]:
        """Names that only this run has."""
        name = make_url(self.url).database
        return {f"{name}": "DATABASE", str(self.session): "17"}


class Comparison:
    """Calls of both consoles, and their differences."""

    def __init__(self, before: Console, after: Console) -> None:
        self.before, self.after = before, after
        self.called: set[str] = set()
        self.calls = 0
        self.found: dict[str, list[str]] = {}
        """Difference -> the calls that have it."""

    def call(
        self,
        words: Sequence[str],
        of_before: Database,
        of_after: Database,
        *,
        endless: bool = False,
    ) -> None:
        """Run it with --json on both."""
        words = [*words, "--json"]

        def call_one(console: Console, database: Database) -> dict[str, Any]:
            own_words = [str(database.session) if word == "SESSION" else word for word in words]
            call = console.interrupted if endless else console
            response = call(own_words, database.url)
            folders = {str(console.checkout): "CHECKOUT", str(console.state): "STATE"}
            return {
                "exit status": response.status,
                "": read(response, {**folders, **database.replaced}),
            }

        with ThreadPoolExecutor(2 if words[0] in SLOW_VERBS else 1) as both:
            before, after = both.map(call_one, (self.before, self.after), (of_before, of_after))
        self.called |= {words[0], " ".join(words[:2])}
        self.calls += 1
        call = shlex.join(words)
        for difference in differences(before, after, measured=words[0] in MEASURED):
            path, _, description = difference.partition(": ")
            kind = (
                "" if not description.startswith(("new,", "lost,")) else description.split(",")[0]
            )
            where = f"{words[0]} {re.sub(r'[0-9]+', '', path)} {kind}".rstrip()
            if where not in self.found:
                print(where, f"    {call}: {description}", sep="\n", flush=True)
            self.found.setdefault(where, []).append(call)

    def print_summary(self) -> None:
        for where, calls in sorted(self.found.items()):
            print(f"{len(calls):>6} {where}")
        print(f"{self.calls} calls, {len(self.found)} differences")


def copy_package(folder: Path) -> Path:
    """A copy of this package, so that it may be edited meanwhile."""
    for name in ("console", "queries"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def check_out(revision: str, folder: Path) -> Path:
    """The revision's files, in the folder."""
    command = ["git", "-C", str(ROOT), "archive", revision]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@contextmanager
def both_revisions(document: str) -> Iterator[tuple[EmbeddedServer, Console, Console]]:
    """A server, the console of the revision that the command line names, and this one."""
    parser = argparse.ArgumentParser(description=document.partition("\n")[0])
    parser.add_argument("revision")
    revision = parser.parse_args().revision
    with tempfile.TemporaryDirectory() as made, EmbeddedServer.start() as server:
        folder = Path(made)
        before = Console("before", check_out(revision, folder / "checkout"), folder / "1")
        yield server, before, Console("after", copy_package(folder / "now"), folder / "2")


def main() -> int:
    with ExitStack() as stack:
        server, before, after = stack.enter_context(both_revisions(__doc__))
        execute(server.url, "CREATE DATABASE made TEMPLATE template0")
        url = make_url(server.url).set(drivername="postgresql+psycopg")

        def of(name: str) -> str:
            return url.set(database=name).render_as_string(hide_password=False)

        with before.open():
            queues = create_queues(before, of("made"))
        shutil.copytree(before.state, after.state)
        databases = []
        for name in ("copied_0", "copied_1", "copied_2"):
            execute(server.url, SQL("CREATE DATABASE {} TEMPLATE made").format(Identifier(name)))
            holder = stack.enter_context(closing(connect(of(name))))  # end-session ends it
            holder.autocommit = False
            holder.execute(HELD)
            databases.append(Database(of(name), holder.info.backend_pid))
        with before.open(), after.open():
            return compare(Comparison(before, after), queues, databases)


def create_queues(console: Console, url: str) -> list[str]:
    """Create and use the queues; their names."""
    designs = json.loads(console(["designs", "--json"], url).out)["designs"]
    installed = [design for design in designs if "postgresql" in design["engines"]]
    for one in installed:
        console.run_all(CREATED, url, design=one["design"])
        if "complete" in json.dumps(one["verbs"]) or "requeue" in one["verbs"]["postgresql"]:
            console.run_all(CLAIMED, url, design=one["design"])
    pgmq_library.install(url)
    execute(url, "SELECT pgmq.create('orders'); SELECT pgmq.send('orders', '{\"a\": 1}')")
    execute(url, ADOPTED)
    console.run_all(ADOPTING, url)
    return [*(one["design"] for one in installed), "jobs", "orders"]


def compare(both: Comparison, queues: Sequence[str], databases: Sequence[Database]) -> int:
    """Run all calls; the exit status."""
    read_database, of_before, of_after = databases
    of_each = [words for queue in queues for words in words_of(READING_EACH, queue=queue)]
    acting = [words for queue in queues for words in words_of(CHANGING_EACH, queue=queue)]
    for words in [*words_of(READING), *of_each]:
        both.call(words, read_database, read_database)
    for words in words_of(UNENDING):
        both.call(words, read_database, read_database, endless=True)
    for words in [*words_of(CHANGING), *acting]:
        both.call(words, of_before, of_after)
    there, here = set(both.before.verbs()), set(both.after.verbs())
    for verb in sorted(there ^ here):
        print(f"{verb}: {'lost' if verb in there else 'new'}")
    for verb in sorted(here - both.called):
        print(f"{verb}: not called, {NOT_CALLED.get(verb, 'forgotten')}")
    both.print_summary()
    return int(bool(both.found))


if __name__ == "__main__":
    sys.exit(main())
