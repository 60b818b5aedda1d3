"""What an operator can do with a queue, one value a verb.

Each is said once: its help, its parameters, the right it needs, which queues have it, its plan and
how that is run. The command line's commands and options, the screens' forms, the palette, the `:`
line and the equivalent command line are made of these values.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from console.doctor import set_planner

if TYPE_CHECKING:
    from console.doctor.repairs import VerbRepair
    from console.engines import Database
    from console.verbs.verb import Plan, Verb

MODULES = {
    "release": "messages",
    "requeue": "messages",
    "doctor": "findings",
    "end-session": "sessions",
    "archive": "messages",
    "purge": "messages",
    "restore": "messages",
    "reschedule": "messages",
    "resize": "code",
    "relay": "code",
    "subscribe": "subscribers",
    "unsubscribe": "subscribers",
    "skip": "subscribers",
    "maintain": "code",
    "upgrade": "code",
    "push": "push_pop",
    "pop": "push_pop",
    "complete": "push_pop",
    "fail": "push_pop",
    "uninstall": "code",
    "forget": "code",
    "pause": "decisions",
    "resume": "decisions",
    "protect": "decisions",
    "unprotect": "decisions",
    "note": "decisions",
    "silence": "findings",
    "ack": "findings",
    "unsilence": "findings",
}
"""Where each is, in the order in which an operator is offered them."""


def get_verb(name: str) -> "Verb":
    """The verb of that name; the others are not imported."""
    module = import_module(f"console.verbs.{MODULES[name]}")
    found: Verb = getattr(module, name.replace("-", "_").upper())
    return found


def all_verbs() -> "tuple[Verb, ...]":
    """In the order in which an operator is offered them."""
    return tuple(map(get_verb, MODULES))


def _plan(database: "Database", repair: "VerbRepair") -> "Plan":
    from console.verbs.findings import plan_repair  # noqa: PLC0415  # --help needs none of it

    return plan_repair(get_verb(repair.verb), database, repair)


set_planner(_plan)
