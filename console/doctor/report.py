"""A report on a queue as Markdown, for a ticket: figures, findings, notes and actions."""

import re
from collections.abc import Iterator, Sequence
from datetime import tzinfo

from console.catalog.audit import Entry
from console.catalog.decisions import Note
from console.doctor.finding import Diagnosis
from console.figures import READY, SCHEDULED, SHOWN
from console.formats import NOT_APPLICABLE, moment, plain
from console.monitor.snapshot import QueueSnapshot


def markdown(
    diagnosis: Diagnosis,
    figures: QueueSnapshot | None,
    actions: Sequence[Entry],
    zone: tzinfo | None,
    notes: Sequence[Note] = (),
    of_standby: str = "",
) -> str:
    """The report. It holds no payload. `of_standby`: says that it is about a standby."""
    return "\n".join(
        (
            *_head(diagnosis, of_standby),
            *_decisions(figures),
            *_figures(figures),
            *_subscribers(figures),
            *_findings(diagnosis, zone),
            *_notes(notes, zone),
            *_actions(actions, zone),
        )
    )


def _head(diagnosis: Diagnosis, of_standby: str) -> Iterator[str]:
    queue = diagnosis.queue
    yield f"# {escaped(queue.label)}"
    yield ""
    options = ", ".join(f"{name}={value}" for name, value in sorted(queue.options.items()))
    yield f"Design {queue.design.name} ({escaped(options)}). Verdict: **{diagnosis.verdict}**."
    yield ""
    if of_standby:
        yield f"**{escaped(of_standby)}**"
        yield ""


def _decisions(figures: QueueSnapshot | None) -> Iterator[str]:
    for decision in () if figures is None else figures.decisions:
        yield f"**{escaped(decision.shown)}**"
        yield ""


def _figures(figures: QueueSnapshot | None) -> Iterator[str]:
    if figures is None:
        return
    # What can be popped now and later comes first.
    ordered = sorted(SHOWN, key=lambda of: of not in {READY, SCHEDULED})
    shown = [(of.words or of.title, figures.text_of(of.name)) for of in ordered]
    yield "| figure | value |"
    yield "| --- | ---: |"
    shown += () if figures.latency is None else figures.latency.labels_and_texts
    yield from (f"| {words} | {value} |" for words, value in shown if value != NOT_APPLICABLE)
    yield ""


def _subscribers(figures: QueueSnapshot | None) -> Iterator[str]:
    snapshots = () if figures is None else figures.subscribers or ()
    for at, snapshot in enumerate(snapshots):
        names, values = zip(*snapshot.figures, strict=True)
        if at == 0:
            yield f"| subscriber | {' | '.join(names)} |"
            yield f"| --- |{' ---: |' * len(names)}"
        yield f"| {escaped(snapshot.subscriber)} | {' | '.join(values)} |"
    if snapshots:
        yield ""


def _findings(diagnosis: Diagnosis, zone: tzinfo | None) -> Iterator[str]:
    yield "## Findings"
    yield ""
    if not diagnosis.findings:
        yield "None." if diagnosis.unseen else "None: all clear."
        yield ""
    for finding in diagnosis.findings:
        since = "" if finding.since is None else f", since {moment(finding.since, zone)}"
        yield f"### {finding.severity_text}: {escaped(finding.summary)}"
        yield ""
        yield f"`{finding.code.name}`{since}"
        yield ""
        if finding.silenced is not None:
            yield f"- {escaped(finding.silenced.words.capitalize())}"
        for head, words in (("Cause", finding.cause), ("Consequence", finding.consequence)):
            if words:
                yield f"- {head}: {escaped(words)}"
        for line in finding.evidence_lines:
            yield f"- {escaped(line)}"
        if finding.repair is not None:
            yield f"- Repair: {escaped(finding.repair.summary)} ({_code(finding.command)})"
        else:
            words, *statement = finding.judgement_text.splitlines()
            yield f"- {escaped(words)}"
            yield from (f"  - {_code(line)}" for line in statement)
        if finding.runbook:
            yield f"- Runbook: {escaped(finding.runbook)}"
        yield ""
    for why in diagnosis.unseen:
        yield f"Not examined: {escaped(why)}"
        yield ""


def _notes(notes: Sequence[Note], zone: tzinfo | None) -> Iterator[str]:
    if not notes:
        return
    yield "## Notes"
    yield ""
    for note in notes:
        of = "" if note.queue else " (of the whole database)"
        yield f"- {moment(note.noted_at, zone)}: {escaped(note.note)}, {escaped(note.operator)}{of}"
    yield ""


def _actions(actions: Sequence[Entry], zone: tzinfo | None) -> Iterator[str]:
    yield "## Last actions"
    yield ""
    if not actions:
        yield "None."
        return
    yield "| when | verb | outcome | done | by | filters |"
    yield "| --- | --- | --- | ---: | --- | --- |"
    for entry in actions:
        when = moment(entry.started_at, zone)
        counts = f"{entry.done:,} of {entry.planned:,}"
        yield (
            f"| {when} | {escaped(entry.verb)} | {escaped(entry.outcome)} | {counts} "
            f"| {escaped(entry.operator)} | {escaped(entry.filters)} |"
        )


def _code(text: str) -> str:
    """Fenced by more backticks than the text has."""
    most = max(map(len, re.findall("`+", text)), default=0)
    fence, room = "`" * (most + 1), " " if most else ""
    return f"{fence}{room}{plain(text)}{room}{fence}"


def escaped(text: str) -> str:
    """Data on one line, never interpreted as Markdown or by a terminal."""
    one_line = plain(" ".join(text.split()))
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in one_line)
