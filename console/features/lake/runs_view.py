"""List the runs of pipeline jobs on this machine, newest first.

Runs of the command line and of the screens; --json has each result. A run without an exit
status was killed: the same command continues it.

\b
Examples:
  dbq-console pipeline runs
  dbq-console pipeline runs --limit 5 --json
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from console.features.lake import launch
from console.features.lake import runs as pipeline_runs
from console.features.lake.runs import Run, RunList, RunOutcome
from console.formats import duration, numbered, plain, row_rate
from console.verbs.parameters import Parameter, WholeNumber
from console.views.view import Column, Display, Line, Part, Source, Subject, View, or_unknown

_MARKS = {
    RunOutcome.RUNNING: "▶",
    RunOutcome.ELSEWHERE: "▶",
    RunOutcome.STOPPED: "!",
    RunOutcome.SILENT: "✖",
    RunOutcome.FAILED: "✖",
    RunOutcome.REFUSED: "✖",
    RunOutcome.MISMATCH: "✖",
}
_STYLES = {
    RunOutcome.RUNNING: "good",
    RunOutcome.STOPPED: "warning",
    RunOutcome.REFUSED: "warning",
    RunOutcome.SILENT: "critical",
    RunOutcome.FAILED: "critical",
    RunOutcome.MISMATCH: "critical",
}


def read(source: Source) -> RunList:
    run_list = pipeline_runs.read(pipeline_runs.folder())
    if run_list.unreadable:
        folder = pipeline_runs.folder()
        source.on_wait(f"{numbered(run_list.unreadable, 'file')} of {folder} cannot be read.")
    return RunList(run_list.runs[: source.values.get("limit")], run_list.unreadable)


def size(number: int | None) -> str:
    """`3.4 MB`; empty where it is not known."""
    if number is None:
        return ""
    if number < 1_000:
        return f"{number} B"
    for unit, of in (("kB", 1e3), ("MB", 1e6)):
        if number < of * 1_000:
            return f"{number / of:,.1f} {unit}"
    return f"{number / 1e9:,.1f} GB"


def _columns(display: Display) -> Sequence[Column[Run]]:
    now = display.now

    def rate(run: Run) -> float | None:
        return run.rows_per_second(now)

    def seconds(run: Run) -> float | None:
        return run.seconds(now)

    return (
        Column("mark", "", lambda run: _MARKS.get(run.outcome, ""), _mark_style, max_width=1),
        display.time_column("began", "began", lambda run: run.began_at, "quiet", ""),
        display.time_column("ended", "ended", lambda run: run.ended_at, "quiet", ""),
        Column("verb", "verb", lambda run: plain(run.verb), "strong", 7, 7),
        Column("of", "queue", lambda run: plain(run.queue), "", 8, 30),
        Column("connection", "connection", lambda run: plain(run.connection), "quiet", 8, 24),
        Column("outcome", "outcome", lambda run: run.outcome.value, _style, 20, 20),
        Column(
            "rows", "rows", lambda run: run.moved, "", 6, 14, align_right=True,
            sort_key=lambda run: run.rows,
        ),
        Column(
            "size", "size", lambda run: size(run.bytes), "quiet", 8, 10, align_right=True,
            sort_key=lambda run: run.bytes,
        ),
        Column(
            "rate", "rows/s", lambda run: or_unknown(rate(run), row_rate, ""), "quiet",
            6, 10, align_right=True, sort_key=rate,
        ),
        Column(
            "took", "took", lambda run: or_unknown(seconds(run), duration, ""), "quiet", 8, 10,
            align_right=True, sort_key=seconds,
        ),
        Column("lake", "lake", lambda run: plain(run.lake), "quiet", 8, 40),
        Column("progress", "", _progress, "quiet", 10, 120),
    )  # fmt: skip


def _style(run: Run) -> str:
    return _STYLES.get(run.outcome, "")


def _mark_style(run: Run) -> str:
    return _style(run) or "quiet"


def _progress(run: Run) -> str:
    return plain(run.progress if run.running else run.error.get("what", ""))


def _summary(result: RunList, display: Display) -> list[Line]:  # noqa: ARG001  # a view's
    running = sum(run.running for run in result.runs)
    return [
        [
            (numbered(len(result.runs), "run"), ""),
            (f", {running} running" if running else "", "good"),
        ]
    ]


def _detail(run: Run, display: Display) -> list[Part]:  # noqa: ARG001  # a view's
    """Its last message, for which a narrow table has no room, and its command."""
    error = " ".join(run.error.get(part, "") for part in ("what", "why"))
    text = run.progress or "No progress reported yet." if run.running else error.strip()
    last = f"{run.outcome.value}; before that: {run.progress or 'nothing'}"
    command = plain(launch.command_line(run.words))
    return [(plain(text or " ".join(run.lines[:1]) or last), ""), (f"\n{command}", "quiet")]


def _text(result: RunList, display: Display) -> Iterable[str]:
    if not result.runs:
        return ["No job has been run on this machine."]

    def below(run: Run) -> Iterable[str]:
        return [f"    {text}"] if (text := _progress(run)) else []

    return VIEW.table(result.runs, display, below)


def _json(result: RunList) -> Mapping[str, object]:
    now = datetime.now(UTC)
    return {"runs": [run.as_json(now) for run in result.runs], "unreadable": result.unreadable}


VIEW = View(
    "runs",
    __doc__,
    read,
    lambda result: {run.id: run for run in result.runs},
    _columns,
    subject=Subject.MACHINE,
    parameters=(
        Parameter("limit", "At most this many.", WholeNumber(1), default="20", metavar="N"),
    ),
    summary=_summary,
    detail=_detail,
    text=_text,
    json=_json,
    drop_order=("progress", "lake", "connection", "ended", "size", "took", "rate", "rows"),
    printed=("began", "verb", "of", "outcome", "rows", "rate", "took"),
)
