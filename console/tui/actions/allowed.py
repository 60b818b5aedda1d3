"""Which verbs an operator may choose for a queue, and why not the others."""

from collections.abc import Iterator
from dataclasses import dataclass

from console.actions.work import Asked
from console.actions.works import needs, why_not
from console.catalog import Queue
from console.rights import Rights
from console.tui.actions import pipeline
from console.tui.actions.fields import FORMS


@dataclass(frozen=True)
class Choice:
    """One verb, as it is offered. `why_not` empty: it may be chosen."""

    verb: str
    summary: str
    why_not: str = ""


_OTHERS = (("smoke", "try its design out on a scratch queue"),)
"""Verbs with screens of their own."""

ON_THE_LAKE = {"to lake": "archive", "from lake": "replay", "verify log": "verify"}
"""Jobs of the pipeline, as they are called here."""
_LAKE_WORDS = {
    "to lake": "its archive into Parquet files, as a process of its own",
    "from lake": "archived messages out of Parquet files, each once more",
    "verify log": "what was pushed and popped: lost, doubled, out of order",
}


def choices(queue: Queue, rights: Rights, stale: str = "") -> tuple[Choice, ...]:
    """All verbs that there are: first those that can be chosen. `stale`: why none can."""
    every = [*_every(queue, rights, stale)]
    return tuple(sorted(every, key=lambda one: bool(one.why_not)))


def _every(queue: Queue, rights: Rights, stale: str) -> Iterator[Choice]:
    named = [(form.verb, form.summary) for form in FORMS]
    for verb, summary in (*named, *_OTHERS):
        wanted = Rights.ADMIN if verb == "smoke" else needs(Asked(verb))
        why = why_not(queue, verb)
        if not why and rights < wanted:
            why = f"it needs the right {wanted.word}; this connection has {rights.word}"
        yield Choice(verb, summary, why or stale)
    for name, verb in ON_THE_LAKE.items():
        job = pipeline.BY_VERB[verb]
        why = ""
        if job.confirmed and rights < Rights.OPERATOR:
            why = f"it needs the right operator; this connection has {rights.word}"
        yield Choice(name, _LAKE_WORDS[name], why or stale)


_BY_STATE = {"error": "requeue", "claimed": "release", "done": "archive", "ready": ""}


def suggested(stuck: int | None, errors: int | None, state: str = "") -> str:
    """The verb that the messages' state or the queue's figures call for first; empty: none."""
    if state in _BY_STATE:
        return _BY_STATE[state]
    if stuck:
        return "release"
    return "requeue" if errors else ""
