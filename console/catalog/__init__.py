"""The queues in a database: installed by the console, adopted, or with only their archive left."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from console import sql
from console.catalog import decisions
from console.catalog.decisions import Decision
from console.catalog.name_patterns import suffixes, used
from console.designs import DESIGNS, Design, Flow, recorded, unknown
from console.designs.model import NO_SUBSCRIBERS, Subscriber, subscribers_of
from console.engines import ROW_SECURITY, Database, Product, product_of
from console.errors import RefusedError, UsageError
from console.figures import FIGURES
from console.formats import duration, numbered

if TYPE_CHECKING:
    from sqlalchemy import Connection

INTERFACE_VERSION = 3
"""Of the tables and functions that this console installs: another one whenever they change."""

STUCK_AFTER_SECONDS = 300.0
"""How long a claim may last before it counts as stuck, unless configured."""

POPPED_ROW_STATEMENTS = {"claims", "consumers", "history", "recent_errors", "times"}
"""Statements about popped rows, which a ring keeps in a separate table."""

IN_HAND_ROLES = {
    **{role: role for role in ("id", "payload", "pushed_at", "attempts")},
    **{role: role for role in ("claimed_at", "claimed_by", "done_at")},
    "error": "errors",
}
"""Role -> column of that table."""


class Kind(StrEnum):
    """How a queue came into the catalog."""

    INSTALLED = "installed"
    ADOPTED = "adopted"
    ARCHIVE = "archive"
    """Uninstalled with --keep-archive: only its archive is left."""


@dataclass(frozen=True)
class RowFilter:
    """A policy by which the server may hide rows of a table without a word: zero could be any
    number."""

    schema: str
    table: str
    policy: str

    @property
    def why(self) -> str:
        return (
            f"the security policy {self.policy} may hide rows of {self.schema}.{self.table} from "
            "this login"
        )

    @property
    def problem(self) -> str:
        """With where to read on."""
        return f"{self.why} (dbq-console help safety)"


SEES_ALL = (
    "Whoever may ALTER ANY SECURITY POLICY can turn the policy off, or exempt this login in its "
    "function. Once this login sees all rows, or to work on only those that it sees, add "
    "row_security=on to the URL."
)
"""What to do about a `RowFilter`, which does not tell whom its function exempts."""


@dataclass(frozen=True)
class Queue:
    """One queue: a design's instance in a schema."""

    schema: str
    name: str
    design: Design
    options: Mapping[str, str]
    roles: Mapping[str, str]
    """Role -> column; a ring's sequences: their names; an adopted ring's size: its number."""
    kind: Kind = Kind.INSTALLED
    version: int = INTERFACE_VERSION
    installed_by: str = ""
    installed_from: str = ""
    installed_at: datetime | None = None
    subscriber: str = ""
    """For a ring with subscribers: the one whose view this is; empty: the whole ring. See `of`."""
    row_filter: RowFilter | None = None
    """Of one of its tables: what is read of it may be a part. None: no such policy is seen."""

    def of(self, subscriber: str) -> Queue:
        """The ring as seen by a subscriber: with its next number, owed messages and pops.

        UsageError if there is none of that name.
        """
        found = {one.name: one for one in self.subscribers}.get(subscriber)
        if found is None:
            names = ", ".join(one.name for one in self.subscribers)
            raise UsageError(
                f"The queue {self.name!r} has no subscriber {subscriber!r}.",
                next_step=f"Its subscribers: {names}."
                if names
                else "It has no subscribers: each message is popped once.",
            )
        sequence = f"{self.name}_pop_seq_{found.number}"
        return replace(self, subscriber=subscriber, roles={**self.roles, "pop_sequence": sequence})

    @property
    def subscriber_suffix(self) -> str:
        """Names the subscriber in texts; empty for the whole ring."""
        return f", subscriber {self.subscriber}" if self.subscriber else ""

    @property
    def views(self) -> tuple[Queue, ...]:
        """One view per subscriber; without subscribers the queue itself."""
        return tuple(self.of(subscriber.name) for subscriber in self.subscribers) or (self,)

    @property
    def label(self) -> str:
        """Its name in messages, with the schema."""
        return f"{self.schema}.{self.name}"

    @property
    def table(self) -> str:
        """The main table, with the states."""
        if self.kind is Kind.ADOPTED:
            return self.options.get("table", self.name)
        return self.name + self.design.table_suffix

    @property
    def part(self) -> str:
        """The one of a library's queues in the table; empty: all of them."""
        return self.options.get("only", "")

    @property
    def not_known(self) -> str:
        """Why only its name is known; empty: this version knows its design."""
        if self.design.known:
            return ""
        return self.design.unknown or f"design {self.design.name} is not known here"

    @property
    def not_readable(self) -> str:
        """Why nothing of its rows is known; empty: they can be read."""
        return self.not_known or (self.row_filter.problem if self.row_filter else "")

    def refusal(self, verb: str) -> str:
        """The preset's reason for not having this verb, if any."""
        quoted = '"' + self.schema.replace('"', '""') + '"'
        return self.design.refusals.get(verb, "").replace("{schema}", quoted)

    @property
    def finishes(self) -> bool:
        """Whether popped messages are kept until complete or fail."""
        return self.design.finishes(self.options)

    @property
    def partitions(self) -> int:
        """The number of content tables of a ring with `content=apart`, else 0."""
        apart = self.options.get("content") == "apart"
        return int(self.options["partitions"]) if apart else 0

    @property
    def subscribers(self) -> tuple[Subscriber, ...]:
        """Of a ring; each gets every message once."""
        return subscribers_of(self.options.get("subscribers", NO_SUBSCRIBERS))

    @property
    def highest_subscriber(self) -> int:
        """Of their numbers; 0: there is none."""
        return max((subscriber.number for subscriber in self.subscribers), default=0)

    @property
    def verbs(self) -> tuple[str, ...]:
        return self.design.verbs_with(self.options)

    @property
    def states(self) -> tuple[str, ...]:
        return self.design.states_with(self.options)

    def scope(
        self, on: sql.HasDialect, *, counters: str = "yes", over: str = "ready", **more: str
    ) -> sql.Scope:
        """The values for the statements of `queries/`.

        `counters`: yes or no, whether the login may read the engine's row counters.
        `over`: the states with more rows than are counted.
        """
        limit = self.options.get("max_bytes", "unlimited")
        payload = self.options.get("payload", "text")
        product = product_of(on)
        values = {
            "schema": self.schema,
            "queue": self.name,
            "table": self.table,
            "design": self.design.name,
            "payload_type": product.payload_types[payload],
            "id_type": product.id_types[self.design.id_type],
            "channel": self.channel,
            "max_bytes": limit,
            "size": self.options.get("size") or self.roles.get("size", "0"),
            "cache": self.options.get("cache", "auto"),
            "commit_wait_ms": self.options.get("commit_wait_ms", "5"),
            "partitions": str(self.partitions),
            "subscribers": ",".join(
                f"{subscriber.name}:{subscriber.number}" for subscriber in self.subscribers
            ),
            "subscriber": self.subscriber,
            "subscriber_number": next(
                (
                    str(subscriber.number)
                    for subscriber in self.subscribers
                    if subscriber.name == self.subscriber
                ),
                "0",
            ),
            "search_path": self.options.get("search_path", ""),
            "since": "1",
            "fillfactor": FILLFACTOR,
            "stuck_after_seconds": str(STUCK_AFTER_SECONDS),
            "history": self.options.get("history", "off"),
            "only": self.part,
            "beside": self.options.get("beside", ""),
            **LIMITS,
            **more,
        }
        options = {
            **self.options,
            "payload": payload,
            "limited": "no" if limit == "unlimited" else "yes",
            "finishes": "yes" if self.finishes else "no",
            "installed": "yes" if self.kind is Kind.INSTALLED else "no",
            "in_hand": self.options.get("in_hand", "off"),
            "keeps_history": "yes" if self.keeps_history else "no",
            "archive_at_pop": self.options.get("archive_at_pop", "off"),
            "content": self.options.get("content", "slot"),
            "subscribed": "yes" if self.subscribers else "no",
            "of": "one" if self.subscriber or not self.subscribers else "all",
            # The engine has row counters and samples for tables, not for views.
            "counters": "no" if self.options.get("view") == "yes" else counters,
            "part": "one" if self.part else "all",
            "over": over,
        }
        return sql.Scope(values, options, self.roles)

    def scope_of(self, statement: str, on: sql.HasDialect, **more: str) -> sql.Scope:
        """The scope for that statement, with the table of the rows that it is about."""
        plain = self.scope(on, **more)
        ring = self.design.flow is Flow.NUMBERS
        return in_hand(self, plain) if ring and statement in POPPED_ROW_STATEMENTS else plain

    @property
    def keeps_history(self) -> bool:
        """Whether a message keeps the history of its attempts."""
        return self.options.get("history", "off") != "off"

    @property
    def channel(self) -> str:
        """The channel of notifications: short for any name, and the same for every client."""
        digest = hashlib.sha256(f"{self.schema}\0{self.name}".encode()).hexdigest()
        return f"dbq_{digest[:24]}"


LIMITS = {f"{figure.name}_limit": str(figure.rows_read) for figure in FIGURES if figure.rows_read}
"""How many rows a sample reads for each figure; 0 leaves it out."""

FILLFACTOR = "50"
"""Of a ring's table. The server clears a page of dead rows once less than this share is free: at
most half of a page is slots, so either the other half has room for all of them or it is cleared."""


def in_hand(queue: Queue, scope: sql.Scope) -> sql.Scope:
    """The scope for the ring's popped, unfinished messages."""
    values = {**scope.values, "table": f"{queue.name}_in_hand"}
    return sql.Scope(values, {**scope.options, "storage": "in_hand"}, IN_HAND_ROLES)


def installed_queue(schema: str, name: str, of: Design, options: Mapping[str, str]) -> Queue:
    """The queue as it will be installed with these (complete) options."""
    roles = {
        role: name + column if role.endswith("_sequence") else column
        for role, column in of.roles.items()
    }
    return Queue(schema, name, of, dict(options), roles)


@dataclass(frozen=True)
class _QueueRow:
    schema: str
    name: str
    design: str
    kind: str
    options: Any
    roles: Any
    version: int
    installed_by: str
    installed_from: str
    installed_at: datetime
    runs: str | None
    """What of others a superuser would run by reading it: a view in the place of one of its tables,
    a function in an index or a cast. None for any other login."""


@dataclass(frozen=True)
class _Setting:
    name: str
    value: str


@dataclass(frozen=True)
class Acting:
    """A verb that an operator is running on a queue, from the audit."""

    schema: str
    queue: str
    verb: str
    operator: str
    database_user: str
    session: str
    """As in claimed_by: an action ends with its session."""
    since_seconds: float
    planned: int
    done: int

    def as_json(self) -> dict[str, object]:
        shown = ("verb", "operator", "database_user", "since_seconds", "planned", "done")
        return {name: getattr(self, name) for name in shown}

    @property
    def words(self) -> str:
        """For a screen: `requeue by ann@etl01 for 1 min 04 s, 4,000 of 100,000 done`."""
        counts = f", {self.done:,} of {self.planned:,} done" if self.planned else ""
        return f"{self.verb} by {self.operator} for {duration(self.since_seconds)}{counts}"


def has_catalog(connection: Connection) -> bool:
    """Whether anything was ever installed or adopted here."""
    return decisions.catalog_contents(connection).present


def has_audit(connection: Connection) -> bool:
    """Whether the catalog has an audit; a damaged one lacks it."""
    return decisions.catalog_contents(connection).audited


def queues(connection: Connection) -> list[Queue]:
    """All queues of the database, by schema and name; none without a catalog."""
    return _queues(connection) if has_catalog(connection) else []


def _queues(connection: Connection) -> list[Queue]:
    rows = decisions.checked(connection, _QueueRow, "catalog.queues")
    return with_row_filters(connection, [_queue(row, connection.dialect.name) for row in rows])


def with_row_filters(connection: Connection, some: list[Queue]) -> list[Queue]:
    """With the policies that may hide their rows, where the server does not refuse to instead and
    the URL does not say that what it shows is wanted."""
    wanted = connection.get_execution_options().get(ROW_SECURITY, False)
    if not some or wanted or not sql.has(connection, "catalog.row_filters"):
        return some
    filters = sql.rows(connection, RowFilter, "catalog.row_filters")
    if not filters:
        return some
    # Names that differ only by case may be the same table.
    of = {(one.schema.casefold(), one.table.casefold()): one for one in filters}
    found = []
    for queue in some:
        names = sorted(_read_names(queue, product_of(connection)))
        hits = (of.get((queue.schema.casefold(), name.casefold())) for name in names)
        found.append(replace(queue, row_filter=next(filter(None, hits), None)))
    return found


def _read_names(queue: Queue, product: Product) -> set[str]:
    """What its statements read in its schema."""
    if not queue.design.known:
        return set()
    engine, design, values = product.name, queue.design.name, queue.scope(product).values
    names = {queue.table, *(name.format_map(values) for name in used(engine, design))}
    if queue.kind is not Kind.ADOPTED:
        numbers = queue.partitions, queue.highest_subscriber
        names |= {queue.name + end for _, end in suffixes(engine, design, *numbers)}
    return names


def _queue(row: _QueueRow, engine: str) -> Queue:
    """The row's queue; if it has what no console wrote, one of which only the name is known."""
    try:
        # The options and roles of an unknown design have no known meaning.
        of = _design(row, engine)
        options = _document("options", row.options) if of.known else {}
        roles = _document("roles", row.roles) if of.known else {}
        if of.known:
            _require_complete(of, row.kind, options, roles)
        kind = Kind(row.kind)
    except (ValueError, RecursionError, UsageError) as error:
        why = f"not readable: {' '.join(str(error).split())}"
        next_step = decisions.NO_SUPERUSER if row.runs else _CORRECT
        of, options, roles, kind = unknown(row.design, engine, why, next_step), {}, {}, Kind.ADOPTED
    return Queue(
        schema=row.schema,
        name=row.name,
        design=of,
        options=options,
        roles=roles,
        kind=kind,
        version=row.version,
        installed_by=row.installed_by,
        installed_from=row.installed_from,
        installed_at=row.installed_at,
    )


_OPTIONS = frozenset(option.name for of in DESIGNS.values() for option in of.options)
"""Others are an adopted table's, or a newer console's."""
_CORRECT = (
    "Correct its row in dbq.queue, whose options and roles are JSON objects of texts, or its table."
)


def _require_complete(
    of: Design, kind: str, options: Mapping[str, str], roles: Mapping[str, str]
) -> None:
    """ValueError or UsageError if the design cannot be used with these."""
    needed = {*(of.roles if kind == Kind.INSTALLED else of.needed_roles)}
    if kind == Kind.ADOPTED and "slot" in needed:
        needed.add("size")
    if missing := sorted(needed - roles.keys()):
        raise ValueError(f"no role {missing[0]}")
    if kind == Kind.INSTALLED and (
        lacking := [name for name in ("payload", "max_bytes") if name not in options]
    ):
        raise ValueError(f"no option {lacking[0]}")
    for name, value in options.items():
        if name in _OPTIONS:
            of.option_with(name, options).check(value)
    if options.get("content") == "apart" and "partitions" not in options:
        raise ValueError("no option partitions")
    if "" in {options.get("table"), *roles.values()}:
        raise ValueError("an empty name")


def _design(row: _QueueRow, engine: str) -> Design:
    """Its recorded design; for a user's own preset the file's digest is checked too."""
    if row.runs:
        raise ValueError(f"no superuser reads it: that would run {row.runs}")
    options: Any = _parsed(row.options)
    sha256 = options.get("sha256", "") if isinstance(options, dict) else ""
    by = f"{row.installed_from} (login {row.installed_by})"
    adopted = row.kind == Kind.ADOPTED
    return recorded(row.design, engine, sha256=str(sha256), by=by, adopted=adopted)


def _document(what: str, value: Any) -> dict[str, str]:
    """A JSON object of texts. ValueError if it is anything else."""
    parsed = _parsed(value)
    if not isinstance(parsed, dict) or not all(isinstance(one, str) for one in parsed.values()):
        raise ValueError(f"{what} is no object of texts")
    return parsed


def _parsed(value: Any) -> Any:
    """An engine without a type for JSON returns its text."""
    return json.loads(value) if isinstance(value, str) else value


def in_use(database: Database) -> list[Queue]:
    """All queues except those with only their archive left. Waits; ConsoleError."""
    with database.transaction("read the catalog", read_only=True) as connection:
        found = queues(connection)
    return [queue for queue in found if queue.kind is not Kind.ARCHIVE]


def is_production(connection: Connection) -> bool:
    """Whether the database's own catalog marks it as production."""
    return has_catalog(connection) and _is_production(connection)


@dataclass(frozen=True)
class LeaseHolder:
    """Of a lease: a row that ends by the database's clock unless its holder renews it."""

    holder: str
    until: datetime


def take_lease(
    connection: Connection, name: str, holder: str, seconds: float, *, gone: str = ""
) -> LeaseHolder:
    """Its holder now: `holder` if it was free, or of `gone`, which is known to have ended."""
    values = {"name": name, "holder": holder, "seconds": seconds, "gone": gone}
    return sql.row(connection, LeaseHolder, "catalog.lease_take", **values)


def end_lease(connection: Connection, name: str, holder: str) -> None:
    """Give it back, unless it is another's."""
    sql.values(connection, str, "catalog.lease_end", name=name, holder=holder)


@dataclass(frozen=True)
class Catalog:
    """The whole catalog, for the sampler."""

    queues: Sequence[Queue] = ()
    production: bool = False
    acting: Sequence[Acting] = ()
    """Including interrupted ones, to be checked against the sessions."""
    decisions: Sequence[Decision] = ()
    text: str | None = None
    """What it was made from; None: not known, or not all of it is in the database."""


def read(connection: Connection, before: Catalog | None = None) -> Catalog:
    """The whole catalog, or an empty one. `before`: that of an earlier call, for the same database,
    or an empty one: rows that are the same are not read into values again. None: only once."""
    parts = decisions.catalog_contents(connection)
    if not parts.present:
        return Catalog()
    now = _CatalogText(None, parts.audited)
    if before is not None and sql.has(connection, "catalog.whole"):
        now = _catalog_text(connection, parts)
    acting = sql.rows(connection, Acting, "catalog.running") if now.acting else ()
    if before is not None and now.text is not None and now.text == before.text:
        return replace(before, acting=acting)
    found = _queues(connection)
    decided = decisions.read(connection) if parts.decisions_readable else ()
    # Designs that are not known, or a user's own, depend on this program's files too.
    shipped = all(one.design.known and "sha256" not in one.options for one in found)
    production = _is_production(connection)
    # What was changed meanwhile, and is changed back later, must not pass for this text.
    lasts = shipped and now.text is not None and _catalog_text(connection, parts).text == now.text
    return Catalog(found, production, acting, decided, now.text if lasts else None)


@dataclass(frozen=True)
class _CatalogText:
    text: str | None
    acting: bool


def _catalog_text(connection: Connection, parts: decisions.CatalogContents) -> _CatalogText:
    named = ["queues", "settings"]
    named += ["decisions"] * parts.decisions_readable + ["running"] * parts.audited
    steps = [(name, f"catalog.{name}") for name in named]
    scope = sql.Scope(options=dict.fromkeys(named, "yes"))
    statement = sql.piped(steps, "catalog.whole", connection.dialect, scope)
    return sql.row(connection, _CatalogText, statement)


def _is_production(connection: Connection) -> bool:
    settings = sql.rows(connection, _Setting, "catalog.settings")
    return any(s.name == "production" and s.value == "on" for s in settings)


def every_queue() -> Queue:
    """A queue without a name, for decisions about all queues."""
    return Queue("", "", unknown("", None), {}, {})


def find(
    connection: Connection, name: str, schema: str | None = None, *, any_design: bool = False
) -> Queue:
    """The queue of that name, or of that schema and name with a dot between them, as it is printed.
    UsageError if there is none, or several without a schema given.

    RefusedError if this version does not know its design, unless `any_design`.
    """
    known = queues(connection)
    within = [q for q in known if schema in (None, q.schema)]
    matches = [q for q in within if q.name == name]
    matches = matches or [q for q in within if q.label == name]
    if len(matches) == 1:
        if not any_design:
            require_known(matches[0])
        return matches[0]
    if matches:
        schemas = ", ".join(q.schema for q in matches)
        raise UsageError(
            f"There are {len(matches)} queues named {name!r}.",
            why=f"They are in the schemas: {schemas}.",
            next_step="Choose one with --schema.",
        )
    near = difflib.get_close_matches(name, [q.name for q in known], n=3)
    where = f" in schema {schema!r}" if schema else ""
    raise UsageError(
        f"There is no queue named {name!r}{where}.",
        why="The catalog of this database has "
        + (f"{numbered(len(known), 'queue')}." if known else "no queues."),
        next_step=(
            f"Did you mean: {', '.join(near)}?" if near else "List them with: dbq-console status"
        ),
    )


def look_up(
    database: Database, name: str, schema: str | None = None, *, any_design: bool = False
) -> Queue:
    """`find` in its own transaction. Waits; ConsoleError."""
    with database.transaction("read the catalog", read_only=True) as connection:
        return find(connection, name, schema, any_design=any_design)


def require_rows(queue: Queue, what: str = "") -> None:
    """RefusedError where the server may hide rows of the queue from this login."""
    if queue.row_filter is not None:
        why = queue.row_filter.why
        raise RefusedError(
            what or f"The messages of {queue.name!r} cannot all be seen.",
            why=f"{why[0].upper()}{why[1:]}.",
            next_step=SEES_ALL,
        )


def require_known(queue: Queue) -> None:
    if queue.not_known:
        raise RefusedError(
            f"The queue {queue.name!r} cannot be used: {queue.not_known}.",
            why=""
            if queue.design.unknown
            else "A console of another version added it to this database's catalog.",
            next_step=queue.design.unknown_next
            or "Use that version. status and doctor list it; forget drops an adopted one.",
        )
