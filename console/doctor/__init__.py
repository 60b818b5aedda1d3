"""What is wrong with a queue, proven; and how it is repaired without losing a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from console.doctor.repairs import VerbRepair
    from console.engines import Database


class VerbPlan(Protocol):
    """The plan of a verb, as far as a repair needs it."""

    @property
    def lines(self) -> Sequence[str]: ...

    def run_to_end(self) -> Sequence[str]:
        """Run it; the result, line by line. Raises ConsoleError."""
        ...


Planner = Callable[["Database", "VerbRepair"], VerbPlan]
_planners: list[Planner] = []


def set_planner(planner: Planner) -> None:
    """The verbs are a layer above: they register here what plans a repair that is a verb."""
    _planners[:] = [planner]


def plan_verb(database: Database, repair: VerbRepair) -> VerbPlan:
    return _planners[0](database, repair)
