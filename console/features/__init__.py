"""What can be taken away: a folder each, with all that is its own, and its line in NAMES.

A folder has, where the feature needs them, packages and pages that are found by their place, and
listed without importing them:

- `commands/`: commands, as in `console/cli/commands`; one of the same name replaces the core's
- `views/`: lists, as in `console/views`
- `help/`: pages, as in `console/help`
- `designs/`: presets, for queues in tables that others made (`AddedDesigns` in `console/designs`)
- `checks/`: checks of the doctor, as `CHECK_GROUPS`
- `tabs/`: tabs of a queue's screen, a module each, as `TAB`; its name opens it after `:`
- `rows/`: its keys for the row under the cursor: `pressed` gets a screen and a key that no binding
  has
- `screens/`: its screens; `COMMANDS` are what can be typed after `:` to open them; a `CommandKey`
  of its value opens one of these from the overview and from a queue's screen
- `config/`: its tables of the configuration, as `TABLES` (`console/config/feature_tables.py`)
- `past/`: what it knows of the time before, as `PAST` (`console/monitor/past.py`)
- `recordings/`: where the screens' readings go, and the screens on them, for `--replay`
  (`console/tui/recordings.py`)
- `recorder/`: what it runs beside a recorder, as `companion` (of the feature `history`)

Each is a package (with `__init__.py`), except `help/`. The folder's own `__init__.py` has the value
FEATURE, which imports nothing but this. The core imports no feature; a feature imports the core,
and those features that its value names. One whose needs are not here is off: its commands say so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = (
    "bench",
    "busy",
    "demo",
    "history",
    "lake",
    "metrics",
    "notify",
    "own_commands",
    "presets",
    "prove",
    "unattended",
    "why",
)


@dataclass(frozen=True)
class CommandKey:
    """A key of the overview and of a queue's screen, which is a command after `:`."""

    key: str
    command: str
    help: str
    about_connection: bool = False
    """Whether the command takes a connection."""


@dataclass(frozen=True)
class Feature:
    """What is to be known of a feature before it is used."""

    needs: tuple[str, ...] = ()
    """Other features that it imports."""
    keys: tuple[CommandKey, ...] = ()


@cache
def features() -> dict[str, Feature]:
    """All that are here, by name."""
    values = {name: import_module(f"{__name__}.{name}").FEATURE for name in NAMES}
    return dict(sorted(values.items()))


def missing(name: str) -> tuple[str, ...]:
    """The features that it needs, itself or by way of others, and that are not here."""
    here = features()
    if name not in here:
        return (name,)
    absent = (of for need in here[name].needs for of in missing(need))
    return tuple(dict.fromkeys(absent))


def packages(kind: str) -> Iterator[tuple[str, str, list[str]]]:
    """The feature's name, its package of this kind, and where that is; of all that have one."""
    for name in features():
        folder = _folder(name) / kind
        if folder.is_dir():
            yield name, f"{__name__}.{name}.{kind}", [str(folder)]


def files(kind: str) -> Iterator[Path]:
    """The files in the folders of this kind, of all that are not off."""
    for name in features():
        folder = _folder(name) / kind
        if folder.is_dir() and not missing(name):
            yield from folder.iterdir()


@cache
def modules(kind: str) -> tuple[Any, ...]:
    """The packages of this kind, imported, of all that are not off."""
    return tuple(import_module(of) for name, of, _ in packages(kind) if not missing(name))


def keys() -> tuple[CommandKey, ...]:
    """Those of all that are not off."""
    known = features().items()
    return tuple(key for name, feature in known if not missing(name) for key in feature.keys)


def _folder(name: str) -> Path:
    return Path(__file__).with_name(name)
