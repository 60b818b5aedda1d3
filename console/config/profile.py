"""A connection profile: everything that is settled about one connection, and how to open it."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Generic, TypeVar, cast

from console.config import keys
from console.config.passwords import Credentials
from console.config.urls import ConnectionUrl
from console.config.values import Key, Layer, Value
from console.engines import Database, Product, Timeouts, label_of, product
from console.errors import UsageError
from console.rights import Rights

T = TypeVar("T")
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Limits(Generic[N]):
    """From which figure on it is a warning and from which on critical. None: never."""

    warning: N | None
    critical: N | None


@dataclass(frozen=True)
class Thresholds:
    """What is too much for a queue."""

    stuck_after_seconds: float
    depth: Limits[int]
    age_seconds: Limits[float]
    gap_share: Limits[float]
    """Of a ring's capacity; 1 is full."""
    errors: Limits[int]


class Settings:
    """Layers of values; the first that has a key decides."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def value(self, key: Key[T]) -> Value:
        """What holds for the key, with its origin."""
        found = (layer[key.name] for layer in self._layers if key.name in layer)
        return next(found, None) or key.default_value

    def __getitem__(self, key: Key[T]) -> T:
        """What holds for the key."""
        return cast("T", self.value(key).meaning)

    @property
    def thresholds(self) -> Thresholds:
        """What is too much."""
        return Thresholds(
            self[keys.STUCK_AFTER],
            Limits(self[keys.DEPTH_WARNING], self[keys.DEPTH_CRITICAL]),
            Limits(self[keys.AGE_WARNING], self[keys.AGE_CRITICAL]),
            Limits(self[keys.GAP_SHARE_WARNING], self[keys.GAP_SHARE_CRITICAL]),
            Limits(self[keys.ERRORS_WARNING], self[keys.ERRORS_CRITICAL]),
        )


class Profile:
    """One connection's settings. Nothing is looked up or connected before `open`."""

    def __init__(
        self,
        name: str | None,
        settings: Settings,
        queues: Mapping[str, Settings],
        environment: Mapping[str, str],
    ) -> None:
        """`name` is None where a URL alone names the database."""
        self.name = name
        self.settings = settings
        self.queues = queues
        """The queues that have thresholds of their own."""
        self._environment = environment

    def __repr__(self) -> str:
        """Its name; the URL is no business of a log."""
        return f"Profile({self.name!r})"

    @property
    def rights(self) -> Rights:
        """What the connection may do."""
        return self.settings[keys.RIGHTS]

    @property
    def production(self) -> bool:
        """Marked as production here; the database's own catalog may do so too."""
        return self.settings[keys.PRODUCTION]

    @property
    def interval_seconds(self) -> float:
        """The pause between two looks."""
        return self.settings[keys.INTERVAL]

    @property
    def display_zone(self) -> tzinfo | None:
        """For `datetime.astimezone`: None is the machine's own zone."""
        return self.settings[keys.DISPLAY_ZONE]

    @property
    def masks(self) -> tuple[re.Pattern[str], ...]:
        """What screens do not show of a payload."""
        return self.settings[keys.MASKS]

    @property
    def timeouts(self) -> Timeouts:
        """How long to wait for the server."""
        return Timeouts(
            connect_seconds=math.ceil(self.settings[keys.CONNECT_TIMEOUT]),
            statement_seconds=self.settings[keys.STATEMENT_TIMEOUT],
            lock_seconds=self.settings[keys.LOCK_TIMEOUT],
        )

    def thresholds(self, queue: str | None = None) -> Thresholds:
        """What is too much for the queue of that name, or for one that is not named."""
        named = self.queues.get(queue) if queue is not None else None
        return (named or self.settings).thresholds

    @property
    def product(self) -> Product:
        """The engine that its URL names. ConnectionFailedError, UsageError."""
        return product(self._url.public.get_backend_name())

    def open(self) -> Database:
        """Its database, which connects, and looks its secrets up, at its first use.

        Only a password that a person must type is asked for now.
        """
        url = self._url
        label = self.name or label_of(url.public)
        source = self.settings[keys.PASSWORD]
        credentials = Credentials(label, url, source, self._environment)
        credentials.ask()
        return Database(
            self.product,
            url.public,
            timeouts=self.timeouts,
            application_name=self.settings[keys.APPLICATION_NAME],
            label=label,
            production=self.production,
            complete=credentials,
        )

    @property
    def _url(self) -> ConnectionUrl:
        url = self.settings[keys.URL]
        if url is None:
            raise UsageError(f"The profile {self.name!r} has no url.")
        return url.known(self._environment)
