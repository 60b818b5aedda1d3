"""What is wrong with a queue, proven; and how it is repaired without losing a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from console.doctor.repairs import VerbRepair
    from console.engines import Database


class PlannedVerb(Protocol):
    """The plan of a verb, as far as a repair needs it."""

    @property
    def lines(self) -> Sequence[str]:
        """In words."""
        ...

    def run_to_end(self) -> Sequence[str]:
        """Do what the plan says; what came of it, in words. Raises ConsoleError."""
        ...


Planner = Callable[["Database", "VerbRepair"], PlannedVerb]
_planners: list[Planner] = []


def set_planner(planner: Planner) -> None:
    """Let this plan repairs that name a verb: the verbs are a layer above, which says so itself."""
    _planners[:] = [planner]


def planned(database: Database, repair: VerbRepair) -> PlannedVerb:
    return _planners[0](database, repair)
