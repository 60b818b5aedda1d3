"""The tab Consumers of a queue: who pops from it, who pushes to it, and who disconnected."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType

from console.formats import numbered, short_moment
from console.monitor import consumers as labels
from console.monitor.consumer_watch import ConsumerWatch
from console.monitor.consumers import Consumer, Consumers, disconnected, latest, recorded
from console.monitor.figures import key_of
from console.monitor.statement_text import POP, PUSH
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.open_connection import OpenConnection
from console.tui.tabs.tab import TableTab
from console.tui.text import TextView, plain, style_of
from console.tui.views import QueueView
from console.tui.widgets.keyed_table import Column, KeyedTable

_RECORDED_SECONDS = 30.0
"""How often the recording is read again."""
_SAMPLING_SECONDS = 0.8
"""How long sessions are sampled for each reading, as most calls take only a millisecond."""


@dataclass(frozen=True)
class SampledConsumers:
    """The connected ones, and those that disconnected; None: nothing is recorded."""

    now: Consumers
    gone: tuple[Consumer, ...] | None


@dataclass(frozen=True)
class Row:
    """One consumer, as sampled at a time of the database's clock."""

    consumer: Consumer
    at: datetime
    last_seen: str = ""
    """When it was last seen; empty: it is connected."""


def _style(row: Row) -> str:
    return "quiet" if row.last_seen or row.consumer.sessions == 0 else "strong"


def _since(row: Row) -> str:
    return row.last_seen or labels.ago(row.consumer.since, row.at)


def _unless_gone(value: str, row: Row) -> str:
    return "" if row.last_seen else value


COLUMNS: tuple[Column[Row], ...] = (
    Column("who", "who", lambda r: plain(labels.name(r.consumer)), _style, 18, 40),
    Column("does", "does", lambda r: labels.actions(r.consumer), "", 6, 12),
    Column("sessions", "sessions",
           lambda r: "gone" if r.last_seen else labels.sessions(r.consumer), _style, 8, 8,
           align_right=True),
    Column("pop", "last pop", lambda r: labels.last_pop(r.consumer, r.at), "", 8, 12,
           align_right=True),
    Column("call", "last call", lambda r: labels.last_call(r.consumer, r.at), "quiet", 9, 12,
           align_right=True),
    Column("rate", "msg/s", lambda r: _unless_gone(labels.rate_estimate(r.consumer), r), "", 7, 9,
           align_right=True),
    Column("claims", "claims", lambda r: _unless_gone(labels.claims(r.consumer), r), "", 6, 8,
           align_right=True),
    Column("since", "connected", _since, "quiet", 11, 15, align_right=True),
    Column("where", "where", lambda r: plain(labels.client(r.consumer)), "quiet", 10, 60),
)  # fmt: skip
DROP_ORDER = ("where", "since", "call")


class ConsumersTab(TableTab[SampledConsumers]):
    """Samples the sessions while it is shown, and remembers their consumers."""

    NAME: ClassVar[str] = "consumers"
    TITLE: ClassVar[str] = "Consumers"
    SHORT_TITLE: ClassVar[str] = "Cons"
    EVERY_SECONDS: ClassVar[float] = 1.0
    PACE_SECONDS: ClassVar[float] = 1.0
    PAUSE: ClassVar[float] = 0
    COMMAND: ClassVar[Sequence[str]] = ("consumers",)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "act", "actions on its claims", tooltip="act on the claims of this consumer"),
        Binding("y", "copy", "copy what is known about it", show=False),
    ]

    def __init__(self, context: Context, key: QueueKey) -> None:
        super().__init__(context, key)
        self.table = KeyedTable[Row](COLUMNS, DROP_ORDER, removed_column="sessions", id="consumers")
        self._watch: ConsumerWatch | None = None
        self._pop_rate: float | None = None
        self._recorded: tuple[Consumer, ...] = ()
        self._recorded_at: float | None = None

    def read(self, conn: OpenConnection) -> SampledConsumers:
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
        if root is None:
            return None
        now = time.monotonic()
        if self._recorded_at is None or now - self._recorded_at > _RECORDED_SECONDS:
            rows = recorded(root, connection, schema, name, self.context.clock.utc())
            self._recorded, self._recorded_at = latest(rows), now
        return self._recorded or None

    def show(self, result: SampledConsumers) -> None:
        at = result.now.at
        rows = {repr(one.identity): Row(one, at) for one in result.now.consumers}
        for one in result.gone or ():
            last_seen = short_moment(one.last_seen or at, self.context.zone)
            rows.setdefault(repr(one.identity), Row(one, at, last_seen))
        self.table.show(rows)

    def draw(self, view: QueueView | None, *, paused: bool) -> None:
        if view is not None:
            self._pop_rate = view.snapshot.pop_per_second
        super().draw(view, paused=paused)

    def detail(self) -> list[tuple[str, str]]:
        return [] if self.table.row is None else _detail(self.table.row)

    def summary(self, head: TextView, result: SampledConsumers) -> list[Text]:
        connected = [one for one in result.now.consumers if one.sessions != 0]
        pops = sum(POP in one.does for one in connected)
        pushes = sum(PUSH in one.does for one in connected)
        text = f"{numbered(pops, 'consumer')}, {numbered(pushes, 'producer')} seen"
        if unknown := sum(not one.does for one in connected):
            text += f", {unknown} by locks only"
        if not connected:
            text = "No session seen yet (short calls: by chance)"
        line = Text(text, style_of(head, "strong"), no_wrap=True)
        gone = (
            "gone: ? (not recorded)"
            if result.gone is None
            else f"{len(result.gone)} gone in the last day"
        )
        line = Text.assemble(line, (f"   {gone}", style_of(head, "quiet")), no_wrap=True)
        self.append_time(line)
        warning = style_of(head, "warning")
        missing = result.now.missing.values()
        return [line, *(Text(f"Not visible: {plain(why)}", warning) for why in missing)]

    def action_act(self) -> None:
        row = self.table.row
        if row is None or not row.consumer.claims or row.consumer.name is None or row.last_seen:
            self.notify("It has no claims.", markup=False)
            return
        filters = ["state=claimed", f"claimed_by={row.consumer.name}"]
        self.navigator.open_actions(self.key, filters)


def _detail(row: Row) -> list[tuple[str, str]]:
    """What is known about it, and why the rest is not."""
    one = row.consumer
    parts = [
        (plain(labels.name(one)), "strong"),
        (f"  {labels.actions(one)}; {plain(labels.client(one))}", ""),
    ]
    if row.last_seen:
        return [*parts, (f"\nlast seen {row.last_seen}", "quiet")]
    return [*parts, *((f"\n? {why}", "quiet") for why in labels.unknown_reasons([one]))]
