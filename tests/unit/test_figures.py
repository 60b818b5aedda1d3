"""The table of figures agrees with itself, and with the fields of a snapshot."""

from collections import Counter
from dataclasses import fields

from console.figures import FIGURES
from console.monitor.snapshot import QueueSnapshot


def test_a_snapshot_has_a_field_for_each_figure() -> None:
    names = [one.name for one in fields(QueueSnapshot)]
    assert {one.name for one in FIGURES} <= {*names}


def test_no_two_figures_share_a_name_a_title_or_a_gauge() -> None:
    for values in (
        [one.name for one in FIGURES],
        [one.title for one in FIGURES],
        [one.gauge for one in FIGURES if one.gauge],
    ):
        assert max(Counter(values).values()) == 1


def test_a_gauge_says_what_it_is() -> None:
    assert [one.name for one in FIGURES if bool(one.gauge) != bool(one.help)] == []
