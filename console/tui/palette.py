"""Ctrl-P: everything that a command can do, found by a part of its words."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Hits, Provider

from console.designs import DESIGNS
from console.errors import ConsoleError
from console.tui import commands
from console.tui.actions.fields import BY_VERB
from console.tui.actions.pipeline import ABOUT_A_QUEUE
from console.tui.actions.pipeline import BY_VERB as JOBS
from console.tui.commands import Site
from console.tui.dialogs.dialog import DismissedOnce
from console.tui.text import plain

if TYPE_CHECKING:
    from console.tui.app import ConsoleApp

Entry = tuple[str, str, str]
"""What it is called, what it does, the command."""


_SCREENS = (
    *("audit", "connections", "running", "install", "adopt", "waits", "bench", "doctor", "help"),
)


class Palette(DismissedOnce, CommandPalette):
    """Textual's own pages through a list that has no room yet, and dies of it."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the list wait until it is laid out."""
        if action == "command_list" and self.is_mounted:
            return bool(self.query_one(CommandList).scrollable_content_region)
        return super().check_action(action, parameters)


class ConsoleCommands(Provider):
    """The verbs of the queue under the cursor, the screens, the queues, the themes."""

    @property
    def _site(self) -> Site:
        return cast("ConsoleApp", self.app).site(self.screen)

    async def discover(self) -> Hits:
        """Before anything is typed: what concerns the queue under the cursor comes first."""
        for name, words, line in entries(self._site):
            yield DiscoveryHit(name, partial(self._run, line), help=words)

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for name, words, line in entries(self._site):
            score = max(matcher.match(name), matcher.match(words) * 0.5)
            if score > 0:
                yield Hit(score, matcher.highlight(name), partial(self._run, line), help=words)

    def _run(self, line: str) -> None:
        try:
            commands.run(self._site, line)
        except ConsoleError as error:
            self.app.notify(plain(str(error)), severity="error", markup=False)


def entries(site: Site) -> Iterator[Entry]:
    """Everything that there is to choose."""
    if site.key is not None:
        yield from _of_the_queue(site)
    yield "Pipeline runs", commands.BY_NAME["runs"].summary, "runs"
    yield "pipeline rollup", JOBS["rollup"].summary, "pipeline rollup"
    for name in _SCREENS:
        command = commands.BY_NAME[name]
        yield name, command.summary, name
    for key in site.keys:
        name = f"{key[0]}/{key[1]}.{key[2]}"
        yield f"queue {plain(name)}", "its screen", f"queue {commands.quoted(name)}"
    for theme in site.themes:
        yield f"theme {theme}", "other colours", f"theme {theme}"
    yield "quit", "quit the console", "quit"


def _of_the_queue(site: Site) -> Iterator[Entry]:
    key = site.key
    if key is None:
        return
    name = commands.quoted(f"{key[0]}/{key[1]}.{key[2]}")
    shown = plain(key[2])
    for verb in _verbs(site):
        summary = BY_VERB[verb].summary if verb in BY_VERB else commands.BY_NAME[verb].summary
        yield f"{verb} {shown}", summary, f"{verb} {name}"
    for verb in ABOUT_A_QUEUE:
        yield f"pipeline {verb} {shown}", JOBS[verb].summary, f"pipeline {verb} {name}"
    for other in ("messages", "errors", "audit"):
        yield f"{other} {shown}", commands.BY_NAME[other].summary, f"{other} {name}"


def _verbs(site: Site) -> list[str]:
    """Those that its design has, with any option; the form says why one cannot be for it."""
    now = site.desk.clock.monotonic()
    found = [view for view in site.desk.board.queues(now) if view.key == site.key]
    of = DESIGNS.get(found[0].snapshot.design) if found else None
    if of is None:
        return []
    known = {*of.verbs, *(verb for verbs in of.option_verbs.values() for verb in verbs), "forget"}
    return [verb for verb in (*BY_VERB, "smoke") if verb in known]
