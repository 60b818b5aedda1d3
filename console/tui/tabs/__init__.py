"""The tabs of a queue's screen, one per file; those of features are found by their place."""

from importlib import import_module
from typing import TYPE_CHECKING

from console import features
from console.verbs.index import first_line, module_files

if TYPE_CHECKING:
    from console.tui.tabs.tab import QueueTab


def tabs_of_features() -> "list[type[QueueTab]]":
    """Imports them."""
    return [
        import_module(f"{package}.{name.replace('-', '_')}").TAB
        for feature, package, path in features.packages("tabs")
        if not features.missing(feature)
        for name in module_files(path)
    ]


def summaries_of_features() -> dict[str, str]:
    """Tab -> the first line of its module, which is not imported."""
    return {
        name: first_line(file)
        for feature, _, path in features.packages("tabs")
        if not features.missing(feature)
        for name, file in module_files(path).items()
    }
