"""The lists that the command line prints and the screens show: each module has one, as `VIEW`.

Its docstring is the list's help, whose first line the list of verbs shows without importing it.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console import features
from console.verbs.index import first_line, module_files

if TYPE_CHECKING:
    from console.views.view import View


def summaries() -> dict[str, str]:
    """List -> the first sentence of its help."""
    return {name: first_line(file) for name, file in files().items()}


def files() -> dict[str, Path]:
    """List -> the file of its module."""
    return {name: file for name, (_, file) in _lists().items()}


def get_view(name: str) -> "View[Any, Any]":
    """Imports only that list's module."""
    package, _ = _lists()[name]
    view: View[Any, Any] = import_module(f"{package}.{name.replace('-', '_')}").VIEW
    return view


@cache
def _lists() -> dict[str, tuple[str, Path]]:
    """List -> its package, and its file."""
    of_features = ((package, path) for name, package, path in features.packages("views"))
    return {
        name: (package, file)
        for package, path in ((__name__, __path__), *of_features)
        for name, file in module_files(path).items()
        if name != "view"
    }
