"""One data directory per run: the first server that needs it creates it, all copy it."""

import atexit
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import make_url

from console.features.demo.embedded import EmbeddedServer, guard

FOLDER = "DBQ_TEST_FOLDER"
"""The environment variable with the folder that a run's processes share; set by conftest.py."""

_MEMORY = Path("/dev/shm")  # noqa: S108 (only a private folder in it is used)
_ENOUGH_BYTES = 6 << 30
_MAKING, _RUN = "dbq-making-", "dbq-run-"

SETTINGS = {"fsync": "off", "max_prepared_transactions": "20"}
"""Of the suite's servers. Tests kill servers but do not cut the power: writes are in the operating
system's cache and survive any kill."""


def folder_of_run() -> str:
    """A new folder, in memory if there is enough: a run creates hundreds of databases.

    It is locked while this process lives; folders of killed runs are removed.
    """
    has_room = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES
    base = _MEMORY if has_room else Path(tempfile.gettempdir())
    for left in base.glob(f"{_RUN}*"):
        with suppress(OSError):  # its run is alive, or another user's
            descriptor = guard.lock_folder(left, wait=False)
            shutil.rmtree(left, ignore_errors=True)
            guard.unlock(descriptor)
    made = Path(tempfile.mkdtemp(prefix=_MAKING, dir=base))
    made.chmod(0o711)  # the server may run as another user, who needs access
    guard.lock_folder(made, wait=False)
    folder = made.rename(base / made.name.replace(_MAKING, _RUN))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


class CopiedServer(EmbeddedServer):
    """An embedded server that needs no `initdb`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__({**SETTINGS, **settings})
        self._copy: Path | None = None

    def _prepare(self, folder: Path) -> str:
        made = _template()
        self._copy = Path(os.environ[FOLDER]) / folder.name
        _copy(made / "data", self._copy)
        (folder / "data").symlink_to(self._copy)
        return (made / "password").read_text()

    def _discard(self) -> None:
        super()._discard()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)


def _template() -> Path:
    """The folder with the data directory of a cleanly stopped server, and its password."""
    folder = Path(os.environ[FOLDER]) / "server"
    with exclusive_access(folder):
        # Written last: if it exists, the data is complete.
        if not (folder / "password").exists():
            shutil.rmtree(folder / "data", ignore_errors=True)
            with EmbeddedServer.start(settings=SETTINGS) as first:
                password = make_url(first.url).password
                assert isinstance(password, str)
                assert first.folder is not None
                first.shut_down()
                _copy(first.folder / "data", folder / "data")
            (folder / "password").write_text(password)
    return folder


def _copy(data: Path, to: Path) -> None:
    """Copy with its owner, which is not root."""
    subprocess.run(["/bin/cp", "-a", str(data), str(to)], check=True)


@contextmanager
def exclusive_access(folder: Path) -> Iterator[None]:
    """Create the folder if it is missing, and lock it for this process."""
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
