"""The receivers of notifications: the keys of [notifications.NAME]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from console.config import values
from console.config.feature_tables import FeatureTables
from console.config.passwords import (
    PasswordSource,
    Prompt,
    check_variables,
    command_words,
    read_source,
)
from console.config.profile import NOTIFY, Settings
from console.config.urls import VARIABLE, filled
from console.config.values import TOP_ONLY, ConfigKey, Layer, WrongValueError
from console.features.notify.targets import (
    SECRET,
    TEMPLATES,
    Bell,
    Program,
    Receiver,
    Webhook,
    wrong_address,
)
from console.monitor.limits import Severity

_FORMS = '"webhook:URL", "exec:PROGRAM ..." or "bell"'
_LEVELS = {one.word: one for one in (Severity.NOTE, Severity.WARNING, Severity.CRITICAL)}


def _receiver(value: Any) -> Receiver:
    line = values.text(value)
    kind, _, rest = line.partition(":")
    if line == "bell":
        return Bell()
    if kind == "exec":
        return Program(command_words(rest, kind))
    if kind == "webhook":
        return _webhook(rest)
    raise WrongValueError(f"must be {_FORMS}")  # not repeated: it may be an address with a secret


def _webhook(url: str) -> Webhook:
    check_variables(url)
    if not VARIABLE.match(url) and (why := wrong_address(VARIABLE.sub("x", url), secret=False)):
        raise WrongValueError(f"is an address that {why}")
    return Webhook(url, partial(filled, environment={}))


def _secret(value: Any) -> PasswordSource:
    source = read_source(value)
    if isinstance(source, Prompt):
        raise WrongValueError("cannot be a prompt: a recorder runs unattended")
    return source


def _patterns(value: Any) -> tuple[str, ...]:
    names = values.names(value)
    if not names:
        raise WrongValueError('must name at least one queue, such as ["orders", "inv*"]')
    return names


TO: ConfigKey[Receiver] = ConfigKey("to", _receiver, None, TOP_ONLY)
TEMPLATE: ConfigKey[str] = ConfigKey("template", values.one_of(tuple(TEMPLATES)), "json", TOP_ONLY)
SECRET_SOURCE: ConfigKey[PasswordSource | None] = ConfigKey("secret", _secret, None, TOP_ONLY)
LEVEL: ConfigKey[Severity] = ConfigKey("level", values.meaning_of(_LEVELS), "warning", TOP_ONLY)
QUEUES: ConfigKey[tuple[str, ...]] = ConfigKey("queues", _patterns, ["*"], TOP_ONLY)
WITHIN: ConfigKey[float] = ConfigKey("within", values.seconds(0, 3600), "30s", TOP_ONLY)
KEYS: Mapping[str, ConfigKey[Any]] = {
    key.name: key for key in (TO, TEMPLATE, SECRET_SOURCE, LEVEL, QUEUES, WITHIN)
}


def _wrong(layer: Layer) -> Iterator[tuple[str, str]]:
    """Inconsistencies: a key, and the problem."""
    settings = Settings((layer,))
    receiver, template = settings.value(TO).meaning, settings[TEMPLATE]
    has_secret = SECRET_SOURCE.name in layer
    if receiver is None:
        yield TO.name, f"needs to = {_FORMS}"
        return
    if not isinstance(receiver, Webhook):
        if template != "json":
            yield TEMPLATE.name, "is for webhooks"
        return
    if template == "pagerduty" and not has_secret:
        yield SECRET_SOURCE.name, "needs secret: where PagerDuty's integration key is"
    needs_secret = SECRET in receiver.written
    if needs_secret and not has_secret:
        yield SECRET_SOURCE.name, f"needs secret, for {SECRET} in its address"
    if template == "slack" and not (needs_secret or VARIABLE.search(receiver.written)):
        yield (
            TO.name,
            "has an address that lets anyone post, which must not be in a file: use "
            f"${{env:NAME}} or {SECRET} instead",
        )
    if has_secret and (why := wrong_address(_readable(receiver.written), secret=True)):
        yield TO.name, f"is an address that {why}"


def _readable(url: str) -> str:
    """The address with variables replaced; their values are checked when sending."""
    return "https://x" if VARIABLE.match(url) else VARIABLE.sub("x", url)


TABLES = FeatureTables(NOTIFY.names_tables, "receiver", KEYS, _wrong)
