"""Count a queue's errors in groups of similar texts.

Texts that differ only in numbers, ids, times, addresses and quoted text form one group; codes
(HTTP 503, SQLSTATE 40001) and types are distinguished. Below each group is its filter,
error-group=KEY, for `messages`, `requeue`, `purge` and `archive`. The newest
1,000,000 errors are counted, for at most a minute; ≈ means that there are older ones.
Text that matches the profile's masks is ***, also in --json.

\b
Examples:
  dbq-console errors mail
  dbq-console errors mail --json
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from console.formats import ESTIMATE, UNKNOWN, count, numbered, plain
from console.monitor.errors import ErrorGroup, ErrorGroups, attempts_range, error_groups
from console.views.view import Column, Display, Line, Part, Source, View, as_json, cut

_MOST_GROUPS = 50
"""Error groups printed; --json has all."""


def read(source: Source) -> ErrorGroups:
    return error_groups(source.database, source.queue, masks=source.masks)


def _columns(display: Display) -> Sequence[Column[ErrorGroup]]:
    return (
        Column(
            "count", "errors", lambda group: count(group.count), "strong", 6, 12,
            align_right=True, sort_key=lambda group: group.count,
        ),
        display.time_column("first", "first", lambda group: group.first_at, "quiet"),
        display.time_column("last", "last", lambda group: group.last_at),
        Column(
            "tries", "attempts", attempts_range, "quiet", 8, 8,
            align_right=True, sort_key=lambda group: group.attempts_most,
        ),
        Column("wording", "group", wording, "", 40, 400),
    )  # fmt: skip


def wording(group: ErrorGroup) -> str:
    return plain(group.wording) or "(no text)"


def _counted(result: ErrorGroups) -> str:
    groups = numbered(len(result.groups), "group") + " at least" * bool(result.ungrouped)
    return f"{numbered(result.counted, 'error')} in {groups}"


_OLDER = ", the newest; older ones were not counted"


def _summary(result: ErrorGroups, display: Display) -> list[Line]:  # noqa: ARG001  # a view's
    first: Part = (_counted(result), "strong") if result.counted else ("No errors.", "good")
    return [[first, ("" if result.complete else _OLDER, "warning")]]


def _detail(group: ErrorGroup, display: Display) -> list[Part]:  # noqa: ARG001  # a view's
    sample = plain(" ".join(group.sample.split())) or "(no text)"
    of = "" if group.sample_id is None else f", message {plain(group.sample_id)}"
    return [(f"newest{of}: ", "quiet"), (sample, "")]


def _text(result: ErrorGroups, display: Display) -> Iterator[str]:
    """For a plain terminal: four lines for each group."""
    estimate = "" if result.complete else ESTIMATE
    if not result.counted:
        yield "No errors."
        return
    yield f"{_counted(result)}{'' if result.complete else _OLDER}."
    shown = result.groups[:_MOST_GROUPS]
    width = max(len(estimate + count(group.count)) for group in shown)
    for group in shown:
        yield ""
        for at, line in enumerate(_lines(group, display)):
            head = estimate + count(group.count) if at == 0 else ""
            yield cut(f"{head:>{width}}  {line}")
    rest = result.counted - sum(group.count for group in shown)
    if rest:
        yield ""
        yield f"and {estimate}{numbered(rest, 'error')} in other groups"


def _lines(group: ErrorGroup, display: Display) -> Iterable[str]:
    times = f"{display.moment(group.first_at)} to {display.moment(group.last_at)}"
    sample_id = UNKNOWN if group.sample_id is None else plain(group.sample_id)
    return (
        wording(group),
        f"{times}, attempts: {attempts_range(group)}",
        f"sample {sample_id}: {plain(group.sample)}",
        f"error-group={group.key}",
    )


def _json(result: ErrorGroups) -> Mapping[str, object]:
    return {
        "queue": result.queue.name,
        "design": result.queue.design.name,
        "groups": [as_json(group) for group in result.groups],
        "counted": result.counted,
        "ungrouped": result.ungrouped,
        "complete": result.complete,
    }


VIEW = View(
    "errors",
    __doc__,
    read,
    lambda result: {group.key: group for group in result.groups},
    _columns,
    summary=_summary,
    detail=_detail,
    text=_text,
    json=_json,
    drop_order=("tries", "first"),
)
