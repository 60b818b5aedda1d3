"""The screen of a handover."""

from console.tui.command import Command, CommandContext, refuse_more


def _handover(ctx: CommandContext, words: list[str]) -> None:
    named = [word for word in words[:1] if word in ctx.context.connections]
    refuse_more(words[len(named) :])
    from console.features.why.screens.handover import HandoverScreen  # noqa: PLC0415

    if not isinstance(ctx.app.screen, HandoverScreen):
        ctx.app.push_screen(HandoverScreen(ctx.context, *named))


COMMANDS = (
    Command(
        "handover",
        "[CONNECTION]",
        "the handover of the last hours, of all queues",
        _handover,
        "connection",
        in_palette=True,
    ),
)
