"""Prove what is wrong with queues, most severe first, and show the repairs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from console.catalog.decisions import Decision
from console.doctor.finding import Diagnosis, Finding
from console.formats import first_line, moment, plain, plain_lines, whole_seconds
from console.monitor.limits import Severity, limit_code
from console.views.view import Column, Display, Part, Source, View

FindingKey = tuple[str, str, str, str, str]
"""Connection, schema, queue name (empty: the connection itself), code, and what distinguishes
several findings of that code."""

CONNECTION = "connection"
LIMIT = "limit_reached"
"""Also a code of the doctor: its finding on a figure and the figure's own are shown as one."""
_OLD_SECONDS = 2.0
"""An older figure is shown with its age."""
_STYLES = {Severity.WARNING: "warning", Severity.CRITICAL: "critical"}


@dataclass(frozen=True)
class FindingView:
    """One finding at one moment."""

    key: FindingKey
    level: Severity
    summary: str
    """One line; safe to show."""
    since_seconds: float | None = None
    """How long it has existed, as far as known."""
    at_least: bool = False
    """It may be older: it was there at this console's first sample."""
    finding: Finding | None = None
    """The doctor's finding; None: it comes from figures, or from a connection."""
    label: str = ""
    """The queue's or the connection's name; safe to show."""
    connection_label: str = ""
    """The queue's connection, if there are several; safe to show."""
    stale_seconds: float | None = None
    """Its age, if its connection does not answer."""
    live: bool = False
    """The doctor found it, but its text has the newest figures."""
    silenced: Decision | None = None
    """The silence or acknowledgement: it is shown in grey, after the others."""
    explanation: str = ""
    """Of a connection: the whole error, on several lines; safe to show."""
    diagnosed_seconds_ago: float | None = None
    """How old the doctor's statement is; None: its text has the newest figures."""

    @property
    def text(self) -> str:
        """The summary, with its age if its figures are old, and with who silenced it."""
        if self.silenced is None:
            return self._summary
        return f"{self.silenced.state} by {plain(self.silenced.operator)}: {self._summary}"

    @property
    def _summary(self) -> str:
        old = self.diagnosed_seconds_ago is not None and self.diagnosed_seconds_ago >= _OLD_SECONDS
        if not old or not any(sign.isdigit() for sign in self.summary):
            return self.summary
        return f"{self.summary} ({whole_seconds(self.diagnosed_seconds_ago or 0.0)} ago)"

    @property
    def connection(self) -> str:
        return self.key[0]

    @property
    def queue_key(self) -> tuple[str, str, str] | None:
        """None: it is about the connection itself."""
        return None if self.key[3] == CONNECTION else self.key[:3]

    @property
    def code(self) -> str:
        """The doctor's code, or one of those above."""
        return self.key[3]

    @property
    def is_problem(self) -> bool:
        """Whether it is more than a note, and not silenced."""
        return self.level > Severity.NOTE and self.silenced is None

    @property
    def style(self) -> str:
        """The style of its text: grey if it is silenced."""
        return "quiet" if self.silenced else _STYLES.get(self.level, "quiet")

    @property
    def silence_code(self) -> str:
        """As `silence` and `ack` take it: for a limit with its figure."""
        if self.code == LIMIT:
            return f"{limit_code(self.level)}:{self.key[4]}"
        return self.code

    @property
    def mark(self) -> str:
        """One character per level, which needs no colour."""
        return self.level.mark

    @property
    def repair_text(self) -> str:
        """Its repair; if it is silenced, until when and why. Safe to show."""
        if self.silenced is not None:
            return first_line(self.silenced.lasting)
        repair = None if self.finding is None else self.finding.repair
        return "" if repair is None else first_line(repair.summary)


def read(source: Source) -> Sequence[Diagnosis]:
    """`source.values`: the queues, and what `diagnose` remembers of earlier examinations."""
    from console.doctor.diagnose import diagnose  # noqa: PLC0415  # slow to import

    limits, masks = source.thresholds_of, source.masks
    return diagnose(source.database, thresholds_of=limits, masks=masks, **source.values)


def summary_style(view: FindingView) -> str:
    if view.stale_seconds is not None and view.queue_key is not None:
        return "stale"
    if view.silenced is not None:
        return "quiet"
    return "critical" if view.level is Severity.CRITICAL else ""


def lasted_text(view: FindingView) -> str:
    if view.since_seconds is None:
        return ""
    return ("> " if view.at_least else "") + whole_seconds(view.since_seconds)


def _columns(_: Display) -> Sequence[Column[FindingView]]:
    return (
        Column("mark", "", lambda v: v.mark, lambda v: v.style, max_width=1),
        Column("level", "level", lambda v: v.level.word, lambda v: v.style, 7, 8,
               sort_key=lambda v: v.level),
        Column("summary", "finding", lambda v: v.text, summary_style, 44, 1000),
        Column("since", "for", lasted_text, "quiet", 5, 14, align_right=True,
               sort_key=lambda v: v.since_seconds),
        Column("code", "code", lambda v: v.code, "quiet", 8, 24),
        Column("repair", "repair", lambda v: v.repair_text, "quiet", 24, 60),
    )  # fmt: skip


def _rows(result: Sequence[Diagnosis]) -> dict[str, FindingView]:
    """As the doctor found them; the screens show them with the newest figures."""
    views = [
        FindingView(
            ("", diagnosis.queue.schema, diagnosis.queue.name, finding.code.name, str(number)),
            finding.code.severity,
            first_line(finding.summary),
            finding=finding,
            silenced=finding.silenced,
        )
        for diagnosis in result
        for number, finding in enumerate(diagnosis.findings)
    ]
    return by_key(views)


def by_key(views: Iterable[FindingView]) -> dict[str, FindingView]:
    return {repr(view.key): view for view in views}


def _detail(view: FindingView, display: Display) -> Sequence[Part]:
    if view.finding is None:
        return [(f"{view.level.word}: {view.text}", "")]
    return [(plain_lines("\n".join(_finding(view.finding, display))), "")]


def _text(result: Sequence[Diagnosis], display: Display) -> Iterator[str]:
    for diagnosis in result:
        yield plain(f"{diagnosis.queue.label} ({diagnosis.queue.design.name}): {diagnosis.verdict}")
        for finding in diagnosis.findings:
            yield from (f"  {plain(line)}" for line in _finding(finding, display))
        yield from (f"  not examined: {plain(why)}" for why in diagnosis.unseen)
    if not result:
        yield "No queues are installed or adopted here."


def _finding(finding: Finding, display: Display) -> Iterator[str]:
    """All of it, a line each."""
    began = "" if finding.since is None else f", since {moment(finding.since, display.zone)}"
    yield f"{finding.severity_text}: {finding.summary} [{finding.code.name}]{began}"
    if finding.silenced is not None:
        yield f"  {finding.silenced.words}"
    for head, words in (("cause", finding.cause), ("consequence", finding.consequence)):
        if words:
            yield f"  {head}: {words}"
    yield from (f"  {line}" for line in finding.evidence_lines)
    if finding.repair is not None:
        yield f"  repair: {finding.repair.summary}"
        yield f"    {finding.command}"
    yield from (f"  {line}" for line in finding.judgement_text.splitlines())
    if finding.runbook:
        yield f"  runbook: {finding.runbook}"


def _json(result: Sequence[Diagnosis]) -> Mapping[str, object]:
    return {"queues": [diagnosis.as_json() for diagnosis in result]}


VIEW = View(
    "doctor",
    __doc__,
    read,
    _rows,
    _columns,
    detail=_detail,
    text=_text,
    json=_json,
    drop_order=("level", "code", "repair", "since"),
)
"""The verb also repairs them."""
