"""What became of each run of the pipeline: a file a run, in this user's state.

    runs/<id>.json     who runs what since when; how far it is; how it ended, with its whole result
    runs/<id>.out      what it says, where a console started it as a process of its own
    runs/<id>.err

A file is there whole or not at all. A run that is killed leaves one without an end: its process,
known by its number and its beginning, is gone. Never a secret, never a payload.
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
"""The newest so many runs are listed; older files go when one begins."""
_TOLD_SECONDS = 1.0
"""Between two writings of how far a run is."""
_FORMAT = 1
_ID = re.compile(r"[0-9T]+\.[0-9]+Z-[0-9a-f]+")


def folder() -> Path:
    return state.folder() / "runs"


class RunOutcome(StrEnum):
    """How a run ended, or that it has not."""

    RUNNING = "running"
    ELSEWHERE = "running?"
    """It began on another machine that shares this folder, and only that one can tell."""
    DONE = "done"
    MISMATCH = "mismatch"
    """`verify` has found something."""
    REFUSED = "refused"
    STOPPED = "stopped"
    """By a signal that it heard: the same command goes on where it was."""
    FAILED = "failed"
    SILENT = "ended without a word"
    """Killed, or its machine: the same command goes on where it was."""


@dataclass(frozen=True)
class Run:
    """One run as its file has it; what is missing there is as here."""

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
    """When its process began, as `born` has it."""
    told: str = ""
    """How far it was when it last said so."""
    told_at: datetime | None = None
    told_rows: int | None = None
    told_bytes: int | None = None
    ended_at: datetime | None = None
    status: int | None = None
    result: Mapping[str, Any] | None = None
    """What `--json` prints."""
    lines: tuple[str, ...] = ()
    """The same in words."""
    error: Mapping[str, str] = field(default_factory=dict)
    """what, why, next_step."""
    alive: bool | None = None
    """Whether its process is there; None: that cannot be told here."""

    @property
    def outcome(self) -> RunOutcome:
        """How it ended, or that it has not."""
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
        """Whether it is still at it, for all that is known."""
        return self.outcome in {RunOutcome.RUNNING, RunOutcome.ELSEWHERE}

    @property
    def rows(self) -> int | None:
        """That it moved or examined; None: it has not said."""
        return self._figure(_ROWS, self.told_rows)

    @property
    def bytes(self) -> int | None:
        """Of what it moved; None: it has not said."""
        return self._figure(_BYTES, self.told_bytes)

    @property
    def moved(self) -> str:
        """Its rows in words; of one that ended before it could count them, what it last said."""
        if self.rows is None:
            return ""
        guessed = not self.running and self.result is None
        return f"{formats.ESTIMATE if guessed else ''}{self.rows:,}"

    def _figure(
        self, of: Mapping[str, Callable[[Mapping[str, Any]], int]], else_: int | None
    ) -> int | None:
        if self.result is None or self.verb not in of:
            return else_
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return int(of[self.verb](self.result))
        return else_

    def seconds(self, now: datetime) -> float | None:
        """From its beginning to its end; of one that left no word, to its last."""
        end = self.ended_at or (now if self.running else self.told_at)
        return None if end is None else max(0.0, (end - self.began_at).total_seconds())

    def rows_per_second(self, now: datetime) -> float | None:
        """Over its whole time, the start of Spark with it; None: not known."""
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
            "progress": self.told or None,
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
    "archive": lambda found: found["result"]["bytes"] if found["done"] else 0,
}


# -- reading


@dataclass(frozen=True)
class RunList:
    """The runs, the newest first."""

    runs: tuple[Run, ...] = ()
    unreadable: int = 0
    """Files that are none of a run."""


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
        for name in ("began_at", "told_at", "ended_at"):
            if content.get(name) is not None:
                content[name] = datetime.fromisoformat(content[name])
        for name in ("words", "lines"):
            content[name] = tuple(content.get(name, ()))
        run = _sound(Run(**content, id=path.stem))
        return Run(**{**vars(run), "alive": None if run.status is not None else _alive(run)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _sound(run: Run) -> Run:
    """The same where each value is of its kind. ValueError."""
    texts = (run.verb, run.queue, run.connection, run.lake, run.user, run.host, run.born, run.told)
    numbers = (run.status, run.told_rows, run.told_bytes)
    moments = (run.began_at, run.told_at, run.ended_at)
    good = (
        isinstance(run.began_at, datetime)
        and all(isinstance(text, str) for text in (*texts, *run.words, *run.lines))
        and all(number is None or isinstance(number, int) for number in numbers)
        and all(at is None or at.tzinfo is not None for at in moments)
        and isinstance(run.pid, int)
        and (run.result is None or isinstance(run.result, dict))
        and all(isinstance(text, str) for text in (*run.error, *run.error.values()))
    )
    if not good:
        raise ValueError("it is not a run")
    return run


def _alive(run: Run) -> bool | None:
    if run.host != socket.gethostname():
        return None
    return bool(run.born) and born(run.pid) == run.born


def born(pid: int) -> str | None:
    """When a process began, in the words of its system; None: it is gone.

    The number alone will be another process's one day.
    """
    if not Path("/proc/self/stat").exists():
        return _born_by_ps(pid)
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # Its name, in brackets, may have blanks and brackets in it.
    state_, *more = told.rpartition(")")[2].split()
    return None if state_ in {"Z", "X"} else f"{boot} {more[18]}"


def _born_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "LC_ALL": "C"}
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, env=environment
        ).stdout.split(maxsplit=1)
        return None if len(told) < 2 or told[0].startswith("Z") else told[1].strip()
    return None


def stop(run: Run) -> None:
    """Ask it to end (SIGTERM). RefusedError where it is not running here."""
    if not _alive(run):
        raise RefusedError(
            f"The run {run.id} is not running here.",
            why=f"It began on {run.host}." if run.host != socket.gethostname() else "",
        )
    try:
        os.kill(run.pid, signal.SIGTERM)
    except OSError as error:
        raise RefusedError(
            f"The run {run.id} could not be asked to end.", why=error.strerror or str(error)
        ) from error


# -- writing


def new_id() -> str:
    """Names of later runs come later."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(4)}"


class RunFile:
    """The file of one run, while that goes on. Once it has begun, a disk that fails fails nothing:
    `problem` says why the file is not as it should be."""

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
        """The run of this process, or of the one with that number; old files go.

        Where the run has a file already, that stays: its process was quicker.
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
                born=born(pid_) or "",
                **facts,
            ),
        )
        record._write(once=bool(pid))
        with suppress(OSError):
            _make_room(root)
        return record

    def set_subject(self, **facts: str) -> None:
        """What is known by now: queue, connection, lake."""
        with self._lock:
            self._content.update({name: text for name, text in facts.items() if text})
            self._write()

    def report_progress(self, line: str, rows: int, size: int) -> None:
        """How far it is; in any thread, as often as one likes."""
        with self._lock:
            at = datetime.now(UTC)
            figures = {"told_rows": rows, "told_bytes": size or None}
            self._content |= {"told": line, "told_at": at, **figures}
            if time.monotonic() - self._written >= _TOLD_SECONDS:
                self._write()

    def set_result(self, result: Any, lines: Sequence[str]) -> None:
        """What the verb has printed."""
        self._content |= {"result": result, "lines": tuple(lines)}

    def end(self, status: int, error: Mapping[str, str] | None = None) -> None:
        with self._lock:
            end = {"status": status, "ended_at": datetime.now(UTC), "error": dict(error or {})}
            self._content |= end
            self._write()

    def discard(self) -> None:
        """It was none: nothing was begun."""
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
    except (KeyError, OSError):  # a number without a name, as in containers
        return str(os.getuid())


def _make_room(root: Path) -> None:
    """Whatever belongs to older runs goes; not of one that is running."""
    ids = sorted(path.stem for path in root.glob("*.json"))
    kept = set(ids[-KEPT:])
    if len(ids) > len(kept):
        oldest = min(kept)
        old = [_read(root / f"{id_}.json") for id_ in ids if id_ not in kept]
        kept |= {run.id for run in old if run is not None and run.running}
        for path in root.iterdir():
            # An id has a dot in it, before its Z.
            id_ = ".".join(path.name.split(".")[:2])
            if id_ < oldest and id_ not in kept:
                path.unlink(missing_ok=True)
