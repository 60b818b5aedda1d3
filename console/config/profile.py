"""Connection profiles: all keys with their types and defaults, and a profile's settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from console import figures
from console.catalog import Queue
from console.config import values
from console.config.passwords import Credentials, PasswordSource, read_source
from console.config.urls import ConnectionUrl
from console.config.values import (
    CONNECTION,
    EVERYWHERE,
    PROFILE_ONLY,
    PROFILE_OR_GROUP,
    TOP_ONLY,
    ConfigKey,
    KeyLevel,
    Layer,
    Value,
    ValueSource,
    WrongValueError,
)
from console.engines import Database, Product, Timeouts, label_of, product
from console.errors import ConsoleError, UsageError
from console.filters import Words
from console.monitor.limits import NO_LIMITS, Limits, Thresholds
from console.rights import BY_WORD, Rights
from console.state import LOG_LEVELS

T = TypeVar("T")
N = TypeVar("N", int, float)
_DAY = 86_400.0


def read_url(value: Any) -> ConnectionUrl:
    """A URL as allowed in a file: without a password in clear text."""
    if not isinstance(value, str):
        raise WrongValueError(f"must be a URL in quotes, not {values.type_name(value)}")
    try:
        url = ConnectionUrl.read(value)
    except UsageError as error:
        raise WrongValueError(f"cannot be used. {error.what} {error.why}".strip()) from None
    if url.contains_secret:
        raise WrongValueError(
            "has a password in clear text, which must not be in a file: put it into ~/.pgpass, use "
            "${env:NAME} instead, or name its source with the key password"
        )
    return url


URL: ConfigKey[ConnectionUrl | None] = ConfigKey("url", read_url, None, PROFILE_ONLY)
PASSWORD: ConfigKey[PasswordSource | None] = ConfigKey("password", read_source, None, PROFILE_ONLY)
RIGHTS: ConfigKey[Rights] = ConfigKey(
    "rights", values.meaning_of(BY_WORD), "read-only", PROFILE_ONLY, "DBQ_RIGHTS"
)
GROUP: ConfigKey[str | None] = ConfigKey("group", values.text, None, PROFILE_ONLY)
COLOR: ConfigKey[str | None] = ConfigKey(
    "color", values.one_of(values.COLORS), None, PROFILE_OR_GROUP
)
PRODUCTION: ConfigKey[bool] = ConfigKey(
    "production", values.flag, default=False, levels=PROFILE_ONLY
)
POOLED: ConfigKey[bool] = ConfigKey("pooled", values.flag, default=False, levels=PROFILE_ONLY)
CONSUMERS: ConfigKey[str] = ConfigKey(
    "consumers", values.one_of(("any", "direct")), "any", CONNECTION, "DBQ_CONSUMERS"
)
INTERVAL: ConfigKey[float] = ConfigKey(
    "interval", values.seconds(0.1, _DAY), "1s", CONNECTION, "DBQ_INTERVAL"
)
RECORD: ConfigKey[bool] = ConfigKey("record", values.flag, default=True, levels=CONNECTION)
DISPLAY_ZONE = ConfigKey("display_zone", values.zone, "UTC", CONNECTION, "DBQ_DISPLAY_ZONE")
MASKS = ConfigKey("masks", values.patterns, [], CONNECTION)
CONNECT_TIMEOUT: ConfigKey[float] = ConfigKey(
    "connect_timeout", values.seconds(1, 600), "10s", CONNECTION, "DBQ_CONNECT_TIMEOUT"
)
STATEMENT_TIMEOUT: ConfigKey[float] = ConfigKey(
    "statement_timeout", values.seconds(0.1, _DAY), "30s", CONNECTION, "DBQ_STATEMENT_TIMEOUT"
)
LOCK_TIMEOUT: ConfigKey[float] = ConfigKey(
    "lock_timeout", values.seconds(0.01, _DAY), "5s", CONNECTION, "DBQ_LOCK_TIMEOUT"
)
APPLICATION_NAME: ConfigKey[str] = ConfigKey(
    "application_name", values.text, "dbq-console", CONNECTION, "DBQ_APPLICATION_NAME"
)
THEME: ConfigKey[str] = ConfigKey(
    "theme", values.one_of(values.THEMES), "dark", TOP_ONLY, "DBQ_THEME"
)
LOG_FILE: ConfigKey[str | None] = ConfigKey("log_file", values.text, None, TOP_ONLY, "DBQ_LOG_FILE")
LOG_LEVEL: ConfigKey[str] = ConfigKey(
    "log_level", values.one_of(LOG_LEVELS), "warning", TOP_ONLY, "DBQ_LOG_LEVEL"
)
NOTIFY: ConfigKey[tuple[str, ...] | None] = ConfigKey(
    "notify",
    values.names_or_all,
    values.ALL,
    frozenset({*CONNECTION, *PROFILE_OR_GROUP}),
    names_tables="notifications",
)
"""The names of the receivers of its notifications; None: all."""
BELL: ConfigKey[bool] = ConfigKey("bell", values.flag, default=True, levels=CONNECTION)
STUCK_AFTER: ConfigKey[float] = ConfigKey(
    "stuck_after", values.seconds(1, 3650 * _DAY), "5m", EVERYWHERE
)

ARCHIVE: ConfigKey[float | None] = ConfigKey(
    "archive", values.or_off(values.seconds(0, 36_500 * _DAY)), "0s", EVERYWHERE
)
EXPIRE: ConfigKey[float | None] = ConfigKey(
    "expire", values.or_off(values.seconds(_DAY, 36_500 * _DAY)), values.OFF, EVERYWHERE
)

# The policy of repairs without a person.
ORPHANS: ConfigKey[str] = ConfigKey(
    "unattended.orphans", values.one_of((values.OFF, "always")), values.OFF, EVERYWHERE
)
HOLES: ConfigKey[str] = ConfigKey(
    "unattended.holes", values.one_of((values.OFF, "pile", "always")), "pile", EVERYWHERE
)
CLAIMS_GONE: ConfigKey[str] = ConfigKey(
    "unattended.claims_gone", values.one_of((values.OFF, "bound")), values.OFF, EVERYWHERE
)
LIBRARY_RULE: ConfigKey[bool] = ConfigKey(
    "unattended.library_rule", values.flag, default=False, levels=frozenset({KeyLevel.QUEUE})
)
"""Of an adopted queue: whether its library's own rule may release claims."""
REPAIRS_PER_HOUR: ConfigKey[int] = ConfigKey(
    "unattended.repairs_per_hour", values.amount, 20, EVERYWHERE
)
ROWS_PER_HOUR: ConfigKey[int] = ConfigKey(
    "unattended.rows_per_hour", values.amount, 5_000, EVERYWHERE
)

LimitKeys = tuple[ConfigKey[float | None], ConfigKey[float | None]]
"""The keys of the values from which on a figure is a warning, and critical."""


_READERS: Mapping[figures.Unit, Callable[[Any], float]] = {
    figures.MESSAGES: values.amount,
    figures.SECONDS: values.seconds(0.001, 3650 * _DAY),
    figures.SHARE: values.share,
}


def _limits(limit: figures.Limit) -> LimitKeys:
    read, (warning, critical) = values.or_off(_READERS[limit.unit]), limit.defaults
    return (
        ConfigKey(f"{limit.name}.warning", read, warning or values.OFF, EVERYWHERE),
        ConfigKey(f"{limit.name}.critical", read, critical or values.OFF, EVERYWHERE),
    )


LIMITS = {limit.name: _limits(limit) for limit in figures.LIMITS.values() if limit.configured}

_ALL: tuple[ConfigKey[Any], ...] = (
    *(URL, PASSWORD, RIGHTS, PRODUCTION, POOLED, CONSUMERS, GROUP, COLOR),
    *(INTERVAL, RECORD, NOTIFY, BELL, DISPLAY_ZONE, MASKS),
    *(CONNECT_TIMEOUT, STATEMENT_TIMEOUT, LOCK_TIMEOUT, APPLICATION_NAME),
    *(THEME, LOG_FILE, LOG_LEVEL),
    *(STUCK_AFTER, ARCHIVE, EXPIRE),
    *(ORPHANS, HOLES, CLAIMS_GONE, LIBRARY_RULE, REPAIRS_PER_HOUR, ROWS_PER_HOUR),
    *(key for pair in LIMITS.values() for key in pair),
)
KEYS = {key.name: key for key in _ALL}


__all__ = ["Limits", "Profile", "Settings", "Thresholds"]


_RUNBOOK = "runbooks."


class Settings:
    """Layers of values; the first that has a key decides."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def value(self, key: ConfigKey[T]) -> Value:
        """The value of the key, with its origin."""
        found = (layer[key.name] for layer in self._layers if key.name in layer)
        return next(found, None) or key.default_value

    def __getitem__(self, key: ConfigKey[T]) -> T:
        """The parsed value of the key."""
        return cast("T", self.value(key).meaning)

    @property
    def thresholds(self) -> Thresholds:
        """The limits."""
        limits = {name: Limits(*(self[key] for key in keys)) for name, keys in LIMITS.items()}
        # The default of the share applies only if `errors` is not set, even to "off".
        share = figures.ERROR_SHARE.name
        if self._sets(figures.ERROR_LIMIT.name) and not self._sets(share):
            del limits[share]
        known = {name: one for name, one in limits.items() if one != NO_LIMITS}
        return Thresholds(self[STUCK_AFTER], known, self._runbooks)

    @property
    def _runbooks(self) -> dict[str, str]:
        """By codes."""
        found: dict[str, str] = {}
        for layer in reversed(self._layers):
            for name, value in layer.items():
                if name.startswith(_RUNBOOK):
                    found[name.removeprefix(_RUNBOOK)] = value.meaning
        return found

    def _sets(self, name: str) -> bool:
        keys = LIMITS[name]
        return any(self.value(key).origin.source is not ValueSource.DEFAULT for key in keys)


class _Setting(Generic[T]):
    """The parsed value of a key, as an attribute."""

    def __init__(self, key: ConfigKey[T]) -> None:
        self._key = key

    def __get__(self, profile: "Profile", _: type["Profile"]) -> T:
        return profile.settings[self._key]


class Profile:
    """One connection's settings. Nothing is looked up or connected before `open`."""

    rights = _Setting(RIGHTS)
    """What the connection may do."""
    production = _Setting(PRODUCTION)
    """Marked as production here; the database's own catalog may do so too."""
    group = _Setting(GROUP)
    """The group for verbs that work on several connections."""
    color = _Setting(COLOR)
    """The colour of the mark next to its name."""
    interval_seconds = _Setting(INTERVAL)
    """Between two samples."""
    record = _Setting(RECORD)
    """Whether the screens record it."""
    bell = _Setting(BELL)
    """Whether the screens ring the terminal's bell at a new critical finding."""
    display_zone = _Setting(DISPLAY_ZONE)
    """For `datetime.astimezone`: None is the machine's own zone."""
    masks = _Setting(MASKS)
    """Patterns to hide in payloads, titles and errors."""

    def __init__(
        self,
        name: str | None,
        settings: Settings,
        queues: Mapping[str, Settings],
        environment: Mapping[str, str],
        filters: Layer,
    ) -> None:
        """`name` is None if only a URL is given."""
        self.name = name
        self.settings = settings
        self.queues = queues
        """The queues with their own thresholds."""
        self.filters = filters
        """The saved filters of messages, by name."""
        self._environment = environment

    def __repr__(self) -> str:
        """Without the URL, for logs."""
        return f"Profile({self.name!r})"

    @property
    def saved_words(self) -> Words:
        """The words of its saved filters of messages, by name."""
        return {name: value.meaning for name, value in self.filters.items()}

    @property
    def timeouts(self) -> Timeouts:
        """The time-outs of its connections."""
        return Timeouts(
            connect_seconds=math.ceil(self.settings[CONNECT_TIMEOUT]),
            statement_seconds=self.settings[STATEMENT_TIMEOUT],
            lock_seconds=self.settings[LOCK_TIMEOUT],
        )

    def thresholds(self, queue: str | None = None) -> Thresholds:
        """The limits of the queue of that name, or of queues without their own."""
        own, of_queues = self._thresholds
        return own if queue is None else of_queues.get(queue, own)

    @cached_property
    def _thresholds(self) -> tuple[Thresholds, dict[str, Thresholds]]:
        """Cached, since they are used for each queue at every sample."""
        of_queues = {name: settings.thresholds for name, settings in self.queues.items()}
        return self.settings.thresholds, of_queues

    def stuck_after_seconds(self, queue: Queue) -> float:
        """How long a claim of the queue may last."""
        return self.thresholds(queue.name).stuck_after_seconds

    def settings_of(self, queue: str) -> Settings:
        """Of the queue of that name."""
        return self.queues.get(queue, self.settings)

    def archived_after(self, queue: str) -> float | None:
        """Seconds after which rows of its archive leave for the lake; None: they stay."""
        return self.settings_of(queue)[ARCHIVE]

    def expires_after(self, queue: str) -> float | None:
        """Seconds after which a day of the queue leaves the lake; None: it is kept."""
        return self.settings_of(queue)[EXPIRE]

    @property
    def label(self) -> str:
        """The displayed name of the connection. ConnectionFailedError, UsageError."""
        return self.name or label_of(self._url.public)

    @property
    def product(self) -> Product:
        """The engine of its URL. ConnectionFailedError, UsageError."""
        return product(self._url.public.get_backend_name())

    def credentials(self) -> Credentials:
        """Its credentials, not looked up yet. ConnectionFailedError, UsageError."""
        return Credentials(self.label, self._url, self.settings[PASSWORD], self._environment)

    @property
    def protection(self) -> str:
        """What its connections will have of encryption, in words."""
        try:
            return self.product.protection(self._url.public, production=self.production)
        except ConsoleError as error:
            return f"not known: {error.what}"

    @property
    def shown_url(self) -> str:
        """Its URL for display: without secrets, with variables as written."""
        url = self.settings[URL]
        return "" if url is None else url.shown

    def open(self, credentials: Credentials | None = None) -> Database:
        """Its database, which connects and looks up its secrets at the first use.

        Only a password that must be typed is prompted for now, unless the caller passes
        `credentials`.
        """
        url, label = self._url, self.label
        if credentials is None:
            credentials = self.credentials()
            credentials.prompt()
        database = Database(
            self.product,
            url.public,
            timeouts=self.timeouts,
            application_name=self.settings[APPLICATION_NAME],
            label=label,
            production=self.production,
            read_only=self.rights is Rights.READ_ONLY,
            complete=credentials,
        )
        database.remembered = True
        database.pooled = self.settings[POOLED]
        database.consumers = self.settings[CONSUMERS]
        return database

    @property
    def _url(self) -> ConnectionUrl:
        url = self.settings[URL]
        if url is None:
            raise UsageError(f"The profile {self.name!r} has no url.")
        return url.known(self._environment)
