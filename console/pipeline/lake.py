"""The lake: a folder of Parquet files and their manifests, on any filesystem that Arrow supports.

    _lake.json                                                    its id, written once
    archive/connection=C/queue=Q/date=D/<plan>-<range>.parquet
    _manifests/archive/connection=C/queue=Q/<plan>/...
    _trash/<path>.<random>                                        what archive no longer needs

Only data files end in `.parquet`; readers skip names that begin with `_` or `.`, and read what
manifests name. Files are written atomically, in a folder or an object store. A folder has atomic
renames and locks. An object store has neither: an object appears when its upload has ended. So
there a file never replaces another: each has a name of its own, its manifest is put last, and
readers read what manifests name.

In a folder only its user can read the files, unless its id's file says that its group may.
"""

import errno
import fcntl
import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

from console.errors import ConsoleError, RefusedError, UsageError

MANIFESTS = "_manifests"
TRASH = "_trash"
DATA = ".parquet"
_ID = "_lake.json"
_TEMPORARY = "_tmp-"
_FORMAT = "dbq-console lake"
_UNLISTED_SECONDS = 86_400.0
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


def queue_part(schema: str, queue: str) -> str:
    """The name of a queue's folder: `schema.name`, with `%2E` for a dot inside either."""
    parts = (quote(part, safe="").replace(".", "%2E") for part in (schema, queue))
    return f"queue={'.'.join(parts)}"


def connection_of(part: str) -> str:
    return unquote(part.removeprefix("connection="))


def queue_of(part: str) -> tuple[str, str]:
    """(schema, name) of the queue with this folder."""
    schema, _, name = part.removeprefix("queue=").partition(".")
    return unquote(schema), unquote(name)


def readable(name: str) -> bool:
    """Whether a file of that name is a data file."""
    return name.endswith(DATA) and not name.startswith(("_", "."))


def unique_path(path: str) -> str:
    """A path beside this one that no other file ever has."""
    stem, dot, ending = path.rpartition(".")
    return f"{stem}-{uuid.uuid4().hex[:12]}{dot}{ending}"


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
            kind = ConsoleError if isinstance(error, OSError) else UsageError
            raise kind(
                f"The lake {text!r} is not a usable location.",
                why=str(error),
                next_step="Name a folder, or a URI such as s3://bucket/folder.",
            ) from error
        self.location = text

    @property
    def filesystem(self) -> Any:
        return self._storage.files

    @property
    def can_replace(self) -> bool:
        """Whether files can replace others. Spark can read such lakes itself."""
        return self._storage.can_replace

    def new_path(self, path: str) -> str:
        """Where to write the file that `path` is meant for; without renames a new unique path, for
        a manifest to name."""
        return self._storage.new_path(path)

    def path(self, path: str) -> str:
        """The filesystem's path. DamagedError for one outside the lake."""
        if ".." in path.split("/"):
            raise DamagedError(
                f"The lake {self.location} names a file outside it: {path!r}.",
                next_step="Nothing was changed. Check who wrote its manifests.",
            )
        return f"{self._root}/{path}"

    def id(self) -> str:
        """The lake's id; created on first use. DamagedError where it was lost since."""
        begun = bool(self.names(f"{MANIFESTS}/archive"))
        with suppress(FileNotFoundError):
            return self._known_id()
        if begun:
            raise DamagedError(
                f"The lake {self.location} has lost its id.",
                why=f"{self.path(_ID)} is missing. By it a database knows what was replayed out "
                "of this lake, and runs know of each other.",
                next_step="Nothing was changed. Put that file back from a backup of the lake.",
            )
        content = {"format": _FORMAT, "version": 1, "id": self._storage.new_id()}
        self.write_json(_ID, content, once=True)
        return self._known_id()

    def open_to_group(self) -> None:
        """The folder's group may read and write it from now on, by every process."""
        self.id()
        self._storage.open_to_group(self._root)
        vars(self)["_of_group"] = True
        self.write_json(_ID, {**self.read_json(_ID), "group": True})

    @cached_property
    def _of_group(self) -> bool:
        with suppress(FileNotFoundError, DamagedError):
            return self.can_replace and self.read_json(_ID).get("group") is True
        return False

    def _known_id(self) -> str:
        content = self.read_json(_ID)
        if content.get("format") != _FORMAT or not isinstance(content.get("id"), str):
            raise DamagedError(
                f"{self.path(_ID)} is not a lake of this console.", next_step="Name another folder."
            )
        return cast("str", content["id"])

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

    def size(self, path: str) -> int:
        """In bytes. FileNotFoundError."""
        size = self._info(path).size
        if size is None:
            raise FileNotFoundError(path)
        return int(size)

    def age_seconds(self, path: str) -> float:
        """By this machine's clock; 0: unknown."""
        written = self._info(path).mtime_ns
        return 0.0 if written is None else time.time() - written / 1e9

    def _info(self, path: str) -> Any:
        with self._translated("read", path):
            return self.filesystem.get_file_info([self.path(path)])[0]

    def read_json(self, path: str) -> dict[str, Any]:
        """A manifest. FileNotFoundError; DamagedError where it is not a JSON object."""
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

    @contextmanager
    def reading(self, path: str) -> Iterator[Any]:
        """A data file, seekable. FileNotFoundError."""
        with (
            self._translated("read", path),
            self.filesystem.open_input_file(self.path(path)) as file,
        ):
            yield file

    # -- writing

    def write_json(self, path: str, content: Mapping[str, Any], *, once: bool = False) -> None:
        """Write a manifest atomically. `once`: an existing one stays."""
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
        """A file that appears, durably, when the body ends. `once`: an existing one stays.

        If the body fails, or `check`, which gets the path of the written file, an existing file
        stays. `temporary`: the name of the file until then, beginning with `_`; a crash leaves it.
        """
        folder, _, _ = path.rpartition("/")
        name = temporary or f"{_TEMPORARY}{uuid.uuid4().hex}"
        beside = f"{folder}/{name}" if folder else name

        def checked(full_path: str) -> None:
            if check is not None:
                check(full_path[len(self.path("")) :])

        with (
            self._translated("written", path),
            self._storage.writing(
                self.path(path), self.path(beside), checked, once=once, group=self._of_group
            ) as file,
        ):
            yield file

    @contextmanager
    def locked(self, work: str) -> Iterator[None]:
        """RefusedError where another run is doing `work` in this lake.

        Only in folders: an object store has no lock that ends with its holder.
        """
        path = f"{MANIFESTS}/{work}.lock"
        with ExitStack() as stack:
            with self._translated("written", path):
                full = self.path(path)
                acquired = stack.enter_context(self._storage.locked(full, group=self._of_group))
            if not acquired:
                raise RefusedError(
                    f"Another {work} is running in the lake {self.location}.",
                    why=f"It holds {self.path(path)}.",
                    next_step="Wait until it has ended: a second one would do the same.",
                )
            yield

    def discard(self, path: str) -> None:
        """Move a file to the trash, which nothing reads. Nothing where it does not exist."""
        target = self.path(f"{TRASH}/{path}.{uuid.uuid4().hex[:12]}")
        if not self.exists(path):
            return
        with self._translated("written", path), suppress(FileNotFoundError):
            self._storage.make_folder(target.rpartition("/")[0], group=self._of_group)
            self.filesystem.move(self.path(path), target)

    def remove(self, path: str) -> None:
        """Nothing where it does not exist."""
        with self._translated("written", path), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(path))

    def remove_unlisted(self, folder: str, listed: Collection[str]) -> None:
        """Remove all files of a folder that a manifest does not list.

        Without locks only after a day: until then a reader of an earlier manifest may need the
        file, or it is of a writer whose manifest is still to come.
        """
        least = 0.0 if self.can_replace else _UNLISTED_SECONDS
        for path in self.files(folder):
            if path not in listed and (not least or self.age_seconds(path) >= least):
                self.remove(path)

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
    """Whether a file can replace another atomically."""

    def __init__(self, files: Any) -> None:
        self.files = files

    def new_path(self, path: str) -> str:
        """Where to write the file that `path` is meant for: the same, or a new unique path."""
        return path

    def new_id(self) -> str:
        """The id of a lake that has none yet."""
        return str(uuid.uuid4())

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
    def writing(
        self, path: str, beside: str, check: Callable[[str], None], *, once: bool, group: bool
    ) -> Iterator[Any]:
        """As `Lake.writing`: written to `beside`, synced, renamed."""
        folder = path.rpartition("/")[0]
        self.make_folder(folder, group=group)
        try:
            with self.files.open_output_stream(beside) as file:
                _set_mode(Path(beside), _GROUP_FILE if group else 0o600)
                yield file
            check(beside)
            _sync(beside)
            if once:
                with suppress(FileExistsError):
                    Path(path).hardlink_to(beside)
                Path(beside).unlink()
            else:
                Path(beside).replace(path)
            _sync(folder)
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(beside)
            raise

    @contextmanager
    def locked(self, path: str, *, group: bool) -> Iterator[bool]:
        """Yields whether the lock was free."""
        self.make_folder(path.rpartition("/")[0], group=group)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _GROUP_FILE if group else 0o600)
        try:
            acquired = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                acquired = False
            yield acquired
        finally:
            os.close(descriptor)


class ObjectStore:
    """Any that Arrow knows."""

    can_replace = False

    def __init__(self, files: Any, root: str) -> None:
        self.files = files
        self._root = root

    def new_path(self, path: str) -> str:
        return unique_path(path)

    def new_id(self) -> str:
        """The same for every process that creates the lake: without locks several may."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.files.type_name}://{self._root}"))

    def make_folder(self, path: str, *, group: bool) -> None:
        """An object store has none."""

    def open_to_group(self, root: str) -> None:
        raise UsageError(
            f"The lake {root!r} is in an object store: it has no group.",
            next_step="Leave out --group; the bucket's own rules say who may read it.",
        )

    @contextmanager
    def writing(
        self, path: str, beside: str, check: Callable[[str], None], *, once: bool, group: bool
    ) -> Iterator[Any]:
        """Written to a local file, then uploaded: Arrow completes an upload even when its writer
        fails, and part of the file would appear."""
        del beside, group
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

        descriptor, spool = tempfile.mkstemp(prefix="dbq-lake-")
        os.close(descriptor)
        try:
            with pa.OSFile(spool, "wb") as file:
                yield file
            if once and self.files.get_file_info([path])[0].is_file:
                return
            with pa.memory_map(spool) as local, self.files.open_output_stream(path) as upload:
                upload.write(local.read_buffer())
        finally:
            Path(spool).unlink()
        try:
            check(path)
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(path)
            raise

    @contextmanager
    def locked(self, path: str, *, group: bool) -> Iterator[bool]:
        """Always free: no lock here ends with its holder. Concurrent writers do no harm."""
        del path, group
        yield True


Storage = Folder | ObjectStore


def _open_storage(location: str) -> tuple[Storage, str]:
    """The storage of a folder or URI, and the lake's root in it. ValueError, OSError."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    # s3a and s3n are Hadoop's names.
    uri = re.sub(r"^s3[an]://", "s3://", location)
    files, root = fs.FileSystem.from_uri(uri)  # type: ignore[attr-defined]
    root = root.rstrip("/")
    if isinstance(files, fs.LocalFileSystem):  # type: ignore[attr-defined]
        return Folder(files), root
    return ObjectStore(files, root), root


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
