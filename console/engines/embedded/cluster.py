"""The server's side of an instance folder: its user, its data directory, its configuration."""

import os
import pwd
import re
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from console.engines.embedded import guard
from console.errors import ConnectionFailedError, RefusedError, UsageError

HOST = "127.0.0.1"
USER = "postgres"
_PASSWORD_FILE = "dbq-console.password"  # noqa: S105 (a file's name)
_DEFAULTS = {"max_connections": "200"}
_FIXED = {"listen_addresses": HOST, "unix_socket_directories": ""}
_NOT_TO_BE_SET = {*_FIXED, "port", "config_file", "data_directory"}


def as_server() -> dict[str, Any]:
    """How to start a program of the server: as its user, with an environment of its own."""
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


def prepare(folder: Path, kept: Path | None) -> str:
    """Put the data directory into the instance folder, or a link to the one to be kept there.

    Makes it unless an earlier server did. Returns the password of its superuser.
    """
    data = folder / guard.DATA
    if kept is None:
        _make_for_server(data)
    else:
        if not kept.exists():
            _make_for_server(kept)
        data.symlink_to(kept.resolve())
        password = _known_password(kept)
        if password:
            return password
    password = secrets.token_hex(16)
    _initialise(folder, password)
    if kept is not None:
        _write_for_server(kept.resolve() / _PASSWORD_FILE, password)
    return password


def configure(folder: Path, settings: Mapping[str, str], port: int) -> Path:
    """Write the configuration; its path. What ALTER SYSTEM sets still comes after it and wins."""
    initdb_made = (folder / guard.DATA).resolve() / "postgresql.conf"
    lines = [f"include {_quoted(str(initdb_made))}"]
    own = {**_DEFAULTS, **settings, **_FIXED, "port": str(port)}
    lines += [f"{name} = {_quoted(value)}" for name, value in own.items()]
    file = folder / guard.CONFIGURATION
    _write_for_server(file, "\n".join(lines) + "\n")
    return file


def check_settings(settings: Mapping[str, str]) -> None:
    """UsageError for what is no setting or not the caller's to set. Values the server checks."""
    for name, value in settings.items():
        if name.lower() in _NOT_TO_BE_SET:
            raise UsageError(f"The embedded PostgreSQL sets {name} itself.")
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", name, re.ASCII) or "\0" in value:
            raise UsageError(f"{name!r} with the value {value!r} is no setting of PostgreSQL.")


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as, if not as ourselves: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise RefusedError(
            "The embedded PostgreSQL cannot run as root.",
            why="It would run as the user nobody, and there is none here.",
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
            # The password is random: one round guards it as well as 4,096 do, and to connect costs
            # each side half of the time.
            "--set=scram_iterations=1",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ],
        capture_output=True,
        check=False,
        **as_server(),
    )
    password_file.unlink()
    if done.returncode:
        raise ConnectionFailedError(
            "The embedded PostgreSQL could not make its data directory.",
            why=done.stderr.decode(errors="replace").strip(),
        )


def _known_password(data: Path) -> str | None:
    """The password of a data directory that an earlier server made; None if it is empty."""
    user = _server_user()
    if data.stat().st_uid != (user.pw_uid if user else os.geteuid()):
        raise RefusedError(
            f"The data directory {data} cannot be used.",
            why=f"It does not belong to {user.pw_name if user else 'this user'}, who runs it.",
            next_step="Name one that does not exist yet.",
        )
    if not any(data.iterdir()):
        return None
    try:
        descriptor = os.open(data / _PASSWORD_FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(
            f"The data directory {data} cannot be used.",
            why="It is not empty, and no embedded server has finished making it.",
            next_step="Name an empty one, or one that does not exist yet.",
        ) from error
    with os.fdopen(descriptor, encoding="utf-8") as file:
        return file.read()


def _make_for_server(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    _give_to_server(directory)


def _write_for_server(file: Path, text: str) -> None:
    """A file that only the server's user reads. Never through a link that somebody planted."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(file, flags, 0o600), "w", encoding="utf-8") as output:
        _give_to_server(output.fileno())
        output.write(text)


def _give_to_server(path: Path | int) -> None:
    user = _server_user()
    if user:
        os.chown(path, user.pw_uid, user.pw_gid)


def _quoted(value: str) -> str:
    """A value as postgresql.conf wants it."""
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n")
    return f"'{escaped}'"
