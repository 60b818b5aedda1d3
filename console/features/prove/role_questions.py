"""Questions about rights: what each of the three roles may, and what a session sees of others."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from console import sql
from console.actions import end_session, install
from console.actions.archive import Purge
from console.actions.restore import Restore
from console.doctor.diagnose import diagnose
from console.doctor.stopped_consumers import ConsumptionHistory
from console.engines import Database
from console.errors import BusyError, ConsoleError, RefusedError, UsageError
from console.features.prove.lock_questions import BOTH
from console.features.prove.questions import Question, an_error_disproves
from console.features.prove.repairs import MESSAGES, moved
from console.features.prove.server import (
    ROLES,
    act_as,
    admins_install,
    call_as,
    install_another,
    named,
    revert_identity,
)
from console.features.prove.site import Site
from console.features.prove.trial import DisprovedError, NotApplicableError, Trial, require
from console.monitor.sampler import login_can
from console.monitor.scan_query import MessageSource


@dataclass(frozen=True)
class _Visible:
    sessions: int
    connections: int
    texts: int
    locks: int
    requests: int


_WATCHER_VERSION = 160_000_000


def _performance_state(site: Site) -> str:
    database = site.database
    if database.capabilities.version_number < _WATCHER_VERSION:
        raise NotApplicableError("this right exists from SQL Server 2022 on")
    trial = site.trial("fifo")
    found: list[_Visible] = []
    with (
        database.transaction("hold a lock") as connection,
        database.session("act as a login with one right") as session,
    ):
        trial.push_one(connection)
        other = int(trial.session(connection))
        scope = trial.queue.scope(
            database.product,
            member=f"{trial.queue.name}_watcher",
            # Nobody can log in with it: the login is rolled back.
            secret=f"{secrets.token_urlsafe(24)}aA1!",
        )

        def look(connection: Connection) -> None:
            found.append(sql.row(connection, _Visible, "prove.visible", session=other))

        try:
            with an_error_disproves("a view"):
                act_as(session, scope, "prove.make_watcher", look, become="prove.impersonate_login")
        except BusyError:
            raise
        except RefusedError as error:
            raise DisprovedError(f"a view is refused: {error.why or error.what}") from error
    (seen,) = found
    unseen = [name for name, count in vars(seen).items() if not count]
    require(not unseen, f"hidden: {', '.join(unseen)}")
    return (
        f"of another session {seen.locks} locks, its text, its connection; {seen.requests} requests"
    )


def _admin_alone(site: Site) -> str:
    trial = site.trial("ring")
    if not admins_install(trial):
        raise NotApplicableError(f"in {trial.queue.schema} only the database's owners install")

    def make(connection: Connection, trial: Trial) -> None:
        install_another(connection, trial)
        another = named(trial.installed, f"{trial.queue.name}_2")
        relation = f"{another.name}_config"
        scope = another.scope(connection, relation=relation, constraint=f"{another.name}_proved")
        scope = replace(scope, options={**scope.options, "check": "only_row"})
        sql.run(connection, "maintenance.make_check", scope)

    try:
        with site.database.session("install as an admin") as session:
            call_as(session, trial, "admin", make)
    except BusyError:
        raise
    except RefusedError as error:
        raise DisprovedError(error.why or error.what) from error
    return "a member of dbq_admin made a ring with its grants, and a CHECK on its configuration"


def _ends_sessions(site: Site) -> str:
    trial = site.trial("fifo")
    with site.database.transaction("read this login's rights") as connection:
        says = login_can(connection, [trial.installed]).ends_sessions
    seen = [_ends_session(trial, trial.database, "this login", says=says)]
    # On PostgreSQL only a superuser ends a superuser's sessions, as this login's may be.
    for role in ROLES if site.roles and site.database.product.name == "mssql" else ():
        theirs = site.member(role)
        with theirs.transaction("read a member's rights") as connection:
            says = login_can(connection, [trial.installed]).ends_sessions
        seen.append(_ends_session(trial, theirs, f"a {role}", says=says))
    return "; ".join(seen)


def _ends_session(trial: Trial, by: Database, who: str, *, says: bool) -> str:
    try:
        with trial.dying() as connection:
            trial.push_one(connection)
            held = end_session.find(by, trial.queue, trial.session(connection))
            ended = end_session.end_session(by, held)
            require(ended.data["ended"], "a session was told to end and is still there")
    except BusyError:
        raise
    except (RefusedError, UsageError) as error:  # or it does not see the session
        require(not says, f"{who} may, it is said, and may not: {error.why or error.what}")
        return f"{who} may not, as it is said"
    require(says, f"{who} may not, it is said, and ended one")
    return f"{who} may, and ended one"


def _own_row(site: Site) -> str:
    site.trial("ring")
    doing = "act as the owner of the queues"
    with (
        site.database.session(doing) as session,
        revert_identity(session),
        session.transaction(doing) as connection,
    ):
        sql.run(connection, "prove.impersonate", sql.Scope({"member": "dbq_owner"}))
        seen = sql.value(connection, int, "prove.own_row")
    require(seen == 1, f"it sees {seen} rows of itself")
    return "1 row"


def _as_role(role: str) -> Callable[[Site], str]:
    def ask(site: Site) -> str:
        trial = site.trial("claim")
        acting = Trial(site.member(role), trial.installed)
        done = [name for name, least, do in _STEPS if _does(acting, role, name, least, do)]
        return f"{', '.join(done)}: and no more"

    return ask


def _does(acting: Trial, role: str, name: str, least: str, do: Callable[[Trial], object]) -> bool:
    """Whether the server allowed it. DisprovedError if that is wrong."""
    may = ROLES.index(role) >= ROLES.index(least)
    try:
        do(acting)
    except BusyError:
        raise
    except RefusedError as error:
        require(not may, f"a {role} may not {name}: {error.why or error.what}")
        return False
    except ConsoleError as error:
        raise DisprovedError(f"{name} as a {role}: {error.why or error.what}") from error
    require(may, f"a {role} may {name}")
    return True


def _push_and_pop(acting: Trial) -> None:
    acting.require_drained(acting.push(3))


def _purge_and_restore(acting: Trial) -> None:
    sent = acting.push(MESSAGES)
    with acting.database.transaction("find the messages", read_only=True) as connection:
        source = MessageSource.of(connection, acting.installed)
    moved(acting, Purge(source, reason="prove"))
    moved(acting, Restore(source))
    acting.require_drained(sent)


def _findings(acting: Trial) -> None:
    diagnose(
        acting.database, [acting.installed], consumption=ConsumptionHistory(3600.0, waits=False)
    )


def _install_and_remove(acting: Trial) -> None:
    queue = named(acting.installed, f"{acting.queue.name}_2")
    with install.scratch_queue(acting.database, queue):
        pass


_STEPS: tuple[tuple[str, str, Callable[[Trial], object]], ...] = (
    ("read the figures", "reader", Trial.figures),
    ("read the findings", "reader", _findings),
    ("push and pop", "operator", _push_and_pop),
    ("purge and restore", "operator", _purge_and_restore),
    ("install and uninstall", "admin", _install_and_remove),
)
"""What the console does, and the least role that may do it."""


QUESTIONS = {
    question.code: question
    for question in (
        Question(
            "performance-state",
            "VIEW SERVER PERFORMANCE STATE alone shows sessions, requests, texts and locks",
            "the README's advice from SQL Server 2022 on: this right and not VIEW SERVER STATE",
            "with the advised right waits, holders and writers are hidden or fail",
            _performance_state,
            everywhere=False,
        ),
        *(
            Question(
                f"as-{role}",
                f"a member of dbq_{role} alone can do what the console lets {article} {role} do, "
                "and no more",
                "dbq-console roles: the server itself enforces them, in every verb",
                "people lack a right that they were promised, or have one that they were not",
                _as_role(role),
                BOTH,
            )
            for article, role in (("a", "reader"), ("an", "operator"), ("an", "admin"))
        ),
        Question(
            "admin-alone",
            "a member of dbq_admin alone makes a queue, grants on it, adds a CHECK",
            "install, upgrade and maintain by a DBA's deputy who does not own the database",
            "only the database's owner can install",
            _admin_alone,
            BOTH,
        ),
        Question(
            "ends-sessions",
            "who may end sessions, as the console shows it, may end them",
            "end-session and the doctor's repair of held rows: they are offered by it",
            "the console offers to end a session and cannot, or does not offer what it could",
            _ends_sessions,
            BOTH,
        ),
        Question(
            "own-row",
            "a session sees its own row in dm_exec_sessions under EXECUTE AS",
            "ring with in_hand: claimed_by, which is made of it",
            "claims have no owner, and the doctor cannot tell whose they are",
            _own_row,
            everywhere=False,
        ),
    )
}
