"""Which verbs, options and names are accepted, and the exit statuses of those that are not."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from sqlalchemy import make_url

from console.cli.command import CallCommand
from console.cli.verbs import cli
from console.designs import DESIGNS
from tests.cli.calls import Console, call, command
from tests.cli.conftest import Install
from tests.cli.verbs import (
    FAIL_UNLESS_READ_ONLY,
    OF_A_QUEUE,
    PASSWORD,
    READING,
    UNREACHABLE,
    WRITING,
    of_queue,
    refused,
    verbs,
)
from tests.servers import connect, execute

ROOT = Path(__file__).resolve().parents[2]


def test_every_verb_takes_the_common_options() -> None:
    options = {
        name: {option for parameter in verb.params for option in parameter.opts}
        for name, verb in verbs()
    }
    common = {"--url", "--profile", "--schema", "--rights", "--json"}
    assert {name for name, found in options.items() if not common <= found} <= {"demo"}
    screens = {"--version", "--fleet", "--group", "--replay", "--at", "--no-record"}
    assert {"--url", "--profile", "--rights"} | screens | {"--log-level"} == {
        option for parameter in cli.params for option in parameter.opts
    }


def test_every_default_is_a_value_of_its_type() -> None:
    for _, verb in verbs():
        context = click.Context(verb)
        for parameter in verb.params:
            if isinstance(parameter.default, str):
                parameter.type_cast_value(context, parameter.default)


def test_the_value_of_a_command_has_its_right() -> None:
    of_options = {
        "messages q --reveal --filter id=1": "operator",
        "messages q --payload": "read-only",
        "messages q --export f.csv": "read-only",
        "messages q --export f.csv --payload-bytes 9": "operator",
        "discover --adopt": "admin",
        "pipeline verify q": "read-only",
    }
    commands = dict(verbs())
    for words, right in {**dict.fromkeys(READING, "read-only"), **WRITING, **of_options}.items():
        first, second = (*words.split(), "")[:2]
        name = f"{first} {second}" if f"{first} {second}" in commands else first
        command = commands[name]
        assert isinstance(command, CallCommand)
        with command.make_context(name, words.removeprefix(name).split()) as context:
            assert (words, command.of.right(context.params).word) == (words, right)


def test_only_verbs_that_ask_for_confirmation_take_yes() -> None:
    asking = {
        name
        for name, verb in verbs()
        if any("--yes" in parameter.opts for parameter in verb.params)
    }
    on_messages = {"requeue", "release", "purge", "archive", "restore", "reschedule"}
    assert asking == on_messages | {
        *("uninstall", "relay", "resize", "maintain", "upgrade", "end-session", "doctor"),
        "discover",
        *("pause", "resume", "protect", "unprotect", "pipeline archive", "pipeline replay"),
        *("pipeline compact", "pipeline expire", "pipeline erase"),
        *("subscribe", "unsubscribe", "skip"),
    }


def examples(verb: click.Command) -> list[list[str]]:
    """The words of each call among a verb's examples, as a shell splits them."""
    _, found, after = (verb.help or "").partition("Examples:\n")
    assert found, verb.name
    block = after.partition("\n\n")[0].replace("\\\n", " ")
    return [
        words
        for line in block.splitlines()
        for words in calls_of(re.sub(r'eval "\$\((.*)\)"', r"\1", line))
    ]


def calls_of(line: str) -> Iterator[list[str]]:
    """The words after `dbq-console` in each command of a pipeline."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words = list(reader)
    while "dbq-console" in words:
        words = words[words.index("dbq-console") + 1 :]
        end = next((at for at, word in enumerate(words) if word in {"|", ">"}), len(words))
        yield words[:end]


def parse(words: list[str]) -> None:
    """Raise ClickException if click does not accept the words. Nothing is run."""
    context = cli.make_context("dbq-console", list(words))
    while left := [*context._protected_args, *context.args]:
        assert isinstance(context.command, click.Group), left
        name, verb, rest = context.command.resolve_command(context, left)
        assert verb is not None
        context = verb.make_context(name, rest, parent=context)
        if not isinstance(context.command, click.Group):
            return


@pytest.mark.parametrize(
    ("name", "verb"),
    [*verbs(), ("pipeline", command("pipeline")), ("", cli)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_verb_has_help_with_examples_that_can_be_called(
    name: str, verb: click.Command
) -> None:
    answer = call(*name.split(), "--help")
    assert (answer.status, answer.err) == (0, "")
    assert "Usage: " in answer.text
    assert "\n  Examples:\n    " in answer.text
    assert verb.get_short_help_str(200)
    found = examples(verb)
    assert found
    for words in found:
        parse(words)
        assert words[: len(name.split())] == name.split()


_EXAMPLES_OF = {"VERB": "status", "TOPIC": "designs", "D": "fifo", "E": "mssql"}


def commands_of(document: Path) -> list[str]:
    """The commands of a document that a reader may type: in its blocks of code, and within its
    text."""
    text = document.read_text()
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", prose)]
    lines += [re.sub(r'eval "\$\((.*)\)"', r"\1", span) for span in spans]
    return [line for line in lines if re.match(r"\w+ \d+ \| dbq|dbq-console ", line)]


def test_every_command_in_the_documents_can_be_called() -> None:
    every = [*ROOT.glob("*.md"), *ROOT.glob("[cqt]*/**/*.md")]
    documents = [path for path in every if "adding" not in path.parts]  # of what a copy has more
    assert len(documents) > 12
    found = [words for path in documents for line in commands_of(path) for words in calls_of(line)]
    assert len(found) > 80
    for words in found:
        named = [_EXAMPLES_OF.get(word, word) for word in words if word != "--help"]
        parse(named)


def test_an_example_that_cannot_be_called_is_detected() -> None:
    for words in ("status --wach", "pop", "resize orders ten", "pipeline archve q"):
        with pytest.raises(click.ClickException):
            parse(words.split())


def test_the_url_is_given_before_the_verb_after_it_or_in_the_environment(console: Console) -> None:
    """After the verb takes precedence over before it, and that over the environment."""
    for used in (
        "environment",
        "before",
        "after",
        "environment before",
        "environment before after",
    ):
        *others, nearest = used.split()
        urls = dict.fromkeys(others, UNREACHABLE) | {nearest: console.url}
        before, after = (
            ["--url", urls[position]] if position in urls else []
            for position in ("before", "after")
        )
        environment = {"DBQ_URL": urls["environment"]} if "environment" in urls else {}
        answer = call(*before, "status", "--json", *after, environment=environment)
        assert (answer.status, set(answer.json)) == (0, {"queues", "connection", "standby"}), used


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_url_without_a_driver_is_accepted_everywhere(
    console: Console, tmp_path: Path, scheme: str
) -> None:
    """On the command line, in DBQ_URL, in a profile, and in a variable that holds all of it."""
    url = console.url.replace("postgresql+psycopg://", f"{scheme}://")
    file = tmp_path / "config.toml"
    file.write_text('[profiles.p]\nurl = "${env:WHOLE}"\n')
    environment = {"DBQ_CONFIG": str(file), "WHOLE": url}
    for arguments, more in ((["--url", url], {}), ([], {"DBQ_URL": url}), (["--profile", "p"], {})):
        answer = call("status", "--json", *arguments, environment=environment | more)
        assert answer.status == 0, answer
    file.write_text(f'[profiles.p]\nurl = "{scheme}://u@127.0.0.1:1/d"\n')
    assert "127.0.0.1" in call("status", "--profile", "p", environment=environment).err
    shown = call("config", "show", "--profile", "p", "--json", environment=environment).json
    (only,) = shown["profiles"]
    assert only["settings"]["url"]["value"] == "postgresql://u@127.0.0.1:1/d"


def test_an_unknown_profile_is_refused() -> None:
    for arguments in (["--profile", "p", "status"], ["status", "--profile", "p"]):
        refused(call(*arguments), 2, "'p'", "profile")


def test_without_a_database_every_verb_says_how_to_name_one() -> None:
    for words in (*OF_A_QUEUE, "install fifo q"):
        refused(call(*words.split()), 2, "No database is named", "--url", "DBQ_URL")
    refused(call("status", environment={"DBQ_URL": ""}), 2, "No database is named", "--url")


def test_a_wrong_password_or_a_missing_database_is_exit_3(console: Console) -> None:
    url = make_url(console.url)
    for wrong in (url.set(password=PASSWORD), url.set(database="no such database")):
        answer = call("status", "--url", wrong.render_as_string(hide_password=False))
        refused(answer, 3, "Could not read")


def test_an_unusable_url_is_refused_without_printing_it() -> None:
    for url, complaint in (
        (f"nonsense {PASSWORD}", "cannot be read"),
        (f"postgresql://u:{PASSWORD}@h:port/db", "cannot be read"),
        (f"mysql+pymysql://u:{PASSWORD}@h/db", "'mysql'"),
        (f"://{PASSWORD}", "cannot be read"),
        ("postgresql+psycopg://127.0.0.1/db?no_such_parameter=1", "no_such_parameter"),
    ):
        refused(call("status", "--url", url), 2, complaint)


MISTAKES = {
    "no-such-verb": "No such command",
    "status --no-such-option": "No such option",
    "status --rights root": "root",
    "--json status": "No such option",
    "push": "NAME",
    "push q": "PAYLOAD",
    "push q x --lines": "--lines",
    "push q x --due soon": "duration from now",
    "push q x --due 2026-03-29T08:00": "offset from UTC",
    "push q x --id 1": "UUID",
    "push q x --allow-empty": "stdin",
    "push q - --lines --id 6f1f2a30-3c1e-4f0e-9f43-0c8d7a5b1e52": "--lines",
    "complete q": "ID",
    "fail q 1": "--error",
    "complete q 1 --attempts 0": "0",
    "push q x --wait -1s": "-1s",
    "pop": "NAME",
    "pop q --count 0": "0",
    "pop q --wait 5": "'5' is not a duration",
    "pop q --complete --fail no": "--complete",
    "smoke": "--design",
    "smoke q --design fifo": "--design",
    "smoke --design nope": "'nope'",
    "prove --designs nope": "'nope'",
    "install": "DESIGN",
    "install nope q": "'nope'",
    "install broker q": "'broker'",
    "install fifo q --option nope=1": "'nope'",
    "install fifo q --option order": "name=value",
    "install fifo q --option =lax": "name=value",
    "install fifo q --option order=lax --option order=lax": "twice",
    "install ring q --option size=100000001": "size",
    "install ring q --option max_bytes=7001": "max_bytes",
    "install ring q --option in_hand=on --option archive_at_pop=on": "exclude",
    "install fifo q --schema none": "'none'",
    "install fifo q --engine postgresql": "--print",
    "install fifo q --print --engine oracle": "'oracle'",
    "adopt t": "--design",
    "adopt t --design nope": "'nope'",
    "adopt t --preset nope": "'nope'",
    "adopt t --preset pgqueuer --map id=a": "exclude",
    "adopt t --preset pgqueuer": "no table of pgqueuer",
    "adopt t --design fifo --queue q": "--preset",
    "adopt t --design fifo": "--map id=COLUMN",
    "adopt t --design fifo --map id=a --map payload=b": "no table 't'",
    "adopt t --design fifo --map id=a --map id=b --map payload=b": "twice",
    "adopt t --design fifo --map id= --map payload=b": "name",
    "resize q 0": "0",
    "resize q ten": "ten",
}


def test_wrong_use_of_any_verb_is_exit_2_and_says_what_is_wrong(console: Console) -> None:
    for mistake, complaint in MISTAKES.items():
        refused(console(*mistake.split()), 2, complaint)
    refused(console("install", "fifo", "q", "--schema", ""), 2, "cannot be empty")
    refused(call("install", "ring", "r", "--print"), 2, "No engine", "--engine", "postgresql")


def test_an_unknown_queue_is_exit_2_and_suggests_similar_names(
    console: Console, install: Install
) -> None:
    name = install("fifo")
    with connect(console.url) as connection:
        for schema in ("one", "two"):
            connection.execute(f"CREATE SCHEMA {schema}".encode())
            console.done("install", "fifo", "twice", "--schema", schema)
    for words in OF_A_QUEUE:
        near = f"Did you mean: {name}"
        refused(console(*of_queue(words, f"{name}x")), 2, f"'{name}x'", near)
        refused(console(*of_queue(words, name), "--schema", "none"), 2, "'none'")
        refused(console(*of_queue(words, "twice")), 2, "one, two", "--schema")


def test_schema_selects_one_of_several_queues_with_the_same_name(empty: Console) -> None:
    with connect(empty.url) as connection:
        for schema in ("one", "two"):
            connection.execute(f"CREATE SCHEMA {schema}".encode())
            empty.done("install", "fifo", "q", "--schema", schema)
            empty.done("push", "q", schema, "--schema", schema)
    (queue,) = empty.done("status", "--json", "--schema", "two").json["queues"]
    assert queue["schema"] == "two"
    assert [q["schema"] for q in empty.done("status", "--json").json["queues"]] == ["one", "two"]
    assert empty.done("pop", "q", "--schema", "two").out == b"two\n"
    empty.done("uninstall", "q", "--schema", "two", "--with-messages", "--yes", "q")
    assert empty.done("pop", "q").out == b"one\n"


def test_an_empty_list_is_exit_0(empty: Console) -> None:
    assert empty.done("status", "--json").json["queues"] == []
    assert "No queues" in empty.done("status").text
    assert "'none'" in empty.done("status", "--schema", "none").text


def test_status_runs_in_read_only_transactions(empty: Console) -> None:
    empty.done("install", "fifo", "q")
    execute(empty.url, FAIL_UNLESS_READ_ONLY)
    for rights in ([], ["--rights", "read-only"]):
        queues = empty.done("status", "--json", *rights).json["queues"]
        assert [queue["ready"] for queue in queues] == [1, 0]
        assert empty.status("looked_at")["ready"] == 1


def test_designs_needs_no_database_and_lists_every_design_and_option() -> None:
    answer = call("designs", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert set(answer.json) == {"designs"}
    by_name = {design["design"]: design for design in answer.json["designs"]}
    assert list(by_name) == list(DESIGNS)
    for name, listed in by_name.items():
        definition = DESIGNS[name]
        assert set(listed) == {
            *("design", "title", "source", "summary", "advice", "engines"),
            *("options", "states", "verbs", "verbs_with", "details", "order"),
        }
        assert listed["engines"] == list(definition.engines)
        assert list(listed["options"]) == list(definition.engines)
        for engine, options in listed["options"].items():
            defaults = {option["option"]: option["default"] for option in options}
            # A ring that does not use them does not store them.
            none = {"content": "slot", "partitions": "8", "subscribers": "none"}
            implicit = none if name == "ring" else {}
            assert defaults == definition.complete_options({}, engine) | implicit
        assert listed["verbs"] == {engine: list(definition.verbs) for engine in definition.engines}
    plain = call("designs").text
    for name, definition in DESIGNS.items():
        assert f"{name}: " in plain
        assert all(
            f"--option {option.name}={option.default}" in plain for option in definition.options
        )


def test_the_screens_need_a_terminal() -> None:
    for arguments in ([], ["--url", UNREACHABLE]):
        answer = Console(UNREACHABLE).run(*arguments)
        refused(answer, 2, "terminal")
        assert answer.err.count("\n") == 1


def test_json_output_is_one_line_of_utf_8(empty: Console) -> None:
    name = "ü 😀"
    answer = empty.done("install", "fifo", name, "--json")
    assert name.encode() in answer.out
    assert answer.out.count(b"\n") == 1
    assert json.loads(answer.out)["queue"] == name
