"""All verbs, and the screens if none is given.

Their names are known without reading them, and the first sentences of their help without importing
them: the module of a verb is imported only when it is called."""

import errno
import io
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from console import features
from console.cli import commands
from console.cli.command import CONNECTION, FLEET, GROUP, RIGHTS, as_command
from console.cli.context import COMMAND_LINE, Call
from console.cli.several import profiles_of
from console.cli.streams import (
    Answers,
    Stopped,
    error_json,
    interrupt_json,
    narrate,
    narrate_interrupt,
    put,
    status_of,
    unwritten,
)
from console.command_line import CommandLineValues
from console.errors import ConsoleError, UsageError, interrupt_cause
from console.rights import Rights
from console.state import LOG_LEVELS
from console.verbs.index import VERBS, first_line, module_files
from console.verbs.parameters import Parameter
from console.views import files as files_of_lists

if TYPE_CHECKING:
    from console.verbs.command import Command


class DeferredVerb(click.Command):
    """A verb in the list of verbs; `load` returns the command when it is parsed and run, `line` its
    summary where one is shown."""

    def __init__(
        self, name: str, line: Callable[[], str], load: Callable[[str], click.Command]
    ) -> None:
        super().__init__(name)
        self._line = line
        self._load = load

    def get_short_help_str(self, limit: int = 45) -> str:
        self.help = self._line()
        return super().get_short_help_str(limit)

    @cached_property
    def command(self) -> click.Command:
        """The real command."""
        return self._load(str(self.name))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """The context of the real command."""
        return self.command.make_context(info_name, args, parent, **extra)


def verbs() -> Iterator[DeferredVerb]:
    """All of them."""
    found = set()
    packages = (("", commands.__name__, commands.__path__), *features.packages("commands"))
    for feature, package, path in packages:
        missing = features.missing(feature) if feature else ()
        for name, file in module_files(path).items():
            if missing and name in found:
                continue  # it would replace the core's, which is not off
            found.add(name)
            of = partial(_off, feature, missing) if missing else partial(_own, package)
            yield DeferredVerb(name, partial(first_line, file), of)
    for name in VERBS:
        if name not in found:
            yield DeferredVerb(name, partial(_summary, name), _planned)
    for name, file in files_of_lists().items():
        if name not in found:
            yield DeferredVerb(name, partial(first_line, file), _list)


def _summary(name: str) -> str:
    _, summary = VERBS[name]
    return f"{summary[:1].upper()}{summary[1:]}."


def _own(package: str, name: str) -> click.Command:
    module = import_module(f"{package}.{name.replace('-', '_')}")
    found: Command | click.Group = module.COMMAND
    return found if isinstance(found, click.Group) else as_command(found)


def _off(feature: str, missing: Sequence[str], name: str) -> click.Command:
    """A command of a feature whose needs are not installed: it says so, whatever its words are."""

    def refuse(**_: Any) -> None:
        raise UsageError(
            f"{name} is off.",
            why=f"It belongs to the feature {feature}, which needs {' and '.join(missing)}.",
            next_step="Install a dbq-console that has them all.",
        )

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, context_settings=settings, callback=refuse, help=f"Off: {name}.")


def _planned(name: str) -> click.Command:
    from console.cli.planned import planned_command  # noqa: PLC0415
    from console.verbs import get_verb  # noqa: PLC0415

    return planned_command(get_verb(name))


def _list(name: str) -> click.Command:
    from console.cli.lists import list_command  # noqa: PLC0415
    from console.views import get_view  # noqa: PLC0415

    return list_command(get_view(name))


_LOG = logging.getLogger(__name__)


_UNLOGGED = frozenset({"completion"})
"""Each shell that starts calls it, and to know what is logged takes the whole configuration."""


_WORD = f"{__name__}.word"


class _Verbs(click.Group):
    def parse_args(self, context: click.Context, args: list[str], /) -> list[str]:
        """Also keep the word that names the verb, which click does only once the verb is made."""
        _, words, _ = self.make_parser(context).parse_args(list(args))
        context.meta[_WORD] = next(iter(words), "")
        return super().parse_args(context, args)

    def invoke(self, context: click.Context, /) -> Any:
        """Run the verb; handle interrupts here, since click would write an empty line."""
        try:
            with nullcontext() if context.meta[_WORD] in _UNLOGGED else _logged(context):
                return super().invoke(context)
        except BaseException as error:
            stop = interrupt_cause(error)
            if stop is None:
                raise
            notes = getattr(stop, "__notes__", ())
            if (answers := context.find_object(Answers)) is not None:
                answers.fail(interrupt_json(status_of(stop), " ".join(notes)))
            narrate_interrupt(*notes)
            raise click.exceptions.Exit(status_of(stop)) from None


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from console.cli.about import facts  # noqa: PLC0415  # 30 ms, for this option only

    put("".join(f"{what} {words}\n" for what, words in facts().items()))
    context.exit()


_RIGHTS_OF_SCREENS = (
    "What may be done. Default: as in the profile; on screens opened by URL, read-only."
)
_VERSION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the versions of the console and its dependencies, and exit.",
)
_OF_SCREENS = (
    Parameter(
        "log-level",
        "How much the log file contains. Default: as configured.",
        click.Choice(LOG_LEVELS),
    ),
    Parameter("no-record", "Do not record while the screens are open.", is_flag=True),
    Parameter(
        "replay",
        "Replay a folder of recordings instead of connecting.",
        click.Path(path_type=Path),
        metavar="PATH",
    ),
    Parameter("at", "Where --replay starts: 03:00, or an ISO time.", metavar="T"),
    GROUP,
    FLEET,
)


@click.group(
    cls=_Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        *(parameter.as_click() for parameter in CONNECTION),
        replace(RIGHTS, help=_RIGHTS_OF_SCREENS).as_click(),
        _VERSION,
        *(parameter.as_click() for parameter in _OF_SCREENS),
    ],
)
@click.pass_context
def cli(
    context: click.Context,
    /,
    *,
    no_record: bool,
    replay: Path | None,
    at: str | None,
    log_level: str | None,
    fleet: str | None,
    group: str | None,
    **before: Any,
) -> None:
    """The console for message queues kept in relational tables.

    Without a verb it opens the terminal user interface: on the database of --url or --profile
    (DBQ_URL, DBQ_PROFILE), on those of a --fleet or a --group, else on all configured ones
    (dbq-console config show --example). It records what it samples, for history and --replay.

    \b
    Exit status: 0 done; 1 a negative result: nothing there, full, not healthy;
    2 wrong usage; 3 cannot connect, or the server, a file or this machine failed (a
    full disk, data that cannot be read); 4 refused (rights, a lock, a standby), stopped
    early, or only planned.

    \b
    Examples:
      dbq-console demo
      dbq-console --url postgresql://me@host:5432/database --rights operator
      dbq-console --profile orders status
      dbq-console --fleet shops
      dbq-console --replay ~/.local/state/dbq-console/recordings --at 03:00
    """

    context.meta[COMMAND_LINE] = command_line = CommandLineValues(**before)
    del log_level  # handled by _logged
    _LOG.info("%s begins", _verb(context))
    several = fleet is not None or group is not None
    if context.invoked_subcommand is None:
        if replay is not None:
            if command_line.rights is not None or several:
                raise UsageError(
                    "--rights, --fleet and --group do not go with --replay, which is read-only."
                )
            if command_line.url is not None:
                raise UsageError(
                    "--url does not go with --replay: a recording is read, and nothing connected.",
                    next_step="Leave out one of them.",
                )
            _replay(replay, at, command_line)
        elif at is not None:
            raise UsageError("--at goes with --replay PATH.")
        else:
            _open_screens(command_line, fleet, group, record=not no_record)
    elif several:
        raise UsageError(
            "--fleet and --group before a verb are for the screens; put them after the verb."
        )
    elif no_record or replay is not None or at is not None:
        raise UsageError("--no-record, --replay and --at are for the screens, not for verbs.")


def _replay(root: Path, at: str | None, command_line: CommandLineValues) -> None:
    """The screens on a recording."""
    from console import tui  # noqa: PLC0415  # slow to import
    from console.config import DISPLAY_ZONE, THEME, load  # noqa: PLC0415

    configuration = load()
    named = configuration.selected_profile(command_line, url_rights=Rights.READ_ONLY)
    zone = configuration.defaults[DISPLAY_ZONE] if named is None else named.display_zone
    profiles = configuration.profiles()
    known = {profile.label: profile.thresholds for profile in profiles}
    groups = {profile.label: profile.group for profile in profiles if profile.group}
    colors = {profile.label: profile.color for profile in profiles if profile.color}
    appearance = tui.Appearance(configuration.defaults[THEME], colors, configuration.saved)
    tui.run_replay(root, at, zone=zone, thresholds=known, groups=groups, appearance=appearance)


def _open_screens(
    command_line: CommandLineValues, fleet: str | None, group: str | None, *, record: bool
) -> None:
    """The terminal user interface on the connections given, else on all of them."""
    from console import tui  # noqa: PLC0415  # slow to import
    from console.config import DISPLAY_ZONE, THEME  # noqa: PLC0415
    from console.monitor.past import past  # noqa: PLC0415

    tui.require_terminal()
    call = Call(command_line, None, json=False)
    configuration = call.configuration
    if fleet is not None or group is not None:
        profiles = profiles_of(call, group, fleet)
    else:
        named = configuration.selected_profile(command_line, url_rights=Rights.READ_ONLY)
        profiles = configuration.profiles(command_line) if named is None else [named]
    zone = configuration.defaults[DISPLAY_ZONE]
    recordings = known.folder() if record and (known := past()) is not None else None
    appearance = tui.Appearance(configuration.defaults[THEME], saved=configuration.saved)
    path = configuration.path
    tui.run_profiles(
        profiles,
        config_path=path,
        zone=zone,
        recordings=recordings,
        appearance=appearance,
        by_group=fleet is not None or group is not None,
    )


for verb in verbs():
    cli.add_command(verb)


def run() -> int:
    """Run the command line of this process; returns its exit status."""
    # Keep the logs of libraries off the terminal.
    logging.getLogger().addHandler(logging.NullHandler())
    answers = Answers()
    try:
        with _ending_as_by_interrupt():
            try:
                # The status of an early exit; verbs return nothing.
                status = cli.main(prog_name="dbq-console", standalone_mode=False, obj=answers)
            except SystemExit:
                answers.end()
                raise
            answers.end()
            return int(status or 0)
    except click.Abort:
        return 128 + signal.SIGINT
    except click.ClickException as error:
        answers.fail(error_json(error))
        text = io.StringIO()
        error.show(text)
        narrate(text.getvalue().rstrip("\n"))
        return error.exit_code
    except ConsoleError as error:
        answers.fail(error_json(error))
        narrate(str(error))
        return error.exit_status
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        failed = unwritten(error)  # click prints help itself
        narrate(str(failed))
        return failed.exit_status


@contextmanager
def _logged(context: click.Context) -> Iterator[None]:
    """Log the call: verb, duration and outcome, without its arguments."""
    from console.cli.logs import error_text, logging_to_file  # noqa: PLC0415  # --help logs nothing

    began = time.monotonic()
    end = "done"
    with logging_to_file(context.params.get("log_level")):
        try:
            yield
        except ConsoleError as error:
            end = f"exit {error.exit_status}, {error_text(error)}"
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
            _LOG.exception("%s: unexpected error", _verb(context))
            raise
        finally:
            _LOG.info("%s: %s, after %.1f s", _verb(context), end, time.monotonic() - began)


def _verb(context: click.Context) -> str:
    return context.invoked_subcommand or "the screens"


@contextmanager
def _ending_as_by_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP, unless handled or ignored, end a verb as Ctrl-C does."""

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
