"""The screen on which a table is adopted."""

from functools import partial

from console.features.presets.verbs import ADOPT
from console.tui.command import for_new_queue, form_command
from console.tui.context import Context


def open_adopt(context: Context, connection: str, **options: str) -> None:
    """The tables that can be adopted. `options`: the form's fields, by the command line's names."""
    if not context.navigator.can("verbs"):
        return
    from console.features.presets.screens.adopt import AdoptScreen  # noqa: PLC0415

    context.navigator.push_screen(AdoptScreen(context, connection, options))


COMMANDS = (
    form_command(
        ADOPT,
        "[CONNECTION] [NAME] ...",
        for_new_queue(ADOPT, lambda ctx: partial(open_adopt, ctx.context)),
        "connection",
        in_palette=True,
    ),
)
"""What can be typed after `:`."""
