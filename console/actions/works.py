"""Every verb as a work: from what is asked for to its plan, which knows how it is done."""

from collections.abc import Callable

from console.actions import moving, passing
from console.actions import whole as wholes
from console.actions.work import Asked, Counted, Planned, Site
from console.catalog import Kind, Queue
from console.designs import Flow
from console.errors import RefusedError, UsageError
from console.rights import Rights


def planned(site: Site, asked: Asked, progress: Counted = lambda _: None) -> Planned:
    """The plan of what is asked for. Changes nothing; waits. ConsoleError where it cannot be."""
    if site.rights < needs(asked):
        raise RefusedError(
            f"{asked.verb} needs the right {needs(asked).word}.",
            why=f"This connection has {site.rights.word}.",
        )
    if asked.verb not in WORKS:
        raise UsageError(f"There is no verb {asked.verb!r} here.")
    return WORKS[asked.verb](site, asked, progress)


def needs(asked: Asked) -> Rights:
    """What the connection must be allowed."""
    if asked.verb == "purge" and asked.flag("permanently"):
        return Rights.ADMIN
    admin = {"relay", "resize", "upgrade", "uninstall", "forget"}
    return Rights.ADMIN if asked.verb in admin else Rights.OPERATOR


def why_not(queue: Queue, verb: str) -> str:
    """Why the verb cannot be for the queue, whatever it holds; empty: it can."""
    adopted = queue.kind is Kind.ADOPTED
    if queue.kind is Kind.ARCHIVE:
        return "" if verb == "uninstall" else "only its archive is left"
    if verb == "forget":
        return "" if adopted else "it is installed: uninstall removes it"
    if verb in queue.design.refusals:
        return queue.design.refusals[verb]
    if verb != "doctor" and verb not in queue.verbs:
        with_option = [
            f"{name}={value}"
            for (name, value), verbs in queue.design.option_verbs.items()
            if verb in verbs
        ]
        only = f" without {with_option[0]}" if with_option else ""
        return f"the design {queue.design.name} has no {verb}{only}"
    if verb == "release" and "end-session" in queue.verbs:
        return "it has no claims: sessions hold what is popped (end-session)"
    return _lacking(queue, verb) if adopted else ""


_OURS = {"push", "pop", "upgrade", "uninstall", "restore", "archive", "relay", "resize"}
_ROLES = {"requeue": ("id", "error"), "release": ("id", "claimed_at"), "purge": ("id",)}


def _lacking(queue: Queue, verb: str) -> str:
    """What somebody else's table does not give."""
    if verb in _OURS:
        return "it was adopted: what works on its table is somebody else's"
    if queue.design.flow is Flow.NUMBERS and verb == "purge":
        return "it was adopted: the slots of such a ring are not emptied by this console"
    missing = [role for role in _ROLES.get(verb, ()) if role not in queue.roles]
    return f"it was adopted without a column for the role {missing[0]}" if missing else ""


WORKS: dict[str, Callable[[Site, Asked, Counted], Planned]] = {
    "requeue": moving.requeued,
    "release": moving.released,
    "purge": moving.purged,
    "restore": moving.restored,
    "archive": moving.archived,
    "resize": wholes.relaid,
    "relay": wholes.relaid,
    "maintain": wholes.maintained,
    "upgrade": wholes.upgraded,
    "uninstall": wholes.uninstalled,
    "forget": wholes.forgotten,
    "end-session": wholes.session_ended,
    "push": passing.pushed,
    "pop": passing.popped,
}
