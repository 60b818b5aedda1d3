"""List the messages of a queue by state; payloads only with --payload.

Ready messages are in pop order, claims oldest first, errors and done newest first.

\b
Filters: state=error older=10m newer=1h error~text error-group=KEY id=17 claimed_by=worker-1
         payload.customer.id=42 payload.items[0].sku=A1

older and newer are about the time that a message has been in its state. One call searches about
50,000 messages, for at most 5 s, and prints where to continue: pass it to --after ("next"
in --json). Times are in the profile's display_zone, in --json UTC.

Text that matches the profile's masks is *** in payloads, titles and errors, also in --json.
--reveal shows messages named by --filter id= without masks; it needs the right operator
and is audited. The verb pop masks nothing, since it hands the message over.

--export writes all matching messages as of its start: one that is popped, fails, becomes due or
is requeued meanwhile may be missing, but none is written twice. If it is interrupted, the same
command continues. With --payload (1,000,000 bytes of each unless --payload-bytes says more) it
needs the right operator and is audited. In CSV a cell that begins with = + - or @ gets
a leading ', so that no spreadsheet runs it; JSON Lines has every value unchanged.

\b
Examples:
  dbq-console messages mail --state error --filter newer=1h
  dbq-console messages orders --filter id=17 --payload --json
  dbq-console messages mail --state error --export errors.csv
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from click.core import ParameterSource

from console.actions.export import reveal as unmask
from console.cli.command import NAME
from console.cli.context import Call, complete_filters
from console.cli.lists import answer
from console.cli.streams import ThrottledLines, narrate
from console.engines import Database
from console.errors import ConnectionFailedError, UsageError
from console.formats import numbered, plain
from console.monitor.filters import Filters, parse
from console.monitor.messages import DEFAULT_LIMIT, MOST_MESSAGES, Page
from console.rights import Rights
from console.verbs.command import Command, Params
from console.verbs.parameters import RATE_TYPE, Parameter
from console.views.messages import VIEW, read
from console.views.view import Source

_PAYLOAD_BYTES = 1_000
_MOST_PAYLOAD_BYTES = 10_000_000
_MOST_BYTES = 100_000_000
"""All payloads of a page together."""
_STOPPED = "The search stopped at its limit, and there may be more"
_ONLY_LOCALLY = "Recorded only in this machine's audit: the database's could not be written."


def _run(  # noqa: PLR0913  # the options of the command line, by name
    call: Call,
    *,
    name: str,
    state: str | None,
    filters: Sequence[str],
    after: str | None,
    limit: int,
    reverse: bool,
    payload: bool,
    payload_bytes: int | None,
    reveal: bool,
    file: Path | None,
    rate: float | None,
) -> None:
    words = [*call.filter_words(filters), *([] if state is None else [f"state={state}"])]
    wanted = parse(words)
    if file is not None:
        others = {"after": after, "reverse": reverse, "reveal": reveal, "limit": _is_given("limit")}
        if excluded := [f"--{one}" for one, given in others.items() if given]:
            raise UsageError(f"--export does not go with {', '.join(excluded)}.")
        _export(call, name, wanted, file, rate, payload=payload, payload_bytes=payload_bytes)
        return
    if rate is not None:
        raise UsageError("--rate goes with --export.")
    size = payload_bytes or (_PAYLOAD_BYTES if payload else None)
    if size is not None and size * limit > _MOST_BYTES:
        raise UsageError(
            f"{limit:,} payloads of up to {size:,} bytes are too much at once.",
            next_step=f"Request at most {_MOST_BYTES // size:,} with --limit.",
        )
    if reveal and not wanted.ids:
        raise UsageError(
            "--reveal needs the ids of the messages.", next_step="Name them: --filter id=17"
        )
    database = call.database("messages --reveal" if reveal else "messages")
    values = {
        "filters": wanted,
        "limit": limit,
        "after": after,
        "reverse": reverse,
        "payload_bytes": size,
    }
    shown = read(Source(lambda: database, call.schema, name, values, call.masks))
    if reveal:
        shown = replace(shown, page=_revealed(call, database, shown.page, size))
    answer(call, VIEW, shown)
    if not call.json:
        _narrate_rest(shown.page)


def _is_given(option: str) -> bool:
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.COMMANDLINE


def _export(
    call: Call,
    name: str,
    wanted: Filters,
    file: Path,
    rate: float | None,
    *,
    payload: bool,
    payload_bytes: int | None,
) -> None:
    from console.actions import export as exporting  # noqa: PLC0415  # for this option only

    size = payload_bytes or (exporting.PAYLOAD_BYTES if payload else None)
    database = call.database("messages --export" + (" --payload" if size else ""))
    queue = call.find(database, name)
    request = exporting.ExportRequest(
        queue, wanted, file.absolute(), size, call.masks, rate or exporting.RATE
    )
    lines = ThrottledLines()
    try:
        done = exporting.export(
            database, request, on_progress=lambda count: lines.show(f"{count:,} exported")
        )
    except (ConnectionFailedError, KeyboardInterrupt):
        narrate("The messages exported so far are kept: the same command continues after them.")
        raise
    if done.only_locally:
        narrate(_ONLY_LOCALLY)
    if not done.progress.complete:
        narrate("Messages that the server hides from this login are missing.")
    if cut := done.progress.payloads_cut:
        narrate(f"{numbered(cut, 'payload')} longer than {size:,} bytes: cut there and marked.")
    of = {"queue": queue.name, "schema": queue.schema, "design": queue.design.name}
    resumed = f", {done.resumed:,} of them earlier" if done.resumed else ""
    line = f"{numbered(done.progress.messages, 'message')}{resumed} in {plain(str(file))}"
    call.answer(of | done.as_json(), [line])


def _revealed(call: Call, database: Database, page: Page, size: int | None) -> Page:
    """The same messages without masks, if they still exist."""
    messages = []
    for message in page.messages:
        shown = unmask(database, page.queue, message.key, rights=call.rights, payload_bytes=size)
        if shown.only_locally:
            narrate(_ONLY_LOCALLY)
        messages += [] if shown.message is None else [shown.message]
    return replace(page, messages=tuple(messages))


def _narrate_rest(page: Page) -> None:
    if page.next is not None:
        there_is = "There is more" if page.complete else _STOPPED
        narrate(f"{there_is}: --after {shlex.quote(page.next.text)}")
    elif not page.complete:
        narrate("There is more, but this queue has no order to continue in: use filters.")


def _right(values: Params) -> Rights:
    payloads = values["payload"] or values["payload_bytes"]
    audited = values["reveal"] or (values["file"] is not None and payloads)
    return Rights.OPERATOR if audited else Rights.READ_ONLY


_PARAMETERS = (
    NAME,
    Parameter("state", "Short for --filter state=S.", metavar="S"),
    Parameter(
        "filter",
        "Only messages that match; several must all match. @NAME: a saved filter.",
        multiple=True,
        metavar="F",
        complete=complete_filters,
        dest="filters",
    ),
    Parameter("after", "Continue where a page ended.", metavar="KEY"),
    Parameter(
        "limit",
        f"At most this many messages, up to {MOST_MESSAGES:,}.",
        click.IntRange(1, MOST_MESSAGES),
        default=str(DEFAULT_LIMIT),
        metavar="N",
    ),
    Parameter("reverse", "Each state in reverse order.", is_flag=True),
    Parameter("payload", "With payloads, up to --payload-bytes.", is_flag=True),
    Parameter(
        "payload-bytes",
        f"Bytes of each payload; {_PAYLOAD_BYTES:,} by default.",
        click.IntRange(1, _MOST_PAYLOAD_BYTES),
        metavar="N",
    ),
    Parameter("reveal", "Without masks; each message is recorded in the audit.", is_flag=True),
    Parameter(
        "export",
        "Write all matching messages to FILE.jsonl or FILE.csv, instead of a page.",
        click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        dest="file",
    ),
    Parameter("rate", "With --export: messages per second; 2000.", RATE_TYPE, metavar="N"),
)
COMMAND = Command("messages", _run, __doc__, _PARAMETERS, _right)
