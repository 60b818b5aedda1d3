"""What a line behind `:` could become."""

import re
from collections.abc import Iterable, Iterator, Sequence

from console.errors import UsageError
from console.monitor import filters as filtering
from console.monitor.saved import MARK
from console.tui.actions import bench
from console.tui.actions.fields import BY_VERB, Put
from console.tui.actions.pipeline import ABOUT_A_QUEUE
from console.tui.actions.pipeline import BY_VERB as JOBS
from console.tui.board import Key
from console.tui.commands import COMMANDS, TABS, Command, Site, command_named, names_of, quoted


def completions(site: Site, line: str) -> list[str]:
    """The whole lines that the last word could become."""
    head, _, last = line.rpartition(" ")
    before = head.split()
    if not before:
        return sorted(c.name for c in COMMANDS if c.name.startswith(last))
    try:
        command = command_named(before[0])
    except UsageError:
        return []
    words = [word for word in _words(site, command, before) if word.startswith(last)]
    return [f"{head} {word}" for word in dict.fromkeys(words)]


def _words(site: Site, command: Command, before: Sequence[str]) -> Iterator[str]:
    if len(before) == 1:
        yield from _wanted(site, command.wants)
    if command.wants == "theme" and len(before) == 2:
        yield "--save"
    if command.name == "queue" and len(before) == 2:
        yield from TABS
    if command.wants == "job" and len(before) == 2 and before[1] in ABOUT_A_QUEUE:
        yield from _unambiguous(site.keys)
    form = bench.FORM if command.name == bench.FORM.verb else BY_VERB.get(command.name)
    takes_filters = command.name in {"messages", "actions"} or (
        form is not None and any(field.name == "filter" for field in form.fields)
    )
    if takes_filters and before:
        yield from ("state=ready", "state=claimed", "state=error", "state=done")
        yield from (re.split("(?<=[=~.])", one)[0] for one in filtering.FORMS)
        yield from (f"{MARK}{name}" for name in site.filters)
    if form is not None:
        yield from (f"--{field.name}" for field in form.fields if field.put is Put.OPTION)


def _wanted(site: Site, what: str) -> Iterator[str]:
    """The first word of a command."""
    if what in {"queue", "both"}:
        yield from _unambiguous(site.keys)
    if what in {"connection", "both"}:
        yield from map(quoted, site.desk.places)
    if what == "theme":
        yield from site.themes
    if what == "job":
        yield from JOBS


def _unambiguous(keys: Iterable[Key]) -> list[str]:
    """A name for each queue that means no other."""
    every = list(keys)
    found = []
    for key in every:
        alone = next(
            (n for n in names_of(key) if sum(n in names_of(other) for other in every) == 1), key[2]
        )
        found.append(quoted(alone))
    return found
