"""A lake's storage, a folder or an object store, and how it writes files atomically.

A folder has atomic renames and locks. An object store has neither: an object appears when its
upload has ended. So there a file never replaces another: each has a name of its own, its manifest
is put last, and readers read what manifests name.
"""

import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Check = Callable[[str], None]
"""Called with the path of a written file; if it raises, the file does not stay."""


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

    @contextmanager
    def writing(self, path: str, beside: str, check: Check, *, once: bool) -> Iterator[Any]:
        """As `Lake.writing`: written to `beside`, synced, renamed."""
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
    def locked(self, path: str) -> Iterator[bool]:
        """Yields whether the lock was free."""
        self.files.create_dir(path.rpartition("/")[0], recursive=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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
        stem, dot, ending = path.rpartition(".")
        return f"{stem}-{uuid.uuid4().hex[:12]}{dot}{ending}"

    def new_id(self) -> str:
        """The same for every process that creates the lake: without locks several may."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self.files.type_name}://{self._root}"))

    @contextmanager
    def writing(self, path: str, beside: str, check: Check, *, once: bool) -> Iterator[Any]:
        """Written to a local file, then uploaded: Arrow completes an upload even when its writer
        fails, and part of the file would appear."""
        del beside
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
    def locked(self, path: str) -> Iterator[bool]:
        """Always free: no lock here ends with its holder. Concurrent writers do no harm."""
        del path
        yield True


Storage = Folder | ObjectStore


def open_storage(location: str) -> tuple[Storage, str]:
    """The storage of a folder or URI, and the lake's root in it. ValueError, OSError."""
    from pyarrow import fs  # noqa: PLC0415  # verbs shall start at once

    # s3a and s3n are Hadoop's names.
    uri = re.sub(r"^s3[an]://", "s3://", location)
    files, root = fs.FileSystem.from_uri(uri)  # type: ignore[attr-defined]
    root = root.rstrip("/")
    if isinstance(files, fs.LocalFileSystem):  # type: ignore[attr-defined]
        return Folder(files), root
    return ObjectStore(files, root), root


def _sync(path: str) -> None:
    """Of a file, or of the names in a folder."""
    descriptor = os.open(path or "/", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
