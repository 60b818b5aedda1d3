"""The thread of a replay: it reads recordings, builds stores of the past, and plays on."""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from console.catalog import Queue
from console.designs import DESIGNS, presets
from console.doctor.finding import Code, Diagnosis, Finding
from console.errors import ConsoleError
from console.features.history.reader import RecordReader
from console.features.history.recordings.player import Replay
from console.features.history.segments import (
    FINDINGS,
    LINKS,
    SAMPLES,
    TimeRange,
    snapshot_of,
    standby_of,
)
from console.monitor.limits import Severity
from console.monitor.sampler import Reading
from console.tui.store import Store

BACK = timedelta(hours=1)
"""How far before a position the charts are filled..."""
AHEAD = timedelta(minutes=10)
MOST_SAMPLES = 40_000
"""... and how far ahead is read, but at most this many samples of queues each way."""
_FINDINGS_BACK = timedelta(minutes=15)
_OLD_PAUSE_SECONDS = 15.0
"""Older recordings lack the intended pause: one up to this long counts as intended."""
_SEVERITIES = {severity.word: severity for severity in Severity}

RecordRow = Mapping[str, Any]


@dataclass(frozen=True)
class Frame:
    """What the sampler or the doctor recorded at one moment."""

    at: datetime
    connection: str
    reading: Reading | None = None
    diagnoses: tuple[Diagnosis, ...] = ()


class ConnectionRecording:
    """One connection's recording, for one thread; blocks on the disk."""

    def __init__(self, root: Path, connection: str) -> None:
        self.connection = connection
        self._reader = RecordReader(root, connection)
        self._span: TimeRange | None = None
        self._frames: list[Frame] = []
        self._times: list[datetime] = []
        self._designs: dict[tuple[str, str], str] = {}
        self._since: dict[tuple[str, str], dict[str, datetime]] = {}

    def before(self, moment: datetime) -> list[Frame]:
        """The frames up to and including a moment."""
        self._since.clear()
        self._load(moment, back=True)
        return self._frames[: bisect_right(self._times, moment)]

    def between(self, after: datetime, until: datetime) -> list[Frame]:
        """The frames after a moment, up to and including another."""
        frames: list[Frame] = []
        while self._span is None or until >= self._span.end:
            if self._span is not None:
                frames += self._frames[bisect_right(self._times, after) :]
                after = max(after, self._span.end - timedelta(microseconds=1))
            self._load(after if self._span is None else self._span.end, back=False)
        begin, end = (bisect_right(self._times, at) for at in (after, until))
        return frames + self._frames[begin:end]

    def _load(self, moment: datetime, *, back: bool) -> None:
        begin = moment - BACK if back else moment
        links = self._reader.rows(LINKS, TimeRange(begin, moment + AHEAD))
        span = _bounded(links, TimeRange(begin, moment + AHEAD), moment)
        links = [link for link in links if link["at"] in span]
        samples: dict[datetime, list[RecordRow]] = {}
        for row in self._reader.rows(SAMPLES, span):
            samples.setdefault(row["at"], []).append(row)
            self._designs[row["schema"], row["queue"]] = row["design"] or ""
        frames = [
            Frame(link["at"], self.connection, self._reading(link, following, samples))
            for link, following in zip_longest(links, links[1:])
        ]
        findings_from = min(span.begin, moment - _FINDINGS_BACK) if back else span.begin
        frames += self._diagnoses(self._reader.rows(FINDINGS, TimeRange(findings_from, span.end)))
        frames.sort(key=lambda frame: (frame.at, frame.reading is None))
        self._span, self._frames = span, frames
        self._times = [frame.at for frame in frames]

    def _reading(
        self,
        link: RecordRow,
        following: RecordRow | None,
        samples: Mapping[datetime, Sequence[RecordRow]],
    ) -> Reading:
        pause = link["next_seconds"]
        if pause is None and following is not None:
            seconds = (following["at"] - link["at"]).total_seconds()
            pause = seconds if seconds <= _OLD_PAUSE_SECONDS else None
        error = None if link["error"] is None else ConsoleError(link["error"])
        return Reading(
            self.connection,
            tuple(snapshot_of(row, self.connection) for row in samples.get(link["at"], ())),
            latency_seconds=link["latency_seconds"],
            error=error,
            retry_seconds=pause if error else None,
            next_seconds=pause,
            standby=standby_of(link),
        )

    def _diagnoses(self, rows: Sequence[RecordRow]) -> Iterator[Frame]:
        by_frame: dict[datetime, dict[tuple[str, str], list[RecordRow]]] = {}
        for row in rows:
            queues = by_frame.setdefault(row["at"], {})
            queues.setdefault((row["schema"], row["queue"]), []).append(row)
        for at, queues in by_frame.items():
            diagnoses = tuple(
                self._diagnosis(pair, found_rows, at) for pair, found_rows in queues.items()
            )
            yield Frame(at, self.connection, diagnoses=diagnoses)

    def _diagnosis(
        self, pair: tuple[str, str], rows: Sequence[RecordRow], at: datetime
    ) -> Diagnosis:
        """Without the evidence, which is not recorded."""
        before = self._since.get(pair, {})
        codes = [row["code"] for row in rows if row["code"]]
        since = self._since[pair] = {code: before.get(code, at) for code in codes}
        findings = tuple(
            Finding(
                Code(row["code"], _SEVERITIES.get(row["severity"], Severity.WARNING), ""),
                row["summary"] or row["code"],
                since=since[row["code"]],
            )
            for row in rows
            if row["code"]
        )
        name = self._designs.get(pair, "")
        design = presets().get(name) or DESIGNS.get(name) or DESIGNS["fifo"]
        is_incomplete = rows[0]["verdict"] == "unknown"
        why = ("not everything was examined then",) if is_incomplete else ()
        return Diagnosis(Queue(*pair, design, {}, {}), findings, why)


def _bounded(links: Sequence[RecordRow], span: TimeRange, moment: datetime) -> TimeRange:
    """The part of a span around a moment that is not too much to load at once."""
    begin, end = span.begin, span.end
    samples = 0
    for link in reversed([link for link in links if link["at"] <= moment]):
        samples += link["queues"] or 0
        if samples > MOST_SAMPLES:
            begin = link["at"]
            break
    samples = 0
    for link in (link for link in links if link["at"] > moment):
        samples += link["queues"] or 0
        if samples > MOST_SAMPLES:
            end = link["at"] + timedelta(microseconds=1)
            break
    return TimeRange(begin, end)


def downsample(frames: Sequence[Frame], most: int) -> list[Frame]:
    """At most this many samples; those kept also cover the time of those left out."""
    stride = -(-len(frames) // max(1, most))
    if stride <= 1:
        return list(frames)
    kept = []
    for frame, following in zip(frames[::stride], [*frames[stride::stride], None], strict=True):
        reading = frame.reading
        if reading is not None and following is not None:
            seconds = (following.at - frame.at).total_seconds()
            longest = max(seconds, reading.next_seconds or 0.0)
            reading = replace(reading, next_seconds=longest)
        kept.append(replace(frame, reading=reading))
    return kept


_TICK_SECONDS = 0.1
_MOST_AT_ONCE = 3_000
"""Samples of queues per tick at most, so that the screen does not freeze."""


class Position(NamedTuple):
    """The position of a seek, with its store."""

    at: datetime
    store: Store


class FramesUntil(NamedTuple):
    """The frames up to a moment, since the previous step."""

    until: datetime
    frames: Sequence[Frame]


ReplayStep = Position | FramesUntil


class ReplayThread:
    """`show` is called in this thread, and not again before `mark_shown`."""

    def __init__(
        self,
        replay: Replay,
        new_store: Callable[[datetime], Store],
        show: Callable[[ReplayStep], None],
    ) -> None:
        self._replay = replay
        self._new_store = new_store
        self._show = show
        self._recordings = [ConnectionRecording(replay.root, name) for name in replay.connections]
        self._stop = threading.Event()
        self._step_shown = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def mark_shown(self) -> None:
        self._step_shown.set()

    def stop(self) -> None:
        self._stop.set()
        self._step_shown.set()

    def _run(self) -> None:
        player = self._replay.player
        while not self._stop.wait(_TICK_SECONDS):
            if (target := player.target) is not None:
                position = self._position(target)
                if position is not None and player.target == target:
                    self._deliver(position)
                continue
            following = player.next_at
            if following > player.at:
                self._deliver(FramesUntil(following, self._frames(player.at, following)))

    def _deliver(self, step: ReplayStep) -> None:
        self._step_shown.clear()
        self._show(step)
        self._step_shown.wait()

    def _position(self, moment: datetime) -> Position | None:
        """The store as if the console had been open then; None: it was stopped."""
        store = self._new_store(moment)
        for recording in self._recordings:
            frames = recording.before(moment)
            readings = [frame for frame in frames if frame.reading is not None]
            for frame in readings[:-1]:
                if self._stop.is_set():
                    return None
                if frame.reading is not None:
                    store.add_past_reading(
                        recording.connection, frame.reading, frame.at.timestamp()
                    )
            _apply_last(store, readings)
            for frame in _latest([frame for frame in frames if frame.reading is None]):
                apply_frame(store, frame)
        return Position(moment, store)

    def _frames(self, after: datetime, until: datetime) -> list[Frame]:
        all_frames: list[Frame] = []
        for recording in self._recordings:
            frames = recording.between(after, until)
            queues = max(
                (len(frame.reading.queues) for frame in frames if frame.reading), default=1
            )
            most = max(1, _MOST_AT_ONCE // max(1, queues))
            readings = downsample([frame for frame in frames if frame.reading is not None], most)
            all_frames += [*readings, *(frame for frame in frames if frame.reading is None)]
        return sorted(all_frames, key=lambda frame: frame.at)


def apply_frame(store: Store, frame: Frame) -> None:
    at = frame.at.timestamp()
    if frame.reading is not None:
        store.add_reading(frame.connection, frame.reading, at)
    if frame.diagnoses:
        store.add_diagnoses(frame.connection, frame.diagnoses, at, frame.at)


def _apply_last(store: Store, readings: Sequence[Frame]) -> None:
    """Apply the last sample; if it failed, first the last successful one."""
    if not readings:
        return
    good = [frame for frame in readings if frame.reading and frame.reading.error is None]
    if good and good[-1] is not readings[-1]:
        apply_frame(store, good[-1])
    apply_frame(store, readings[-1])


def _latest(frames: Sequence[Frame]) -> list[Frame]:
    """Only the last diagnosis of each queue."""
    last: dict[tuple[str, str], Frame] = {}
    for frame in frames:
        for diagnosis in frame.diagnoses:
            last[diagnosis.queue.schema, diagnosis.queue.name] = Frame(
                frame.at, frame.connection, diagnoses=(diagnosis,)
            )
    return sorted(last.values(), key=lambda frame: frame.at)
