"""Where the questions about a server are asked: in databases of the proof's own, or, where this
login may make none, in the operator's, on scratch queues.

A database of its own can be set up as others are (row versions, collation, optimized locking), and
its roles and members are the proof's own. It is dropped at the end, however that comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from console import sql
from console.actions.install import missing_requirement, prepare_catalog, scratch_queue
from console.actions.push import signals_deferred
from console.catalog import installed_queue
from console.designs import DESIGNS
from console.engines import Database, Timeouts
from console.errors import ConsoleError, UsageError
from console.features.bench.candidate import PROOF_PREFIX, live_tokens, token_of
from console.features.prove.trial import NotApplicableError, Trial

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

Seen = TypeVar("Seen")

TIMEOUTS = Timeouts(statement_seconds=30.0, lock_seconds=10.0)
_RING_SIZE = "100"


@dataclass(frozen=True)
class Setting:
    """How a database of the proof's own is set."""

    label: str
    make: str
    more: Sequence[str] = ()
    least_version: int = 0


_MAKE, _SET = "prove.make_database", "prove.set_database"
_ROW_VERSIONS = "prove.set_row_versions"
SETTINGS = {
    "postgresql": (Setting("a database of its own", _MAKE),),
    "mssql": (
        Setting("row versions off", _MAKE, (_SET,)),
        Setting("row versions on", _MAKE, (_SET, _ROW_VERSIONS)),
        Setting("case-sensitive collation", "prove.make_case_sensitive", (_SET,)),
        Setting(
            "optimized locking",
            _MAKE,
            (_SET, _ROW_VERSIONS, "prove.set_optimized_locking"),
            least_version=170_000_000,
        ),
    ),
}
"""The first gets all questions."""
OPERATORS = "the operator's database"


def settings(database: Database) -> Sequence[Setting]:
    version = database.capabilities.version_number
    return [one for one in SETTINGS[database.product.name] if one.least_version <= version]


def why_no_database(database: Database) -> str:
    """Why the proof makes none, before it tries; empty: it tries."""
    product = database.capabilities.facts.get("product", "")
    if product.startswith(("Azure SQL Database", "SQL database in Fabric")):
        return f"in {product} each database costs money"
    if database.product.name == "mssql" and not database.url.database:
        return "the URL does not name its database in a way that this can exchange"
    return ""


class MemberDatabase(Database):
    """The same database, in sessions that are a member of one of the roles from their beginning."""

    member = ""

    @cached_property
    def _engine(self) -> Engine:
        from sqlalchemy import event  # noqa: PLC0415  # a verb imports what it uses

        engine = super()._engine
        event.listen(engine, "connect", self._become)
        return engine

    def _become(self, raw: Any, _record: object) -> None:
        scope = sql.Scope({"member": self.member})
        cursor = raw.cursor()
        cursor.execute(sql.script("prove.become", self.product.dialect, scope))
        cursor.close()
        raw.commit()


@dataclass
class Site:
    """One database, and the scratch queues of the question that is asked there."""

    database: Database
    schema: str
    label: str
    """In the report."""
    token: str
    report: Callable[[str], None]
    own: bool = False
    roles: bool = False
    """Whether the three roles exist in it, and members of them may be made."""
    _queues: ExitStack = field(default_factory=ExitStack)
    """And members."""
    _made: int = 0

    def trial(self, design: str, **options: str) -> Trial:
        """A scratch queue that is there until the question is answered. NotApplicableError."""
        of, product = DESIGNS[design], self.database.product
        if product.name not in of.engines:
            raise NotApplicableError(f"{product.title} has no {design}")
        if why := missing_requirement(self.database, of):
            raise NotApplicableError(why)
        chosen = of.complete_options(options, product.name)
        if "consumers" in chosen:
            chosen["consumers"] = "direct"
        if "size" in chosen:
            chosen["size"] = _RING_SIZE
        self._made += 1
        name = f"{PROOF_PREFIX}{self.token}_{self._made}_{design}"
        queue = installed_queue(self.schema, name, of, chosen)
        self._queues.enter_context(scratch_queue(self.database, queue))
        return Trial(self.database, queue)

    @contextmanager
    def question(self) -> Iterator[None]:
        """Removes the scratch queues at its end; outside the question's limit of time."""
        try:
            yield
        finally:
            try:
                self._queues.close()
            except ConsoleError as error:
                why = " ".join((error.why or error.what).split())
                self.report(f"In {self.label} a scratch queue or member was not removed: {why}")

    @contextmanager
    def another(self) -> Iterator[Database]:
        """The same database with sessions of its own."""
        other = beside(self.database, None, Database)
        try:
            yield other
        finally:
            other.close()

    def member(self, role: str) -> MemberDatabase:
        """The same database as a member of that role, until the question is answered.
        NotApplicableError."""
        if not self.roles:
            raise NotApplicableError("the three roles do not exist here: dbq-console roles")
        theirs = beside(self.database, None, MemberDatabase)
        theirs.member = f"{PROOF_PREFIX}{self.token}_{role}"
        scope = sql.Scope({"role": f"dbq_{role}", "member": theirs.member})
        self._queues.callback(self._forget, theirs)
        with self.database.transaction(f"make a {role}") as connection:
            sql.run(connection, "prove.make_member", scope)
        return theirs

    def _forget(self, member: MemberDatabase) -> None:
        member.close()
        with self.database.transaction("remove a member") as connection:
            sql.run(connection, "prove.forget_member", sql.Scope({"member": member.member}))


@contextmanager
def running(work: Callable[[], Seen]) -> Iterator[Future[Seen]]:
    """Runs it in another thread, with this one's limits of time and locks."""
    with ThreadPoolExecutor(1, "beside") as pool:
        yield pool.submit(copy_context().run, work)


Kind = TypeVar("Kind", bound=Database)


def beside(database: Database, name: str | None, kind: type[Kind]) -> Kind:
    """The same login; in the database of that name, or in the same one."""

    def there(url: URL) -> URL:
        return url if name is None else url.set(database=name)

    return kind(
        database.product,
        there(database.url),
        timeouts=TIMEOUTS,
        application_name=database.application_name,
        label=database.label if name is None else f"{database.label}, {name}",
        production=database.production,
        complete=lambda: there(database.complete_url()),
    )


@contextmanager
def own_database(database: Database, setting: Setting, name: str) -> Iterator[Database]:
    """Made and set up; dropped at the end, also if it was made in part."""
    scope = sql.Scope({"database": name})
    own = beside(database, name, Database)
    made = False
    try:
        with database.autocommit(f"make the database {name}") as connection:
            sql.run(connection, setting.make, scope)
            made = True
            for statement in setting.more:
                sql.run(connection, statement, scope)
        if own.capabilities.database != name:  # as a URL's query may say
            raise UsageError(f"The connection leads to {own.capabilities.database}, not to {name}.")
        yield own
    finally:
        own.close()
        if made:
            drop_database(database, name)


def drop_database(database: Database, name: str) -> None:
    """With all sessions in it, if it is there."""
    doing = f"drop the database {name}"
    with signals_deferred(), database.autocommit(doing) as connection:
        sql.run(connection, "prove.drop_database", sql.Scope({"database": name}))


def drop_left_databases(database: Database, report: Callable[[str], None]) -> None:
    """Of proofs that were killed: no session of theirs is there any more."""
    if not database.capabilities.sees_all_sessions:
        return
    with database.transaction("find what earlier proofs left", read_only=True) as connection:
        names = sql.values(connection, str, "prove.databases")
        living = live_tokens(connection)
    for name in names:
        if token_of(name, PROOF_PREFIX) not in living:
            report(f"An earlier proof left the database {name} behind: it is dropped.")
            try:
                drop_database(database, name)
            except ConsoleError as error:
                report(f"It could not be dropped: {' '.join((error.why or error.what).split())}")


def prepare_roles(own: Database, schema: str) -> bool:
    """Makes the three roles in a database of the proof's own; whether they are there."""
    with own.transaction("make the roles") as connection:
        if not sql.value(connection, bool, "prove.roles_made"):
            return False
        prepare_catalog(connection)
        sql.run(connection, "roles.roles", sql.Scope({"schema": schema}))
    return True
