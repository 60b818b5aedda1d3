"""Ends an embedded server whose owner process is dead. The watchdog runs this file as a script.

An instance is a folder: the data (or a link to it), a link to the programs, the configuration, the
log. The owner holds a lock (flock) on the folder, which the kernel releases however the owner dies.
So whoever gets the lock knows that the owner is dead: the watchdog, which waits for it, and every
later start, which tries all instances. Pids are reused and differ between containers.

Standard library only, and no import of this package: the watchdog runs isolated.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

INSTANCES = "instance-*"
CONFIGURATION = "postgresql.conf"
DATA = "data"
PROGRAMS = "programs"

_PROC = Path("/proc")
_SERVER_PROGRAMS = {"postgres", "initdb"}
_GRACE_SECONDS = 10.0


class Process(NamedTuple):
    """A running process. `started` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    started: str


def lock_folder(folder: Path, *, wait: bool) -> int:
    """Lock a folder; the descriptor that holds the lock. BlockingIOError if it is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlock(descriptor: int) -> None:
    """Unlock explicitly: close() would not, if a forked child has it open too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def sweep(base: Path) -> None:
    """End and remove every instance in `base` without an owner."""
    for folder in base.glob(INSTANCES):
        try:
            descriptor = lock_folder(folder, wait=False)
        except OSError:  # it has an owner, or another start has just removed it
            continue
        try:
            end_instance(folder)
        finally:
            unlock(descriptor)


def end_instance(folder: Path) -> None:
    """End the instance's processes and remove the folder; linked data stays."""
    if not folder.exists():
        return
    servers = servers_of(folder)
    family = family_of(servers)
    signal_all(servers, signal.SIGQUIT)
    signal_all(family, signal.SIGCONT)  # a stopped process takes no signal but this and SIGKILL
    wait_until_gone(family, _GRACE_SECONDS)
    end_at_once([*family_of(servers), *family])
    _give_back_memory(folder)
    _remove(folder)


def servers_of(folder: Path) -> list[Process]:
    """The processes of this instance's server, whatever their parent.

    The postmaster and initdb have a file of the folder as an argument; their children's working
    directory is in it, as far as that is visible. The folder's name is random and never reused.
    """
    below = f"{folder}/"

    def ours(pid: int) -> bool:
        title, *words = _command(pid) or [""]
        if Path(title).name in _SERVER_PROGRAMS:
            return any(below in word for word in words)
        return title.startswith("postgres: ") and _working_directory(pid).startswith(below)

    return [process for process in processes() if ours(process.pid)]


def family_of(heads: Iterable[Process]) -> list[Process]:
    """Those of `heads` that are running, and all their descendants."""
    wanted = {(head.pid, head.started) for head in heads}
    table = processes()
    family = [process for process in table if (process.pid, process.started) in wanted]
    for member in family:  # grows while it is read: children of children
        family.extend(
            process for process in table if process.parent == member.pid and process not in family
        )
    return family


def signal_all(targets: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to those that are still running."""
    for process in alive(targets):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def wait_until_gone(targets: Iterable[Process], seconds: float) -> list[Process]:
    """Wait up to `seconds` for processes to end; returns those that have not."""
    deadline = time.monotonic() + seconds
    left = alive(targets)
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = alive(left)
    return left


def end_at_once(targets: Iterable[Process]) -> None:
    """SIGKILL, and wait for it to take effect."""
    left = alive(targets)
    signal_all(left, signal.SIGKILL)
    wait_until_gone(left, _GRACE_SECONDS)


def alive(targets: Iterable[Process]) -> list[Process]:
    """Those still running, whatever their parent is now."""
    wanted = list(targets)
    living = {(process.pid, process.started) for process in processes()} if wanted else set()
    return [process for process in wanted if (process.pid, process.started) in living]


def processes() -> list[Process]:
    """All processes of this machine, zombies left out."""
    read: Callable[[], Iterable[Process]] = _from_proc if (_PROC / "stat").exists() else _from_ps
    return list(read())


def _from_proc() -> Iterable[Process]:
    for entry in os.listdir(_PROC):  # noqa: PTH208 (names are enough, thousands of times)
        if not entry.isdigit():
            continue
        with suppress(OSError):  # gone meanwhile
            # The program's name, in parentheses, may itself hold blanks and parentheses.
            fields = (_PROC / entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in b"ZX":
                yield Process(int(entry), int(fields[1]), fields[19].decode())


def _from_ps() -> Iterable[Process]:
    for line in _ps("-A", "-o", "pid=,ppid=,stat=,lstart=").splitlines():
        pid, parent, state, started = line.split(maxsplit=3)
        if not state.startswith("Z"):
            yield Process(int(pid), int(parent), started)


def _command(pid: int) -> list[str]:
    if not (_PROC / "stat").exists():
        return _ps("-ww", "-p", str(pid), "-o", "args=").split()
    try:
        return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).split("\0")
    except OSError:
        return []


def _working_directory(pid: int) -> str:
    """Empty if it is not visible: not Linux, or root in a container without that right."""
    try:
        return str((_PROC / str(pid) / "cwd").readlink())
    except OSError:
        return ""


def _ps(*options: str) -> str:
    """`ps`, for systems without /proc. Empty if it fails."""
    environment = {"LC_ALL": "C", "PATH": "/bin:/usr/bin"}
    done = subprocess.run(
        ["ps", *options],  # noqa: S607 (its place differs between systems)
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def _give_back_memory(folder: Path) -> None:
    """Let PostgreSQL itself remove the shared memory that a killed postmaster left.

    A start on the same data does that, and nothing else can find all of it. `--check` goes exactly
    as far: no recovery, no write to the data. It refuses where a backend is still attached.
    """
    data = (folder / DATA).resolve()
    if not (data / "postmaster.pid").exists():  # ended in good order, or never started
        return
    owner = data.stat()
    check = [str(folder / PROGRAMS / "postgres"), "--check", "-D", str(data)]
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [*check, f"--config_file={folder / CONFIGURATION}"],
            cwd="/",
            env={"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=_GRACE_SECONDS,
            check=False,
            user=owner.st_uid if os.geteuid() == 0 else None,
            group=owner.st_gid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )


def _remove(folder: Path) -> None:
    """Remove a folder to which a dying process may still write."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def main(folder: Path) -> None:
    """Watch one instance: wait until its owner is dead, then end it."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(FileNotFoundError):
        lock_folder(folder, wait=True)
        end_instance(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
