"""Plans a job of the pipeline and starts it as a process of its own.

The plan is the output of the verb's --dry-run. The run plans again when it starts.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from console.errors import ConsoleError, RefusedError, UsageError
from console.features.lake import launch
from console.features.lake.launch import DryRun, Job
from console.features.lake.screens.runs import open_runs
from console.features.lake.verbs import ABOUT_A_QUEUE, BY_NAME, QUEUE_AS_OPTION
from console.plan import Confirmation
from console.tui.context import Context
from console.tui.dialogs.dialog import CommandDialog
from console.tui.findings import QueueKey
from console.tui.jobs import start_job
from console.tui.open_connection import OpenConnection, why_not_allowed
from console.tui.screens.form import FormScreen, Stage
from console.tui.text import TextView, sentence
from console.tui.widgets.plan_pane import PlanPane
from console.verbs.command import Command
from console.verbs.parameters import Parameter

_LOGIN = re.compile(r"://[^/\s]*:[^\s]*@")

DESCRIPTIONS = {
    "verify": "It reads the logs and compares them. It changes nothing.",
    "rollup": "It reads the recordings and writes tables of them into the lake. It deletes "
    "nothing and queries no database.",
    "lake": "It reads the lake's log. It changes nothing.",
}
"""In place of a plan, for verbs without a dry run."""


def why_no_job(verb: str, conn: OpenConnection | None) -> str:
    """Why the job cannot be started here, whatever its form says; empty: it can."""
    if verb not in ABOUT_A_QUEUE:
        return ""
    if why := why_not_allowed(conn, BY_NAME[verb].right({})):
        return why
    if conn is not None and conn.credentials is not None and conn.credentials.is_typed:
        return "its password is typed in, and a separate process cannot ask for it"
    return ""


def require_extra() -> None:
    """UsageError if the pipeline's extra is not installed."""
    # Imported here so that the console starts fast.
    from console.features.lake import spark  # noqa: PLC0415

    spark.require_extra()


def job_of(
    verb: str, texts: Mapping[str, str], conn: OpenConnection | None, key: QueueKey | None
) -> Job:
    """The unconfirmed job that a form describes. Waits: a password may have to be looked up.

    RefusedError if it cannot be started here, UsageError for a wrong value.
    """
    if why := why_no_job(verb, conn):
        raise RefusedError(f"pipeline {verb} cannot be started from here.", why=f"{why}.")
    options = _options(BY_NAME[verb], texts)
    lake = texts.get("lake", "")
    if verb not in ABOUT_A_QUEUE or conn is None or key is None:
        return Job(verb, ("pipeline", verb, *options), lake=lake)
    connection, schema, name = key
    words = [*options, "--schema", schema, "--rights", conn.rights.word]
    environment = {}
    if conn.cli_options[:1] == ("--profile",):
        words += conn.cli_options
    else:
        url = conn.database.complete_url()
        environment["DBQ_URL"] = url.render_as_string(hide_password=False)
    arguments = ("pipeline", verb, *words, *_named(verb, name))
    return Job(verb, arguments, environment, queue=name, connection=connection, lake=lake)


def with_option(of: Job, *option: str) -> Job:
    """The same job with one more option, before the name."""
    return replace(of, words=(*of.words[:2], *option, *of.words[2:]))


def _named(verb: str, name: str) -> tuple[str, ...]:
    if verb in QUEUE_AS_OPTION:
        return (f"--queue={name}",)
    return ("--", name) if name.startswith("-") else (name,)


def confirmed(of: Job) -> Job:
    name = of.queue
    if not name:
        return with_option(of, "--yes")
    return with_option(of, *([f"--yes={name}"] if name.startswith("-") else ["--yes", name]))


def equivalent_command(
    verb: str, texts: Mapping[str, str], conn: OpenConnection | None, key: QueueKey | None
) -> str:
    """Without any secret."""
    words = ["pipeline", verb, *_options(BY_NAME[verb], texts)]
    if verb in ABOUT_A_QUEUE and key is not None:
        words += ["--schema", key[1], *(() if conn is None else conn.cli_options)]
        words += _named(verb, key[2])
    return launch.command_line(words)


def _options(verb: Command, texts: Mapping[str, str]) -> list[str]:
    words = []
    for parameter in verb.parameters:
        text = texts.get(parameter.name, "").strip()
        if not text or text == parameter.default:
            continue
        if _LOGIN.search(text):
            raise UsageError(
                f"{parameter.name}: other users can see a command line.",
                next_step="Put the login into the console's environment.",
            )
        option, values = f"--{parameter.name}", parameter.words_of(text)
        words += [
            option if parameter.is_flag else f"{option}={_absolute_path(parameter, v)}"
            for v in values
        ]
    return words


def _absolute_path(parameter: Parameter, text: str) -> str:
    """The text; if it is a local path, absolute and without `~`."""
    folders = {"lake", "recordings", "push-log", "pop-log"}
    if parameter.name not in folders or "://" in text:
        return text
    return str(Path(text).expanduser().absolute())


_SEPARATE_PROCESS = (
    "It runs as a separate process, even after this console ends; the list of runs shows its "
    "progress and can stop it."
)


class PipelineScreen(FormScreen):
    """A started job is shown in the list of runs."""

    def __init__(
        self,
        context: Context,
        verb: str,
        key: QueueKey | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """`options`: the form's fields, by the command line's names."""
        super().__init__(context, key if verb in ABOUT_A_QUEUE else None)
        self._conn = None if self.key is None else context.conn(self.key)
        self._verb = BY_NAME[verb]
        self._initial = dict(options or {})
        recorded = context.recordings
        if recorded is not None and any(
            parameter.name == "recordings" for parameter in self._verb.parameters
        ):
            self._initial.setdefault("recordings", str(recorded.root))
        self._plan: DryRun | None = None
        self._job: Job | None = None

    @property
    def verb(self) -> str:
        return self._verb.name

    def show_first_stage(self) -> None:
        try:
            if why := why_no_job(self.verb, self._conn):
                raise RefusedError(
                    f"pipeline {self.verb} cannot be started here.", why=sentence(why)
                )
            require_extra()
        except ConsoleError as error:
            self.close_form("Nothing was started.", error)
        else:
            self.show_fields(self._verb.parameters, self._initial)

    def draw_body(self, now: float, *, paused: bool) -> None:
        del now, paused
        head = self.head(f"pipeline {self.verb}")
        head.append(f"   {self._verb.summary}", "not bold dim")
        self.query_one("#action-head", TextView).set_text(head)

    def plan(self) -> None:
        verb, texts, conn, key = self.verb, self.form.values, self._conn, self.key

        def work() -> tuple[Job, list[str]]:
            job = job_of(verb, texts, conn, key)
            if not self._verb.confirmed:
                return job, [DESCRIPTIONS[verb]]
            self._plan = DryRun(with_option(job, "--dry-run"))
            return job, self._plan.run()

        self.make_plan(work, lambda result: self.show_plan(*result), "Making the plan")

    def discard_pending_results(self) -> None:
        """Also stop a dry run."""
        super().discard_pending_results()
        if self._plan is not None:
            self._plan.cancel()
            self._plan = None

    def show_plan(self, job: Job, lines: list[str]) -> None:
        self._plan, self._job = None, job
        note = " It plans again when it starts." if self._verb.confirmed else ""
        self.query_one(PlanPane).draw([*lines, "", f"{_SEPARATE_PROCESS}{note}"])
        typed = self._verb.confirmed and self.key is not None
        name = self.key[2] if typed and self.key is not None else "y"
        self.ask_to_confirm(Confirmation(name, requires_name=typed))

    @property
    def blocked_reason(self) -> str:
        """Jobs that only read can always be started."""
        return super().blocked_reason if self._verb.confirmed else ""

    def begin(self) -> None:
        job = self._job
        if job is not None:
            wanted = confirmed(job) if self._verb.confirmed else job
            start_job(self, lambda: launch.start(wanted), self._begun, self.plan_failed)

    def _begun(self, id_: str) -> None:
        if self.close():
            open_runs(self.context, id_)
        else:
            self.show_stage(Stage.FORM)

    def action_command(self) -> None:
        if not self.form.check():
            return
        try:
            line = equivalent_command(self.verb, self.form.values, self._conn, self.key)
        except ConsoleError as error:
            self.show_problem(error)
            return
        note = "Without --yes it prints the plan and changes nothing."
        self.app.push_screen(CommandDialog(line, note if self._verb.confirmed else ""))
