"""The lake: a folder of Parquet files and their manifests, on any filesystem that Arrow knows.

    _lake.json                                                    its id, written once
    archive/connection=C/queue=Q/date=D/<plan>-<range>.parquet
    _manifests/archive/connection=C/queue=Q/<plan>/...

Only data files end in `.parquet`; readers leave out names that begin with `_` or `.`, and read what
manifests name. A file is there whole or not at all; `storage` says how.
"""

import errno
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

from console.errors import ConsoleError, RefusedError, UsageError
from console.pipeline import storage

MANIFESTS = "_manifests"
DATA = ".parquet"
_ID = "_lake.json"
_TEMPORARY = "_tmp-"
_FORMAT = "dbq-console lake"
_UNNAMED_SECONDS = 86_400.0

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN")
"""In words: errors of an object store have no number."""
_LOGIN = re.compile(r"://[^/@]*:[^/]*@|(?<=[?&])(access|secret)_key=[^&]*&?")


class DamagedError(ConsoleError):
    """A file of the lake does not say what it should."""


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
        text = os.fspath(place)
        if "://" not in text:
            text = str(Path(text).expanduser().absolute())
        if _LOGIN.search(text):
            raise UsageError(
                f"The lake {_LOGIN.sub('://', text)!r} is named with a login.",
                why="Others would see it in lists, logs and messages.",
                next_step="Leave it to the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE ...), to "
                "the cloud's own files, or to the machine's role.",
            )
        try:
            self._storage, self._root = storage.opened(text)
        except (ValueError, OSError, NotImplementedError) as error:
            raise UsageError(
                f"The lake {text!r} is not a usable location.",
                why=str(error),
                next_step="Name a folder, or a URI such as s3://bucket/folder.",
            ) from error
        self.location = text
        """As another process may open it."""

    @property
    def filesystem(self) -> Any:
        return self._storage.files

    @property
    def can_replace(self) -> bool:
        """Whether a file may take the place of another one; Spark knows such places too."""
        return self._storage.can_replace

    def new_path(self, path: str) -> str:
        """Under which name to write what `path` is for: where there is no rename, one of its own,
        which a manifest then names."""
        return self._storage.new_path(path)

    def path(self, path: str) -> str:
        """As the filesystem has it. DamagedError for what a manifest says of a place elsewhere."""
        if ".." in path.split("/"):
            raise DamagedError(
                f"The lake {self.location} names a file outside it: {path!r}.",
                next_step="Nothing was changed. Check who wrote its manifests.",
            )
        return f"{self._root}/{path}"

    def id(self) -> str:
        """The lake's own id; made at the first use."""
        with suppress(FileNotFoundError):
            return self._known_id()
        content = {"format": _FORMAT, "version": 1, "id": self._storage.own_id()}
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
            found = self.filesystem.get_file_info(selector)
        start = len(self.path(""))
        kept = (info for info in found if not deep or info.type == fs.FileType.File)
        return sorted(info.path[start:] for info in kept)

    def exists(self, path: str) -> bool:
        fs = _filesystems()
        with self._translated("read", path):
            (info,) = self.filesystem.get_file_info([self.path(path)])
        return bool(info.type == fs.FileType.File)

    def size(self, path: str) -> int:
        """In bytes. FileNotFoundError."""
        with self._translated("read", path):
            (info,) = self.filesystem.get_file_info([self.path(path)])
        if info.size is None:
            raise FileNotFoundError(path)
        return int(info.size)

    def age_seconds(self, path: str) -> float:
        """Since it was written, by this machine's clock; 0 where that is not known."""
        with self._translated("read", path):
            (info,) = self.filesystem.get_file_info([self.path(path)])
        return 0.0 if info.mtime_ns is None else time.time() - info.mtime_ns / 1e9

    def read_json(self, path: str) -> dict[str, Any]:
        """A manifest. FileNotFoundError where it is not there, DamagedError where it is no JSON."""
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
        """A data file that is open to read anywhere. FileNotFoundError where it is not there."""
        with (
            self._translated("read", path),
            self.filesystem.open_input_file(self.path(path)) as file,
        ):
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

        def checked(whole: str) -> None:
            if check is not None:
                check(whole[len(self.path("")) :])

        with (
            self._translated("written", path),
            self._storage.writing(self.path(path), self.path(beside), checked, once=once) as file,
        ):
            yield file

    @contextmanager
    def alone(self, work: str) -> Iterator[None]:
        """No other run does `work` in this lake while the body runs. RefusedError where one does.

        Only where the lake is a folder: an object store has no lock that ends with its holder.
        """
        path = f"{MANIFESTS}/{work}.lock"
        with ExitStack() as held:
            with self._translated("written", path):
                got = held.enter_context(self._storage.alone(self.path(path)))
            if not got:
                raise RefusedError(
                    f"Another {work} is running in the lake {self.location}.",
                    why=f"It holds {self.path(path)}.",
                    next_step="Wait until it has ended: a second one would do the same.",
                )
            yield

    def remove(self, path: str) -> None:
        """Take a file away; nothing where it is not there."""
        with self._translated("written", path), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(path))

    def remove_unlisted(self, folder: str, named: Collection[str]) -> None:
        """Take away what else lies in a folder than a manifest names.

        Where nothing keeps two writers apart, a day after it was put: until then it may be of a
        reader that has read an earlier manifest, or of a writer whose own comes yet.
        """
        least = 0.0 if self.can_replace else _UNNAMED_SECONDS
        for path in self.files(folder):
            if path not in named and (not least or self.age_seconds(path) >= least):
                self.remove(path)

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
        what = f"The lake {self.location} cannot be {done}."
        why = f"{self.path(path)}: {os.strerror(error.errno) if error.errno else error}"
        if error.errno in _FULL:
            return ConsoleError(
                f"The lake {self.location} is full.",
                why=why,
                next_step="Nothing is lost. Make room, then run the same command again.",
            )
        if error.errno in _CLOSED or any(word in str(error) for word in _DENIED):
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
