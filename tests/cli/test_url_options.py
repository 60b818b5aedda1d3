"""Values of a URL's options that its driver would refuse, or ignore without a word."""

import pytest

from tests.cli.calls import Console

WRONG = {
    "sslmode=banana": "one of disable, allow, prefer, require, verify-ca, verify-full",
    "target_session_attrs=first": "primary",
    "gssencmode=yes": "require",
    "connect_timeout=abc": "a whole number",
    "keepalives_idle=1s": "a whole number",
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_wrong_use_by_the_options_name(option: str) -> None:
    refused = Console(f"postgresql+psycopg://u@127.0.0.1:1/d?{option}")("status")
    assert refused.status == 2
    assert option.partition("=")[0] in refused.err
    assert WRONG[option] in refused.err
    assert "server runs" not in refused.err


@pytest.mark.parametrize("option", ["sslmode=disable", "connect_timeout=5", "keepalives_idle=9"])
def test_a_right_value_reaches_the_driver(option: str) -> None:
    assert Console(f"postgresql+psycopg://u@127.0.0.1:1/d?{option}")("status").status == 3
