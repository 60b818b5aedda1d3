"""Which verbs a queue has, by its design, its options and how it came to be."""

from console.catalog import Kind, Queue
from console.designs import Flow
from console.designs.model import SUBSCRIBER_VERBS
from console.errors import RefusedError, UsageError


def unavailable(queue: Queue, verb: str) -> str:
    """Why the queue cannot have the verb, whatever its contents; empty: it can."""
    adopted = queue.kind is Kind.ADOPTED
    if verb in _DECISIONS:
        return ""
    if queue.kind is Kind.ARCHIVE:
        return "" if verb == "uninstall" else "only its archive is left"
    if verb == "forget":
        return "" if adopted else "it is installed: uninstall removes it"
    never = queue.not_known or queue.refusal(verb) or _not_of_design(queue, verb)
    if why := never or rows_hidden(queue, verb):
        return why
    if verb == "release" and "claimed" not in queue.states and not queue.design.waits_itself:
        return "it has no claims: sessions hold what is popped (end-session)"
    return _lacking(queue, verb) if adopted else ""


_DECISIONS = {"protect", "unprotect", "note", "silence", "ack", "unsilence"}
_READ_NO_ROWS = {*_DECISIONS, "forget", "pause", "resume", "doctor", "end-session"}


def rows_hidden(queue: Queue, verb: str) -> str:
    """Why what it would take for all rows of the queue may be a part of them; empty: it is not."""
    # A push into a ring finds its slot among the rows.
    reads = queue.design.flow is Flow.NUMBERS if verb == "push" else verb not in _READ_NO_ROWS
    return queue.row_filter.problem if queue.row_filter is not None and reads else ""


def _not_of_design(queue: Queue, verb: str) -> str:
    if verb == "doctor" or verb in queue.verbs:
        return ""
    with_option = [
        f"{name}={value}"
        for (name, value), verbs in queue.design.option_verbs.items()
        if verb in verbs
    ]
    if verb in SUBSCRIBER_VERBS and any(o.name == "subscribers" for o in queue.design.options):
        return "it has no subscribers: they are an option of its installation, subscribers=A,B"
    only = f" without {with_option[0]}" if with_option else ""
    return f"the design {queue.design.name} has no {verb}{only}"


_OURS = {
    *("push", "pop", "complete", "fail", "upgrade", "uninstall"),
    *("restore", "archive", "relay", "resize", "pause", "resume"),
}
_ROLES = {
    "requeue": ("id", "error"),
    "release": ("id", "claimed_at"),
    **dict.fromkeys(("purge", "reschedule"), ("id",)),
}


def _lacking(queue: Queue, verb: str) -> str:
    """Why an adopted table does not allow it."""
    own_rule = queue.design.library and verb in queue.verbs
    if verb in _OURS and not own_rule:
        return "it was adopted: other programs push to it and pop it"
    if queue.design.flow is Flow.NUMBERS and verb == "purge":
        return "it was adopted: this console does not empty the slots of such a ring"
    missing = [role for role in _ROLES.get(verb, ()) if role not in queue.roles]
    return f"it was adopted without a column for the role {missing[0]}" if missing else ""


def require_verb(queue: Queue, verb: str) -> None:
    """UsageError, which lists its verbs, where the queue has no such verb."""
    if queue.kind is Kind.ARCHIVE:
        raise UsageError(f"Of {queue.name!r} only its archive is left.")
    if why := queue.refusal(verb):
        raise RefusedError(
            f"{verb} is not available for the queue {queue.name!r}, which belongs to "
            f"{queue.design.library_name}.",
            why=f"{why}.",
        )
    if verb not in queue.verbs:
        raise UsageError(
            f"The queue {queue.name!r} has no verb {verb}.",
            why=f"Its design is {queue.design.name}, which has: {', '.join(queue.verbs)}.",
        )


def require_archive(queue: Queue, instead: str = "") -> None:
    """RefusedError where there is none. `instead`: the next step."""
    if queue.kind is Kind.ADOPTED:
        raise RefusedError(
            f"The queue {queue.name!r} was adopted and has no archive.",
            why="The console creates no tables next to those of other programs.",
            next_step=instead,
        )
