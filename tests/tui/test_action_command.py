"""The command line's twin: click reads it back as the same call, whatever stands in the form."""

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.cli.context import BARE_YES, Call
from console.cli.verbs import cli
from console.designs import DESIGNS
from console.errors import UsageError
from console.monitor.filters import FORMS as FILTER_FORMS
from console.tui.actions.command import command
from console.tui.actions.fields import BY_VERB, FORMS, Field, Form, Kind, Put, line_of, words_of

PLACE = ("--url", "postgresql+psycopg://ann@db:5432/app")
GENERIC = {"name", "names", "yes", "dry_run"}
"""What each verb's function gets besides its own."""


def parsed(line: str) -> tuple[str, dict[str, Any], Call]:
    """The verb that the line calls, with what, and where."""
    words = shlex.split(line)
    if ">>" in words:
        words = words[: words.index(">>")]
    verb = words[1]
    with cli.commands[verb].make_context(verb, words[2:]) as context:
        seen = dict(context.params)
    where = Call(
        said=None,  # type: ignore[arg-type]
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
    line = command(BY_VERB["purge"], PLACE, "sch-ema", name, said, name if yes else yes)
    verb, seen, where = parsed(line)
    assert verb == "purge"
    assert seen["name"] == name
    assert tuple(seen["words"]) == words
    assert (seen["reason"], seen["permanently"], seen["batch"]) == (reason, True, 500)
    assert seen["yes"] == {None: None, "": BARE_YES, "name": name}[yes]
    assert where.schema == "sch-ema"
    assert seen["url"] == PLACE[1]


@settings(max_examples=40)
@given(words=WORDS)
def test_a_line_of_filters_is_read_again(words: tuple[str, ...]) -> None:
    assert words_of(line_of(words)) == words


def value_of(field: Field) -> str:
    """Something that can stand in it, and is not its default."""
    return {
        Kind.FLAG: "yes",
        Kind.TEXT: "-odd 'text'",
        Kind.NUMBER: str(max(7, field.least)),
        Kind.RATE: "12.5",
        Kind.DURATION: "90s",
        Kind.FILTERS: "id=1 'error~a b'",
    }[field.kind]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.verb)
def test_every_field_is_the_command_lines(form: Form) -> None:
    said = {field.name: value_of(field) for field in form.fields}
    for field in form.fields:
        field.check(said[field.name])
    line = command(form, PLACE, "public", "mail", said, "mail" if form.confirmed else None)
    verb, seen, _ = parsed(line)
    assert verb == form.verb
    for field in form.fields:
        if field.put is Put.REDIRECTED:
            assert shlex.split(line)[-2:] == [">>", said[field.name]]
            continue
        name = {"filter": "words", "to": "other", "fail": "failure"}.get(
            field.name, field.name.replace("-", "_")
        )
        found = seen.pop(name)
        wanted: object = said[field.name]
        match field.kind:
            case Kind.FLAG:
                wanted = True
            case Kind.NUMBER:
                wanted = int(said[field.name])
            case Kind.RATE:
                wanted = 12.5
            case Kind.DURATION:
                wanted = 90.0
            case Kind.FILTERS:
                found, wanted = tuple(found), ("id=1", "error~a b")
            case _:
                pass
        assert found == wanted, field.name
    # And nothing that the command line has is missing in the form.
    left = {n for n, value in seen.items() if n not in GENERIC}
    assert left <= {"url", "profile", "rights", "lines", "fix"}, left


def test_each_verb_that_queues_have_has_a_form() -> None:
    own = {"install", "smoke", "complete", "fail"}
    verbs = {verb for each in DESIGNS.values() for verb in each.verbs}
    verbs |= {
        verb for each in DESIGNS.values() for some in each.option_verbs.values() for verb in some
    }
    assert verbs - own <= set(BY_VERB)


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
    (found,) = (one for one in BY_VERB[verb].fields if one.name == field)
    with pytest.raises(UsageError):
        found.check(text)


def test_all_filters_are_named() -> None:
    (field,) = (one for one in BY_VERB["purge"].fields if one.kind is Kind.FILTERS)
    assert all(form in field.summary for form in FILTER_FORMS)
