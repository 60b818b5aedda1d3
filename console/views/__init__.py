"""The lists that the command line prints and the screens show: each module has one, as `VIEW`.

Its docstring is the list's help, whose first line the list of verbs shows without importing it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from console.verbs.index import first_lines

if TYPE_CHECKING:
    from console.views.view import View


def summaries() -> dict[str, str]:
    """List -> the first sentence of its help."""
    return {name: line for name, line in first_lines(__path__).items() if name != "view"}


def get_view(name: str) -> "View[Any, Any]":
    """Imports only that list's module."""
    view: View[Any, Any] = import_module(f"console.views.{name.replace('-', '_')}").VIEW
    return view
