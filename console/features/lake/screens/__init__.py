"""The screens of the pipeline: the form of a job, and the runs on this machine."""

from collections.abc import Iterator

from console.errors import UsageError
from console.features.lake.verbs import ABOUT_A_QUEUE, BY_NAME
from console.tui.command import (
    Command,
    CommandContext,
    Entry,
    QueueAction,
    queue_and_rest,
    quoted,
    refuse_more,
)
from console.tui.context import Context
from console.tui.findings import QueueKey
from console.tui.text import plain
from console.verbs.verb import texts_from_words


def open_job(context: Context, job: str, key: QueueKey | None = None, **texts: str) -> None:
    """The form of a job. `texts`: its fields, by the command line's names."""
    if not context.navigator.can("verbs", f"pipeline {job}"):
        return
    from console.features.lake.screens.job import PipelineScreen  # noqa: PLC0415

    context.navigator.push_screen(PipelineScreen(context, job, key, texts))


def _runs(ctx: CommandContext, words: list[str]) -> None:
    refuse_more(words)
    if ctx.app.can("runs"):
        from console.features.lake.screens.runs import open_runs  # noqa: PLC0415

        open_runs(ctx.context)


def _pipeline(ctx: CommandContext, words: list[str]) -> None:
    name = words[0] if words else ""
    job = BY_NAME.get(name)
    if job is None:
        raise UsageError(
            f"There is no job {plain(name)!r}." if name else "Which job?",
            next_step=f"There are: {', '.join(BY_NAME)}.",
        )
    key, rest = None, words[1:]
    if name in ABOUT_A_QUEUE:
        key, rest = queue_and_rest(ctx, rest)
    open_job(ctx.context, name, key, **texts_from_words(job, rest))


def _entries(ctx: CommandContext) -> Iterator[Entry]:
    """The jobs that need no queue, and those about the queue under the cursor."""
    for name, job in BY_NAME.items():
        if name not in ABOUT_A_QUEUE:
            yield f"pipeline {name}", job.summary, f"pipeline {name}"
        elif ctx.key is not None:
            connection, schema, queue = ctx.key
            shown, word = plain(queue), quoted(f"{connection}/{schema}.{queue}")
            yield f"pipeline {name} {shown}", job.summary, f"pipeline {name} {word}"


COMMANDS = (
    Command("runs", "", "the runs of the pipeline", _runs, in_palette=True),
    Command(
        "pipeline",
        "JOB [QUEUE] ...",
        f"the form: {', '.join(BY_NAME)}",
        _pipeline,
        subcommands=BY_NAME,
        about_queue=ABOUT_A_QUEUE,
        of_queue=(
            QueueAction("to lake", BY_NAME["archive"], ("archive",)),
            QueueAction("from lake", BY_NAME["replay"], ("replay",)),
            QueueAction("verify log", BY_NAME["verify"], ("verify",)),
        ),
        entries=_entries,
    ),
)
