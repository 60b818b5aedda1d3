"""Greet whoever is on call.

\b
Examples:
  dbq-console greet
"""

from console.cli.context import Call
from console.verbs.command import Command


def _run(call: Call) -> None:
    call.answer({"greeting": "good night"}, ["good night"])


COMMAND = Command("greet", _run, __doc__)
