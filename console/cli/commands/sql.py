"""Print the SQL that VERB runs for a queue, fully expanded, without running it.

Each statement is shown with its name, which a DBA sees in its leading comment, what it
returns, and its bound parameters: name, type, and the value if it is constant. Messages are
searched as without filters. Statements that every verb sends, such as for the audit, are not
shown. For maintain, upgrade and end-session use their --dry-run.

\b
VERB: status messages errors push pop complete fail requeue release purge archive restore
      reschedule relay resize uninstall forget protect unprotect note

\b
Examples:
  dbq-console sql purge orders
  dbq-console sql status mail --json
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import click

from console import sql
from console.actions.archive import Archive, Purge
from console.actions.availability import unavailable
from console.actions.message_action import RowAction
from console.actions.pop import require_subscriber
from console.actions.requeue import Release, Requeue
from console.actions.reschedule import Reschedule
from console.actions.restore import Restore
from console.actions.rows import Storage, scope
from console.catalog import STUCK_AFTER_SECONDS, Kind, Queue
from console.cli.command import NAME
from console.cli.context import Call
from console.designs import Flow
from console.errors import UsageError
from console.monitor import latency
from console.monitor.filters import NOTHING
from console.monitor.message import MessageQuery
from console.monitor.scan_query import LOCK_NEXT, MessageSource, locks_next, query, values_of
from console.monitor.scans import By, Scan, ScanRequest, scans_of
from console.monitor.wording import TEXT_LENGTH
from console.verbs.command import Command
from console.verbs.parameters import SUBSCRIBER, argument
from console.verbs.verb import Target

_BIND = re.compile(r"(?<![:\w\\]):(?P<name>[a-z]\w*)")
_CAST = r"CAST\(:{} AS (?P<type>(?:(?:\"[^\"]+\"\.)?\"[^\"]+\"|\w[\w ]*)(?:\(\w+\))?(?:\[\])?)\)"
_SKIPPED = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", re.DOTALL)


@dataclass(frozen=True)
class Bound:
    """A bound parameter."""

    name: str
    type: str
    """The type it is cast to; empty: chosen by the driver."""
    value: object
    """None: it depends on the chosen messages or the call."""

    @property
    def words(self) -> str:
        """`:read_limit bigint = 500`"""
        value = "" if self.value is None else f" = {self.value}"
        return f":{self.name}{self.type and ' '}{self.type}{value}"


@dataclass(frozen=True)
class Shown:
    """One statement as the server receives it."""

    name: str
    """As in its leading comment: file and name."""
    returns: str
    text: str
    bound: tuple[Bound, ...]

    @property
    def lines(self) -> list[str]:
        """The SQL, with everything else as comments."""
        binds = [f"-- binds {one.words}" for one in self.bound]
        return [f"-- {self.name}", f"-- {self.returns}", *binds, *self.text.split("\n"), ""]

    def as_json(self) -> dict[str, object]:
        """The stable object of --json."""
        return {
            "name": self.name,
            "returns": self.returns,
            "sql": self.text,
            "parameters": [
                {"name": bound.name, "type": bound.type or None, "value": bound.value}
                for bound in self.bound
            ],
        }


def of_verb(source: MessageSource, verb: str) -> list[Shown]:
    """The statements in the order of sending. UsageError if the queue has no such verb."""
    if verb not in VERBS:
        raise UsageError(
            f"{verb!r} does not send a fixed list of statements.",
            next_step=f"Available: {', '.join(VERBS)}.",
        )
    if verb not in _READING and (why := unavailable(source.queue, verb)):
        raise UsageError(f"{verb} is not for {source.queue.name!r}.", why=f"{why}.")
    return list(VERBS[verb](source))


def _one(
    source: MessageSource, name: str, within: sql.Scope | None = None, **values: object
) -> Iterator[Shown]:
    """The design's statement of that name, if it has one."""
    of = name if "." in name else source.statement_name(name)
    if sql.has(source.product, of):
        dialect = source.product.dialect
        statement = sql.statement(dialect.name, of)
        text = sql.script(statement, dialect, within or source.queue.scope(source.product)).strip()
        if sql.plain(text).strip(";"):
            yield Shown(statement.label, statement.comment, text, _bound(text, values))


def _each(*names: str) -> Callable[[MessageSource], Iterator[Shown]]:
    """Those of these statements that the queue has."""

    def shown(source: MessageSource) -> Iterator[Shown]:
        for name in names:
            yield from _one(source, name)

    return shown


def _bound(text: str, values: Mapping[str, object]) -> tuple[Bound, ...]:
    code = _SKIPPED.sub("", text)
    bounds = []
    for name in dict.fromkeys(match["name"] for match in _BIND.finditer(code)):
        cast = re.search(_CAST.format(name), text)
        bounds.append(Bound(name, "" if cast is None else cast["type"], values.get(name)))
    return tuple(bounds)


def _gate(source: MessageSource) -> Iterator[Shown]:
    """The first statement of any transaction on a ring of ours."""
    if source.queue.kind is Kind.INSTALLED or source.queue.design.library:
        yield from _one(source, "wait_for_relay")


def _status(source: MessageSource) -> Iterator[Shown]:
    yield from _gate(source)
    yield from _one(source, "status")
    if source.queue.finishes:
        yield from _one(source, "claims")
    if source.queue.finishes or source.queue.design.flow is not Flow.NUMBERS:
        yield from _one(source, "estimate")
    if seldom := latency.statement_of(source.queue):
        yield from _one(source, seldom)


def _scanned(source: MessageSource, request: ScanRequest, last: str) -> Shown:
    """The first chunk of a scan; the statement is composed of three."""
    head, _, text = query(source, request, last).text.replace("\\:", ":").partition(" */ ")
    # Removed comments leave blanks.
    lines = [line.rstrip() for line in text.split("\n") if line.strip()]
    text = "\n".join(lines)
    returns = sql.statement(source.product.name, f"common.{last}").comment
    always = {"error_length": values_of(source, request)["error_length"]}
    name = head.removeprefix("/* dbq ")
    return Shown(f"{name} of {request.scan.name}", returns, text, _bound(text, always))


def _all_scanned(
    source: MessageSource,
    scans: Sequence[Scan],
    request_for: Callable[[Scan], ScanRequest],
    last: str,
) -> Iterator[Shown]:
    yield from _gate(source)
    if any(scan.chunks for scan in scans):
        yield from _one(source, "extent")
    yield from _scanned_each(source, scans, request_for, last)


def _scanned_each(
    source: MessageSource,
    scans: Sequence[Scan],
    request_for: Callable[[Scan], ScanRequest],
    last: str,
) -> Iterator[Shown]:
    for scan in scans:
        chunk = (0, 0) if scan.chunks else None
        chosen = last in {"chosen", LOCK_NEXT}
        request = replace(request_for(scan), chunk=chunk, sizes=not chosen)
        if chosen and scan.by is By.LOCATION:  # a page has more rows than are wanted
            request = replace(request, n=1)
        yield _scanned(source, request, last)


def _messages(source: MessageSource) -> Iterator[Shown]:
    first = MessageQuery(NOTHING, 1).scan_request
    yield from _all_scanned(source, scans_of(source.queue), first, "matching")


def _errors(source: MessageSource) -> Iterator[Shown]:
    scans = [scan for scan in scans_of(source.queue) if scan.state == "error"]
    if not scans:
        raise UsageError(f"The queue {source.queue.name!r} keeps no errors.")

    def first(scan: Scan) -> ScanRequest:
        return ScanRequest(scan, error_length=TEXT_LENGTH)

    yield from _all_scanned(source, scans, first, "error_texts")


def _pop(source: MessageSource) -> Iterator[Shown]:
    yield from _one(source, "pop")
    if source.queue.finishes:
        yield from _each("complete", "fail")(source)
    if source.queue.options.get("notify") == "on":
        yield from _each("wait", "listen", "wait_end")(source)


def _uninstall(source: MessageSource) -> Iterator[Shown]:
    notifies = source.queue.options.get("notify") == "on"
    names = ("contents", "lock_all", "drop", *(["drop_waiting"] if notifies else []))
    yield from _each(*names, "drop_archive", "catalog.erase")(source)


def _moved(
    action_of: Callable[[MessageSource], RowAction],
) -> Callable[[MessageSource], Iterator[Shown]]:
    """Messages are found; each batch is then locked and moved in its own transaction."""

    def shown(source: MessageSource) -> Iterator[Shown]:
        action = action_of(source)
        scans = [w for w in scans_of(source.queue) if w.state in action.states or not w.state]
        # The cut-off is bound, so it does not appear in the text.
        wanted = MessageQuery(NOTHING, 1, oldest_first=True, moment=datetime.now(UTC))
        yield from _all_scanned(source, scans, wanted.scan_request, "matching")
        grouped = replace(wanted, grouping=action.grouping).scan_request

        ours = source.queue.kind is Kind.INSTALLED and not source.queue.design.waits_itself
        chosen = action.by_group and ours
        at_once = chosen and locks_next(source.product)
        if action.by_group:
            yield from _scanned_each(source, scans, grouped, "counted")
        if chosen and not at_once:
            yield from _scanned_each(source, scans, grouped, "chosen")
        for name in action.also_reads:
            yield from _one(source, name)
        if ours and sql.has(source.product, "actions.seek_rows"):
            yield from _one(source, "seek_rows")
        if at_once:
            yield from _scanned_each(source, scans, grouped, LOCK_NEXT)
        for storage in _storages(source.queue, action.states):
            hold = scope(source, storage, lock="yes", hashed="no")
            if not at_once:
                yield from _one(source, "lock_chosen" if chosen else "lock_rows", hold)
            acting = scope(source, storage, to_back="no", verb=action.verb)
            adopted = source.queue.kind is Kind.ADOPTED
            yield from _one(source, "as_owner") if adopted else ()
            yield from _one(source, action.statement, acting)
            yield from _one(source, "as_login") if adopted else ()

    return shown


def _storages(queue: Queue, states: Sequence[str]) -> list[Storage]:
    if queue.design.flow is not Flow.NUMBERS:
        return [Storage.TABLE]
    slots = [Storage.SLOTS] if "ready" in states else []
    return [*slots, *([Storage.IN_HAND] if queue.finishes else [])]


def _restore(source: MessageSource) -> Iterator[Shown]:
    queue = source.queue
    restore = Restore(source)  # UsageError, RefusedError
    plain = restore.restoring_scope(lakes="yes")
    chosen = dict.fromkeys(("by_state", "by_reason", "popped", "by_older", "by_newer"), "no")
    chosen |= dict.fromkeys(("by_id", "by_error", "by_claimed_by", "by_payload"), "no")
    by_action = sql.Scope(
        plain.values, {**plain.options, **chosen, "by_action": "yes"}, plain.roles
    )
    yield from _one(source, "last_purge")
    for name in ("matching_archived", "counted_archived", "labelled_archived", "chosen_archived"):
        yield from _one(source, name, by_action)
    yield from _gate(source)
    if sql.has(source.product, "actions.seek_rows"):  # in each batch
        yield from _one(source, "seek_rows")
    yield from _one(source, "lock_lake_plan", plain)
    yield from _one(source, "lock_archived", plain)
    for ids in ("kept", "new") if restore.keeps_rows else ():
        yield from _one(source, "restore_rows", restore.restoring_scope(ids=ids))
    if not queue.design.keeps_row:
        yield from _one(source, "restore_by_push", plain)


def _reschedule(source: MessageSource) -> Iterator[Shown]:
    yield from _moved(lambda message_source: Reschedule(message_source, at=datetime.now(UTC)))(
        source
    )
    yield from _one(source, "due_before", scope(source, Storage.TABLE))


_READING = {"status": _status, "messages": _messages, "errors": _errors}
VERBS: Mapping[str, Callable[[MessageSource], Iterator[Shown]]] = {
    **_READING,
    "push": _each("push", "push_many", "push_many_with"),
    "pop": _pop,
    "complete": _each("complete"),
    "fail": _each("fail"),
    "requeue": _moved(Requeue),
    "release": _moved(lambda source: Release(source, stuck_after_seconds=STUCK_AFTER_SECONDS)),
    "purge": _moved(Purge),
    "archive": _moved(Archive),
    "restore": _restore,
    "reschedule": _reschedule,
    "relay": _each("measure", "blockers", "relay"),
    "resize": _each("measure", "blockers", "relay"),
    "uninstall": _uninstall,
    "forget": _each("catalog.erase"),
    "protect": _each("catalog.protect"),
    "unprotect": _each("catalog.unprotect"),
    "note": _each("catalog.note"),
}
"""Verb -> its statements. Those of `maintain`, `upgrade` and `end-session` depend on their plan, so
`--dry-run` of these prints them."""


def _run(call: Call, verb: str, name: str, subscriber: str | None) -> None:
    database = call.database()
    queue = call.find(database, name, subscriber=subscriber)
    if queue.not_known:
        raise UsageError(f"{queue.name!r} has another version.", why=f"{queue.not_known}.")
    if verb in _OF_ONE_SUBSCRIBER:
        require_subscriber(queue)
    showns = of_verb(Target(database, queue).source(), verb)
    of = {"queue": queue.name, "schema": queue.schema, "connection": database.label}
    value = {**of, "verb": verb, "statements": [shown.as_json() for shown in showns]}
    call.answer_script(value, "\n".join(line for shown in showns for line in shown.lines))


_OF_ONE_SUBSCRIBER = {"pop", "complete", "fail"}
_PARAMETERS = (argument("verb", type=click.Choice(tuple(VERBS)), metavar="VERB"), NAME, SUBSCRIBER)
COMMAND = Command("sql", _run, __doc__, _PARAMETERS)
