"""Where a lake lies: a folder, or an object store. How a file comes to be there, whole.

A folder has a rename, which puts a file in the place of another in one step, and locks. An object
store has neither: an object is there when its upload has ended, and until then what was there.
So there a file never takes the place of another one: it has a name of its own, its manifest is
put last, and readers read what manifests name.
"""

import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

Check = Callable[[str], None]
"""Told where a file lies; what it raises keeps the file from being there."""


class Storage(Protocol):
    """Paths are the filesystem's own, whole."""

    files: Any
    """Arrow's filesystem."""
    can_replace: bool
    """Whether a file may take the place of another one in one step."""

    def new_path(self, path: str) -> str:
        """Under which name to write what `path` is for: the same, or one that nobody has used."""
        ...

    def own_id(self) -> str:
        """What a lake is called that has no id yet."""
        ...

    def writing(self, path: str, beside: str, check: Check, *, once: bool) -> Any:
        """As `Lake.writing`; `beside` may be used meanwhile."""
        ...

    def alone(self, path: str) -> Any:
        """Whether nobody else does what `path` is for, while the body runs."""
        ...


class Folder:
    """Of this machine, or one that several have mounted."""

    can_replace = True

    def __init__(self, files: Any) -> None:
        self.files = files

    def new_path(self, path: str) -> str:
        return path

    def own_id(self) -> str:
        return str(uuid.uuid4())

    @contextmanager
    def writing(self, path: str, beside: str, check: Check, *, once: bool) -> Iterator[Any]:
        """Written beside, synced, renamed."""
        folder = path.rpartition("/")[0]
        self.files.create_dir(folder, recursive=True)
        try:
            with self.files.open_output_stream(beside) as file:
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
    def alone(self, path: str) -> Iterator[bool]:
        self.files.create_dir(path.rpartition("/")[0], recursive=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            got = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                got = False
            yield got
        finally:
            os.close(descriptor)


class Objects:
    """An object store that Arrow knows."""

    can_replace = False

    def __init__(self, files: Any, root: str) -> None:
        self.files = files
        self._root = root

    def new_path(self, path: str) -> str:
        stem, dot, ending = path.rpartition(".")
        return f"{stem}-{uuid.uuid4().hex[:12]}{dot}{ending}"

    def own_id(self) -> str:
        """The same for all who make it at once: nothing here is written by only one of them."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.files.type_name}://{self._root}"))

    @contextmanager
    def writing(self, path: str, beside: str, check: Check, *, once: bool) -> Iterator[Any]:
        """Written on this machine, then put by one call.

        Arrow ends an upload also where whoever wrote to it has failed, and so would show a part.
        """
        del beside
        import pyarrow as pa  # noqa: PLC0415  # verbs shall start at once

        descriptor, spool = tempfile.mkstemp(prefix="dbq-lake-")
        os.close(descriptor)
        try:
            with pa.OSFile(spool, "wb") as file:
                yield file
            if once and self.files.get_file_info([path])[0].is_file:
                return
            with pa.memory_map(spool) as whole, self.files.open_output_stream(path) as put:
                put.write(whole.read_buffer())
        finally:
            Path(spool).unlink()
        try:
            check(path)
        except BaseException:
            with suppress(OSError):
                self.files.delete_file(path)
            raise

    @contextmanager
    def alone(self, path: str) -> Iterator[bool]:
        """Always: no lock here ends with its holder. What two do at once is whole all the same."""
        del path
        yield True


def opened(place: str) -> tuple[Storage, str]:
    """The storage of a folder or a URI, and the lake's root in it. ValueError, OSError."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    # Hadoop's name of it, which Spark wants.
    known = re.sub(r"^s3[an]://", "s3://", place)
    files, root = fs.FileSystem.from_uri(known)  # type: ignore[attr-defined]
    root = root.rstrip("/")
    if isinstance(files, fs.LocalFileSystem):  # type: ignore[attr-defined]
        return Folder(files), root
    return Objects(files, root), root


def _sync(path: str) -> None:
    """Let the disk have a file, or the names in a folder, before this returns."""
    descriptor = os.open(path or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
