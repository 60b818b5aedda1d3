"""Print the script for shell completion.

It completes verbs, options, profiles, designs with their options and values, and queues. It
never connects: it offers the queues that existed when the connection was last sampled (status,
check, record, the screens).

\b
Examples:
  eval "$(dbq-console completion bash)"          # in ~/.bashrc; zsh: in ~/.zshrc
  dbq-console completion fish > ~/.config/fish/completions/dbq-console.fish
"""

import click
from click.shell_completion import get_completion_class

from console.cli.context import Call
from console.verbs.command import Command
from console.verbs.index import PROGRAM
from console.verbs.parameters import argument

_VARIABLE = "_DBQ_CONSOLE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def _run(call: Call, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # click has all three
    root = click.get_current_context().find_root().command
    script = kind(root, {}, PROGRAM, _VARIABLE).source()
    call.answer({"shell": shell, "script": script}, script.split("\n"))


_SHELL = argument("shell", type=click.Choice(SHELLS))
COMMAND = Command("completion", _run, __doc__, (_SHELL,))
