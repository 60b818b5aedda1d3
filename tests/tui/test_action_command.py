"""The equivalent command: click reads it back as the same call, whatever stands in the form."""

import shlex
from datetime import UTC, datetime
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.cli.context import BARE_YES, Call
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor.filters import FORMS as FILTER_FORMS
from console.monitor.filters import line_of
from console.verbs import MODULES, all_verbs, get_verb
from console.verbs.parameters import (
    DURATION,
    FILTER,
    MOMENT,
    RATE_TYPE,
    SHARE_TYPE,
    Parameter,
    Placement,
    WholeNumber,
)
from console.verbs.verb import (
    Verb,
    equivalent_command,
    option_words,
    texts_from_words,
    values_from_texts,
)
from tests.cli.calls import command

PLACE = ("--url", "postgresql+psycopg://ann@db:5432/app")
GENERIC = {"name", "names", "yes", "dry_run"}
"""What each verb's function gets besides its own."""


def parsed(line: str) -> tuple[str, dict[str, Any], Call]:
    """The verb that the line calls, with what, and where."""
    words = shlex.split(line)
    if ">>" in words:
        words = words[: words.index(">>")]
    verb = words[1]
    with command(verb).make_context(verb, words[2:]) as context:
        seen = dict(context.params)
    where = Call(
        command_line=None,  # type: ignore[arg-type]
        schema=seen.pop("schema"),
        json=seen.pop("as_json"),
    )
    return verb, seen, where


ODD = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8)
NAMES = ODD | st.sampled_from(["-x", "--yes", "a b", "o'r\"der", "[bold]", "$HOME", "--"])
WORDS = st.lists(
    st.sampled_from(["state=error", "older=10m", "limit=5", "id=7", "id=8"])
    | ODD.map(lambda text: f"error~{text}")
    | ODD.map(lambda text: f"id={text}"),
    max_size=4,
).map(tuple)


@settings(max_examples=40)
@given(name=NAMES, words=WORDS, reason=st.just("") | NAMES, yes=st.sampled_from([None, "", "name"]))
def test_a_purge_survives_the_shell_and_click(
    name: str, words: tuple[str, ...], reason: str, yes: str | None
) -> None:
    said = {"filter": line_of(words), "reason": reason, "permanently": "yes", "batch": "500"}
    line = equivalent_command(get_verb("purge"), PLACE, "sch-ema", name, said, name if yes else yes)
    verb, seen, where = parsed(line)
    assert verb == "purge"
    assert seen["name"] == name
    assert tuple(seen["filter"]) == words
    assert (seen["reason"], seen["permanently"], seen["batch"]) == (reason or None, True, 500)
    assert seen["yes"] == {None: None, "": BARE_YES, "name": name}[yes]
    assert where.schema == "sch-ema"
    assert seen["url"] == PLACE[1]


KEYS = {
    ("push", "id"): "own_id",
    ("pop", "fail"): "failure",
    ("complete", "id"): "ids",
    ("fail", "id"): "ids",
}
"""Of commands that are written by hand."""


TYPED: dict[object, tuple[str, object]] = {
    RATE_TYPE: ("12.5", 12.5),
    SHARE_TYPE: ("0.25", 0.25),
    DURATION: ("90s", 90.0),
    MOMENT: ("2026-03-29T08:00+02:00", datetime(2026, 3, 29, 6, tzinfo=UTC)),
}


def value_of(one: Parameter) -> tuple[str, object]:
    """Something that can stand in it and is not its default; and what click makes of it."""
    if one.is_flag:
        return "yes", True
    if one.multiple:
        return "id=1 'error~a b'", ("id=1", "error~a b")
    if isinstance(one.type, WholeNumber):
        number = max(7, int(one.type.min or 0))
        return str(number), number
    if isinstance(one.type, click.Choice):
        return one.type.choices[-1], one.type.choices[-1]
    return TYPED.get(one.type, ("-odd 'text'", "-odd 'text'"))


@pytest.mark.parametrize("verb", all_verbs(), ids=lambda verb: verb.name)
def test_every_parameter_is_the_same_in_a_form_and_on_the_command_line(verb: Verb) -> None:
    filled = {one.name: value_of(one)[0] for one in verb.parameters}
    for one in verb.parameters:
        one.check(filled[one.name])
    line = equivalent_command(
        verb, PLACE, "public", "mail", filled, "mail" if verb.confirmed else None
    )
    name, seen, _ = parsed(line)
    assert name == verb.name
    of_the_form = values_from_texts(verb, filled)
    for one in verb.parameters:
        assert of_the_form[one.key] == value_of(one)[1], one.name
        if one.placement is Placement.REDIRECTION:
            assert shlex.split(line)[-2:] == [">>", filled[one.name]]
        else:
            assert seen.pop(KEYS.get((verb.name, one.key), one.key)) == value_of(one)[1], one.name
    # And nothing that the command line has is missing in the form.
    left = {n for n, value in seen.items() if n not in GENERIC}
    assert left <= {
        "url",
        "profile",
        "rights",
        "lines",
        "allow_empty",
        "fix",
        *("codes", "all_codes"),
        "idle_for",
        *("subscriber", "group", "fleet"),
    }, left


@pytest.mark.parametrize("verb", all_verbs(), ids=lambda verb: verb.name)
def test_a_line_is_read_into_the_form_that_it_came_from(verb: Verb) -> None:
    options = [one for one in verb.parameters if one.placement is Placement.OPTION]
    filled = {one.name: value_of(one)[0] for one in options}
    words = [word for one in options for word in option_words(one, filled[one.name])]
    read = texts_from_words(verb, words)
    assert values_from_texts(verb, {**required(verb), **read}) == values_from_texts(
        verb, {**required(verb), **filled}
    )


def required(verb: Verb) -> dict[str, str]:
    """What has to be said of it."""
    return {one.name: "2000" for one in verb.parameters if one.required}


def test_each_verb_that_queues_have_has_a_form() -> None:
    own = {"install", "smoke", "complete", "fail"}
    verbs = {verb for each in DESIGNS.values() for verb in each.verbs}
    verbs |= {
        verb for each in DESIGNS.values() for some in each.option_verbs.values() for verb in some
    }
    assert verbs - own <= set(MODULES)


@pytest.mark.parametrize(
    ("verb", "field", "text"),
    [
        ("purge", "batch", "0"),
        ("purge", "batch", "4001"),
        ("purge", "batch", "\u0661"),
        ("purge", "rate", "nan"),
        ("purge", "rate", "-1"),
        ("archive", "older", "soon"),
        ("purge", "filter", "error~'open"),
        ("resize", "size", ""),
        ("push", "payload", ""),
    ],
)
def test_what_cannot_stand_in_a_field(verb: str, field: str, text: str) -> None:
    (found,) = (one for one in get_verb(verb).parameters if one.name == field)
    with pytest.raises(UsageError):
        found.check(text)


def test_all_filters_are_named() -> None:
    assert all(form in FILTER.help for form in FILTER_FORMS)
