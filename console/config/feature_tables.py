"""Tables of the configuration that belong to a feature, and the example, which ends with them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console import features
from console.config.values import ConfigKey, Layer


@dataclass(frozen=True)
class FeatureTables:
    """The tables [WORD.x] of a feature: TABLES of its package `config`.

    Beside it is `example.toml`, the end of the example. A value that may contain a secret has a
    `Redacted` or a `PasswordSource` as its meaning.
    """

    word: str
    noun: str
    """What each stands for: `3 receivers` of notifications."""
    keys: Mapping[str, ConfigKey[Any]]
    wrong: Callable[[Layer], Iterator[tuple[str, str]]]
    """The inconsistencies of a table: a key, and the problem."""


def feature_tables() -> dict[str, FeatureTables]:
    """Those of all features that are not off, by their words."""
    tables = (module.TABLES for module in features.modules("config"))
    return {table.word: table for table in tables}


def example_file() -> str:
    """A commented file to start from."""
    parts = [Path(__file__).with_name("example.toml")]
    parts += [path for path in features.files("config") if path.name == "example.toml"]
    return "".join(path.read_text("utf-8") for path in parts)
