"""The tab Consumers of a queue: who pops from it, who pushes to it, and who disconnected."""

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import Consumer, disconnected, latest
from console.monitor.past import past
from console.monitor.rates import key_of
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import ListTab
from console.tui.views import QueueView
from console.views.consumers import VIEW, SampledConsumers
from console.views.view import View

_RECORDED_SECONDS = 30.0
"""How often the recording is read again."""
_SAMPLING_SECONDS = 0.8
"""How long sessions are sampled for each reading, as most calls take only a millisecond."""


class ConsumersTab(ListTab[SampledConsumers]):
    """Samples the sessions while it is shown, and remembers their consumers."""

    VIEW: ClassVar[View[Any, Any]] = VIEW
    NAME: ClassVar[str] = "consumers"
    TITLE: ClassVar[str] = "Consumers"
    SHORT_TITLE: ClassVar[str] = "Cons"
    EVERY_SECONDS: ClassVar[float] = 1.0
    PACE_SECONDS: ClassVar[float] = 1.0
    PAUSE: ClassVar[float] = 0
    COMMAND: ClassVar[Sequence[str]] = ("consumers",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "actions on its claims", tooltip="act on the claims of this consumer")
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self._watch: ConsumerWatch | None = None
        self._pop_rate: float | None = None
        self._recorded: tuple[Consumer, ...] = ()
        self._recorded_at: float | None = None

    def read(self, conn: OpenConnection | None) -> SampledConsumers:
        """Unlike the command line it remembers what it has seen."""
        assert conn is not None  # noqa: S101  # its list is about a queue
        queue = conn.find(*self.key[1:])
        past = self._recorded_consumers()
        if self._watch is None:
            self._watch = ConsumerWatch(conn.database)
            self._watch.recall(queue, past or ())
        key = key_of(queue)
        self._watch.sample_sessions_for([queue], _SAMPLING_SECONDS if self.result else 0.0)
        connected = self._watch.sample([queue], {key: self._pop_rate})[key]
        return SampledConsumers(
            connected, None if past is None else disconnected(past, connected.consumers)
        )

    def _recorded_consumers(self) -> tuple[Consumer, ...] | None:
        """Those of the last day; None: nothing is recorded."""
        root, (connection, schema, name) = self.context.recordings_root, self.key
        if root is None or (known := past()) is None:
            return None
        now = time.monotonic()
        if self._recorded_at is None or now - self._recorded_at > _RECORDED_SECONDS:
            utc = self.context.clock.utc()
            self._recorded = latest(known.consumers(root, connection, schema, name, utc))
            self._recorded_at = now
        return self._recorded or None

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        if view is not None:
            self._pop_rate = view.snapshot.pop_per_second
        super().draw(view, paused=paused)

    def action_act(self) -> None:
        row = self.table.row
        if row is None or not row.consumer.claims or row.consumer.name is None or row.gone:
            self.notify("It has no claims.", markup=False)
            return
        filters = ["state=claimed", f"claimed_by={row.consumer.name}"]
        self.navigator.open_actions(self.key, filters)
