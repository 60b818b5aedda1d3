"""A user's own commands: the keys of [commands.NAME]."""

from collections.abc import Iterator, Mapping
from typing import Any

from console.config import values
from console.config.feature_tables import FeatureTables
from console.config.passwords import command_words
from console.config.profile import Settings
from console.config.values import TOP_ONLY, ConfigKey, Layer, WrongValueError
from console.features.own_commands.command import (
    DEFAULT_SECONDS,
    LONGEST_SECONDS,
    MESSAGE,
    PLACEHOLDERS,
    placeholders,
)


def _key(value: Any) -> str:
    text = values.text(value)
    if len(text) != 1 or text.isspace():
        raise WrongValueError('must be one key, such as "L"')
    return text


def _run(value: Any) -> tuple[str, ...]:
    return command_words(values.text(value), "run")


KEY: ConfigKey[str] = ConfigKey("key", _key, None, TOP_ONLY)
ON: ConfigKey[str] = ConfigKey("on", values.one_of(tuple(PLACEHOLDERS)), MESSAGE, TOP_ONLY)
RUN: ConfigKey[tuple[str, ...]] = ConfigKey("run", _run, None, TOP_ONLY)
TIMEOUT: ConfigKey[float] = ConfigKey(
    "timeout", values.seconds(0.1, LONGEST_SECONDS), DEFAULT_SECONDS, TOP_ONLY
)
_KEYS: Mapping[str, ConfigKey[Any]] = {key.name: key for key in (KEY, ON, RUN, TIMEOUT)}


def _wrong(layer: Layer) -> Iterator[tuple[str, str]]:
    settings = Settings((layer,))
    for key in (KEY, RUN):
        if key.name not in layer:
            yield key.name, f"needs {key.name} = ..."
            return
    known = PLACEHOLDERS[settings[ON]]
    words: tuple[str, ...] = settings.value(RUN).meaning
    for number, word in enumerate(words):
        try:
            names = [*placeholders(word)]
        except ValueError:
            yield RUN.name, "has a brace that is not closed; {{ is one of the text's own"
            return
        if number == 0 and names:
            yield RUN.name, "must name its program: no value can be that"
        for name in names:
            if name not in known:
                yield RUN.name, f"has {{{name}}}; on a {settings[ON]} there are {', '.join(known)}"


TABLES = FeatureTables("commands", "command", _KEYS, _wrong)
