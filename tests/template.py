"""One data directory for a whole run: the first server that needs it makes it, all copy it."""

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

from console.engines.embedded import EmbeddedServer, guard

FOLDER = "DBQ_TEST_FOLDER"
"""The environment's name for a folder that all processes of a run share; conftest.py makes it."""

_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of our own in it, which nobody else can write)
_ENOUGH_BYTES = 6 << 30
_MAKING, _RUN = "dbq-making-", "dbq-run-"

SETTINGS = {"fsync": "off", "max_prepared_transactions": "20"}
"""Of the suite's servers. They are killed, but no machine loses its power here: what a server has
written is with the operating system, and is there after any kill."""


def folder_of_run() -> str:
    """A new folder, in memory where there is enough: databases come and go by the hundred.

    It is locked as long as this process lives; what a killed run has left behind is removed.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES
    base = _MEMORY if roomy else Path(tempfile.gettempdir())
    for left in base.glob(f"{_RUN}*"):
        with suppress(OSError):  # its run is alive, or it is somebody else's
            descriptor = guard.lock_folder(left, wait=False)
            shutil.rmtree(left, ignore_errors=True)
            guard.unlock(descriptor)
    made = Path(tempfile.mkdtemp(prefix=_MAKING, dir=base))
    made.chmod(0o711)  # the server may run as another user, who goes through
    guard.lock_folder(made, wait=False)
    folder = made.rename(base / made.name.replace(_MAKING, _RUN))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder)


class CopiedServer(EmbeddedServer):
    """An embedded server as any other, but that no `initdb` runs for it."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__({**SETTINGS, **settings})
        self._copy: Path | None = None

    def _prepare(self, folder: Path) -> str:
        made = _made()
        self._copy = Path(os.environ[FOLDER]) / folder.name
        _copy(made / "data", self._copy)
        (folder / "data").symlink_to(self._copy)
        return (made / "password").read_text()

    def _discard(self) -> None:
        super()._discard()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)


def _made() -> Path:
    """The folder with a data directory that was shut down in good order, and its password."""
    place = Path(os.environ[FOLDER]) / "server"
    with exclusive_access(place):
        # Written last: where it is, the data are whole.
        if not (place / "password").exists():
            shutil.rmtree(place / "data", ignore_errors=True)
            with EmbeddedServer.start(settings=SETTINGS) as first:
                password = make_url(first.url).password
                assert isinstance(password, str)
                assert first.folder is not None
                first.shut_down()
                _copy(first.folder / "data", place / "data")
            (place / "password").write_text(password)
    return place


def _copy(data: Path, to: Path) -> None:
    """With its owner, who is not root."""
    subprocess.run(["/bin/cp", "-a", str(data), str(to)], check=True)


@contextmanager
def exclusive_access(place: Path) -> Iterator[None]:
    """Make the folder where it is missing, and be the only process that works in it."""
    place.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
