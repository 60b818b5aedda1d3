"""The wording of an error's text: values go, words stay, and texts of one kind fall together."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.monitor.wording import wording

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
    "451 4.7.1 <ann.o'hara@mail.example.com>: try later": "<n> <n> <ann.o'<address>>: try later",
    "to ann+1@mail.example.com, bo@example.com": "to <address>",
    "decorator @cached of a@b": "decorator @cached of a@b",
    "from 10.0.0.1": "from <ip>",
    "from 10.0.0.1:5432": "from <ip>",
    "from 10.0.0.0/8": "from <ip>",
    "from ::1 and fe80::1ff:fe23:4567:890a": "from <ip> and <ip>",
    "from [2001:db8::1]:5432": "from [<ip>]:<n>",
    "from 1:2:3:4:5:6:7:8": "from <ip>",
    "std::bad_alloc": "std::bad_alloc",
    "ORA-00942: no table": "ORA-<n>: no table",
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
    "HTTP 503 of https://a.example/v2/items/17?x=1": "HTTP <n> of https://a.example/<n>/items/<n>?x=<n>",
    "at com.foo.Bar.baz(Bar.java:123)": "at com.foo.Bar.baz(Bar.java:<n>)",
    "one\ntwo\r\nthree": "one two three",
    "<n> of <text>": "<n> of <text>",
}


@pytest.mark.parametrize("text", WORDINGS)
def test_wordings(text: str) -> None:
    assert wording(text) == WORDINGS[text]


ANYTHING = st.text(max_size=80) | st.text(
    st.sampled_from("ab 15:'\"`.,-+()[]<>n/xTZ_\\\u201c\u201d\n"), max_size=60
)


@given(ANYTHING)
def test_the_wording_of_a_wording_is_itself(text: str) -> None:
    assert wording(wording(text)) == wording(text)


WORDS = st.text("ghijklmnopqrstuvwxyz", min_size=1, max_size=8)
IDS = st.integers(0, 10**18).map(str) | st.text("0123456789abcdef", min_size=8, max_size=40).filter(
    # Eight letters and more are taken for one as well; fewer, without a digit, are a word.
    lambda text: not text.isalpha() or len(text) >= 8
)
VALUES = {
    "id": IDS,
    "uuid": st.uuids().map(str),
    "time": st.datetimes().map(lambda at: at.replace(year=2000 + at.year % 99).isoformat()),
    "ip": st.ip_addresses(v=4).map(str),
    "decimal": st.decimals(0, 10**6, places=2).map(str),
    "quoted": WORDS.map(lambda word: f"'{word}'"),
}
KINDS = st.lists(WORDS | st.sampled_from(sorted(VALUES)).map(lambda name: f"<{name}>"), min_size=1)


@given(KINDS, st.data())
def test_texts_that_differ_only_in_their_values_fall_together(
    kind: list[str], data: st.DataObject
) -> None:
    def text() -> str:
        words = [data.draw(VALUES[word[1:-1]]) if word.startswith("<") else word for word in kind]
        return " ".join(words)

    assert wording(text()) == wording(text())


@given(st.lists(WORDS, min_size=1), st.lists(WORDS, min_size=1))
def test_other_words_are_another_kind(one: list[str], other: list[str]) -> None:
    assert (wording(" ".join(one)) == wording(" ".join(other))) == (one == other)


@given(st.lists(WORDS), WORDS, WORDS, IDS, IDS)
def test_a_word_beside_values_still_counts(
    before: list[str], one: str, other: str, first: str, second: str
) -> None:
    texts = [" ".join([*before, first, word, second]) for word in (one, other)]
    assert (wording(texts[0]) == wording(texts[1])) == (one == other)


@given(ANYTHING)
def test_no_digit_is_left(text: str) -> None:
    assert not any(sign.isdecimal() for sign in wording(text))


ENDLESS = ["'", "'a ", "a:", "1-", "a", "\\'", '"a', "1", "::", "a.1", "Mon ", "f:", "1 Jan "]


@pytest.mark.parametrize("piece", ENDLESS)
def test_no_text_takes_long(piece: str) -> None:
    started = time.perf_counter()
    wording(piece * (2000 // len(piece)) + "g")
    assert time.perf_counter() - started < 5.0
