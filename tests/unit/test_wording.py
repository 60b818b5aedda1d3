"""The wording of an error: values are replaced, words stay, texts of one kind have one wording."""

import time
from datetime import datetime
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.monitor.wording import RULES, group_key, require_key, wording

WORDINGS = {
    "": "",
    "  no   blanks \n at the\tends ": "no blanks at the ends",
    "timed out after 30 s": "timed out after <n> s",
    "timed out after 1.5s": "timed out after <n>",
    "-5 to +7 is 3,141.59e-10": "<n> to <n> is <n>",
    "step-5 of a-b": "step-<n> of a-b",
    "0x7ffe12ab deadbeef CAFEBABE": "<n> <n> <n>",
    "added a facade": "added a facade",
    "order 550e8400-e29b-41d4-a716-446655440000 lost": "order <uuid> lost",
    "order abcdefab-cdef-abcd-efab-cdefabcdefab lost": "order <uuid> lost",
    "at 2026-11-21T19:07:45.123456+00:00.": "at <time>.",
    "at 2026-11-21 19:07:45,123 UTC": "at <time>",
    "at 2026/11/21 7:07 PM": "at <time>",
    "on 2026-11-21": "on <time>",
    "at 19:07:45": "at <time>",
    "Fri, 21 Nov 2026 19:07:45 GMT": "<time>",
    "Fri Nov 21 19:07:45 2026": "<time>",
    "Nov 21 19:07:45 host": "<time> host",
    "21-Nov-2026": "<time>",
    "Marching 5, Mayor 6": "Marching <n>, Mayor <n>",
    "451 4.7.1 <ann.o'hara@mail.example.com>: try later": "451 4.7.1 <ann.o'<address>>: try later",
    "to ann+1@mail.example.com, bo@example.com": "to <address>",
    "decorator @cached of a@b": "decorator @cached of a@b",
    "from 10.0.0.1": "from <ip>",
    "from 10.0.0.1:5432": "from <ip>",
    "from 10.0.0.0/8": "from <ip>",
    "from ::1 and fe80::1ff:fe23:4567:890a": "from <ip> and <ip>",
    "from [2001:db8::1]:5432": "from [<ip>]:<n>",
    "from 1:2:3:4:5:6:7:8": "from <ip>",
    "std::bad_alloc": "std::bad_alloc",
    "ORA-00942: no table": "ORA-00942: no table",
    "KeyError: 'foo'": "KeyError: <text>",
    'relation "orders" is not there': "relation <text> is not there",
    'say "it\'s" or \'say "it"\'': "say <text> or <text>",
    r"'it\'s' 'it''s'": "<text> <text>",
    "b'bytes' `ticks` \u201ccurly\u201d «angles»": "<text> <text> <text> <text>",
    "can't and don't": "can't and don't",
    "workers' queue": "workers' queue",
    "5'abc'": "<n><text>",
    "ids (1, 2, 3)": "ids (<n>)",
    "ids ('a', 'b')": "ids (<text>)",
    "HTTP 503 of https://a.example/v2/items/17?x=1": "HTTP 503 of https://a.example/<n>/items/<n>?x=<n>",
    "HTTP/1.1 451 for you 17": "HTTP/1.1 451 for you <n>",
    "status code: 503, status=404 at 10:00:00": "status code: 503, status=404 at <time>",
    "[Errno 111] refused, [WinError 10054] reset": "[Errno 111] refused, [WinError 10054] reset",
    "SQLSTATE 40P01, SQLSTATE[40001]": "SQLSTATE 40P01, SQLSTATE[40001]",
    "Msg 1205, Level 13, State 51": "Msg 1205, Level <n>, State <n>",
    "(HRESULT: 0x80131904)": "(HRESULT: 0x80131904)",
    "exit code 137 after 3 s, signal 9": "exit code 137 after <n> s, signal 9",
    "S3Error: bucket 17": "S3Error: bucket <n>",
    "botocore.v2.Http2Exception: x7": "botocore.v2.Http2Exception: <n>",
    '{"code": 503, "type": "Timeout2", "id": "m 17"}': (
        '{"code": 503, "type": "Timeout2", <text>: <text>}'
    ),
    "{'status': 404, 'id': 17}": "{'status': 404, <text>: <n>}",
    "error code 4711000123, status 10:20, code 10.0.0.1": (
        "error code <n>, status <time>, code <ip>"
    ),
    "at com.foo.Bar.baz(Bar.java:123)": "at com.foo.Bar.baz(Bar.java:<n>)",
    "one\ntwo\r\nthree": "one two three",
    "<n> of <text>": "<n> of <text>",
}


def test_wordings() -> None:
    assert {text: wording(text) for text in WORDINGS} == WORDINGS


ANYTHING = st.text(max_size=80) | st.text(
    st.sampled_from("ab 15:'\"`.,-+()[]<>n/xTZ_\\\u201c\u201d\n"), max_size=60
)


@given(ANYTHING)
def test_the_wording_of_a_wording_is_itself(text: str) -> None:
    assert wording(wording(text)) == wording(text)


WORDS = st.text("ghijklmnopqrstuvwxyz", min_size=1, max_size=8)
IDS = st.integers(0, 10**18).map(str) | st.text("0123456789abcdef", min_size=8, max_size=40).filter(
    # Eight letters and more are taken for an id as well; fewer, without a digit, are a word.
    lambda text: not text.isalpha() or len(text) >= 8
)
VALUES = {
    "id": IDS,
    "uuid": st.uuids().map(str),
    "time": st.datetimes().map(datetime.isoformat),
    "ip": st.ip_addresses(v=4).map(str),
    "decimal": st.decimals(0, 10**6, places=2).map(str),
    "quoted": WORDS.map(lambda word: f"'{word}'"),
}
KINDS = st.lists(WORDS | st.sampled_from(sorted(VALUES)).map(lambda name: f"<{name}>"), min_size=1)


@given(KINDS, st.data())
def test_texts_that_differ_only_in_their_values_have_one_wording(
    kind: list[str], data: st.DataObject
) -> None:
    def text() -> str:
        words = [data.draw(VALUES[word[1:-1]]) if word.startswith("<") else word for word in kind]
        return " ".join(words)

    assert wording(text()) == wording(text())


@given(st.lists(WORDS, min_size=1), st.lists(WORDS, min_size=1))
def test_texts_with_different_words_have_different_wordings(
    one: list[str], other: list[str]
) -> None:
    assert (wording(" ".join(one)) == wording(" ".join(other))) == (one == other)


@given(st.lists(WORDS), WORDS, WORDS, IDS, IDS)
def test_a_word_beside_values_still_counts(
    before: list[str], one: str, other: str, first: str, second: str
) -> None:
    texts = [" ".join([*before, first, word, second]) for word in (one, other)]
    assert (wording(texts[0]) == wording(texts[1])) == (one == other)


@given(st.text(st.sampled_from("gh 15:'\"`.,-+()[]<>n/xTZ_\\\n"), max_size=60))
def test_digits_are_left_only_in_codes_and_types(text: str) -> None:
    assert not any(sign.isdecimal() for sign in wording(text))


def test_errors_with_different_codes_or_types_are_different_groups() -> None:
    texts = [
        "HTTP 503 of order 7",
        "HTTP 451 of order 7",
        "V1Error of order 7",
        "V2Error of order 7",
    ]
    assert len({group_key(text) for text in texts}) == 4
    assert group_key("HTTP 503  of\norder 8") == group_key(texts[0])


def test_the_keys_of_the_current_rules_are_unchanged() -> None:
    """Whoever changes the rules raises RULES, and records the new keys' hash here."""
    every = "".join(group_key(text) for text in WORDINGS)
    assert (RULES, sha256(every.encode()).hexdigest()[:16]) == (1, "0a34befba06c3ded")


@pytest.mark.parametrize("key", ["", "1", "1-xyz", "17", f"{RULES}-{'g' * 16}", f"0-{'a' * 16}"])
def test_invalid_keys_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match="is not the key of an error group"):
        require_key(key)


def test_a_key_of_another_version_of_the_rules_is_refused_as_such() -> None:
    with pytest.raises(UsageError, match=f"these are version {RULES}"):
        require_key(f"{RULES + 1}-{'a' * 16}")
    assert require_key(group_key("x")) == group_key("x")


ENDLESS = (
    *("'", "'a ", "a:", "1-", "a", "\\'", '"a', "1", "::", "a.1", "Mon ", "f:", "1 Jan "),
    *("a.Error", "status ", '"code": '),
)


def test_no_text_takes_long() -> None:
    for piece in ENDLESS:
        started = time.process_time()  # others at work do not count
        wording(piece * (2000 // len(piece)) + "g")
        assert time.process_time() - started < 5.0, piece
