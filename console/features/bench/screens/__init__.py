"""The screen of a bench."""

from console.features.bench.verbs import BENCH
from console.tui.command import CommandContext, connection_named, form_command
from console.tui.context import Context
from console.verbs.verb import texts_from_words


def open_bench(context: Context, connection: str, **texts: str) -> None:
    """A bench on a connection, or the one that is running. `texts`: the fields of its form."""
    navigator = context.navigator
    from console.features.bench.screens.bench import BenchScreen  # noqa: PLC0415
    from console.features.bench.screens.run import BenchWork  # noqa: PLC0415

    if isinstance(navigator.screen, BenchScreen):
        # Escape must not lead through it twice.
        navigator.pop_screen()
    runs = [run for run in context.action_runs.all if isinstance(run.plan, BenchWork)]
    navigator.push_screen(BenchScreen(context, connection, texts, runs[-1] if runs else None))


def _bench(ctx: CommandContext, words: list[str]) -> None:
    if not ctx.app.can("verbs"):
        return
    named = [word for word in words[:1] if not word.startswith("--")]
    connection = connection_named(ctx, named)
    open_bench(ctx.context, connection, **texts_from_words(BENCH, words[len(named) :]))


COMMANDS = (form_command(BENCH, "[CONNECTION] ...", _bench, "connection", in_palette=True),)
