"""The jobs of the pipeline as an operator is offered them: their forms, and the run of one."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from console.errors import RefusedError, UsageError
from console.pipeline import launch
from console.pipeline.launch import Job
from console.rights import Rights
from console.tui.actions.fields import Field, Form, Kind, words_of
from console.tui.board import Key
from console.tui.places import Place

_LAKE = Field("lake", Kind.TEXT, "a folder or a URI; empty: in this user's state")
_MASTER = Field("master", Kind.TEXT, "Spark's", default="local[*]")
_FROM = Field("from", Kind.TEXT, "the connection whose archive it was")
_LOGIN = re.compile(r"://[^/\s]*:[^\s]*@")

FORMS: tuple[Form, ...] = (
    Form(
        "archive",
        "drain its archive into a lake of Parquet files",
        (
            _LAKE,
            Field("older", Kind.DURATION, "only rows so old: 1h, 7d"),
            Field("retention", Kind.DURATION, "what was purged stays so long", default="7d"),
            Field("done-older", Kind.DURATION, "also done rows, so old"),
            _MASTER,
        ),
    ),
    Form(
        "replay",
        "push archived messages out of a lake again, once",
        (
            _LAKE,
            _FROM,
            Field("to", Kind.TEXT, "another queue of this database"),
            Field(
                "filter",
                Kind.TEXT,
                "all must match: id= state= error~ reason= title~ since= until=",
            ),
            _MASTER,
        ),
    ),
    Form(
        "verify",
        "compare logs of its pushes and pops: lost, doubled, out of order",
        (
            _LAKE,
            _FROM,
            Field("push-log", Kind.TEXT, "a file or a folder of it"),
            Field("pop-log", Kind.TEXT, "empty: what the lake has of it"),
            Field("order", Kind.TEXT, "empty: what the queue promises"),
            Field("left", Kind.NUMBER, "were in it at the end: not lost", least=0),
            _MASTER,
        ),
        confirmed=False,
    ),
    Form(
        "rollup",
        "make tables of minutes, hours and days of what was recorded",
        (
            _LAKE,
            Field("recordings", Kind.TEXT, "a folder; empty: this user's"),
            Field("days", Kind.TEXT, "only these, also again: 2026-03-28..2026-03-29"),
            _MASTER,
        ),
        confirmed=False,
    ),
)
BY_VERB = {form.verb: form for form in FORMS}
ABOUT_A_QUEUE = ("archive", "replay", "verify")
DOES = {
    "verify": "It reads the logs and compares them. It changes nothing.",
    "rollup": "It reads the recordings and writes tables of them into the lake. It deletes nothing "
    "and asks no database.",
}
"""Of those that have no dry run: what they do."""


def why_not(verb: str, place: Place | None) -> str:
    """Why a job cannot be begun from a console, whatever its form says; empty: it can."""
    if verb not in ABOUT_A_QUEUE:
        return ""
    if place is None:
        return "there is no such connection here"
    if BY_VERB[verb].confirmed and place.rights < Rights.OPERATOR:
        return f"it needs the right operator; this connection has {place.rights.word}"
    if place.credentials is not None and place.credentials.is_typed:
        return "its password is typed, and a process of its own has nobody to ask"
    return ""


def require_extra() -> None:
    """UsageError, with what is to be installed, where the pipeline cannot run here."""
    # Not before it is wanted: the console shall start at once.
    from console.pipeline import session  # noqa: PLC0415

    session.require_extra()


def job(verb: str, said: Mapping[str, str], place: Place | None, key: Key | None) -> Job:
    """The run that a form means, without a confirmation. Waits: a password may be looked up.

    RefusedError where it cannot be from here, UsageError for what cannot be said.
    """
    if why := why_not(verb, place):
        raise RefusedError(f"pipeline {verb} cannot be begun from here.", why=f"{why}.")
    options = _options(BY_VERB[verb], said)
    lake = said.get("lake", "")
    if verb not in ABOUT_A_QUEUE or place is None or key is None:
        return Job(verb, ("pipeline", verb, *options), lake=lake)
    connection, schema, name = key
    words = [*options, "--schema", schema, "--rights", place.rights.word]
    environment = {}
    if place.words[:1] == ("--profile",):
        words += place.words
    else:
        url = place.database.complete_url()
        environment["DBQ_URL"] = url.render_as_string(hide_password=False)
    named = ("--", name) if name.startswith("-") else (name,)
    all_words = ("pipeline", verb, *words, *named)
    return Job(verb, all_words, environment, queue=name, connection=connection, lake=lake)


def with_option(of: Job, *option: str) -> Job:
    """The same with one more, before the name."""
    return replace(of, words=(*of.words[:2], *option, *of.words[2:]))


def confirmed(of: Job) -> Job:
    """The same, to be done."""
    name = of.queue
    return with_option(of, *([f"--yes={name}"] if name.startswith("-") else ["--yes", name]))


def twin(verb: str, said: Mapping[str, str], place: Place | None, key: Key | None) -> str:
    """The command line that does the same. It shows no secret, and looks none up."""
    words = ["pipeline", verb, *_options(BY_VERB[verb], said)]
    if verb in ABOUT_A_QUEUE and key is not None:
        words += ["--schema", key[1], *(() if place is None else place.words)]
        words += ["--", key[2]] if key[2].startswith("-") else [key[2]]
    return launch.line(words)


def _options(form: Form, said: Mapping[str, str]) -> list[str]:
    words = []
    for field in form.fields:
        text = said.get(field.name, "").strip()
        if not text or text == field.default:
            continue
        if _LOGIN.search(text):
            raise UsageError(
                f"{field.name}: a command line can be seen by others.",
                next_step="Leave the login to the environment of the console.",
            )
        values = words_of(text) if field.name == "filter" else (_here(field, text),)
        words += [f"--{field.name}={value}" for value in values]
    return words


def _here(field: Field, text: str) -> str:
    """A path, whole: `~` is the shell's."""
    folders = {"lake", "recordings", "push-log", "pop-log"}
    if field.name not in folders or "://" in text:
        return text
    return str(Path(text).expanduser().absolute())
