"""What an operator can do with a queue: each verb is one value.

A verb has its help, parameters, right, availability, plan and run in one place. The commands of the
command line, the screens' forms, the palette, the `:` line and the equivalent command line are
built from it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from console.verbs.verb import Verb

MODULES = {
    "release": "verbs.messages",
    "requeue": "verbs.messages",
    "doctor": "doctor.verbs",
    "end-session": "verbs.sessions",
    "archive": "verbs.messages",
    "purge": "verbs.messages",
    "restore": "verbs.messages",
    "reschedule": "verbs.messages",
    "resize": "verbs.code",
    "relay": "verbs.code",
    "subscribe": "verbs.subscribers",
    "unsubscribe": "verbs.subscribers",
    "skip": "verbs.subscribers",
    "maintain": "verbs.code",
    "upgrade": "verbs.code",
    "push": "verbs.push_pop",
    "pop": "verbs.push_pop",
    "complete": "verbs.push_pop",
    "fail": "verbs.push_pop",
    "uninstall": "verbs.code",
    "forget": "verbs.code",
    "pause": "verbs.decisions",
    "resume": "verbs.decisions",
    "protect": "verbs.decisions",
    "unprotect": "verbs.decisions",
    "note": "verbs.decisions",
    "silence": "doctor.verbs",
    "ack": "doctor.verbs",
    "unsilence": "doctor.verbs",
}
"""Verb -> its module in `console`, in the order in which operators see them."""


def get_verb(name: str) -> "Verb":
    """Imports only that verb's module."""
    module = import_module(f"console.{MODULES[name]}")
    verb: Verb = getattr(module, name.replace("-", "_").upper())
    return verb


def all_verbs() -> "tuple[Verb, ...]":
    """In the order in which operators see them."""
    return tuple(map(get_verb, MODULES))
