"""Masks: within a time limit, and on text in bytes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.config.values import WrongValueError, patterns
from console.monitor.message import MASKED, masked, masked_bytes

CARD = (re.compile(r"\d{4}-\d{4}"),)
ENCODINGS = ["utf-8", "utf-16-le", "utf-16-be", "latin-1"]


@pytest.mark.parametrize("pattern", [r"(a|aa)+$", r"(a+)+b", r"(?:a?){60}a{60}"])
def test_a_mask_that_takes_too_long_masks_all(pattern: str) -> None:
    """54 letters: Python's own expressions take years."""
    text = "a" * 54 + "!"
    assert masked(text, (re.compile(pattern),)) in {MASKED, text}


def test_a_list_of_texts_that_a_slow_mask_cannot_read_is_shown_masked() -> None:
    slow = (re.compile(r"(a|aa)+$"),)
    assert {masked(f"{'a' * 54}{n}!", slow) for n in range(50)} == {MASKED}


@given(st.sampled_from(ENCODINGS), st.binary(max_size=5), st.binary(max_size=5))
def test_a_card_in_bytes_is_masked_in_any_encoding(
    encoding: str, before: bytes, after: bytes
) -> None:
    card = "1234-5678"
    shown = masked_bytes(before + card.encode(encoding) + after, CARD)
    assert card.encode(encoding) not in shown


@given(st.binary(max_size=40))
def test_bytes_without_a_match_are_left_as_they_are(payload: bytes) -> None:
    assert masked_bytes(payload, (re.compile("never-there"),)) == payload


def test_a_pattern_that_only_the_limited_engine_refuses_is_refused_in_the_configuration() -> None:
    with pytest.raises(WrongValueError):
        patterns(["("])
    assert patterns([]) == ()
