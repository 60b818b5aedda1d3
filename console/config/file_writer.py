"""Writes a profile, a saved filter or the theme to the file; all else stays, byte for byte.

Passwords are never written, only their source.
"""

import os
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from console.config.file_reader import FILTERS, PROFILES, READERS, Document, read
from console.config.profile import KEYS, THEME
from console.config.values import KeyLevel, Origin, ValueSource, WrongValueError
from console.errors import ConsoleError, RefusedError, UsageError
from console.filters import NAME


class WrongFieldError(UsageError):
    """An invalid value for a key of the profile."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(f"{key} {text}")
        self.key = key
        self.text = text


def check(values: Mapping[str, object]) -> None:
    """WrongFieldError for the first unknown key or invalid value."""
    for name, written in values.items():
        key = KEYS.get(name)
        if key is None or KeyLevel.PROFILE not in key.levels:
            raise WrongFieldError(name, "is not known in a profile")
        try:
            key.value(written, Origin(ValueSource.FILE))
        except WrongValueError as error:
            raise WrongFieldError(name, str(error)) from None


def check_name(name: str) -> None:
    """WrongFieldError if it is no valid name of a profile."""
    if not name.strip() or not name.isprintable():
        raise WrongFieldError("name", "must be a visible name")
    if "://" in name:
        raise WrongFieldError("name", "is a name, not a URL")


def table(name: str, values: Mapping[str, object]) -> str:
    """The profile as TOML."""
    profiles = tomlkit.table(is_super_table=True)
    profiles[name] = _table(values)
    return tomlkit.dumps({PROFILES: profiles})


def add_profile(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Add a profile at the end of the file, which is created if necessary.

    The change is atomic. ConsoleError, with nothing written, if it is impossible.
    """
    check_name(name)
    check(values)
    _rewrite(path, lambda text: _with_profile(path, text, name, values))


def save_filter(path: Path, kind: str, name: str, line: str) -> None:
    """Add a saved filter: of messages (FILTERS), or of the overview (QUEUE_FILTERS).

    As `add_profile`. An equal one of that name is kept.
    """
    if not NAME.fullmatch(name):
        raise WrongFieldError("name", "must be letters, digits, _ and -, without blanks")
    try:
        READERS[kind](line)
    except WrongValueError as error:
        raise WrongFieldError("filter", str(error)) from None
    _rewrite(path, lambda text: _with_filter(path, text, kind, name, line))


def save_theme(path: Path, theme: str) -> None:
    """Set the theme, at the top of the file. As `add_profile`."""
    try:
        THEME.value(theme, Origin(ValueSource.FILE))
    except WrongValueError as error:
        raise WrongFieldError(THEME.name, str(error)) from None
    _rewrite(path, lambda text: _with_theme(path, text, theme))


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file's text by `change(text)`, atomically."""
    real = Path(os.path.realpath(path))  # a link stays one
    before = _bytes(real)
    try:
        text = (before or b"").decode()
    except UnicodeDecodeError:
        raise ConsoleError(f"{str(path)!r} is not UTF-8.") from None
    after = change(text)
    if after == text:
        return
    try:
        real.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = real.stat().st_mode & 0o777 if before is not None else 0o600
        descriptor, temporary = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(after.encode())
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            _require_unchanged(real, before)
            os.replace(temporary, real)  # noqa: PTH105  # the path is a text here
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise ConsoleError(
            f"{str(path)!r} cannot be written.",
            why=error.strerror or str(error),
            next_step="Write it by hand, or name another file in DBQ_CONFIG.",
        ) from error


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConsoleError(f"{str(path)!r} cannot be read.", why=error.strerror or "") from error


def _require_unchanged(path: Path, before: bytes | None) -> None:
    if _bytes(path) != before:
        raise RefusedError(
            f"{str(path)!r} was not written.",
            why="Another program changed it at the same moment.",
            next_step="Try again.",
        )


def _valid_document(path: Path, text: str) -> Document:
    """The contents of the file. UsageError if it has mistakes."""
    known = read(path, text)
    if known.mistakes:
        raise UsageError(
            f"{str(path)!r} has errors.",
            why="\n".join(map(str, known.mistakes)),
            next_step="Correct them first: dbq-console config validate",
        )
    return known


def _with_profile(path: Path, text: str, name: str, values: Mapping[str, object]) -> str:
    """The file's text with the profile added and checked."""
    known = _valid_document(path, text)
    if name in known.profiles:
        raise WrongFieldError("name", f"is taken: {path} has a profile {name!r}")

    def add(document: TOMLDocument) -> None:
        profiles = document.setdefault(PROFILES, tomlkit.table(is_super_table=True))
        profiles[name] = _table(values)

    return _changed(path, text, add, table(name, values), PROFILES, name, values)


def _with_filter(path: Path, text: str, kind: str, name: str, line: str) -> str:
    known = _valid_document(path, text)
    present = (known.filters if kind == FILTERS else known.queue_filters).get(name)
    if present is not None and present.written == line:
        return text
    if present is not None:
        raise WrongFieldError(
            "name", f"is taken: {present.origin} has {name} = {present.written!r}"
        )

    def add(document: TOMLDocument) -> None:
        document.setdefault(kind, tomlkit.table())[name] = line

    by_hand = tomlkit.dumps({kind: {name: line}})
    return _changed(path, text, add, by_hand, kind, name, line)


def _with_theme(path: Path, text: str, theme: str) -> str:
    known = _valid_document(path, text)
    present = known.values.get(THEME.name)
    if present is not None and present.written == theme:
        return text

    def add(document: TOMLDocument) -> None:
        document[THEME.name] = theme

    by_hand = tomlkit.dumps({THEME.name: theme})
    return _changed(path, text, add, by_hand, THEME.name, theme)


def _changed(
    path: Path, before: str, change: Callable[[TOMLDocument], None], by_hand: str, *names: Any
) -> str:
    """The text after the change, if it differs by that only: the last of `names` is the value."""
    # What tomlkit adds ends in \n.
    windows = before.count("\r\n") == before.count("\n") > 0
    try:
        document = tomlkit.parse(before.replace("\r\n", "\n") if windows else before)
        change(document)
        after = tomlkit.dumps(document)
        after = after.replace("\n", "\r\n") if windows else after
        *tables, last, value = names
        expected = inner = tomllib.loads(before)
        for name in tables:
            inner = inner.setdefault(name, {})
        inner[last] = value
        same = tomllib.loads(after) == expected
    except (ValueError, TOMLKitError):
        same = False
    if same and not read(path, after).mistakes:
        return after
    raise UsageError(
        f"That cannot be added to {str(path)!r} without changing the rest.",
        next_step="Add it by hand:\n" + by_hand,
    )


def _table(values: Mapping[str, object]) -> Table:
    table = tomlkit.table()
    table.update(values)
    return table
