"""What an operator can do with a queue: each verb is one value.

A verb has its help, parameters, right, availability, plan and run in one place. The commands of the
command line, the screens' forms, the palette, the `:` line and the equivalent command line are
built from it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from console.verbs.index import VERBS

if TYPE_CHECKING:
    from console.verbs.verb import Verb


def get_verb(name: str) -> "Verb":
    """Imports only that verb's module."""
    module = import_module(f"console.{VERBS[name][0]}")
    verb: Verb = getattr(module, name.replace("-", "_").upper())
    return verb


def all_verbs() -> "tuple[Verb, ...]":
    """In the order in which operators see them."""
    return tuple(map(get_verb, VERBS))
