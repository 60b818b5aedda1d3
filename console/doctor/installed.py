"""Installed code: what is missing, what somebody changed, what another console installed."""

from collections.abc import Iterator

from console.actions import upgrade
from console.actions.upgrade import Difference, How
from console.catalog import INTERFACE_VERSION, Kind, Queue
from console.doctor.checks import checked
from console.doctor.finding import Code, Finding, Severity
from console.doctor.look import Look
from console.doctor.repairs import Upgrade

_TEXT = 2_000
"""Of a text that differs so much is shown."""

CODE_MISSING = Code(
    "code_missing",
    Severity.CRITICAL,
    "a function or table of the queue is missing, or a function is called otherwise",
)
CODE_CHANGED = Code(
    "code_changed",
    Severity.WARNING,
    "installed code was changed by hand: it is not what is shipped",
)
CODE_OLDER = Code(
    "code_older", Severity.NOTE, "the queue is of another version than this console's"
)

CODES: tuple[Code, ...] = (CODE_MISSING, CODE_CHANGED, CODE_OLDER)


def applies(queue: Queue) -> bool:
    """Somebody else's table has code of its own."""
    return queue.kind is Kind.INSTALLED


def examine(look: Look) -> Iterator[Finding]:
    """Every finding; what cannot be told goes to `look.unseen`."""
    if applies(look.queue):
        yield from checked(look, "installed code", _code)


def _code(look: Look) -> Iterator[Finding]:
    queue = look.queue
    found = upgrade.differences(look.database, queue)
    if queue.version > INTERFACE_VERSION:
        yield Finding(
            CODE_OLDER,
            f"its version is {queue.version}, this console's is {INTERFACE_VERSION}",
            evidence={"version": queue.version, "shipped_version": INTERFACE_VERSION},
            cause="a newer console installed it",
            consequence="this console may not know all of it: use the newer one",
        )
        return
    hidden = [one for one in found if one.how is How.HIDDEN]
    look.unseen.extend(one.line for one in hidden)
    found = [one for one in found if one not in hidden]
    plan = upgrade.UpgradePlan(queue, tuple(found))
    repair = Upgrade(queue, plan.changed_by_hand)
    mendable = all(one.mendable for one in found)
    gone = [one for one in found if _is_grave(one, older=queue.version != INTERFACE_VERSION)]
    by_hand = plan.changed_by_hand
    changed = [one for one in found if one not in gone and by_hand and one.kind == "function"]
    older = [one for one in found if one not in gone and one not in changed]
    for code, some, cause, consequence in (
        (
            CODE_MISSING,
            gone,
            "dropped or replaced by hand, or lost in a restore",
            "callers of it fail, or get something else than they expect",
        ),
        (
            CODE_CHANGED,
            changed,
            "somebody changed it after it was installed",
            "what this console knows of the design may not hold: order, locks, what a pop skips",
        ),
        (CODE_OLDER, older, "an older console installed it", "its functions work as they did then"),
    ):
        if some:
            yield Finding(
                code,
                "; ".join(one.line for one in some[:5])
                + (f"; and {len(some) - 5} more" if len(some) > 5 else ""),
                evidence={"differences": [_difference(one) for one in some]},
                cause=cause,
                consequence=consequence,
                repair=repair if mendable else None,
            )


def _is_grave(one: Difference, *, older: bool) -> bool:
    """An older version may lack what a newer one has, and call it otherwise."""
    if one.kind in {"catalog", "version"}:
        return False
    if one.how is How.MISSING:
        return not older or not one.mendable
    return one.how is How.CALLED_OTHERWISE and not older


def _difference(one: Difference) -> dict[str, object]:
    """Code is no payload: it is shown, as far as it differs."""
    found: dict[str, object] = {"kind": one.kind, "name": one.name, "how": one.how.value}
    if one.installed:
        found |= {"installed": one.installed[:_TEXT], "shipped": one.shipped[:_TEXT]}
    return found
