"""A connection profile: everything that is settled about one connection, and how to open it."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from functools import cached_property
from typing import TypeVar, cast

from console.catalog import Queue
from console.config import keys
from console.config.passwords import Credentials
from console.config.urls import ConnectionUrl
from console.config.values import Key, Layer, Value
from console.engines import Database, Product, Timeouts, label_of, product
from console.errors import UsageError
from console.monitor.limits import Limits, Thresholds
from console.monitor.saved import Words
from console.rights import Rights

__all__ = ["Limits", "Profile", "Settings", "Thresholds"]

T = TypeVar("T")


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
        filters: Layer,
    ) -> None:
        """`name` is None where a URL alone names the database."""
        self.name = name
        self.settings = settings
        self.queues = queues
        """The queues that have thresholds of their own."""
        self.filters = filters
        """The saved filters of messages, by their names."""
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
    def group(self) -> str | None:
        """Which connections it belongs to; for verbs that work on several."""
        return self.settings[keys.GROUP]

    @property
    def color(self) -> str | None:
        """The mark beside its name, so that nobody takes it for another one."""
        return self.settings[keys.COLOR]

    @property
    def saved_words(self) -> Words:
        """What its saved filters of messages stand for."""
        return {name: value.meaning for name, value in self.filters.items()}

    @property
    def interval_seconds(self) -> float:
        """The pause between two looks."""
        return self.settings[keys.INTERVAL]

    @property
    def record(self) -> bool:
        """Whether the screens keep what they see of it."""
        return self.settings[keys.RECORD]

    @property
    def display_zone(self) -> tzinfo | None:
        """For `datetime.astimezone`: None is the machine's own zone."""
        return self.settings[keys.DISPLAY_ZONE]

    @property
    def masks(self) -> tuple[re.Pattern[str], ...]:
        """What neither screens nor lists of messages show of payloads, titles and errors."""
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
        own, of_queues = self._thresholds
        return own if queue is None else of_queues.get(queue, own)

    @cached_property
    def _thresholds(self) -> tuple[Thresholds, dict[str, Thresholds]]:
        """Asked for each queue at every look, so they are put together once."""
        of_queues = {name: settings.thresholds for name, settings in self.queues.items()}
        return self.settings.thresholds, of_queues

    def stuck_after_seconds(self, queue: Queue) -> float:
        """How long a claim of the queue may last."""
        return self.thresholds(queue.name).stuck_after_seconds

    @property
    def label(self) -> str:
        """How the connection is called. ConnectionFailedError, UsageError."""
        return self.name or label_of(self._url.public)

    @property
    def product(self) -> Product:
        """The engine that its URL names. ConnectionFailedError, UsageError."""
        return product(self._url.public.get_backend_name())

    def credentials(self) -> Credentials:
        """What completes its URL. Looks nothing up. ConnectionFailedError, UsageError."""
        return Credentials(self.label, self._url, self.settings[keys.PASSWORD], self._environment)

    @property
    def shown_url(self) -> str:
        """Its URL, for people: without secrets, with variables as they were written."""
        url = self.settings[keys.URL]
        return "" if url is None else url.shown

    def open(self, credentials: Credentials | None = None) -> Database:
        """Its database, which connects, and looks its secrets up, at its first use.

        Only a password that a person must type is asked for now, unless `credentials` are given:
        then whoever gave them sees to that.
        """
        url, label = self._url, self.label
        if credentials is None:
            credentials = self.credentials()
            credentials.ask()
        return Database(
            self.product,
            url.public,
            timeouts=self.timeouts,
            application_name=self.settings[keys.APPLICATION_NAME],
            label=label,
            production=self.production,
            read_only=self.rights is Rights.READ_ONLY,
            complete=credentials,
        )

    @property
    def _url(self) -> ConnectionUrl:
        url = self.settings[keys.URL]
        if url is None:
            raise UsageError(f"The profile {self.name!r} has no url.")
        return url.known(self._environment)
