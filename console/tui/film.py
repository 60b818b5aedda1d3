"""What was recorded of one connection, as the looks that they were: readings and diagnoses."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

from console.catalog import Queue
from console.designs import DESIGNS, LIBRARIES
from console.doctor.finding import Code, Diagnosis, Finding, Severity
from console.errors import ConsoleError
from console.monitor import Reading
from console.monitor.recording.reading import Reader, Span
from console.monitor.recording.records import FINDINGS, LINKS, SAMPLES, snapshot_of

BACK = timedelta(hours=1)
"""So far before a position the charts are filled..."""
AHEAD = timedelta(minutes=10)
MOST_SAMPLES = 40_000
"""... and so far ahead is read, but no more than so many figures of queues each way."""
_FINDINGS_BACK = timedelta(minutes=15)
_OLD_PAUSE_SECONDS = 15.0
"""Older recordings do not tell which pause was meant: one up to this long is taken for meant."""
_SEVERITIES = {severity.word: severity for severity in Severity}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Look:
    """What was seen at one moment: by the sampler, or by the doctor."""

    at: datetime
    connection: str
    reading: Reading | None = None
    diagnoses: tuple[Diagnosis, ...] = ()


class Film:
    """One connection's recording. In the hands of one thread; waits for the disk."""

    def __init__(self, root: Path, connection: str) -> None:
        self.connection = connection
        self._reader = Reader(root, connection)
        self._span: Span | None = None
        self._looks: list[Look] = []
        self._times: list[datetime] = []
        self._designs: dict[tuple[str, str], str] = {}
        self._since: dict[tuple[str, str], dict[str, datetime]] = {}

    def before(self, moment: datetime) -> list[Look]:
        """What is to be known at a moment, from the looks before it and at it."""
        self._since.clear()
        self._load(moment, back=True)
        return self._looks[: bisect_right(self._times, moment)]

    def between(self, after: datetime, until: datetime) -> list[Look]:
        """The looks after a moment, up to another and with it."""
        found: list[Look] = []
        while self._span is None or until >= self._span.end:
            if self._span is not None:
                found += self._looks[bisect_right(self._times, after) :]
                after = max(after, self._span.end - timedelta(microseconds=1))
            self._load(after if self._span is None else self._span.end, back=False)
        begin, end = (bisect_right(self._times, at) for at in (after, until))
        return found + self._looks[begin:end]

    def _load(self, moment: datetime, *, back: bool) -> None:
        begin = moment - BACK if back else moment
        links = self._reader.rows(LINKS, Span(begin, moment + AHEAD))
        span = _bounded(links, Span(begin, moment + AHEAD), moment)
        links = [link for link in links if link["at"] in span]
        samples: dict[datetime, list[Row]] = {}
        for row in self._reader.rows(SAMPLES, span):
            samples.setdefault(row["at"], []).append(row)
            self._designs[row["schema"], row["queue"]] = row["design"] or ""
        looks = [
            Look(link["at"], self.connection, self._reading(link, following, samples))
            for link, following in zip_longest(links, links[1:])
        ]
        told_from = min(span.begin, moment - _FINDINGS_BACK) if back else span.begin
        looks += self._diagnoses(self._reader.rows(FINDINGS, Span(told_from, span.end)))
        looks.sort(key=lambda look: (look.at, look.reading is None))
        self._span, self._looks = span, looks
        self._times = [look.at for look in looks]

    def _reading(
        self, link: Row, following: Row | None, samples: Mapping[datetime, Sequence[Row]]
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
        )

    def _diagnoses(self, rows: Sequence[Row]) -> Iterator[Look]:
        by_look: dict[datetime, dict[tuple[str, str], list[Row]]] = {}
        for row in rows:
            queues = by_look.setdefault(row["at"], {})
            queues.setdefault((row["schema"], row["queue"]), []).append(row)
        for at, queues in by_look.items():
            told = tuple(self._diagnosis(pair, found, at) for pair, found in queues.items())
            yield Look(at, self.connection, diagnoses=told)

    def _diagnosis(self, pair: tuple[str, str], rows: Sequence[Row], at: datetime) -> Diagnosis:
        """As it was told, without the evidence, which is not recorded."""
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
        design = LIBRARIES.get(name) or DESIGNS.get(name) or DESIGNS["fifo"]
        unseen = rows[0]["verdict"] == "unknown"
        why = ("not everything could be looked at then",) if unseen else ()
        return Diagnosis(Queue(*pair, design, {}, {}), findings, why)


def _bounded(links: Sequence[Row], span: Span, moment: datetime) -> Span:
    """As much of a span around a moment as is not too much at once."""
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
    return Span(begin, end)


def thinned(looks: Sequence[Look], most: int) -> list[Look]:
    """So many looks at most; those that are left reach as far as those that were left out."""
    stride = -(-len(looks) // max(1, most))
    if stride <= 1:
        return list(looks)
    kept = []
    for look, following in zip(looks[::stride], [*looks[stride::stride], None], strict=True):
        reading = look.reading
        if reading is not None and following is not None:
            seconds = (following.at - look.at).total_seconds()
            longest = max(seconds, reading.next_seconds or 0.0)
            reading = replace(reading, next_seconds=longest)
        kept.append(replace(look, reading=reading))
    return kept
