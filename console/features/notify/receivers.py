"""The receivers of notifications as they are configured."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from console.config.configuration import Configuration
from console.config.passwords import PasswordSource
from console.config.profile import NOTIFY, Profile, Settings
from console.config.urls import VARIABLE, filled
from console.config.values import Layer
from console.features.notify.config import (
    LEVEL,
    QUEUES,
    SECRET_SOURCE,
    TABLES,
    TEMPLATE,
    TO,
    WITHIN,
)
from console.features.notify.targets import Target, Webhook


def targets(configuration: Configuration, profile: Profile | None = None) -> tuple[Target, ...]:
    """The receivers of a connection; without a profile, all."""
    chosen = None if profile is None else profile.settings[NOTIFY]
    known = configuration.document.tables_of(TABLES.word)
    names = known if chosen is None else [name for name in known if name in chosen]
    configuration.require(*((TABLES.word, name) for name in names))
    return tuple(_target(configuration, name, known[name]) for name in names)


def _target(configuration: Configuration, name: str, layer: Layer) -> Target:
    settings = Settings((layer,))
    receiver, template = settings[TO], settings[TEMPLATE]
    if isinstance(receiver, Webhook):
        fill = partial(filled, environment=configuration.environment)
        # PagerDuty's key is a part of the body.
        receiver = replace(receiver, fill=fill, bearer=template != "pagerduty")
    look_up = partial(_looked_up, settings[SECRET_SOURCE], name, configuration.environment)
    return Target(
        name,
        receiver,
        template=template,
        level=settings[LEVEL],
        queues=settings[QUEUES],
        within_seconds=settings[WITHIN],
        secret=look_up,
        environment=_without_secrets(configuration),
    )


def _looked_up(source: PasswordSource | None, name: str, environment: Mapping[str, str]) -> str:
    return (
        "" if source is None else source.look_up(f"notifications to {name}", environment).reveal()
    )


def _without_secrets(configuration: Configuration) -> Mapping[str, str]:
    """The environment without the variables that contain secrets."""
    document = configuration.document
    layers = [table.values for table in document.tables.values()]
    layers += [layer for tables in document.of_features.values() for layer in tables.values()]
    written = [value.written for layer in layers for value in layer.values()]
    secret = {name for text in written if isinstance(text, str) for name in VARIABLE.findall(text)}
    secret |= {"DBQ_URL", "PGPASSWORD"}
    return {name: text for name, text in configuration.environment.items() if name not in secret}
