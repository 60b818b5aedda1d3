"""The lake: the files of a folder, on any filesystem that Arrow supports.

    _lake.json                                  whether its group may read and write it
    messages/... rollup/... forecast/...        its Delta tables: `delta`

Only data files end in `.parquet`; what a commit of a table does not name is nobody's. Files are
written atomically, in a folder or an object store: there an object appears when its upload has
ended. Each has a name of its own.

In a folder only its user can read the files, unless `_lake.json` says that its group may.
"""

import errno
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from console.errors import ConsoleError, RefusedError, UsageError
from console.features.history import lake_tables

DATA = ".parquet"
_SETTINGS = "_lake.json"
_TEMPORARY = "_tmp-"
_FORMAT = "dbq-console lake"
_SMALL = 8 * 2**20
_GROUP_FILE, _GROUP_FOLDER = 0o660, 0o2770
"""A folder's group is that of all that is made in it."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN")
"""In texts: errors of an object store have no errno."""
_LOGIN = re.compile(r"://[^/@]*:[^/]*@|(?<=[?&])(access|secret)_key=[^&]*&?")


class DamagedError(ConsoleError):
    """A file of the lake is not what it should be. Exit 3."""

    exit_status = 3


def connection_of(part: str) -> str:
    return unquote(part.removeprefix("connection="))


def readable(name: str) -> bool:
    """Whether a file of that name is a data file."""
    return name.endswith(DATA) and not name.startswith(("_", "."))


class Lake:
    """A folder, or a URI such as `s3://bucket/folder`.

    Paths are relative to it, with `/`. Every method raises a ConsoleError, which names the lake,
    where it cannot be read or written.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        """UsageError: Arrow does not support the location; ConsoleError: it does not respond."""
        text = os.fspath(location)
        if "://" not in text:
            text = str(Path(text).expanduser().absolute())
        if _LOGIN.search(text):
            raise UsageError(
                f"The URI of the lake {_LOGIN.sub('://', text)!r} has a login in it.",
                why="Others would see it in lists, logs and messages.",
                next_step="Put it in the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE ...) or the "
                "cloud's own files, or use the machine's role.",
            )
        try:
            self._storage, self._root = _open_storage(text)
        except (ValueError, OSError, NotImplementedError) as error:
            raise lake_tables.unusable(text, error) from error
        self.location = text

    @property
    def filesystem(self) -> Any:
        return self._storage.files

    @property
    def can_replace(self) -> bool:
        """Whether files can replace others. Spark can read such lakes itself."""
        return self._storage.can_replace

    def path(self, path: str) -> str:
        """The filesystem's path. DamagedError for one outside the lake."""
        if ".." in path.split("/"):
            raise DamagedError(
                f"The lake {self.location} names a file outside it: {path!r}.",
                next_step="Nothing was changed. Check who wrote its tables.",
            )
        return f"{self._root}/{path}"

    def open_to_group(self) -> None:
        """The folder's group may read and write it from now on, by every process."""
        self.make_folder("")
        self._storage.open_to_group(self._root)
        vars(self)["_of_group"] = True
        self.write_json(_SETTINGS, {"format": _FORMAT, "version": 1, "group": True})

    @cached_property
    def _of_group(self) -> bool:
        with suppress(FileNotFoundError, DamagedError):
            return self.can_replace and self.read_json(_SETTINGS).get("group") is True
        return False

    # -- reading

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty where it does not exist."""
        return [path.rsplit("/", 1)[-1] for path in self._list(folder, deep=False)]

    def files(self, folder: str) -> list[str]:
        """The paths of all files below a folder, sorted; empty where it does not exist."""
        return self._list(folder, deep=True)

    def data_files(self, folder: str) -> list[str]:
        """Of those, the data files."""
        return [
            path
            for path in self.files(folder)
            if readable(path.rsplit("/", 1)[-1])
            and not any(part.startswith(("_", ".")) for part in path.split("/"))
        ]

    def _list(self, folder: str, *, deep: bool) -> list[str]:
        from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

        below = self.path(folder).rstrip("/")
        selector = fs.FileSelector(  # type: ignore[attr-defined]
            below, allow_not_found=True, recursive=deep
        )
        with self._translated("read", folder):
            infos = self.filesystem.get_file_info(selector)
        start = len(self.path(""))
        return sorted(i.path[start:] for i in infos if not deep or i.is_file)

    def exists(self, path: str) -> bool:
        return bool(self._info(path).is_file)

    def _info(self, path: str) -> Any:
        with self._translated("read", path):
            return self.filesystem.get_file_info([self.path(path)])[0]

    def size(self, path: str) -> int:
        """In bytes. FileNotFoundError."""
        size = self._info(path).size
        if size is None:
            raise FileNotFoundError(path)
        return int(size)

    def read_json(self, path: str) -> dict[str, Any]:
        """FileNotFoundError; DamagedError where it is not a JSON object."""
        with (
            self._translated("read", path),
            self.filesystem.open_input_stream(self.path(path)) as file,
        ):
            data = file.read()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _damaged(self.path(path), str(error)) from error
        if not isinstance(content, dict):
            raise _damaged(self.path(path), "it is not a JSON object")
        return content

    def make_folder(self, path: str) -> None:
        """With its parents, where the storage has folders."""
        with self._translated("written", path):
            self._storage.make_folder(self.path(path), group=self._of_group)

    @contextmanager
    def masked(self) -> Iterator[None]:
        """What this process writes meanwhile is as readable as the lake's other files."""
        before = os.umask(0o007 if self._of_group else 0o077)
        try:
            yield
        finally:
            os.umask(before)

    @contextmanager
    def reading(self, path: str) -> Iterator[Any]:
        """A data file, seekable. FileNotFoundError."""
        with (
            self._translated("read", path),
            self.filesystem.open_input_file(self.path(path)) as file,
        ):
            # Of an object store each column's part would be a request.
            small = not self.can_replace and file.size() <= _SMALL
            yield BytesIO(file.read()) if small else file

    # -- writing

    def write_json(self, path: str, content: Mapping[str, Any]) -> None:
        """Write it atomically."""
        with self.writing(path) as file:
            file.write(json.dumps(content, ensure_ascii=False).encode())

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        """A file that appears, durably, when the body ends. If that fails, an existing file
        stays."""
        folder, _, _ = path.rpartition("/")
        name = f"{_TEMPORARY}{uuid.uuid4().hex}"
        beside = f"{folder}/{name}" if folder else name
        with (
            self._translated("written", path),
            self._storage.writing(self.path(path), self.path(beside), group=self._of_group) as file,
        ):
            yield file

    def remove(self, path: str) -> None:
        """Nothing where it does not exist."""
        with self._translated("written", path), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(path))

    @contextmanager
    def _translated(self, done: str, path: str) -> Iterator[None]:
        """The filesystem's errors as ConsoleErrors, except FileNotFoundError."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error(error, done, path) from error

    def _error(self, error: OSError, done: str, path: str) -> ConsoleError:
        what = f"The lake {self.location} cannot be {done}."
        why = f"{self.path(path)}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in _FULL:
            return ConsoleError(
                f"The lake {self.location} is full.",
                why=why,
                next_step="Nothing is lost. Make room, then run the same command again.",
            )
        if error.errno in _CLOSED or any(text in str(error) for text in _DENIED):
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
        next_step="Nothing was deleted because of it. Put the file back from a backup of the lake. "
        "Do not move it away: nothing else may know what it said.",
    )


# -- storage


class Folder:
    """Local or mounted. Paths are absolute; `files` is Arrow's filesystem."""

    can_replace = True

    def __init__(self, files: Any) -> None:
        self.files = files

    def make_folder(self, path: str, *, group: bool) -> None:
        """With its parents. Those that exist stay as they are."""
        folder = Path(path)
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True, mode=0o700)
            _set_mode(one, _GROUP_FOLDER if group else 0o700)

    def open_to_group(self, root: str) -> None:
        for folder, _, names in os.walk(root):
            _set_mode(Path(folder), _GROUP_FOLDER)
            for name in names:
                _set_mode(Path(folder, name), _GROUP_FILE)

    @contextmanager
    def writing(self, path: str, beside: str, *, group: bool) -> Iterator[Any]:
        """As `Lake.writing`: written to `beside`, synced, renamed."""
        folder = path.rpartition("/")[0]
        self.make_folder(folder, group=group)
        try:
            with self.files.open_output_stream(beside) as file:
                _set_mode(Path(beside), _GROUP_FILE if group else 0o600)
                yield file
            _sync(beside)
            Path(beside).replace(path)
            _sync(folder)
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(beside)
            raise


class ObjectStore:
    """Any that Arrow knows."""

    can_replace = False

    def __init__(self, files: Any) -> None:
        self.files = files

    def make_folder(self, path: str, *, group: bool) -> None:
        """An object store has none."""

    def open_to_group(self, root: str) -> None:
        raise UsageError(
            f"The lake {root!r} is in an object store: it has no group.",
            next_step="Leave out --shared; the bucket's own rules say who may read it.",
        )

    @contextmanager
    def writing(self, path: str, beside: str, *, group: bool) -> Iterator[Any]:
        """Written to a local file, then uploaded: Arrow completes an upload even when its writer
        fails, and part of the file would appear."""
        del beside, group
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

        descriptor, spool = tempfile.mkstemp(prefix="dbq-lake-")
        os.close(descriptor)
        try:
            with pa.OSFile(spool, "wb") as file:
                yield file
            with pa.memory_map(spool) as local, self.files.open_output_stream(path) as upload:
                upload.write(local.read_buffer())
        finally:
            Path(spool).unlink()


Storage = Folder | ObjectStore


def _open_storage(location: str) -> tuple[Storage, str]:
    """The storage of a folder or URI, and the lake's root in it. ValueError, OSError."""
    files, root = lake_tables.filesystem(location)
    return Folder(files) if lake_tables.is_local(files) else ObjectStore(files), root


def _set_mode(path: Path, mode: int) -> None:
    """Of a file or folder of ours. Where that is refused, its mount has modes of its own."""
    with suppress(PermissionError):
        path.chmod(mode)


def _sync(path: str) -> None:
    """Of a file, or of the names in a folder."""
    descriptor = os.open(path or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
