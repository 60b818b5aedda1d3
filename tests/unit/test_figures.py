"""The table of figures agrees with itself, and with the fields of a snapshot."""

from collections import Counter
from dataclasses import fields

from console.figures import FIGURES
from console.monitor.snapshot import QueueSnapshot


def test_a_snapshot_has_a_field_for_each_figure() -> None:
    names = [field.name for field in fields(QueueSnapshot)]
    assert {figure.name for figure in FIGURES} <= {*names}


def test_no_two_figures_share_a_name_a_title_or_a_gauge() -> None:
    for values in (
        [figure.name for figure in FIGURES],
        [figure.title for figure in FIGURES],
        [figure.gauge for figure in FIGURES if figure.gauge],
    ):
        assert max(Counter(values).values()) == 1


def test_a_gauge_says_what_it_is() -> None:
    assert [figure.name for figure in FIGURES if bool(figure.gauge) != bool(figure.help)] == []
