"""A profile written to the file: everything else in it stays as it is, byte for byte.

No password is ever written: only where it comes from.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from console.config.keys import KEYS
from console.config.reading import PROFILES, read
from console.config.values import Level, Origin, Source, WrongValueError
from console.errors import UsageError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


class WrongFieldError(UsageError):
    """What one key of the profile cannot be."""

    def __init__(self, key: str, words: str) -> None:
        super().__init__(f"{key} {words}")
        self.key = key
        self.words = words


def check(values: Mapping[str, object]) -> None:
    """WrongFieldError for the first value that its key does not take, or none should have."""
    for name, written in values.items():
        key = KEYS.get(name)
        if key is None or Level.PROFILE not in key.levels:
            raise WrongFieldError(name, "is not known in a profile")
        try:
            key.value(written, Origin(Source.FILE))
        except WrongValueError as error:
            raise WrongFieldError(name, str(error)) from None


def check_name(name: str) -> None:
    """WrongFieldError for what no profile can be called."""
    if not name.strip() or not name.isprintable():
        raise WrongFieldError("name", "wants to be a name that can be seen")
    if "://" in name:
        raise WrongFieldError("name", "is a name, not a URL")


def table(name: str, values: Mapping[str, object]) -> str:
    """The profile as TOML."""
    lines = [f"[{PROFILES}.{name if _BARE.fullmatch(name) else _quoted(name)}]"]
    lines += [f"{key} = {_written(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def add_profile(path: Path, name: str, values: Mapping[str, object]) -> None:
    """Add a profile at the end of the file, which is made where there is none.

    The file has either what it had or what it is to have, whatever dies. UsageError where that
    cannot be: then nothing was written.
    """
    check_name(name)
    check(values)
    real = Path(os.path.realpath(path))  # a link stays one
    before = _bytes(real)
    text = _with(path, before, name, values)
    try:
        real.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = real.stat().st_mode & 0o777 if before is not None else 0o600
        descriptor, temporary = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode())
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
        raise UsageError(
            f"{str(path)!r} cannot be written.",
            why=error.strerror or str(error),
            next_step="Add the profile by hand, or name another file in DBQ_CONFIG.",
        ) from error


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read.", why=error.strerror or "") from error


def _require_unchanged(path: Path, before: bytes | None) -> None:
    if _bytes(path) != before:
        raise UsageError(
            f"{str(path)!r} was not written.",
            why="Somebody else changed it at this moment.",
            next_step="Try again.",
        )


def _with(path: Path, before: bytes | None, name: str, values: Mapping[str, object]) -> str:
    """The file's text with the profile in it, checked as a whole."""
    try:
        text = (before or b"").decode()
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!r} is not UTF-8.") from None
    known = read(path, text)
    if known.mistakes:
        raise UsageError(
            f"{str(path)!r} has mistakes.",
            why="\n".join(map(str, known.mistakes)),
            next_step="Correct them first: dbq-console config validate",
        )
    if name in known.profiles:
        raise WrongFieldError("name", f"is taken: {path} has a profile {name!r}")
    ending = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text else ending if text.endswith("\n") else ending * 2
    found = text + gap + table(name, values).replace("\n", ending)
    after = read(path, found)
    if after.mistakes or list(after.profiles) != [*known.profiles, name]:
        raise UsageError(
            f"The profile cannot be added to {str(path)!r} at its end.",
            why="; ".join(map(str, after.mistakes)) or "What stands there last would take it in.",
            next_step="Add it by hand:\n" + table(name, values),
        )
    return found


def _written(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    """A basic string of TOML: as JSON's, but DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
