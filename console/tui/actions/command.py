"""A form as the command line has it: the twin of what a screen would do."""

import shlex
from collections.abc import Mapping, Sequence

from console.tui.actions.fields import Field, Form, Kind, Put, words_of

PROGRAM = "dbq-console"


def command(
    form: Form,
    place: Sequence[str],
    schema: str,
    name: str,
    said: Mapping[str, str],
    yes: str | None = None,
) -> str:
    """To be pasted into a shell. `yes`: its confirmation, empty where any will do; None: not.

    Without a confirmation it prints the plan and changes nothing.
    """
    arguments = [name, *(said[f.name] for f in _given(form, said) if f.put is Put.ARGUMENT)]
    options = [*form.fixed]
    for field in form.fields:
        if field.put is Put.OPTION and field.name in said:
            options += _option(field, said[field.name])
    if yes is not None and form.confirmed:
        options += _valued("--yes", yes) if yes else ["--yes"]
    options += [*place, *_valued("--schema", schema)]
    # Options come before the arguments that only "--" keeps from being taken for options.
    dashed = any(word.startswith("-") for word in arguments)
    words = [*options, "--", *arguments] if dashed else [*arguments, *options]
    # A payload that is "-" alone would mean standard input: so it comes from there.
    piped = "printf %s - | " if said.get("payload") == "-" else ""
    line = piped + shlex.join([PROGRAM, form.command or form.verb, *words])
    files = [said[f.name] for f in _given(form, said) if f.put is Put.REDIRECTED]
    return line + "".join(f" >> {shlex.quote(path)}" for path in files)


def _given(form: Form, said: Mapping[str, str]) -> list[Field]:
    return [field for field in form.fields if said.get(field.name)]


def _option(field: Field, text: str) -> list[str]:
    if not text or text == field.default:
        return []
    if field.kind is Kind.FLAG:
        return [f"--{field.name}"]
    if field.kind is Kind.FILTERS:
        return [part for word in words_of(text) for part in _valued("--filter", word)]
    return _valued(f"--{field.name}", text)


def _valued(option: str, value: str) -> list[str]:
    """A value that begins with "-" would be taken for an option of its own."""
    return [f"{option}={value}"] if value.startswith("-") else [option, value]
