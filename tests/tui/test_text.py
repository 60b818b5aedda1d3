"""Untrusted text, short figures, and payloads as rows, all without control characters."""

import json
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from console.tui.payloads import HexRows, PayloadForm, best_form, json_lines, lay_out
from console.tui.text import first_line, plain, shorten, sparkline, whole_seconds
from tests.tui.feeds import queue


def test_plain_escapes_control_characters() -> None:
    shown = {
        "orders": "orders",
        "[bold]x": "[bold]x",
        "a\x1b[31mb": "a␛[31mb",
        "line\nbreak\ttab": "line␊break␉tab",
        "abc\u202edef": "abc<U+202E>def",
        "del\x7f": "del<7F>",
        "größe 数": "größe 数",
    }
    assert {text: plain(text) for text in shown} == shown


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


def test_whole_seconds() -> None:
    words = {0: "0 s", 14.4: "14 s", 59.6: "1 min", 3900: "1 h 05 min"}
    assert {seconds: whole_seconds(seconds) for seconds in words} == words


def test_figures_distinguish_absent_unknown_estimated_and_zero() -> None:
    assert queue("q", ready=0).text_of("ready") == "0"
    assert queue("q", ready=4812).text_of("ready") == "4,812"
    assert queue("q", ready=12_480, estimated=("ready",)).text_of("ready") == "≈12 k"
    assert queue("q", ready=None, unknown=("ready",)).text_of("ready") == "?"
    assert queue("q").text_of("claimed") == "·"
    assert queue("q", age_seconds=252.0).text_of("age_seconds") == "4 min 12 s"
    assert queue("q", age_seconds=-0.02).text_of("age_seconds") == "0 ms"
    assert queue("q", push_per_second=1234.56).text_of("push_per_second") == "1,234.6"


def test_a_sparkline_shows_gaps_and_distinguishes_zero_from_small_values() -> None:
    assert sparkline([0, 1, 500, 1000, None, 1000]) == "▁▂▅█ █"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_a_text_that_is_cut_twice_is_marked_once() -> None:
    assert shorten("parcel 54785…", 12) == "parcel 5478…"
    assert shorten("no s… and more", 6) == "no s…"


CONTROL_CATEGORIES = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(), some, max_size=4),
    max_leaves=12,
)
payloads = st.one_of(
    st.binary(max_size=200),
    st.text(st.characters(), max_size=200),
    st.text(alphabet='{}[]:,"\\1-.e0 tnu\n\x00\x1b\u202e', max_size=60),
)


def exact_value(text: str) -> Any:
    """The value, with numbers as they are written and with duplicate keys."""
    return json.loads(text, parse_float=str, parse_int=str, object_pairs_hook=lambda p: ("", p))


def is_json(text: str) -> bool:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse, strict=False)
    except ValueError:
        return False
    return True


@given(payloads, st.sampled_from(list(PayloadForm)), st.integers(-1, 120), st.booleans())
def test_any_payload_is_shown_without_control_characters(
    payload: str | bytes, form: PayloadForm, width: int, cut: bool
) -> None:
    best_form(payload)
    found = lay_out(payload, form, width, cut=cut, closed=range(5))
    assert len(found.rows) > 0
    for row in found.rows:
        assert not {unicodedata.category(sign) for sign in row.text} & CONTROL_CATEGORIES
        if found.form is not PayloadForm.HEX:
            assert cell_len(row.text) <= max(10, width) + 10


@given(documents, st.sampled_from([None, 0, 3]), st.booleans())
def test_the_layout_of_json_changes_no_value(
    document: Any, indent: int | None, escaped: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=escaped)
    tree = json_lines(text)
    assert tree.problem == ""
    assert exact_value("\n".join(line for _, line in tree.lines)) == exact_value(text)


@given(documents, st.data())
def test_json_is_laid_out_wherever_it_is_cut(document: Any, data: st.DataObject) -> None:
    text = json.dumps(document, ensure_ascii=False)
    end = data.draw(st.integers(0, len(text)))
    tree = json_lines(text[:end], cut=True)
    assert tree.problem == ""
    kept = "".join(line for _, line in tree.lines).replace(" ", "")
    assert kept == text[:end].replace(" ", "").replace("\n", "")


@given(st.text(alphabet='{}[]:,"\\1-.e0 tnu\n', max_size=20))
def test_invalid_json_is_recognized(text: str) -> None:
    assert is_json(text) == (json_lines(text).problem == "")


def test_json_keeps_numbers_as_written_and_duplicate_keys() -> None:
    text = '{"n":12345678901234567890.10,"n":1E400,"m":-0.0}'
    rows = [row.text.strip() for row in lay_out(text, PayloadForm.JSON, 80).rows]
    assert rows[1:-1] == ['"n": 12345678901234567890.10,', '"n": 1E400,', '"m": -0.0']


def test_a_folded_value_shows_how_many_lines_it_has() -> None:
    text = '{"a": [1, 2, 3], "b": {}}'
    rows = [row.text for row in lay_out(text, PayloadForm.JSON, 80, closed=[1]).rows]
    assert rows == ["▾ {", '  ▸ "a": [ … ],  (3 lines)', '    "b": {}', "  }"]


def test_invalid_json_is_shown_as_text_with_the_reason() -> None:
    payload_layout = lay_out('{"a": 1,}', PayloadForm.JSON, 80)
    assert payload_layout.form is PayloadForm.TEXT
    assert [row.text for row in payload_layout.rows] == ['{"a": 1,}']
    assert payload_layout.problem == "not JSON: '}' instead of a key (character 9)"


def test_deeply_nested_json_is_laid_out() -> None:
    assert len(lay_out("[" * 10_000, PayloadForm.JSON, 80, cut=True).rows) == 10_000


def test_the_best_form_of_a_payload_is_chosen() -> None:
    for payload, form in (
        ('  {"a": 1}', PayloadForm.JSON),
        ("hello", PayloadForm.TEXT),
        (b"[1, 2]", PayloadForm.JSON),
        ("ünïcode".encode()[:-9], PayloadForm.TEXT),
        ("ü".encode()[:1], PayloadForm.TEXT),
        (b"\x00\x01", PayloadForm.HEX),
        (b"\xff\xfe1", PayloadForm.HEX),
    ):
        assert best_form(payload) is form


def test_hex_rows_are_made_on_demand() -> None:
    rows = HexRows(bytes(range(256)) * 40_000, 80)
    assert len(rows) == 640_000
    assert rows[2].text == (
        "00000020  20 21 22 23 24 25 26 27 28 29 2a 2b 2c 2d 2e 2f   !\"#$%&'()*+,-./"
    )
    assert rows[-1].text.startswith("009c3ff0  f0 f1")
    assert [row.line for row in rows[:2]] == [0, 1]
    assert HexRows(b"", 80)[0].text.strip() == "00000000"
