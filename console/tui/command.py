"""What can be typed after `:`, as values; `commands` lists them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from console.designs import design
from console.errors import UsageError
from console.filters import MARK, Words, line_of
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.navigation import Navigation
from console.tui.text import plain
from console.verbs import command as values
from console.verbs.verb import is_filter, texts_from_words


@dataclass(frozen=True)
class VisibleFilter:
    """The filter of what is on the screen, as the configuration stores it."""

    kind: str
    """FILTERS, for messages; or QUEUE_FILTERS, for the overview."""
    line: str


@dataclass(frozen=True)
class CommandContext:
    """Where a command is typed."""

    context: Context
    key: QueueKey | None = None
    """The queue under the cursor."""
    themes: tuple[str, ...] = ()
    visible_filter: VisibleFilter | None = None
    """The filter that could be saved."""

    @property
    def app(self) -> Navigation:
        return self.context.navigator

    @property
    def connection(self) -> str:
        """The default connection for new queues."""
        if self.key is not None:
            return self.key[0]
        return next(iter(self.context.connections), "")

    @property
    def keys(self) -> list[QueueKey]:
        return [view.key for view in self.context.store.queues(self.context.clock.monotonic())]

    @property
    def filters(self) -> Words:
        """The saved filters of messages of the queue under the cursor, or of every queue."""
        return self.context.saved.messages if self.key is None else self.context.filters(self.key)

    def is_saved(self, word: str) -> bool:
        """Whether it names a saved filter, and not a queue."""
        return word.startswith(MARK) and not any(word in names_of(key) for key in self.keys)


Handler = Callable[[CommandContext, list[str]], None]
Entry = tuple[str, str, str]
"""In the palette: what is shown, its summary, the command line."""


@dataclass(frozen=True)
class QueueAction:
    """One more thing that can be done with a queue: a command line about it."""

    name: str
    of: values.Command
    """Its summary, and the right that it needs."""
    words: tuple[str, ...] = ()
    """Of its command, before the queue."""


@dataclass(frozen=True)
class Command:
    """A command. `completes`: what its arguments are, for completion."""

    name: str
    usage: str
    summary: str
    do: Handler
    completes: str = ""
    """queue, connection, theme; empty: nothing."""
    aliases: tuple[str, ...] = ()
    in_palette: bool = False
    """Whether it works without arguments, wherever the cursor is."""
    form: values.Command | None = None
    """What its form is of."""
    subcommands: Mapping[str, values.Command] = field(default_factory=dict)
    """What may follow its name, with what the form of each is of."""
    about_queue: tuple[str, ...] = ()
    """Those of them that a queue follows."""
    of_queue: tuple[QueueAction, ...] = ()
    """What it offers in the list of actions of a queue."""
    entries: Callable[[CommandContext], Iterator[Entry]] = lambda _: iter(())
    """What it has in the palette, if that is not its summary."""


def queue_named(ctx: CommandContext, name: str) -> QueueKey:
    """The queue of this name, schema.name or connection/schema.name. UsageError."""
    keys = ctx.keys
    matches = [key for key in keys if name in names_of(key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = ", ".join(plain("/".join((key[0], f"{key[1]}.{key[2]}"))) for key in matches[:5])
        raise UsageError(f"{len(matches)} queues are named {plain(name)!r}.", next_step=f"{names}")
    suggestions = difflib.get_close_matches(name, [key[2] for key in keys], n=3, cutoff=0.5)
    raise UsageError(
        f"There is no queue {plain(name)!r} here.",
        next_step=f"Did you mean: {', '.join(map(plain, suggestions))}?" if suggestions else "",
    )


def names_of(key: QueueKey) -> tuple[str, ...]:
    """All names of a queue, the shortest first."""
    connection, schema, name = key
    return (name, f"{schema}.{name}", f"{connection}/{name}", f"{connection}/{schema}.{name}")


def quoted(word: str) -> str:
    """The word as it has to be typed."""
    return line_of([word])


def queue_and_rest(ctx: CommandContext, words: list[str]) -> tuple[QueueKey, list[str]]:
    """The named queue, or the one under the cursor; and the other words."""
    if words and not is_option(words[0]) and not ctx.is_saved(words[0]):
        return queue_named(ctx, words[0]), words[1:]
    if ctx.key is None:
        raise UsageError("Which queue?", next_step="Name it, or move the cursor to it.")
    return ctx.key, words


def is_option(word: str) -> bool:
    return word.startswith("--") or (not word.startswith(MARK) and is_filter(word))


def refuse_more(words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"{plain(words[0])!r} is not understood here.")


def on_connection(method_of: Callable[[Navigation], Callable[[str], None]]) -> Handler:
    def do(ctx: CommandContext, words: list[str]) -> None:
        name = connection_named(ctx, words[:1])
        refuse_more(words[1:])
        method_of(ctx.app)(name)

    return do


def connection_named(ctx: CommandContext, words: list[str]) -> str:
    """The named connection, or the one under the cursor."""
    if not words:
        return ctx.connection
    if words[0] not in ctx.context.connections:
        known = ", ".join(map(plain, ctx.context.connections)) or "none"
        raise UsageError(
            f"There is no connection {plain(words[0])!r}.", next_step=f"There are: {known}"
        )
    return words[0]


def for_new_queue(
    verb: values.Command, open_form: Callable[[CommandContext], Callable[..., None]]
) -> Handler:
    """An optional connection, then the initial values of the form."""

    def do(ctx: CommandContext, words: list[str]) -> None:
        named = [word for word in words[:1] if word in ctx.context.connections]
        given = texts_from_words(verb, words[len(named) :])
        if "design" in given:
            design(given["design"])
        open_form(ctx)(*named or [ctx.connection], **given)

    return do


def without_arguments(method_of: Callable[[Navigation], Callable[[], None]]) -> Handler:
    def do(ctx: CommandContext, words: list[str]) -> None:
        refuse_more(words)
        method_of(ctx.app)()

    return do


def form_command(
    of: values.Command, usage: str, do: Handler, completes: str = "", *, in_palette: bool = False
) -> Command:
    summary = f"the form: {of.summary}"
    return Command(of.name, usage, summary, do, completes, in_palette=in_palette, form=of)
