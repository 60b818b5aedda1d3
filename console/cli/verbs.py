"""Every verb, and the console itself where none is named. No logic, no SQL."""

import io
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import click

from console.cli import (
    acting,
    bench,
    check,
    completion,
    config,
    doctor,
    history,
    inspecting,
    looking,
    mending,
    messages,
    metrics,
    pipeline,
    queues,
    ring,
    running,
    waits,
)
from console.cli.context import place
from console.cli.interrupts import Stopped, interrupt_behind, status_of
from console.cli.logs import logging_to_file, told
from console.cli.streams import narrate, narrate_interrupt, put
from console.config import DISPLAY_ZONE, THEME, Said, load
from console.config.kinds import LOG_LEVELS
from console.errors import ConsoleError, UsageError
from console.monitor.recording.recorder import folder
from console.rights import Rights

_LOG = logging.getLogger(__name__)


class _Verbs(click.Group):
    def invoke(self, context: click.Context, /) -> Any:
        """Run the verb. Click, which would write an empty line at an interrupt, sees none."""
        try:
            with _logged(context):
                return super().invoke(context)
        except BaseException as error:
            stop = interrupt_behind(error)
            if stop is None:
                raise
            narrate_interrupt(*getattr(stop, "__notes__", ()))
            raise click.exceptions.Exit(status_of(stop)) from None


def _tell_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from console.cli.version import facts  # noqa: PLC0415  # 30 ms, for this option only

    put("".join(f"{what} {words}\n" for what, words in facts().items()))
    context.exit()


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@place
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version, and those of what it works with, and exit.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    help="What the log file has; else the configuration's.",
)
@click.option("--no-record", is_flag=True, help="Keep nothing of what the screens see.")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The screens on a folder of recordings instead of a database.",
)
@click.option("--at", metavar="T", help="Where --replay begins: 03:00, or an ISO time.")
@click.pass_context
def cli(
    context: click.Context,
    /,
    *,
    no_record: bool,
    replay: Path | None,
    at: str | None,
    log_level: str | None,
    **before: Any,
) -> None:
    """The console for message queues kept in relational tables.

    Without a verb it opens the terminal user interface: on the database of --url or --profile
    (DBQ_URL, DBQ_PROFILE), else on all that are configured (dbq-console config show --example).
    What they see is recorded, for history and --replay.

    \b
    Exit status: 0 done; 1 the answer is no: nothing there, full, not healthy;
    2 wrong use; 3 cannot connect; 4 refused, or only planned.

    \b
    Examples:
      dbq-console demo
      dbq-console --url postgresql+psycopg://me@host:5432/database
      dbq-console --profile orders status
      dbq-console --replay ~/.local/state/dbq-console/recordings --at 03:00
    """
    context.obj = said = Said(**before)
    del log_level  # whoever invoked this has seen to it
    _LOG.info("%s begins", _verb(context))
    if context.invoked_subcommand is None:
        if replay is not None:
            _replay(replay, at, said)
        elif at is not None:
            raise UsageError("--at goes with --replay PATH.")
        else:
            _open_screens(said, record=not no_record)
    elif no_record or replay is not None or at is not None:
        raise UsageError("--no-record, --replay and --at are for the screens, not for verbs.")


def _replay(root: Path, at: str | None, said: Said) -> None:
    """The screens on a recording."""
    from console import tui  # noqa: PLC0415

    configuration = load()
    named = configuration.chosen(said, url_rights=Rights.READ_ONLY)
    zone = configuration.defaults[DISPLAY_ZONE] if named is None else named.display_zone
    known = {one.label: one.thresholds for one in configuration.profiles()}
    colors = {one.label: one.color for one in configuration.profiles() if one.color}
    taste = tui.Taste(configuration.defaults[THEME], colors, configuration.saved)
    tui.run_replay(root, at, zone=zone, thresholds=known, taste=taste)


def _open_screens(said: Said, *, record: bool) -> None:
    """The terminal user interface on the connection that is named, else on all of them."""
    from console import tui  # noqa: PLC0415  # verbs shall not wait for Textual

    tui.require_terminal()
    configuration = load()
    named = configuration.chosen(said, url_rights=Rights.READ_ONLY)
    profiles = configuration.profiles() if named is None else [named]
    zone = configuration.defaults[DISPLAY_ZONE]
    recordings = folder() if record else None
    taste = tui.Taste(configuration.defaults[THEME], saved=configuration.saved)
    path = configuration.path
    tui.run_profiles(profiles, config_path=path, zone=zone, recordings=recordings, taste=taste)


for command in (*looking.COMMANDS, *queues.COMMANDS, *messages.COMMANDS, *ring.COMMANDS):
    cli.add_command(command)
for command in (*running.COMMANDS, *config.COMMANDS, *waits.COMMANDS, *inspecting.COMMANDS):
    cli.add_command(command)
for command in (*acting.COMMANDS, *mending.COMMANDS, *doctor.COMMANDS, *history.COMMANDS):
    cli.add_command(command)
for command in (*check.COMMANDS, *metrics.COMMANDS, *completion.COMMANDS):
    cli.add_command(command)
for command in (*pipeline.COMMANDS, *bench.COMMANDS):
    cli.add_command(command)


def run() -> int:
    """Run the verb that this process was called with; its exit status."""
    # What libraries log of a call that was cut off is nothing for the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        with _ending_as_by_interrupt():
            # Verbs return nothing; what comes back is the status of an early exit.
            return int(cli.main(prog_name="dbq-console", standalone_mode=False) or 0)
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:
        said = io.StringIO()
        error.show(said)
        narrate(said.getvalue().rstrip("\n"))
        return error.exit_code
    except ConsoleError as error:
        narrate(str(error))
        return error.exit_status


@contextmanager
def _logged(context: click.Context) -> Iterator[None]:
    """The call in the log file: which verb, how long, how it ended. Not what it was called with."""
    began = time.monotonic()
    end = "done"
    with logging_to_file(context.params.get("log_level")):
        try:
            yield
        except ConsoleError as error:
            end = f"exit {error.exit_status}, {told(error)}"
            if not isinstance(error, UsageError):
                _LOG.warning("%s: %s", _verb(context), end)
            raise
        except (
            click.exceptions.Exit,
            click.Abort,
            click.ClickException,
            SystemExit,
            KeyboardInterrupt,
        ) as error:
            end = type(error).__name__
            raise
        except BaseException:
            _LOG.exception("%s: something unforeseen", _verb(context))
            raise
        finally:
            _LOG.info("%s: %s, after %.1f s", _verb(context), end, time.monotonic() - began)


def _verb(context: click.Context) -> str:
    return context.invoked_subcommand or "the screens"


@contextmanager
def _ending_as_by_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, where nobody said otherwise, end a verb as Ctrl-C does."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    ours = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
