"""Writes a profile, a saved filter or the theme to the file; all else stays, byte for byte.

Passwords are never written, only their source.
"""

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from console.config.file_reader import FILTERS, PROFILES, READERS, Document, read, statements
from console.config.profile import KEYS, THEME
from console.config.values import KeyLevel, Origin, ValueSource, WrongValueError
from console.errors import ConsoleError, RefusedError, UsageError
from console.filters import NAME

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VALUE = re.compile(r"""(?<==)(\s*)("[^"]*"|'[^']*')""")


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
    lines = [f"[{PROFILES}.{_key(name)}]"]
    lines += [f"{key} = {_written(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


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
    found = _at_end(text, table(name, values))
    after = read(path, found)
    if after.mistakes or list(after.profiles) != [*known.profiles, name]:
        raise UsageError(
            f"The profile cannot be appended to {str(path)!r}.",
            why="; ".join(map(str, after.mistakes))
            or "It would become part of the file's last table.",
            next_step="Add it by hand:\n" + table(name, values),
        )
    return found


def _with_filter(path: Path, text: str, kind: str, name: str, line: str) -> str:
    known = _valid_document(path, text)
    present = (known.filters if kind == FILTERS else known.queue_filters).get(name)
    if present is not None and present.written == line:
        return text
    if present is not None:
        raise WrongFieldError(
            "name", f"is taken: {present.origin} has {name} = {present.written!r}"
        )
    setting = f"{_key(name)} = {_quoted(line)}"
    inside = [one for one in statements(text) if one.table == (kind,)]
    if inside:
        found = _after_line(text, inside[-1].last, setting)
    else:
        found = _at_end(text, f"[{kind}]\n{setting}\n")
    return _checked(path, text, found, f"[{kind}]\n{setting}", kind, name, line)


def _with_theme(path: Path, text: str, theme: str) -> str:
    known = _valid_document(path, text)
    present, setting = known.values.get(THEME.name), f"{THEME.name} = {_quoted(theme)}"
    if present is not None and present.written == theme:
        return text
    top = [one for one in statements(text) if one.table == ()]
    lines = text.split("\n")
    if present is not None:
        at = next(one for one in top if one.paths[0] == (THEME.name,)).first - 1
        lines[at] = _VALUE.sub(lambda found: found[1] + _quoted(theme), lines[at], count=1)
        found = "\n".join(lines)
    elif top:
        found = _after_line(text, top[-1].last, setting)
    else:
        found = _after_line(text, _head_lines(lines), setting + ("\n" if text else ""))
    return _checked(path, text, found, setting, THEME.name, theme)


def _head_lines(lines: Sequence[str]) -> int:
    """The number of lines of the comment at the top, including an empty line after it."""
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return count + 1 if count and count < len(lines) and not lines[count].strip() else 0


def _checked(path: Path, before: str, after: str, by_hand: str, *change: str) -> str:
    """The text `after`, if it differs from `before` only by the change."""
    *tables, last, value = change
    try:
        expected = inner = tomllib.loads(before)
        for name in tables:
            inner = inner.setdefault(name, {})
        inner[last] = value
        same = tomllib.loads(after) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if same and not read(path, after).mistakes:
        return after
    raise UsageError(
        f"That cannot be added to {str(path)!r} without changing the rest.",
        next_step="Add it by hand:\n" + by_hand,
    )


def _ending(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _at_end(text: str, more: str) -> str:
    ending = _ending(text)
    gap = "" if not text else ending if text.endswith("\n") else ending * 2
    return text + gap + more.replace("\n", ending)


def _after_line(text: str, number: int, more: str) -> str:
    """The text with lines added after the line of that number; 0: at the top."""
    ending = _ending(text)
    lines = text.split("\n")
    added = more.replace("\n", ending) + ending
    if number == len(lines):  # the last one, without its end
        return text + ending + added
    return "".join(f"{line}\n" for line in lines[:number]) + added + "\n".join(lines[number:])


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _written(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """A basic string of TOML: as in JSON, except for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
