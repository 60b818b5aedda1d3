"""This user's presets: files in the configuration's folder `presets` and in those of DBQ_PRESETS.

They are read once a process; `own_file` defines their content. Only the owner may write such a
file, and only files on the user's list (path and SHA-256) are trusted. An untrusted or changed one
is used for reading only, by the reader role (`console.engines.database`).
"""

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from console.designs.model import Design
from console.engines import PRODUCTS
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.presets.designs.libraries import design_of
from console.features.presets.designs.own_file import SETS, NotAPresetError, OwnFile, parse
from console.sql import templates
from console.state import configuration_folder

VARIABLE = "DBQ_PRESETS"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_TRUSTED = "trusted-presets"
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<path>/.+)")
_ACTING = ("reschedule", "complete", "fail", "pause", "resume")
_NEW = "You have not trusted it"
_CHANGED = "It has changed since you trusted it"


@dataclass(frozen=True)
class OwnPreset:
    """One file."""

    path: Path
    name: str
    sha256: str = ""
    """Empty: it was not read."""
    parsed: OwnFile | None = None
    design: Design | None = None
    design_if_trusted: Design | None = None
    """What it is once it is trusted."""
    problem: str = ""
    """Why it is not a valid preset; empty: it is."""
    unsafe: bool = False
    """Because others could have written it."""
    untrusted: str = ""
    """Why it is used for reading only; empty: it is trusted."""

    @property
    def trust_command(self) -> str:
        """The command that trusts it."""
        return f"dbq-console preset trust {shlex.quote(str(self.path))}"

    def require(self) -> Design:
        """Its design. UsageError if it is invalid, RefusedError if others may write it."""
        if self.design is None:
            error = RefusedError if self.unsafe else UsageError
            raise error(f"The preset {str(self.path)!r} cannot be used.", why=self.problem)
        return self.design


def folders() -> list[Path]:
    """The folders of presets; the first one with a name takes precedence."""
    own = configuration_folder(os.environ)
    named = [Path(one) for one in os.environ.get(VARIABLE, "").split(os.pathsep) if one]
    return [*([] if own is None else [own / "presets"]), *named]


def every() -> tuple[OwnPreset, ...]:
    """All files, invalid ones too, in the order of folders and names."""
    return _every(tuple(folders()), trust_list_path())


def usable() -> dict[str, Design]:
    """The valid ones, trusted or not."""
    return {preset.name: preset.design for preset in every() if preset.design is not None}


def of_name(name: str) -> OwnPreset | None:
    """The file of that name, if any."""
    return next((preset for preset in every() if preset.name == name), None)


@lru_cache(maxsize=1)
def _every(folders: tuple[Path, ...], list_: Path | None) -> tuple[OwnPreset, ...]:
    found: dict[str, OwnPreset] = {}
    invalid: list[OwnPreset] = []
    trusted = _trusted(list_)
    for folder in folders:
        for path in _files(folder):
            one = _read(path, trusted)
            if one.design is not None and (first := found.get(one.name)):
                why = f"there is another one with that name: {first.path}"
                one = replace(one, design=None, problem=why)
            if one.design is None:
                invalid.append(one)
            else:
                found[one.name] = one
    _give(found.values())
    return (*found.values(), *invalid)


def _files(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in folder.iterdir() if path.name.endswith(".sql"))
    return []


def _give(presets: Iterable[OwnPreset]) -> None:
    """Make exactly their definitions available to statements."""
    given = [
        preset for preset in presets if preset.parsed is not None and preset.design is not None
    ]
    untrusted = [preset.name for preset in given if preset.untrusted]
    for engine in PRODUCTS:
        definitions = {
            preset.name: preset.parsed.definitions()
            for preset in given
            if preset.parsed is not None and preset.parsed.engine == engine
        }
        templates.set_user_presets(engine, definitions, like="own", untrusted=untrusted)


def forget_read() -> None:
    """Clear the cache: after trusting one, and for tests."""
    _every.cache_clear()
    _give(())


def read(path: Path) -> OwnPreset:
    """Read any file; from now on it is the preset of its name."""
    real = Path(os.path.realpath(path))
    if own_preset := next((preset for preset in every() if preset.path == real), None):
        return own_preset
    own_preset = _read(real, _trusted(trust_list_path()))
    _give([*(preset for preset in every() if preset.name != own_preset.name), own_preset])
    return own_preset


def _read(path: Path, trusted: Mapping[str, str] | str) -> OwnPreset:
    path = Path(os.path.realpath(path))
    preset = OwnPreset(path, path.name.removesuffix(".sql"))
    if not str(path).isprintable():
        return replace(preset, problem="its path has unprintable characters")
    try:
        content = _content(path)
    except OSError as error:
        return replace(preset, problem=f"it cannot be read: {error.strerror}")
    except RefusedError as error:
        return replace(preset, problem=error.what, unsafe=True)
    preset = replace(preset, sha256=hashlib.sha256(content).hexdigest())
    try:
        parsed = parse(content.decode())
        _check_name_and_engine(preset.name, parsed.engine)
    except UnicodeDecodeError as error:
        return replace(preset, problem=f"byte {error.start + 1:,} is not UTF-8")
    except NotAPresetError as error:
        return replace(preset, problem=str(error))
    design_if_trusted, why = _design(preset, parsed), _untrusted(preset, trusted)
    design = _read_only(preset, design_if_trusted, why) if why else design_if_trusted
    return replace(
        preset, parsed=parsed, design_if_trusted=design_if_trusted, design=design, untrusted=why
    )


def _content(path: Path) -> bytes:
    """The content of a file that nobody else could have written, else RefusedError."""
    for one in (path.parent, path):
        if why := others_may_write(one, one.stat()):
            raise RefusedError(why)
    # Check the opened file itself.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if why := others_may_write(path, os.fstat(file.fileno())):
            raise RefusedError(why)
        return file.read()


def others_may_write(path: Path, status: os.stat_result) -> str:
    """Why another user than this one or root can change it; empty: none can."""
    is_folder = stat.S_ISDIR(status.st_mode)
    what = "its folder" if is_folder else "it"
    if status.st_uid not in {0, os.geteuid()}:
        return f"{what} belongs to another user (uid {status.st_uid}): make your own copy"
    sticky = is_folder and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        mode = stat.S_IMODE(status.st_mode)
        command = f"chmod go-w {shlex.quote(str(path))}"
        return f"others may write {what} (its mode is {mode:04o}): {command}"
    return ""


def _check_name_and_engine(name: str, engine: str) -> None:
    """NotAPresetError if the name or the engine is not possible."""
    if not _NAME.fullmatch(name):
        raise NotAPresetError(
            "its name is that of its file, in lower-case letters, digits, - and _: jobs.sql"
        )
    if any(name in templates.files(folder.name) for folder in _engines()):
        raise NotAPresetError(f"the console has its own {name!r}: give the file another name")
    if not any(folder.name == engine and (folder / "own.sql").is_file() for folder in _engines()):
        raise NotAPresetError(
            f"its head says engine: {engine}, and your own presets can only be for postgresql; "
            "adopt such a table with the design it resembles most: dbq-console adopt "
            "TABLE --design D --map ROLE=COLUMN"
        )


def _engines() -> Iterator[Path]:
    for folder in templates.queries_folder().iterdir():
        if folder.is_dir():
            yield Path(str(folder))


def _design(file: OwnPreset, parsed: OwnFile) -> Design:
    """As one that is shipped."""
    title = parsed.head["preset"]
    head = {
        "summary": f"The tables of {title}.",
        "advice": f"The tables of {title}, by your own preset.",
        "requeued": "by the columns that its preset sets",
        "stays": "it was not in that state any more",
        **parsed.head,
        "columns": " ".join(parsed.columns),
        "verbs": " ".join(parsed.sets),
    }
    made = design_of(parsed.engine, file.name, head, (), parsed.written)
    without = {
        verb: f"its preset has no rule for it (-- define: {verb})"
        for verb in SETS
        if verb not in parsed.sets
    }
    return replace(
        made,
        table_each=False,
        file=str(file.path),
        sha256=file.sha256,
        refusals={**without, **made.refusals},
    )


def _read_only(file: OwnPreset, design_if_trusted: Design, why: str) -> Design:
    """The same without verbs."""
    refusal = f"its preset {file.name} is not trusted: {file.trust_command} ({why})"
    acting = {*design_if_trusted.verbs, *design_if_trusted.refusals, *SETS, *_ACTING}
    return replace(
        design_if_trusted, verbs=(), trusted=False, refusals=dict.fromkeys(sorted(acting), refusal)
    )


def trust_list_path() -> Path | None:
    """The list of what this user has trusted, as sha256sum writes such lists."""
    folder = configuration_folder(os.environ)
    return None if folder is None else folder / _TRUSTED


def _trusted(path: Path | None) -> Mapping[str, str] | str:
    """Path -> SHA-256; or why the list says nothing."""
    if path is None:
        return {}
    try:
        with path.open(encoding="utf-8") as file:
            if why := _not_private(path, os.fstat(file.fileno())):
                return why
            lines = file.read().splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        return f"The list of what you trust ({path}) cannot be read: {error}"
    return {match["path"]: match["sha256"] for line in lines if (match := _LINE.fullmatch(line))}


def _not_private(path: Path, status: os.stat_result) -> str:
    if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
        return ""
    mode = stat.S_IMODE(status.st_mode)
    return (
        f"The list of what you trust is not yours alone (its mode is {mode:04o}): "
        f"chmod 600 {shlex.quote(str(path))}"
    )


def _untrusted(file: OwnPreset, trusted: Mapping[str, str] | str) -> str:
    if isinstance(trusted, str):
        return trusted
    known = trusted.get(str(file.path))
    return "" if known == file.sha256 else _NEW if known is None else _CHANGED


def trust(preset: OwnPreset) -> None:
    """Trust the file as it was read."""
    _rewrite({str(preset.path): preset.sha256}, ())


def distrust(path: Path) -> None:
    """Withdraw the trust."""
    _rewrite({}, [os.path.realpath(path)])


def _rewrite(added: Mapping[str, str], dropped: Iterable[str]) -> None:
    """Rewrite the list atomically. ConsoleError."""
    list_path = trust_list_path()
    if list_path is None:
        raise ConsoleError(
            "There is no place for a list of trusted presets.",
            why="This user has no home directory.",
            next_step="Set XDG_CONFIG_HOME.",
        )
    before = _trusted(list_path)
    if isinstance(before, str):
        raise RefusedError("Nothing was trusted.", why=f"{before}")
    after = {path: sha256 for path, sha256 in before.items() if path not in dropped}
    after.update(added)
    try:
        list_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = list_path.with_name(f".{_TRUSTED}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{sha256}  {path}\n" for path, sha256 in after.items())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(list_path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConsoleError(
            f"{str(list_path)!r} cannot be written.", why=error.strerror or ""
        ) from None
    forget_read()
