"""The screen of who works on what: it draws the samples of all connections, and reads nothing."""

from console.tui.command import Command, CommandContext, refuse_more


def _busy(ctx: CommandContext, words: list[str]) -> None:
    refuse_more(words)
    from console.features.busy.screens.busy import BusyScreen  # noqa: PLC0415

    ctx.app.push_screen(BusyScreen(ctx.context))


COMMANDS = (Command("busy", "", "who works on what, over all queues", _busy, in_palette=True),)
