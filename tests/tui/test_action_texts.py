"""Forms of verbs: the equivalent command, which click parses into the same call; plans and their
results."""

import shlex
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from console.actions.availability import unavailable
from console.actions.pop import pop_many
from console.catalog import Queue
from console.catalog.audit import Ledger, Outcome
from console.cli.command import BARE_YES
from console.cli.context import Call
from console.designs import DESIGNS, design
from console.engines import Database
from console.errors import ConsoleError, RefusedError, UsageError
from console.features.presets.adopt import adopt
from console.filters import line_of
from console.monitor.filters import FORMS as FILTER_FORMS
from console.plan import Control, Plan, Result
from console.rights import Rights
from console.verbs import all_verbs, get_verb
from console.verbs.index import VERBS
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
    Target,
    Verb,
    equivalent_command,
    option_words,
    texts_from_words,
    values_from_texts,
)
from tests.cli.calls import command
from tests.tui.acting import READY, make, states

PLACE = ("--url", "postgresql+psycopg://ann@db:5432/app")
GENERIC = {"name", "names", "yes", "dry_run"}
"""Parameters that every verb's function has."""


def parsed(line: str) -> tuple[str, dict[str, Any], Call]:
    """The verb that the line calls, its parameters, and where it runs."""
    words = shlex.split(line)
    if ">>" in words:
        words = words[: words.index(">>")]
    verb = words[1]
    with command(verb).make_context(verb, words[2:]) as context:
        parameters = dict(context.params)
    call = Call(
        command_line=None,  # type: ignore[arg-type]
        schema=parameters.pop("schema"),
        json=parameters.pop("as_json"),
    )
    return verb, parameters, call


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
def test_the_equivalent_command_of_a_purge_survives_the_shell_and_click(
    name: str, words: tuple[str, ...], reason: str, yes: str | None
) -> None:
    texts = {"filter": line_of(words), "reason": reason, "permanently": "yes", "batch": "500"}
    line = equivalent_command(
        get_verb("purge"), PLACE, "sch-ema", name, texts, name if yes else yes
    )
    verb, parameters, call = parsed(line)
    assert verb == "purge"
    assert parameters["name"] == name
    assert tuple(parameters["filter"]) == words
    assert (parameters["reason"], parameters["permanently"], parameters["batch"]) == (
        reason or None,
        True,
        500,
    )
    assert parameters["yes"] == {None: None, "": BARE_YES, "name": name}[yes]
    assert call.schema == "sch-ema"
    assert parameters["url"] == PLACE[1]


TYPED: dict[object, tuple[str, object]] = {
    RATE_TYPE: ("12.5", 12.5),
    SHARE_TYPE: ("0.25", 0.25),
    DURATION: ("90s", 90.0),
    MOMENT: ("2026-03-29T08:00+02:00", datetime(2026, 3, 29, 6, tzinfo=UTC)),
}


def value_of(parameter: Parameter) -> tuple[str, object]:
    """A valid text that is not its default, and the value that click parses from it."""
    if parameter.is_flag:
        return "yes", True
    if parameter.multiple:
        return "id=1 'error~a b'", ("id=1", "error~a b")
    if isinstance(parameter.type, WholeNumber):
        number = max(7, int(parameter.type.min or 0))
        return str(number), number
    if isinstance(parameter.type, click.Choice):
        return parameter.type.choices[-1], parameter.type.choices[-1]
    return TYPED.get(parameter.type, ("-odd 'text'", "-odd 'text'"))


@pytest.mark.parametrize("verb", all_verbs(), ids=lambda verb: verb.name)
def test_every_parameter_is_the_same_in_a_form_and_on_the_command_line(verb: Verb) -> None:
    filled = {one.name: value_of(one)[0] for one in verb.parameters}
    for parameter in verb.parameters:
        parameter.check(filled[parameter.name])
    line = equivalent_command(
        verb, PLACE, "public", "mail", filled, "mail" if verb.confirmed else None
    )
    name, parameters, _ = parsed(line)
    assert name == verb.name
    form_values = values_from_texts(verb, filled)
    for parameter in verb.parameters:
        assert form_values[parameter.key] == value_of(parameter)[1], parameter.name
        if parameter.placement is Placement.REDIRECTION:
            assert shlex.split(line)[-2:] == [">>", filled[parameter.name]]
        else:
            assert parameters.pop(parameter.key) == value_of(parameter)[1], parameter.name
    # The command line fills the form that it came from.
    options = [one for one in verb.parameters if one.placement is Placement.OPTION]
    words = [word for option in options for word in option_words(option, filled[option.name])]
    read = {**required(verb), **texts_from_words(verb, words)}
    expected = {**required(verb), **{option.name: filled[option.name] for option in options}}
    assert values_from_texts(verb, read) == values_from_texts(verb, expected)
    # The form lacks nothing that the command line has.
    missing = {n for n, value in parameters.items() if n not in GENERIC}
    assert missing <= {
        "url",
        "profile",
        "rights",
        "lines",
        "allow_empty",
        *("fix", "unattended"),
        *("all_codes", "all_queues"),
        "idle_for",
        *("group", "fleet"),
    }, missing


def required(verb: Verb) -> dict[str, str]:
    """A text for each required parameter."""
    return {parameter.name: "2000" for parameter in verb.parameters if parameter.required}


def test_every_verb_of_a_design_has_a_form() -> None:
    own = {"install", "smoke", "complete", "fail"}
    verbs = {verb for each in DESIGNS.values() for verb in each.verbs}
    verbs |= {
        verb for each in DESIGNS.values() for some in each.option_verbs.values() for verb in some
    }
    assert verbs - own <= set(VERBS)


def test_fields_refuse_invalid_values() -> None:
    for verb, field, text in (
        ("purge", "batch", "0"),
        ("purge", "batch", "4001"),
        ("purge", "batch", "\u0661"),
        ("purge", "rate", "nan"),
        ("purge", "rate", "-1"),
        ("archive", "older", "soon"),
        ("purge", "filter", "error~'open"),
        ("resize", "size", ""),
        ("push", "payload", ""),
    ):
        (found,) = (parameter for parameter in get_verb(verb).parameters if parameter.name == field)
        with pytest.raises(UsageError):
            found.check(text)


def test_the_help_of_a_filter_field_names_every_filter() -> None:
    assert all(form in FILTER.help for form in FILTER_FORMS)


def plan(database: Database, queue: Queue, verb: str, **fields: str) -> Plan:
    """A plan made from the texts of fields, as a screen makes it."""
    chosen, texts = get_verb(verb), {name.replace("_", "-"): text for name, text in fields.items()}
    for parameter in chosen.parameters:
        parameter.check(texts.get(parameter.name, parameter.default))
    return chosen.plan(Target(database, queue, Rights.ADMIN), values_from_texts(chosen, texts))


def do(database: Database, queue: Queue, verb: str, **fields: str) -> Result:
    """Plan the verb, run it, and return its result."""
    before = states(database, queue)
    made = plan(database, queue, verb, **fields)
    assert states(database, queue) == before, "a plan changes nothing"
    assert not made.obstacles
    ended = made.run(Control(), lambda _: None)
    assert ended.outcome is Outcome.DONE, ended
    return ended


@pytest.mark.parametrize(
    ("design_name", "options"),
    [
        ("ring", {"in_hand": "on", "size": "40"}),
        ("claim", {}),
        *(pytest.param(name, {}, marks=pytest.mark.long) for name in ("status", "split")),
    ],
)
def test_messages_are_pushed_popped_and_finished(
    database: Database, tmp_path: Path, design_name: str, options: dict[str, str]
) -> None:
    """Only the named messages are finished; one that is not claimed is skipped and counted."""
    queue = make(database, "mail", design_name, options)
    do(database, queue, "push", payload="one more")
    assert states(database, queue)["ready"] == READY + 1
    popped = do(database, queue, "pop", file=str(tmp_path / "popped"), complete="yes")
    assert popped.lines[1:] == ("  1 claim finished",)
    assert stat.S_IMODE((tmp_path / "popped").stat().st_mode) == 0o600
    assert len((tmp_path / "popped").read_bytes().splitlines()) == 1
    assert states(database, queue)["ready"] == READY
    for verb, error in (("complete", {}), ("fail", {"error": "no 'good'"})):
        with database.transaction("pop") as connection:
            (one, *_) = pop_many(connection, queue, 1)
        before = states(database, queue)
        twice = do(database, queue, verb, id=f"{one.id} {one.id}", attempts="9", **error)
        assert twice.ledger == Ledger(1, skipped={"not claimed (any more)": 1})
        assert states(database, queue) == before
        assert do(database, queue, verb, id=one.id, **error).ledger == Ledger(1, 1, 1)
        assert states(database, queue)["claimed"] == before["claimed"] - 1


def test_unavailable_verbs_give_a_reason_and_messages_that_cannot_be_written_stay(
    database: Database, tmp_path: Path
) -> None:
    queue = make(database, "mail", "fifo", {})
    assert unavailable(queue, "release").startswith("it has no claims")
    with pytest.raises(UsageError, match="No session holds rows"):
        plan(database, queue, "end-session")
    for verb in all_verbs():
        needs_input = verb.name in {"end-session", "pop", "push"} or any(
            parameter.required for parameter in verb.parameters
        )
        if not unavailable(queue, verb.name) and not needs_input:
            plan(database, queue, verb.name)
    with pytest.raises(UsageError, match="keeps no popped messages"):
        plan(database, queue, "pop", file="x", complete="yes")
    with pytest.raises(ConsoleError, match="cannot be written"):
        do(database, queue, "pop", file=str(tmp_path / "nowhere" / "file"), count="3")
    assert states(database, queue)["ready"] == READY
    # An adopted table has only the verbs that its columns allow.
    with database.transaction("make a table") as connection:
        connection.exec_driver_sql(
            "CREATE TABLE public.jobs (job bigint PRIMARY KEY, started timestamptz, body text)"
        )
    roles = {"id": "job", "claimed_at": "started", "payload": "body"}
    jobs = adopt(database, "public", "jobs", design("claim"), roles)
    can = {verb.name for verb in all_verbs() if not unavailable(jobs, verb.name)}
    of_its_entry = {"protect", "unprotect", "note", "forget"}
    of_findings = {"doctor", "silence", "ack", "unsilence"}
    assert can == {"release", "end-session", "purge", "maintain", *of_findings, *of_its_entry}
    assert unavailable(jobs, "requeue") == "it was adopted without a column for the role error"
    assert "other programs" in unavailable(jobs, "push")
    with pytest.raises(RefusedError, match="has no archive"):
        plan(database, jobs, "purge")
