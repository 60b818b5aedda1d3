"""A command as a value; it can be made without importing what acts on queues."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.rights import Rights
from console.verbs.index import VERBS
from console.verbs.parameters import Parameter

Params = Mapping[str, Any]
"""Parameter name with `_` for `-` -> its converted value."""


def read_only(_: Params) -> Rights:
    """The right of what changes nothing."""
    return Rights.READ_ONLY


def operator(_: Params) -> Rights:
    """The right that most verbs need."""
    return Rights.OPERATOR


def admin(_: Params) -> Rights:
    """The right that verbs on tables and code need."""
    return Rights.ADMIN


@dataclass(frozen=True)
class Command:
    """One thing that the command line can do; where the screens can, their form has the same
    parameters."""

    name: str
    run: Callable[..., None] | None = None
    """Does it on the command line: its call, and the values by name. None: its plan does."""
    help: str = ""
    """What the summary does not say, and examples; by default the docstring of `run`."""
    parameters: tuple[Parameter, ...] = ()
    right: Callable[[Params], Rights] = read_only
    confirmed: bool = False
    """Whether the command line has `--yes`."""
    alone: tuple[str, ...] | None = None
    """It also takes `--group` and `--fleet`, which do not go with these of its flags. None: it does
    not."""
    table: tuple[str, Callable[[], Sequence[tuple[str, str]]]] | None = None
    """The title and the rows of a table at the end of its help."""
    own_summary: str = ""
    """One line, as `VERBS` has it, of what is not there."""

    examined_after: bool = True
    """Of what is about a queue: whether the doctor examines it again afterwards."""
    continues: bool = True
    """Whether the same command continues where an interrupted one stopped."""

    @property
    def summary(self) -> str:
        """One line, without capital and full stop."""
        return self.own_summary or VERBS[self.name][1]
