"""What recordings and the lake say of the past. Its methods import what they use."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from console.monitor.consumers import PastSample
from console.monitor.past import Forecasts, Past
from console.monitor.snapshot import QueueSnapshot


class _Recorded:
    def folder(self) -> Path:
        from console.features.history.recorder import folder  # noqa: PLC0415

        return folder()

    def consumers(
        self, root: Path, connection: str, schema: str, queue: str, now: datetime
    ) -> Sequence[PastSample]:
        from console.features.history.consumers import recorded  # noqa: PLC0415

        return recorded(root, connection, schema, queue, now)

    def forecasts(self, connection: str) -> Forecasts:
        from console.features.history.traffic import TrafficForecasts  # noqa: PLC0415

        return TrafficForecasts(connection)

    def expecting(self, seen: Sequence[QueueSnapshot], connection: str) -> Sequence[QueueSnapshot]:
        from console.features.history.rollup_files import existing_default_lake  # noqa: PLC0415

        lake = existing_default_lake()
        if lake is None or all(snapshot.capacity is None for snapshot in seen):
            return seen
        from console.features.history.forecast import Forecast, of_all  # noqa: PLC0415

        known, now = of_all(lake, connection), datetime.now(UTC)
        return [
            known.get((snapshot.schema, snapshot.queue), Forecast()).with_filling(snapshot, now)
            for snapshot in seen
        ]


PAST: Past = _Recorded()
