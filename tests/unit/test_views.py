"""Lists as values: their tables as text, what is typed to filter them, their values and JSON."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from console.errors import UsageError
from console.features.lake import runs_view as runs
from console.features.lake.runs import Run, RunList
from console.monitor.consumers import Consumer, Consumers
from console.views import audit, consumers, get_view, summaries
from console.views.view import Column, Display, View, aligned, parse
from tests.tui.test_audit import RUNNING
from tests.tui.test_messages import QUEUE
from tests.tui.test_tabs import NIGHT

PRAGUE = ZoneInfo("Europe/Prague")
WINTER = datetime(2026, 1, 15, 12, 0, tzinfo=UTC)
SUMMER = datetime(2026, 7, 15, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    name: str
    at: datetime | None = None
    number: int = 0


COLUMNS: tuple[Column[Row], ...] = (
    Column[Row]("name", "name", lambda row: row.name),
    Display(PRAGUE, SUMMER).time_column("at", "at", lambda row: row.at),
    Column[Row]("number", "number", lambda row: str(row.number), align_right=True),
)


def table(*rows: Row, width: int | None = None) -> list[str]:
    return [*aligned(COLUMNS, rows, PRAGUE, width=width)]


def test_a_title_has_the_offset_of_its_times_only_where_all_have_it() -> None:
    assert table(Row("a", SUMMER, 7), Row("b", None, 4711)) == [
        "name  at +02:00            number",
        "a     2026-07-15 14:00:00       7",
        "b     ?                      4711",
    ]
    assert table(Row("a", SUMMER), Row("b", WINTER)) == [
        "name  at                          number",
        "a     2026-07-15 14:00:00 +02:00       0",
        "b     2026-01-15 13:00:00 +01:00       0",
    ]


def test_wide_letters_are_aligned_and_the_last_columns_are_left_out_without_room() -> None:
    assert table(Row("注文"), Row("\x1b"), width=10) == ["name  at", "注文  ?", "␛     ?"]


def test_runs_of_winter_and_summer_each_have_their_own_offset() -> None:
    """Their times were once given the offset of the moment of printing."""
    listed = (Run("2", "rollup", SUMMER), Run("1", "rollup", WINTER))
    lines = [*runs.VIEW.lines(RunList(listed), Display(PRAGUE, SUMMER))]
    assert lines[0].split() == ["began", "verb", "queue", "outcome", "rows", "rows/s", "took"]
    assert [line[:26] for line in lines[1:]] == [
        "2026-07-15 14:00:00 +02:00",
        "2026-01-15 13:00:00 +01:00",
    ]


@pytest.mark.parametrize(
    ("alive", "outcome"), [(True, "running"), (False, "interrupted"), (None, "running?")]
)
def test_what_is_not_known_to_run_is_not_printed_as_running(
    alive: bool | None, outcome: str
) -> None:
    (line,) = audit.VIEW.lines((audit.AuditRow(RUNNING, alive),), Display(UTC, SUMMER))
    assert f": {outcome}  4,990 of 5,000, 8 skipped  in 1 min 04 s  by ann" in line


def test_what_is_typed_is_options_and_words() -> None:
    search = parse(audit.VIEW, "verb=purge since=1d running Mail a=b operator=")
    assert search.values == {"verb": "purge", "since": 86_400.0, "running": True}
    assert search.command_words == ["--verb", "purge", "--since", "1d", "--running"]
    assert search.words == ("mail", "a=b")
    with pytest.raises(UsageError, match="not a duration"):
        parse(audit.VIEW, "since=soon")


@pytest.mark.parametrize("name", summaries())
def test_each_list_is_described_and_its_columns_have_names_of_their_own(name: str) -> None:
    view: View[object, object] = get_view(name)
    assert view.name == name
    assert view.help.replace("\n", " ").startswith(summaries()[name].removesuffix("."))
    names = [column.name for column in view.columns(Display(UTC, SUMMER))]
    assert len(set(names)) == len(names)
    assert {*view.drop_order, *view.printed} <= {*names, "trend"}  # the tab Waits adds a trend
    assert view.removed_column in {*names, ""}


def test_the_values_without_any_option_are_those_of_the_command_line() -> None:
    assert audit.VIEW.default_values() == {
        **dict.fromkeys(("verb", "operator", "since")),
        "running": False,
        "limit": 50,
    }


def test_a_list_of_rows_needs_no_texts_of_its_own() -> None:
    read: Callable[[object], list[Row]] = lambda _: []  # noqa: E731
    view = View(
        "rows", "List rows.", read, lambda rows: {row.name: row for row in rows},
        lambda _: COLUMNS, empty="No rows.",
    )  # fmt: skip
    display = Display(PRAGUE, SUMMER)
    assert view.lines([], display) == ["No rows."]
    assert [*view.lines([Row("a", SUMMER)], display)] == ["1 row", *table(Row("a", SUMMER))]
    assert view.as_json([Row("a", SUMMER, 1)]) == {
        "rows": [{"name": "a", "at": "2026-07-15T12:00:00+00:00", "number": 1}]
    }
    assert view.details(Row("a"), display) == [("name a  at ?  number 0", "")]


def test_a_time_in_a_file_has_its_year_and_zone() -> None:
    column = Display(UTC, SUMMER).time_column("at", "at", lambda at: at)
    assert column.exported(SUMMER) == SUMMER.isoformat()
    assert column.exported(None) == "?"


@pytest.mark.parametrize(
    ("gone", "last"),
    [
        ((), "Gone in the last day: 1, 1 above, whose claims are left"),
        (None, "Gone: 1 above, whose claims are left, and ? (nothing was recorded of it"),
    ],
)
def test_a_consumer_of_which_only_claims_are_left_counts_as_gone(
    gone: tuple[Consumer, ...] | None, last: str
) -> None:
    seen = Consumers(QUEUE, SUMMER, (replace(NIGHT, sessions=0),))
    sampled = consumers.SampledConsumers(seen, gone)
    lines = [*consumers.VIEW.lines(sampled, Display(UTC, SUMMER))]
    assert any("gone" in line and "shift" in line for line in lines)
    assert lines[-1].startswith(last)
