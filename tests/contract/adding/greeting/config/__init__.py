"""Whom it greets: the keys of [greetings.NAME]."""

from collections.abc import Iterator

from console.config import values
from console.config.feature_tables import FeatureTables
from console.config.values import TOP_ONLY, ConfigKey, Layer

WORDS: ConfigKey[str] = ConfigKey("words", values.text, "good night", TOP_ONLY)


def _wrong(layer: Layer) -> Iterator[tuple[str, str]]:
    if not layer:
        yield WORDS.name, "needs words"


TABLES = FeatureTables("greetings", "way", {WORDS.name: WORDS}, _wrong)
