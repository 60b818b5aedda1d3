"""The filter language: what it accepts, what it refuses, and round trips."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.errors import UsageError
from console.monitor.filters import FORMS, NOTHING, Filters, PayloadEquals, parse

READ = {
    "state=error": Filters(state="error"),
    "older=10m": Filters(older=600.0),
    "newer=1h30m": Filters(newer=5400.0),
    "older=500ms": Filters(older=0.5),
    "older=0s": Filters(older=0.0),
    "error-group=1-9f86d081884c7d65": Filters(state="error", error_group="1-9f86d081884c7d65"),
    "error~time out": Filters(errors=("time out",)),
    "error~a=b~c": Filters(errors=("a=b~c",)),
    "id=17": Filters(ids=("17",)),
    "id=a=b": Filters(ids=("a=b",)),
    "claimed_by=worker 1": Filters(claimed_by="worker 1"),
    "claimed_by=pid=4711": Filters(claimed_by="pid=4711"),
    "limit=100": Filters(limit=100),
    "keep-newest=1000": Filters(keep_newest=1000),
    "payload.a=x": Filters(payload=(PayloadEquals(("a",), "x"),)),
    "payload.a.b=": Filters(payload=(PayloadEquals(("a", "b"), ""),)),
    "payload.a[0].b=x=y": Filters(payload=(PayloadEquals(("a", 0, "b"), "x=y"),)),
    "payload[12]=x": Filters(payload=(PayloadEquals((12,), "x"),)),
    'payload."a.b=[c]"=x': Filters(payload=(PayloadEquals(("a.b=[c]",), "x"),)),
    r'payload."say \"no\"".é=x': Filters(payload=(PayloadEquals(('say "no"', "é"), "x"),)),
    "payload.a-b_c:d=x": Filters(payload=(PayloadEquals(("a-b_c:d",), "x"),)),
    "payload.state=x": Filters(payload=(PayloadEquals(("state",), "x"),)),
}

REFUSED = {
    "": "name=value",
    "state": "name=value",
    "=x": "name=value",
    "state=": "1 to 10,000 characters",
    "id=" + "9" * 10_001: "1 to 10,000 characters",
    "stat=x": "Did you mean: state=S",
    "error=x": "Did you mean: error~TEXT",
    "keep_newest=1": "Did you mean: keep-newest=N",
    "claimed-by=x": "Did you mean: claimed_by=WHO",
    "colour=red": FORMS[-1],
    "older=10": "duration",
    "older=100000d": "50 years",
    "limit=0": "whole number",
    "limit=-1": "whole number",
    "limit=" + "9" * 16: "whole number",
    "limit=\u0661": "whole number",
    "keep-newest=all": "whole number",
    "payload=x": "Did you mean: payload.PATH=VALUE",
    "payload.a": "payload.PATH=VALUE",
    "payload.a..b=x": "payload.PATH=VALUE",
    "payload.a[b]=x": "payload.PATH=VALUE",
    "payload.a[-1]=x": "payload.PATH=VALUE",
    'payload."a=x': "payload.PATH=VALUE",
    r'payload."\x"=x': "JSON string",
    r'payload."\u0000"=x': "no JSON",
    r'payload."\ud800"=x': "no JSON",
    "id=a\0b": "NUL",
    "id=\udcff": "NUL",
}


def test_valid_filters_are_parsed() -> None:
    assert {word: parse([word]) for word in READ} == READ


def test_invalid_filters_are_refused_with_a_reason() -> None:
    for word, why in REFUSED.items():
        with pytest.raises(UsageError) as refused:
            parse([word])
        assert why in str(refused.value), word


def test_no_words_are_an_empty_filter() -> None:
    assert parse([]) == NOTHING
    assert NOTHING.words == ()
    assert not NOTHING.narrowing


def test_several_filters_are_combined() -> None:
    words = ["older=1h", "older=10m", "newer=3h", "newer=2h", "limit=5", "limit=3"]
    words += ["keep-newest=1", "keep-newest=2", "error~a", "error~b", "error~a"]
    words += ["payload.a=1", "payload.b=2", "payload.a=1", "state=error", "state=error"]
    assert parse(words) == Filters(
        state="error",
        older=3600.0,
        newer=7200.0,
        errors=("a", "b"),
        payload=(PayloadEquals(("a",), "1"), PayloadEquals(("b",), "2")),
        limit=3,
        keep_newest=2,
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["state=ready", "state=error"], "state is both 'ready' and 'error'"),
        (["claimed_by=a", "claimed_by=b"], "claimed_by is both"),
        (["older=1h", "newer=10m"], "older than 3600s and newer than 600s"),
        (["older=1h", "newer=1h"], "None is older"),
    ],
)
def test_contradictory_filters_are_refused(words: list[str], why: str) -> None:
    with pytest.raises(UsageError, match="No message can match") as refused:
        parse(words)
    assert why in str(refused.value)


def test_several_ids_match_any_of_them() -> None:
    several = parse(["id=2", "state=error", "id=1", "id=2"])
    assert several == Filters(state="error", ids=("2", "1"))
    assert several.id is None
    assert several.narrowing
    assert several.each == tuple(Filters(state="error", ids=(one,)) for one in ("2", "1"))
    assert NOTHING.each == (NOTHING,)
    assert parse(["id=1"]).id == "1"


def test_more_than_four_payload_filters_are_refused() -> None:
    words = [f"payload.a{number}=1" for number in range(4)]
    assert len(parse(words).payload) == 4
    with pytest.raises(UsageError, match="at most 4"):
        parse([*words, "payload.b=1"])


def test_state_limit_and_keep_newest_do_not_narrow_but_other_filters_do() -> None:
    for word in ("state=error", "limit=1", "keep-newest=1"):
        assert not parse([word]).narrowing
    for word in ("older=0s", "newer=1s", "error~x", "id=1", "claimed_by=x", "payload.a=1"):
        assert parse([word]).narrowing


def test_a_filter_that_does_not_apply_is_refused_by_name() -> None:
    reasons = {"limit": "use --limit", "keep_newest": "nothing goes"}
    assert parse(["id=1"]).without("looking", **reasons) == Filters(ids=("1",))
    for word, why in (("limit=1", "use --limit"), ("keep-newest=1", "nothing goes")):
        with pytest.raises(UsageError, match=f"{word[:-1]} does not apply to looking") as refused:
            parse([word]).without("looking", **reasons)
        assert why in str(refused.value)
    with pytest.raises(UsageError, match="errors"):
        parse(["error~x"]).without("looking", errors="no errors")


def test_a_payload_path_is_converted_to_an_sql_json_path() -> None:
    (equals,) = parse([r'payload.a[3]."b\"c.d".é=x']).payload
    assert equals.json_path == '$."a"[3]."b\\"c.d"."é"'


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)
KEYS = st.lists(TEXTS | st.integers(0, 10**9 - 1), min_size=1, max_size=4).map(tuple)
SECONDS = st.integers(0, 10**15).map(lambda microseconds: microseconds / 1e6)
VALUES = st.builds(
    Filters,
    state=st.none() | TEXTS,
    older=st.none() | SECONDS,
    errors=st.lists(TEXTS, max_size=3, unique=True).map(tuple),
    ids=st.lists(TEXTS, max_size=3, unique=True).map(tuple),
    claimed_by=st.none() | TEXTS,
    payload=st.lists(
        st.builds(PayloadEquals, KEYS, TEXTS | st.just("")), max_size=4, unique=True
    ).map(tuple),
    limit=st.none() | st.integers(1, 10**15 - 1),
    keep_newest=st.none() | st.integers(1, 10**15 - 1),
)


@given(VALUES)
def test_filters_are_parsed_back_from_their_words(filters: Filters) -> None:
    assert parse(filters.words) == filters
    assert parse([*filters.words, *filters.words]) == filters


@given(KEYS)
def test_keys_of_a_payload_path_are_quoted_as_json(path: tuple[str | int, ...]) -> None:
    keys = PayloadEquals(path, "").json_path
    assert keys.startswith("$")
    texts = [json.dumps(key, ensure_ascii=False) for key in path if isinstance(key, str)]
    assert all(text in keys for text in texts)
