"""A plan's lines: how one is shown is a value of it, whatever its words are."""

import pytest

from console.plan import PRODUCTION, Line, Tone, indented, refused, tone_of, warning


@pytest.mark.parametrize(
    ("line", "tone"),
    [
        (warning("  waits for pid 7"), Tone.WARNING),
        (refused("it is protected"), Tone.OBSTACLE),
        (PRODUCTION, Tone.PRODUCTION),
        ("  skipped, waits for, REFUSED: of a queue's name", Tone.PLAIN),
    ],
)
def test_a_line_keeps_its_tone_wherever_it_is_put(line: str, tone: Tone) -> None:
    assert tone_of(line) is tone_of(indented(line)) is tone
    assert indented(line) == f"  {line}"


def test_a_line_is_a_text_for_everything_else() -> None:
    assert refused("it is protected") == "  REFUSED: it is protected"
    assert isinstance(warning("x"), Line)
