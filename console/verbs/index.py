"""Which verbs there are: they can be listed without importing them."""

from collections.abc import Sequence
from pathlib import Path

PROGRAM = "dbq-console"

VERBS = {
    "release": ("verbs.messages", "return claims of disconnected consumers to the queue"),
    "requeue": ("verbs.messages", "return errors to the queue"),
    "doctor": ("doctor.verbs", "run the repairs that need no judgement"),
    "end-session": ("verbs.sessions", "terminate a session that holds rows of it"),
    "archive": ("verbs.messages", "move finished messages into the archive"),
    "purge": ("verbs.messages", "move messages into the archive, or delete them"),
    "restore": ("verbs.messages", "bring archived messages back"),
    "reschedule": ("verbs.messages", "give messages another due time"),
    "resize": ("verbs.code", "change a ring's number of slots"),
    "relay": ("verbs.code", "renumber a ring's live messages"),
    "subscribe": ("verbs.subscribers", "add a subscriber to a ring"),
    "unsubscribe": ("verbs.subscribers", "remove a subscriber of a ring"),
    "skip": ("verbs.subscribers", "skip what a subscriber has not popped"),
    "maintain": ("verbs.code", "vacuum and reindex where bloat was measured"),
    "upgrade": ("verbs.code", "bring its code and columns to this console's version"),
    "push": ("verbs.push_pop", "add one message"),
    "pop": ("verbs.push_pop", "pop messages into a file"),
    "complete": ("verbs.push_pop", "complete claimed messages: their work is done"),
    "fail": ("verbs.push_pop", "turn claimed messages into errors"),
    "uninstall": ("verbs.code", "remove the queue with all its objects"),
    "forget": ("verbs.code", "take an adopted queue out of the catalog"),
    "pause": ("verbs.decisions", "make its pops return nothing until it is resumed"),
    "resume": ("verbs.decisions", "end its pause"),
    "protect": ("verbs.decisions", "protect it from purge, archive, uninstall and a smaller size"),
    "unprotect": ("verbs.decisions", "end its protection"),
    "note": ("verbs.decisions", "keep a note of what happened: a mark on charts"),
    "silence": ("doctor.verbs", "silence a finding for a time"),
    "ack": ("doctor.verbs", "acknowledge a finding until it ends or worsens"),
    "unsilence": ("doctor.verbs", "end what silences or acknowledges a finding"),
}
"""Verb -> its module in `console`, and one line on it, without capital and full stop; in the order
in which operators see them."""


def module_files(folders: Sequence[str]) -> dict[str, Path]:
    """Module of a package -> its file; none is read."""
    files = sorted(file for folder in folders for file in Path(folder).glob("[!_]*.py"))
    return {file.stem.replace("_", "-"): file for file in files}


def first_line(file: Path) -> str:
    """Of the module's docstring; it is not imported."""
    with file.open(encoding="utf-8") as text:
        return text.readline().strip().strip('"')
