"""The verb on sessions that hold rows of a queue: end-session."""

from console.actions import end_session as ending
from console.errors import UsageError
from console.plan import Plan
from console.verbs.command import Params
from console.verbs.parameters import DURATION, Parameter, Placement
from console.verbs.verb import Target, Verb


def _plan(target: Target, values: Params) -> Plan:
    if not values["session"]:
        raise _no_session(target)
    least = values["older"] or 0.0
    return ending.plan(target.database, target.queue, values["session"], least)


def _no_session(target: Target) -> UsageError:
    """The error that lists the sessions to choose from."""
    holders = ending.sessions_holding(target.database, target.queue)
    return UsageError(
        "end-session needs a session.",
        why="; ".join(ending.describe_holder(session, target.queue) for session in holders)
        or "No session holds rows of the queue now.",
    )


END_SESSION = Verb(
    "end-session",
    make_plan=_plan,
    help="""\
    Terminate a SESSION that holds rows of a queue; roll back a prepared transaction by name.

    The plan says who it is, what it holds and who waits for it. Its transaction is rolled back,
    so its rows come back. It is skipped if it is in another transaction by then.

    \b
    Examples:
      dbq-console end-session mail 4711 --dry-run
      dbq-console end-session mail 4711 --yes
    """,
    parameters=(
        Parameter(
            "session",
            "Its id, or a prepared transaction's name; empty: list who holds rows.",
            placement=Placement.ARGUMENT,
        ),
        Parameter(
            "older",
            "Only if its transaction is at least this old: a younger one is another.",
            DURATION,
            metavar="T",
        ),
    ),
)
