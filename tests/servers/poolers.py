"""PgBouncer before a server of the suite, where Debian's package is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from console.engines import Database
from tests.servers import connect, free_port, wait_until

Pooler = Callable[[Database], Database]
PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pgbouncer(
    url: str, *, mode: str = "transaction", size: int = 4, **settings: str
) -> Iterator[str]:
    """The URL of the same server through a pool of `size` server sessions a database.

    Whoever connects is let in, as the user of `url`.
    """
    assert PROGRAM is not None
    parts, port = make_url(url), free_port()
    words = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": str(size),
        "max_client_conn": "500",
        **settings,
    }
    lines = [
        "[databases]",
        f"* = host={parts.host} port={parts.port} user={parts.username} password={parts.password}",
        "[pgbouncer]",
        *(f"{name} = {value}" for name, value in words.items()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        Path(folder).chmod(0o755)
        user = "nobody" if os.geteuid() == 0 else None  # it does not run as root
        log = (Path(folder) / "log").open("wb")
        with log, subprocess.Popen([PROGRAM, file], stdout=log, stderr=log, user=user) as process:
            through = parts.set(host="127.0.0.1", port=port)
            text = through.render_as_string(hide_password=False)
            try:
                wait_until(lambda: _answers(text), "PgBouncer answers")
                yield text
            finally:
                process.terminate()


def through(url: str, database: Database) -> Database:
    """The same database through the pooler at `url`; its own URL still leads past it."""
    pooler = make_url(url)
    database._complete = lambda: database.url.set(host=pooler.host, port=pooler.port)
    return database


def _answers(url: str) -> bool:
    try:
        connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
