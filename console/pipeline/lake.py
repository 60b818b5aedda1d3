"""The lake: a folder of Parquet files and their manifests, on any filesystem that Arrow knows.

    _lake.json                                                    its id, written once
    archive/connection=C/queue=Q/date=D/<plan>-<range>.parquet
    _manifests/archive/connection=C/queue=Q/<plan>/...

Only data files end in `.parquet`; readers leave out names that begin with `_` or `.`. A file is
there whole or not at all: it is written under a name that nobody reads, made durable and renamed.
"""

import errno
import fcntl
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

from console.errors import ConsoleError, RefusedError, UsageError

MANIFESTS = "_manifests"
DATA = ".parquet"
_ID = "_lake.json"
_TEMPORARY = "_tmp-"
_FORMAT = "dbq-console lake"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class DamagedError(ConsoleError):
    """A file of the lake does not say what it should."""


def connection_part(connection: str) -> str:
    return f"connection={quote(connection, safe='')}"


def queue_part(schema: str, queue: str) -> str:
    """The folder's name of a queue: `schema.name`, a dot inside a part being `%2E`."""
    parts = (quote(part, safe="").replace(".", "%2E") for part in (schema, queue))
    return f"queue={'.'.join(parts)}"


def connection_of(part: str) -> str:
    return unquote(part.removeprefix("connection="))


def queue_of(part: str) -> tuple[str, str]:
    """The schema and the name of the queue whose folder it is."""
    schema, _, name = part.removeprefix("queue=").partition(".")
    return unquote(schema), unquote(name)


def _filesystems() -> Any:
    """Arrow's, which tell a checker of types nothing."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    return fs


def readable(name: str) -> bool:
    """Whether a file of that name is data that readers read."""
    return name.endswith(DATA) and not name.startswith(("_", "."))


class Lake:
    """A lake by its place: a folder, or a URI as `s3://bucket/folder`.

    Paths are relative to it, with `/`. Every method raises a ConsoleError that names the lake
    where it cannot be read or written.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """UsageError for a place that Arrow does not know."""
        fs = _filesystems()
        text = os.fspath(place)
        if "://" not in text:
            text = str(Path(text).expanduser().absolute())
        # Hadoop's name of it, which Spark wants.
        known = re.sub(r"^s3[an]://", "s3://", text)
        try:
            self._files, self._root = fs.FileSystem.from_uri(known)
        except (ValueError, OSError, NotImplementedError) as error:
            raise UsageError(
                f"The lake {text!r} is not a usable location.",
                why=str(error),
                next_step="Name a folder, or a URI such as s3://bucket/folder.",
            ) from error
        self.place = text
        """As another process may open it."""
        self._local = isinstance(self._files, fs.LocalFileSystem)

    @property
    def filesystem(self) -> Any:
        return self._files

    def path(self, path: str) -> str:
        """As the filesystem has it. DamagedError for what a manifest says of a place elsewhere."""
        if ".." in path.split("/"):
            raise DamagedError(
                f"The lake {self.place} names a file outside it: {path!r}.",
                next_step="Nothing was changed. Check who wrote its manifests.",
            )
        return f"{self._root.rstrip('/')}/{path}"

    def id(self) -> str:
        """The lake's own id; made at the first use."""
        with suppress(FileNotFoundError):
            return self._known_id()
        content = {"format": _FORMAT, "version": 1, "id": str(uuid.uuid4())}
        self.write_json(_ID, content, once=True)
        return self._known_id()

    def _known_id(self) -> str:
        content = self.read_json(_ID)
        if content.get("format") != _FORMAT or not isinstance(content.get("id"), str):
            raise DamagedError(
                f"{self.path(_ID)} is not a lake of this console.", next_step="Name another folder."
            )
        return cast("str", content["id"])

    # -- reading

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none where it is not there."""
        return [path.rsplit("/", 1)[-1] for path in self._list(folder, deep=False)]

    def files(self, folder: str) -> list[str]:
        """The paths of all files below a folder, sorted; none where it is not there."""
        return self._list(folder, deep=True)

    def data_files(self, folder: str) -> list[str]:
        """Of those, the data that readers read."""
        return [
            path
            for path in self.files(folder)
            if readable(path.rsplit("/", 1)[-1])
            and not any(part.startswith(("_", ".")) for part in path.split("/"))
        ]

    def _list(self, folder: str, *, deep: bool) -> list[str]:
        fs = _filesystems()
        below = self.path(folder).rstrip("/")
        selector = fs.FileSelector(below, allow_not_found=True, recursive=deep)
        with self._translated("read", folder):
            found = self._files.get_file_info(selector)
        start = len(self.path(""))
        kept = (info for info in found if not deep or info.type == fs.FileType.File)
        return sorted(info.path[start:] for info in kept)

    def exists(self, path: str) -> bool:
        fs = _filesystems()
        with self._translated("read", path):
            (info,) = self._files.get_file_info([self.path(path)])
        return bool(info.type == fs.FileType.File)

    def size(self, path: str) -> int:
        """In bytes. FileNotFoundError."""
        with self._translated("read", path):
            (info,) = self._files.get_file_info([self.path(path)])
        if info.size is None:
            raise FileNotFoundError(path)
        return int(info.size)

    def read_json(self, path: str) -> dict[str, Any]:
        """A manifest. FileNotFoundError where it is not there, DamagedError where it is no JSON."""
        with self._translated("read", path), self._files.open_input_stream(self.path(path)) as file:
            data = file.read()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _damaged(self.path(path), str(error)) from error
        if not isinstance(content, dict):
            raise _damaged(self.path(path), "it is not a JSON object")
        return content

    @contextmanager
    def reading(self, path: str) -> Iterator[Any]:
        """A data file that is open to read anywhere. FileNotFoundError where it is not there."""
        with self._translated("read", path), self._files.open_input_file(self.path(path)) as file:
            yield file

    # -- writing

    def write_json(self, path: str, content: Mapping[str, Any], *, once: bool = False) -> None:
        """A manifest, whole or not at all, in place of an older; `once`: unless there is one."""
        with self.writing(path, once=once) as file:
            file.write(json.dumps(content, ensure_ascii=False).encode())

    @contextmanager
    def writing(
        self,
        path: str,
        *,
        once: bool = False,
        temporary: str = "",
        check: Callable[[str], None] | None = None,
    ) -> Iterator[Any]:
        """A file that comes to be at the end of the body: durable, and under its name at once.

        Where the body fails there is none, and one that was there stays; likewise where `check`
        does, which is told where the file lies until then. `temporary` is the name that a crash
        would leave; it begins with `_`.
        """
        folder, _, _ = path.rpartition("/")
        name = temporary or f"{_TEMPORARY}{uuid.uuid4().hex}"
        beside = f"{folder}/{name}" if folder else name
        with self._translated("written", path):
            self._files.create_dir(self.path(folder), recursive=True)
            try:
                with self._files.open_output_stream(self.path(beside)) as file:
                    yield file
                if check is not None:
                    check(beside)
                self._publish(beside, path, folder, once=once)
            except BaseException:
                with suppress(OSError):
                    self._files.delete_file(self.path(beside))
                raise

    def _publish(self, beside: str, path: str, folder: str, *, once: bool) -> None:
        if not self._local:
            # An object store shows an object when it is closed, and has no rename that is one step.
            if once and self.exists(path):
                self._files.delete_file(self.path(beside))
            else:
                self._files.move(self.path(beside), self.path(path))
            return
        _sync(self.path(beside))
        if once:
            with suppress(FileExistsError):
                Path(self.path(path)).hardlink_to(self.path(beside))
            Path(self.path(beside)).unlink()
        else:
            Path(self.path(beside)).replace(self.path(path))
        _sync(self.path(folder))

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """No other run does `work` in this lake while the body runs. RefusedError where one does.

        Only where the lake is a folder: an object store has no lock that ends with its holder.
        """
        if not self._local:
            yield
            return
        path = f"{MANIFESTS}/{work}.lock"
        with self._translated("written", path):
            self._files.create_dir(self.path(MANIFESTS), recursive=True)
            descriptor = os.open(self.path(path), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusedError(
                    f"Another {work} is running in the lake {self.place}.",
                    why=f"It holds {self.path(path)}.",
                    next_step="Wait until it has ended: a second one would do the same.",
                ) from error
            yield
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Take a file away; nothing where it is not there."""
        with self._translated("written", path), suppress(FileNotFoundError):
            self._files.delete_file(self.path(path))

    @contextmanager
    def _translated(self, done: str, path: str) -> Iterator[None]:
        """The errors of the filesystem, as the operator's; that a file is not there stays one."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error(error, done, path) from error

    def _error(self, error: OSError, done: str, path: str) -> ConsoleError:
        what = f"The lake {self.place} cannot be {done}."
        why = f"{self.path(path)}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in _FULL:
            return ConsoleError(
                f"The lake {self.place} is full.",
                why=why,
                next_step="Nothing is lost. Make room, then run the same command again.",
            )
        if error.errno in _CLOSED:
            return RefusedError(
                what,
                why=why,
                next_step="Use a lake that this user may write to, or get the permission.",
            )
        return ConsoleError(what, why=why, next_step="Check the lake, then run it again.")


def _damaged(path: str, why: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged.",
        why=why,
        next_step="Nothing was deleted because of it. Restore the file, or move it away.",
    )


def _sync(path: str) -> None:
    """Let the disk have a file, or the names in a folder, before this returns."""
    descriptor = os.open(path or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
