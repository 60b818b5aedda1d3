"""Which columns fit, and in which order the table is."""

from hypothesis import given
from hypothesis import strategies as st

from console.monitor.sampler import Reading
from console.tui.store import Store
from console.tui.views import QueueView
from console.tui.widgets.queue_columns import COLUMNS, LOST_FIRST, SORTABLE, layout, ordered
from tests.tui.feeds import nine, queue

EVER = ["state", "queue", "design", "ready", "age", "gap", "stuck", "errors"]


def names(width: int) -> list[str]:
    return [column.name for column in layout(width, {}, "state", descending=True)]


def views() -> tuple[QueueView, ...]:
    store = Store({"prod": 1.0}, now=0)
    store.take("prod", Reading("prod", tuple(nine())), at=0)
    return store.queues(0)


def test_eighty_columns_have_what_is_needed_most() -> None:
    assert names(79) == EVER


def test_a_wide_screen_has_everything() -> None:
    assert names(159) == [column.name for column in COLUMNS]


def test_columns_are_lost_in_their_order() -> None:
    lost_at = {
        name: next(width for width in range(60, 200) if name in names(width)) for name in LOST_FIRST
    }
    widths = list(lost_at.values())
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == len(widths)


@given(
    st.integers(60, 300),
    st.dictionaries(st.sampled_from([column.name for column in COLUMNS]), st.integers(0, 70)),
)
def test_a_layout_uses_the_width_and_keeps_the_columns_that_are_never_lost(
    width: int, widest: dict[str, int]
) -> None:
    shown = layout(width, widest, "ready", descending=True)
    assert [column.name for column in shown if column.name in EVER] == EVER
    total = sum(column.width + 2 for column in shown)
    assert total == width or {column.name for column in shown} == set(EVER)


def test_the_worst_comes_first_and_equals_keep_their_order() -> None:
    by_state = ordered(views(), SORTABLE[0].key, descending=True)
    assert [view.label for view in by_state][:5] == [
        "mail",
        "orders",
        "reports",
        "billing",
        "imports",
    ]


def test_what_is_unknown_comes_last_whichever_way() -> None:
    age = next(column for column in SORTABLE if column.name == "age")
    for descending in (True, False):
        names = [view.label for view in ordered(views(), age.key, descending=descending)]
        assert set(names[-3:]) == {"billing", "imports", "reports"}
    oldest_first = ordered(views(), age.key, descending=True)
    assert oldest_first[0].label == "undo"


def test_the_name_never_crowds_the_connection_out() -> None:
    store = Store({"production-east": 1.0, "stage": 1.0}, now=0)
    store.take("production-east", Reading("", (queue("a-very-long-queue-name"),)), at=0)
    (view,) = store.queues(0)
    cell = next(column for column in COLUMNS if column.name == "queue").cell
    assert cell(view, 60).text == "production-east › a-very-long-queue-name"  # noqa: RUF001
    assert cell(view, 20).text == "prod… › a-very-long…"  # noqa: RUF001
