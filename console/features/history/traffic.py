"""The traffic of the last whole hour, and what is usual for it: from recordings and the lake."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from console import clock
from console.errors import ConsoleError
from console.features.history import forecast, rollup_files
from console.features.history.forecast import Forecast
from console.features.history.forecast_files import HOUR_SECONDS
from console.features.history.reader import RecordReader, Rollups
from console.features.history.recorder import folder
from console.features.history.segments import SAMPLES, TimeRange
from console.figures import FORECASTS
from console.monitor.rates import QueueName

_ENOUGH_SECONDS = HOUR_SECONDS / 2
"""An hour recorded for less than this is ignored."""
_REFRESH_SECONDS = 300.0
"""Files are read again after this long."""


@dataclass
class TrafficForecasts:
    """Of one connection's queues, from this user's lake and recordings."""

    connection: str
    root: Path = field(default_factory=folder)
    lake: str | None = field(default_factory=rollup_files.existing_default_lake)
    forecasts: dict[QueueName, Forecast] = field(default_factory=dict)
    _hour: datetime | None = None
    _seen: dict[QueueName, dict[str, float]] = field(default_factory=dict)
    _read_at: float | None = None

    def last_hour(self, of: QueueName) -> tuple[datetime, dict[str, float]]:
        """The start of the last whole hour, and its `pushes` and `pops` if they are known."""
        began = forecast.hour_of(clock.utc()) - timedelta(hours=1)
        if began != self._hour and any(one.hours for one in self.forecasts.values()):
            self._seen = seen_in_hour(self.root, self.lake, self.connection, began)
            self._hour = began
        return began, self._seen.get(of, {}) if began == self._hour else {}

    def refreshed(self) -> Mapping[QueueName, Forecast]:
        """The forecasts, read again after a while; the old ones if the lake cannot be read."""
        now = clock.elapsed()
        if self._read_at is None or now - self._read_at >= _REFRESH_SECONDS:
            self._read_at = now
            with suppress(ConsoleError):
                self.forecasts = forecast.of_all(self.lake, self.connection)
        return self.forecasts


def seen_in_hour(
    root: Path, lake: str | None, connection: str, begin: datetime
) -> dict[QueueName, dict[str, float]]:
    """Messages pushed and popped in an hour, by the recordings, else by the rollups; of queues that
    were recorded for at least half of it."""
    recorded = _recorded(root, connection, begin)
    if lake is not None:
        span = TimeRange(begin, begin + timedelta(hours=1))
        for row in Rollups(lake, connection).rows("samples", "hour", [begin.date()], span):
            for name, of in FORECASTS.items():
                enough = (row.get(f"{of}_weight") or 0) >= _ENOUGH_SECONDS * 1e6
                if enough and (rate := row.get(f"{of}_avg")) is not None and rate >= 0:
                    key = row["schema"] or "", row["queue"]
                    recorded.setdefault(key, {}).setdefault(name, rate * HOUR_SECONDS)
    return recorded


def _recorded(root: Path, connection: str, begin: datetime) -> dict[QueueName, dict[str, float]]:
    """Each sample covers the time since the previous one, as in a rollup."""
    # The previous one of the first may be from the hour before.
    early = timedelta(seconds=rollup_files.LONGEST_SAMPLE_SECONDS)
    span = TimeRange(begin - early, begin + timedelta(hours=1))
    columns = ("at", "schema", "queue", *FORECASTS.values())
    before: dict[QueueName, datetime] = {}
    sums: defaultdict[tuple[QueueName, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in RecordReader(root, connection).rows(SAMPLES, span, columns):
        key = row["schema"] or "", row["queue"]
        since = max(begin, row["at"] - early, before.get(key, begin))
        before[key] = row["at"]
        for name, rate in FORECASTS.items():
            if row["at"] >= begin and row[rate] is not None and row[rate] >= 0:
                seconds = (row["at"] - since).total_seconds()
                sums[key, name][0] += seconds
                sums[key, name][1] += seconds * row[rate]
    recorded: dict[QueueName, dict[str, float]] = {}
    for (key, name), (seconds, messages) in sums.items():
        if seconds >= _ENOUGH_SECONDS:
            recorded.setdefault(key, {})[name] = messages / seconds * HOUR_SECONDS
    return recorded
