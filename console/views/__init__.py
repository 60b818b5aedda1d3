"""The lists that the command line prints and the screens show: each module has one, as `VIEW`.

Its first line is the first sentence of the list's help, so that the list of verbs needs to import
none of them.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from console.views.view import View


def summaries() -> dict[str, str]:
    """List -> the first sentence of its help."""
    names = [one.name for one in pkgutil.iter_modules(__path__) if one.name != "view"]
    heads = (pkgutil.get_data(__name__, f"{name}.py") or b"" for name in names)
    lines = (head.decode().partition("\n")[0].strip('"') for head in heads)
    return {name.replace("_", "-"): line for name, line in zip(names, lines, strict=True)}


def get_view(name: str) -> "View[Any, Any]":
    """Imports only that list's module."""
    view: View[Any, Any] = import_module(f"console.views.{name.replace('-', '_')}").VIEW
    return view
