"""The pipeline's runs on this machine: a file per run, in this user's state.

    runs/<id>.json     what runs, for whom and since when; its progress; its outcome and result
    runs/<id>.out      its output, where a console started it as a process of its own
    runs/<id>.err

Files are written atomically. The file of a killed run has no end, and its process, known by pid and
start time, is gone. There are no secrets and no payloads in them.
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from getpass import getuser
from pathlib import Path
from typing import Any

from console import formats, state
from console.errors import ConsoleError, RefusedError

KEPT = 200
"""The files of older runs are removed when one begins."""
_PROGRESS_SECONDS = 1.0
"""Progress is written at most so often."""
_FORMAT = 1
_ID = re.compile(r"[0-9T]+\.[0-9]+Z-[0-9a-f]+")


def folder() -> Path:
    return state.folder() / "runs"


class RunOutcome(StrEnum):
    RUNNING = "running"
    ELSEWHERE = "running?"
    """On another machine that shares this folder: only that one knows."""
    DONE = "done"
    MISMATCH = "mismatch"
    """`verify` found a problem."""
    REFUSED = "refused"
    STOPPED = "stopped"
    """By a signal that it handled; the same command continues it."""
    FAILED = "failed"
    SILENT = "ended without a word"
    """It or its machine was killed; the same command continues it."""


@dataclass(frozen=True)
class Run:
    """As in its file."""

    id: str
    verb: str
    began_at: datetime
    words: tuple[str, ...] = ()
    """Of the command line, without secrets."""
    queue: str = ""
    connection: str = ""
    lake: str = ""
    user: str = ""
    host: str = ""
    pid: int = 0
    born: str = ""
    """When its process began (`process_start`)."""
    progress: str = ""
    progress_at: datetime | None = None
    progress_rows: int | None = None
    progress_bytes: int | None = None
    ended_at: datetime | None = None
    status: int | None = None
    result: Mapping[str, Any] | None = None
    """What `--json` prints."""
    lines: tuple[str, ...] = ()
    """What is printed without it."""
    error: Mapping[str, str] = field(default_factory=dict)
    """what, why, next_step."""
    alive: bool | None = None
    """Whether its process exists; None: not known here."""

    @property
    def outcome(self) -> RunOutcome:
        if self.status is None:
            alive = {True: RunOutcome.RUNNING, False: RunOutcome.SILENT, None: RunOutcome.ELSEWHERE}
            return alive[self.alive]
        if self.status == 1 and self.verb == "verify" and self.result is not None:
            return RunOutcome.MISMATCH
        if self.status > 128:
            return RunOutcome.STOPPED
        known = {0: RunOutcome.DONE, 4: RunOutcome.REFUSED}
        return known.get(self.status, RunOutcome.FAILED)

    @property
    def running(self) -> bool:
        """As far as is known."""
        return self.outcome in {RunOutcome.RUNNING, RunOutcome.ELSEWHERE}

    @property
    def rows(self) -> int | None:
        """Moved or examined; None: not known."""
        return self._figure(_ROWS, self.progress_rows)

    @property
    def bytes(self) -> int | None:
        """Moved; None: not known."""
        return self._figure(_BYTES, self.progress_bytes)

    @property
    def moved(self) -> str:
        """Its rows as text; marked as an estimate where it ended without a result."""
        if self.rows is None:
            return ""
        estimated = not self.running and self.result is None
        return f"{formats.ESTIMATE if estimated else ''}{self.rows:,}"

    def _figure(
        self, by_verb: Mapping[str, Callable[[Mapping[str, Any]], int]], last: int | None
    ) -> int | None:
        if self.result is None or self.verb not in by_verb:
            return last
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return int(by_verb[self.verb](self.result))
        return last

    def seconds(self, now: datetime) -> float | None:
        """To its end; of a killed run, to its last progress."""
        end = self.ended_at or (now if self.running else self.progress_at)
        return None if end is None else max(0.0, (end - self.began_at).total_seconds())

    def rows_per_second(self, now: datetime) -> float | None:
        """Over its whole time, the start of Spark included."""
        seconds = self.seconds(now)
        return self.rows / seconds if self.rows and seconds else None

    def as_json(self, now: datetime) -> dict[str, Any]:
        """The stable object of `pipeline runs --json`; times in ISO 8601, UTC."""
        seconds, speed = self.seconds(now), self.rows_per_second(now)
        return {
            "id": self.id,
            "verb": self.verb,
            "queue": self.queue or None,
            "connection": self.connection or None,
            "lake": self.lake or None,
            "began_at": self.began_at.isoformat(),
            "ended_at": None if self.ended_at is None else self.ended_at.isoformat(),
            "outcome": self.outcome.value,
            "status": self.status,
            "seconds": None if seconds is None else round(seconds, 3),
            "rows": self.rows,
            "bytes": self.bytes,
            "rows_per_second": None if speed is None else round(speed, 1),
            "progress": self.progress or None,
            "command": list(self.words),
            "user": self.user,
            "host": self.host,
            "pid": self.pid,
            "error": dict(self.error) or None,
            "result": self.result,
        }


_ROWS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "archive": lambda found: found["result"]["exported"] if found["done"] else 0,
    "rollup": lambda found: sum(found["rows"].values()),
    "verify": lambda found: (found["pushes"] or 0) + found["pops"],
    "replay": lambda found: found["result"]["pushed"] if found["done"] else 0,
}
_BYTES: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "archive": lambda found: found["result"]["bytes"] if found["done"] else 0
}


# -- reading


@dataclass(frozen=True)
class RunList:
    """The newest first."""

    runs: tuple[Run, ...] = ()
    unreadable: int = 0
    """Files."""


def read(root: Path) -> RunList:
    """Every run. ConsoleError where the folder cannot be read."""
    try:
        paths = sorted(root.glob("*.json"), reverse=True)
    except OSError as error:
        raise ConsoleError(
            "The runs cannot be read.", why=f"{root}: {error.strerror or error}"
        ) from error
    found = [_read(path) for path in paths]
    runs = tuple(run for run in found if run is not None)
    return RunList(runs, len(found) - len(runs))


def _read(path: Path) -> Run | None:
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != _FORMAT:
            return None
        for name in ("began_at", "progress_at", "ended_at"):
            if content.get(name) is not None:
                content[name] = datetime.fromisoformat(content[name])
        for name in ("words", "lines"):
            content[name] = tuple(content.get(name, ()))
        run = _valid(Run(**content, id=path.stem))
        return Run(**{**vars(run), "alive": None if run.status is not None else _alive(run)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _valid(run: Run) -> Run:
    """ValueError where a value has the wrong type."""
    texts = (
        run.verb,
        run.queue,
        run.connection,
        run.lake,
        run.user,
        run.host,
        run.born,
        run.progress,
    )
    numbers = (run.status, run.progress_rows, run.progress_bytes)
    times = (run.began_at, run.progress_at, run.ended_at)
    valid = (
        isinstance(run.began_at, datetime)
        and all(isinstance(text, str) for text in (*texts, run.progress, *run.words, *run.lines))
        and all(number is None or isinstance(number, int) for number in numbers)
        and all(at is None or at.tzinfo is not None for at in times)
        and isinstance(run.pid, int)
        and (run.result is None or isinstance(run.result, dict))
        and all(isinstance(text, str) for text in (*run.error, *run.error.values()))
    )
    if not valid:
        raise ValueError("it is not a run")
    return run


def _alive(run: Run) -> bool | None:
    if run.host != socket.gethostname():
        return None
    return bool(run.born) and process_start(run.pid) == run.born


def process_start(pid: int) -> str | None:
    """When a process began, as its system writes it: pids are used again. None: it has ended."""
    if not Path("/proc/self/stat").exists():
        return _process_start_by_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # The program's name, in brackets, may contain blanks and brackets.
    state_, *more = stat.rpartition(")")[2].split()
    return None if state_ in {"Z", "X"} else f"{boot} {more[18]}"


def _process_start_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C"}
    with suppress(OSError, subprocess.SubprocessError):
        fields = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, env=environment
        ).stdout.split(maxsplit=1)
        return None if len(fields) < 2 or fields[0].startswith("Z") else fields[1].strip()
    return None


def stop(run: Run) -> None:
    """Send SIGTERM. RefusedError where it is not running here."""
    if not _alive(run):
        raise RefusedError(
            f"The run {run.id} is not running here.",
            why=f"It began on {run.host}." if run.host != socket.gethostname() else "",
        )
    try:
        os.kill(run.pid, signal.SIGTERM)
    except OSError as error:
        raise RefusedError(
            f"The run {run.id} could not be stopped.", why=error.strerror or str(error)
        ) from error


# -- writing


def new_id() -> str:
    """Sorts by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(4)}"


class RunFile:
    """The file of a running run. When it cannot be written, `problem` says why; the run goes on."""

    def __init__(self, root: Path, run: Run) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._content = {k: v for k, v in vars(run).items() if k not in {"id", "alive"}}
        self._written = 0.0
        self._discarded = False
        self.id = run.id
        self.problem = ""

    @property
    def path(self) -> Path:
        return self._root / f"{self.id}.json"

    @classmethod
    def begin(cls, root: Path, verb: str, id_: str = "", pid: int = 0, **facts: Any) -> "RunFile":
        """The run of this process, or of `pid`, whose own file stays if it has written it already.

        Old files are removed.
        """
        pid_ = pid or os.getpid()
        began = datetime.now(UTC)
        record = cls(
            root,
            Run(
                id=id_ if _ID.fullmatch(id_) else new_id(),
                verb=verb,
                began_at=began,
                user=_user(),
                host=socket.gethostname(),
                pid=pid_,
                born=process_start(pid_) or "",
                **facts,
            ),
        )
        record._write(once=bool(pid))
        with suppress(OSError):
            _make_room(root)
        return record

    def set_subject(self, **facts: str) -> None:
        """`facts`: queue, connection, lake."""
        with self._lock:
            self._content.update({name: text for name, text in facts.items() if text})
            self._write()

    def report_progress(self, line: str, rows: int, size: int) -> None:
        """From any thread, as often as the caller likes."""
        with self._lock:
            figures = {"progress_rows": rows, "progress_bytes": size or None}
            self._content |= {"progress": line, "progress_at": datetime.now(UTC), **figures}
            if time.monotonic() - self._written >= _PROGRESS_SECONDS:
                self._write()

    def set_result(self, result: Any, lines: Sequence[str]) -> None:
        """What the verb printed."""
        self._content |= {"result": result, "lines": tuple(lines)}

    def end(self, status: int, error: Mapping[str, str] | None = None) -> None:
        with self._lock:
            end = {"status": status, "ended_at": datetime.now(UTC), "error": dict(error or {})}
            self._content |= end
            self._write()

    def discard(self) -> None:
        """Nothing was begun."""
        with self._lock:
            self._discarded = True
            with suppress(OSError):
                self.path.unlink()

    def _write(self, *, once: bool = False) -> None:
        if self._discarded:
            return
        self._written = time.monotonic()
        beside = self._root / f"{self.id}.{secrets.token_hex(4)}.tmp"
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = json.dumps({"format": _FORMAT, **self._content}, default=_plain)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(content)
            if once:
                with suppress(FileExistsError):
                    self.path.hardlink_to(beside)
                beside.unlink()
            else:
                beside.replace(self.path)
            self.problem = ""
        except OSError as error:
            self.problem = f"{self._root}: {error.strerror or error}"
            with suppress(OSError):
                beside.unlink()


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a uid without a name, as in containers
        return str(os.getuid())


def _make_room(root: Path) -> None:
    """Remove the files of older runs that are not running."""
    ids = sorted(path.stem for path in root.glob("*.json"))
    kept = set(ids[-KEPT:])
    if len(ids) > len(kept):
        oldest = min(kept)
        old = [_read(root / f"{id_}.json") for id_ in ids if id_ not in kept]
        kept |= {run.id for run in old if run is not None and run.running}
        for path in root.iterdir():
            # An id has a dot before its Z.
            id_ = ".".join(path.name.split(".")[:2])
            if id_ < oldest and id_ not in kept:
                path.unlink(missing_ok=True)
