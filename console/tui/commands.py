"""The commands that can be typed after `:`; an error says what was expected.

A command opens a screen, or a form with its fields filled in. None changes data by itself.
"""

import difflib
from dataclasses import replace
from pathlib import Path

from console import features
from console.config import file_writer
from console.config.file_reader import FILTERS
from console.errors import UsageError
from console.filters import MARK, expand, words_of
from console.monitor import filters as filtering
from console.tui.command import (
    Command,
    CommandContext,
    Handler,
    for_new_queue,
    form_command,
    is_option,
    names_of,
    on_connection,
    queue_and_rest,
    queue_named,
    refuse_more,
    without_arguments,
)
from console.tui.findings import QueueKey
from console.tui.tabs import summaries_of_features
from console.tui.text import plain
from console.verbs import all_verbs
from console.verbs.decisions import NOTE
from console.verbs.queues import INSTALL, SMOKE
from console.verbs.verb import Verb, texts_from_words
from console.views import get_view, summaries
from console.views.view import Subject

_OF_FEATURES = summaries_of_features()
TABS = (
    *("findings", "messages", "errors", "stuck", "waits", "slots", "sql", "audit"),
    *_OF_FEATURES,
    "consumers",
)


def run(ctx: CommandContext, line: str) -> None:
    """Run a command line. UsageError, with a suggestion."""
    words = words_of(line.strip().removeprefix(":"))
    if not words:
        return
    command = command_named(words[0])
    command.do(ctx, words[1:])


def command_named(name: str) -> Command:
    """The command of this name or unambiguous prefix. UsageError."""
    if name in BY_NAME:
        return BY_NAME[name]
    begins = sorted({c.name for n, c in BY_NAME.items() if n.startswith(name)})
    if len(begins) == 1:
        return BY_NAME[begins[0]]
    suggestions = begins or difflib.get_close_matches(name, BY_NAME, n=3, cutoff=0.5)
    raise UsageError(
        f"There is no command {plain(name)!r}.",
        next_step=f"Did you mean: {', '.join(suggestions)}?" if suggestions else "? lists them.",
    )


# Handlers.


def _messages(ctx: CommandContext, words: list[str]) -> None:
    key, rest = queue_and_rest(ctx, words)
    ctx.app.open_messages(key, _filters(ctx, key, rest))


def _queue(ctx: CommandContext, words: list[str]) -> None:
    key, rest = queue_and_rest(ctx, words)
    tab = rest[0] if rest else ""
    if tab and tab not in TABS:
        raise UsageError(
            f"A queue has no tab {plain(tab)!r}.", next_step=f"Tabs: {', '.join(TABS)}"
        )
    refuse_more(rest[1:])
    ctx.app.open_queue(key, tab)


def _tab(name: str) -> Handler:
    def do(ctx: CommandContext, words: list[str]) -> None:
        key, rest = queue_and_rest(ctx, words)
        refuse_more(rest)
        ctx.app.open_queue(key, name)

    return do


def _actions(ctx: CommandContext, words: list[str]) -> None:
    key, rest = queue_and_rest(ctx, words)
    ctx.app.open_actions(key, _filters(ctx, key, rest))


def _filters(ctx: CommandContext, key: QueueKey, words: list[str]) -> list[str]:
    given = (word for word in words if word != "--filter")
    filters = [*expand(given, ctx.context.filters(key))]
    filtering.parse(filters)
    return filters


def _verb(verb: Verb) -> Handler:
    def do(ctx: CommandContext, words: list[str]) -> None:
        first = 1 if verb.queue_last and words and not is_option(words[0]) else 0
        key, rest = queue_and_rest(ctx, words[first:])
        rest = [*words[:first], *rest]
        given = texts_from_words(verb, rest, ctx.context.filters(key))
        filters = words_of(given.pop("filter", ""))
        ctx.app.open_action(key, verb.name, filters, **given)

    return do


def _note(ctx: CommandContext, words: list[str]) -> None:
    """On the named queue, else on all queues of the connection."""
    known = {name for key in ctx.keys for name in names_of(key)}
    named = [word for word in words if word in known][-1:]
    key, _ = queue_and_rest(ctx, named)
    given = texts_from_words(NOTE, [word for word in words if word not in named])
    if "text" in given and not named:
        given["all"] = "yes"
    ctx.app.open_action(key, NOTE.name, **given)


def _smoke(ctx: CommandContext, words: list[str]) -> None:
    key, rest = queue_and_rest(ctx, words)
    ctx.app.open_smoke(key, **texts_from_words(SMOKE, rest))


def _audit(ctx: CommandContext, words: list[str]) -> None:
    if not words:
        ctx.app.open_audit()
    elif words[0] in ctx.context.connections:
        ctx.app.open_audit(words[0])
    else:
        ctx.app.open_audit(key=queue_named(ctx, words[0]))


def _list(name: str) -> Handler:
    def do(ctx: CommandContext, words: list[str]) -> None:
        subject = get_view(name).subject
        key = ("" if subject is Subject.MACHINE else ctx.connection, "", "")
        rest = words[1:]
        if words and words[0] in ctx.context.connections:
            key = (words[0], "", "")
        elif words or subject is Subject.QUEUE:
            key, rest = queue_and_rest(ctx, words)
        refuse_more(rest)
        ctx.app.open_list(name, key)

    return do


def _doctor(ctx: CommandContext, words: list[str]) -> None:
    ctx.app.examine(queue_named(ctx, words[0]) if words else None)


def _theme(ctx: CommandContext, words: list[str]) -> None:
    if not words or words[0] not in ctx.themes:
        raise UsageError("Which theme?", next_step=f"There are: {', '.join(ctx.themes)}")
    save = words[1:2] == ["--save"]
    refuse_more(words[2:] if save else words[1:])
    ctx.app.choose_theme(words[0])
    if save:
        path = _config_file(ctx)
        file_writer.save_theme(path, words[0])
        ctx.app.notify_plain(f"The theme is now {words[0]}, saved in {path}.")


def _config_file(ctx: CommandContext) -> Path:
    """The configuration file. UsageError if this console has none."""
    if ctx.context.config_path is None:
        raise UsageError(
            "Nothing can be saved from here.", why="This console has no configuration file."
        )
    return ctx.context.config_path


def _save(ctx: CommandContext, words: list[str]) -> None:
    if not words:
        raise UsageError("Under which name?", next_step="Example: :save late")
    refuse_more(words[1:])
    name, visible_filter, path = words[0].removeprefix(MARK), ctx.visible_filter, _config_file(ctx)
    if visible_filter is None:
        raise UsageError(
            "There is no filter here.",
            next_step="Filter the overview, or a list of messages, with / first.",
        )
    file_writer.save_filter(path, visible_filter.kind, name, visible_filter.line)
    saved = ctx.context.saved
    if visible_filter.kind == FILTERS:
        messages = {**saved.messages, name: tuple(words_of(visible_filter.line))}
        ctx.context.saved = replace(saved, messages=messages)
    else:
        ctx.context.saved = replace(saved, queues={**saved.queues, name: visible_filter.line})
    where = "in lists of messages" if visible_filter.kind == FILTERS else "on the overview"
    ctx.app.notify_plain(f"Saved in {path}: {MARK}{name} after / {where}.")


_OF_SCREENS = tuple(c for module in features.modules("screens") for c in module.COMMANDS)
_ELSEWHERE = {
    *("messages", "errors", "waits", "audit", "doctor", "status"),
    *TABS,
    *(command.name for command in _OF_SCREENS),
}
"""Lists with a screen or a tab of their own."""
_OF_VERBS = (
    form_command(NOTE, "TEXT [QUEUE]", _note, "queue"),
    form_command(SMOKE, "[QUEUE] ...", _smoke, "queue"),
    Command(
        "doctor", "[QUEUE]", "have the doctor examine it now", _doctor, "queue", in_palette=True
    ),
)
"""Those of verbs that are more than their form."""
COMMANDS: tuple[Command, ...] = (
    Command(
        "messages", "[QUEUE] [FILTER...]", "its messages: q orders state=error", _messages,
        "queue", ("q",),
    ),
    Command("queue", "[QUEUE] [TAB]", "its screen, on a tab", _queue, "queue"),
    Command("errors", "[QUEUE]", "its errors, in groups", _tab("errors"), "queue"),
    Command("stuck", "[QUEUE]", "its stuck claims, and who holds them", _tab("stuck"), "queue"),
    *(
        Command(name, "[QUEUE]", line[:1].lower() + line[1:-1], _tab(name), "queue")
        for name, line in _OF_FEATURES.items()
    ),
    Command("actions", "[QUEUE] [FILTER...]", "what can be done with it", _actions, "queue"),
    *(
        form_command(
            verb,
            "CODE [QUEUE] ..." if verb.queue_last else "[QUEUE] ...",
            _verb(verb),
            "" if verb.queue_last else "queue",
        )
        for verb in all_verbs()
        if verb.name not in {command.name for command in _OF_VERBS}
    ),
    *_OF_VERBS,
    Command(
        "waits", "[CONNECTION]", "what the sessions wait for",
        on_connection(lambda app: app.open_waits), "connection", in_palette=True,
    ),
    *_OF_SCREENS,
    Command("audit", "[QUEUE | CONNECTION]", "who did what", _audit, "both", in_palette=True),
    *(
        Command(name, "[QUEUE | CONNECTION]", line[:1].lower() + line[1:-1], _list(name), "both")
        for name, line in summaries().items()
        if name not in _ELSEWHERE
    ),
    form_command(
        INSTALL, "[CONNECTION] [DESIGN NAME] ...",
        for_new_queue(INSTALL, lambda ctx: ctx.app.open_install), "connection", in_palette=True,
    ),
    Command(
        "connections", "", "their state; add a new one",
        without_arguments(lambda app: app.open_connections), in_palette=True,
    ),
    Command(
        "running", "", "actions running here", without_arguments(lambda app: app.open_running),
        in_palette=True,
    ),
    Command("save", "NAME", "save the current filter, for / and --filter: @NAME", _save),
    Command("theme", "NAME [--save]", "change the colours, for now or for good", _theme, "theme"),
    Command(
        "help", "", "the keys", without_arguments(lambda app: app.action_help), in_palette=True,
    ),
    Command(
        "quit", "", "quit the console", without_arguments(lambda app: app.exit), aliases=("q!",),
        in_palette=True,
    ),
)  # fmt: skip

BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
