"""Untrusted text and small figures on one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.tui.text import figure, first_line, plain, shorten, sparkline, whole_seconds
from tests.tui.feeds import queue


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("orders", "orders"),
        ("[bold]x", "[bold]x"),
        ("a\x1b[31mb", "a␛[31mb"),
        ("line\nbreak\ttab", "line␊break␉tab"),
        ("abc\u202edef", "abc<U+202E>def"),
        ("del\x7f", "del<7F>"),
        ("größe 数", "größe 数"),
    ],
)
def test_plain_shows_what_a_terminal_would_obey(given_text: str, shown: str) -> None:
    assert plain(given_text) == shown


@given(st.text())
def test_plain_text_is_printable(text: str) -> None:
    assert all(character.isprintable() or character.isspace() for character in plain(text))
    assert "\n" not in plain(text)


@given(st.text(), st.integers(0, 40))
def test_shorten_fits(text: str, width: int) -> None:
    shown = shorten(plain(text), width)
    assert cell_len(shown) <= width
    assert shown == plain(text) or not width or shown.endswith("…")


def test_first_line_of_a_drivers_message() -> None:
    assert first_line("  refused \nIs the server running?") == "refused"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (14.4, "14 s"), (59.6, "1 min"), (3900, "1 h 05 min")]
)
def test_whole_seconds(seconds: float, words: str) -> None:
    assert whole_seconds(seconds) == words


def test_figures_tell_nothing_unknown_estimate_and_zero_apart() -> None:
    assert figure(queue("q", ready=0), "ready") == "0"
    assert figure(queue("q", ready=4812), "ready") == "4,812"
    assert figure(queue("q", ready=12_480, estimated=("ready",)), "ready") == "≈12 k"
    assert figure(queue("q", ready=None, unknown=("ready",)), "ready") == "?"
    assert figure(queue("q"), "claimed") == "·"
    assert figure(queue("q", age_seconds=252.0), "age_seconds") == "4 min 12 s"
    assert figure(queue("q", age_seconds=-0.02), "age_seconds") == "0 ms"
    assert figure(queue("q", push_per_second=1234.56), "push_per_second") == "1,234.6"


def test_a_sparkline_shows_gaps_and_keeps_zero_apart_from_little() -> None:
    assert sparkline([0, 1, 500, 1000, None, 1000]) == "▁▂▅█ █"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_what_was_cut_off_before_is_marked_once() -> None:
    assert shorten("parcel 54785…", 12) == "parcel 5478…"
    assert shorten("no s… and more", 6) == "no s…"
