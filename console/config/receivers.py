"""The receivers of notifications as they are configured."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from console.config.configuration import Configuration
from console.config.notifications import (
    LEVEL,
    QUEUES,
    SECRET_SOURCE,
    TABLE,
    TEMPLATE,
    TO,
    WITHIN,
    value,
)
from console.config.passwords import PasswordSource
from console.config.profile import Profile
from console.config.urls import VARIABLE, filled
from console.config.values import Layer
from console.notify.targets import Target, Webhook


def targets(configuration: Configuration, profile: Profile | None = None) -> tuple[Target, ...]:
    """The receivers of a connection; without a profile, all."""
    chosen = None if profile is None else profile.notify
    known = configuration.document.notifications
    names = known if chosen is None else [name for name in known if name in chosen]
    configuration.require(*((TABLE, name) for name in names))
    return tuple(_target(configuration, name, known[name]) for name in names)


def _target(configuration: Configuration, name: str, layer: Layer) -> Target:
    receiver, template = value(layer, TO).meaning, value(layer, TEMPLATE).meaning
    if isinstance(receiver, Webhook):
        fill = partial(filled, environment=configuration.environment)
        # PagerDuty's key is a part of the body.
        receiver = replace(receiver, fill=fill, bearer=template != "pagerduty")
    source: PasswordSource | None = value(layer, SECRET_SOURCE).meaning
    look_up = partial(_looked_up, source, name, configuration.environment)
    return Target(
        name,
        receiver,
        template=template,
        level=value(layer, LEVEL).meaning,
        queues=value(layer, QUEUES).meaning,
        within_seconds=value(layer, WITHIN).meaning,
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
    written = [
        value.written
        for layer in (*layers, *document.notifications.values())
        for value in layer.values()
    ]
    secret = {name for text in written if isinstance(text, str) for name in VARIABLE.findall(text)}
    secret |= {"DBQ_URL", "PGPASSWORD"}
    return {name: text for name, text in configuration.environment.items() if name not in secret}
