"""What an operator can do with a queue: each verb is one value.

A verb has its help, parameters, right, availability, plan and run in one place. The commands of the
command line, the screens' forms, the palette, the `:` line and the equivalent command line are
built from it.
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
"""Verb -> its module, in the order in which operators see them."""


def get_verb(name: str) -> "Verb":
    """Imports only that verb's module."""
    module = import_module(f"console.verbs.{MODULES[name]}")
    verb: Verb = getattr(module, name.replace("-", "_").upper())
    return verb


def all_verbs() -> "tuple[Verb, ...]":
    """In the order in which operators see them."""
    return tuple(map(get_verb, MODULES))


def _plan(database: "Database", repair: "VerbRepair") -> "Plan":
    from console.verbs.findings import plan_repair  # noqa: PLC0415  # --help needs none of it

    return plan_repair(get_verb(repair.verb), database, repair)


set_planner(_plan)
