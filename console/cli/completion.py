"""The verb `completion`: the script with which a shell completes this command."""

import click
from click.shell_completion import get_completion_class

from console.cli.context import Call, verb_options

_COMMAND = "dbq-console"
_VARIABLE = "_DBQ_CONSOLE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@verb_options
def completion(call: Call, shell: str) -> None:
    """Print the script with which a shell completes verbs, options and profiles.

    Names of queues are not completed: that would connect, and might ask for a password.

    \b
    Examples:
      eval "$(dbq-console completion bash)"          # in ~/.bashrc; zsh: in ~/.zshrc
      dbq-console completion fish > ~/.config/fish/completions/dbq-console.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  # click has all three
    root = click.get_current_context().find_root().command
    script = kind(root, {}, _COMMAND, _VARIABLE).source()
    call.answer({"shell": shell, "script": script}, script.split("\n"))


COMMANDS = (completion,)
