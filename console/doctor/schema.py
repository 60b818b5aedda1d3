"""Installed code that differs from what is shipped."""

from collections.abc import Iterator

from console.actions import upgrade
from console.actions.upgrade import Difference, How
from console.catalog import INTERFACE_VERSION, Kind
from console.doctor import repairs
from console.doctor.context import CheckContext, CheckGroup, first_few
from console.doctor.finding import Code, Finding
from console.monitor.limits import Severity

_SHOWN_LENGTH = 2_000
"""Of a definition that differs."""

CODE_MISSING = Code(
    "code_missing",
    Severity.CRITICAL,
    "a function or table of the queue is missing, or a function has another signature",
    judgement="restore a missing table or column from a backup, or reinstall the queue",
    repair="upgrade",
)
CODE_CHANGED = Code(
    "code_changed",
    Severity.WARNING,
    "installed code was modified locally: it differs from what this console installs",
    repair="upgrade",
)
CODE_OLDER = Code(
    "code_older",
    Severity.NOTE,
    "the queue's version differs from this console's",
    judgement="a newer console installed it: use that one",
    repair="upgrade",
)


def _check_code(context: CheckContext) -> Iterator[Finding]:
    queue = context.queue
    found = upgrade.differences(context.database, queue)
    if queue.version > INTERFACE_VERSION:
        yield Finding(
            CODE_OLDER,
            f"the queue has version {queue.version}, this console {INTERFACE_VERSION}",
            evidence={"version": queue.version, "shipped_version": INTERFACE_VERSION},
            cause="a newer console installed it",
            consequence="this console may not know all of it: use the newer console",
        )
        return
    hidden = [one for one in found if one.how is How.HIDDEN]
    context.unseen.extend(one.line for one in hidden)
    # Missing indexes and keys have findings of their own.
    found = [
        one
        for one in found
        if one not in hidden and one.how is not How.NOT_PAUSED and one.kind not in {"index", "key"}
    ]
    missing = [
        one for one in found if _breaks_callers(one, older=queue.version != INTERFACE_VERSION)
    ]
    by_hand = upgrade.changed_by_hand(queue, found)
    changed = [one for one in found if one not in missing and by_hand and one.kind == "function"]
    older = [one for one in found if one not in missing and one not in changed]
    for code, differences, cause, consequence in (
        (
            CODE_MISSING,
            missing,
            "dropped or replaced by hand, or lost in a restore",
            "its callers fail, or get other results than they expect",
        ),
        (
            CODE_CHANGED,
            changed,
            "it was changed after it was installed",
            "what the design promises may no longer hold: order, locks, what a pop skips",
        ),
        (
            CODE_OLDER,
            older,
            "an older console installed it",
            "its functions work as they did in that version",
        ),
    ):
        if differences:
            yield Finding(
                code,
                first_few([one.line for one in differences], most=5),
                evidence={"differences": [_evidence(one) for one in differences]},
                cause=cause,
                consequence=consequence,
                repair=repairs.upgrade(queue, by_hand=by_hand)
                if all(one.repairable for one in found)
                else None,
            )


def _breaks_callers(one: Difference, *, older: bool) -> bool:
    """An older version may lack what a newer one has, or have other signatures."""
    if one.kind in {"catalog", "version"}:
        return False
    if one.how is How.MISSING:
        return not older or not one.repairable
    return one.how is How.OTHER_SIGNATURE and not older


def _evidence(one: Difference) -> dict[str, object]:
    found: dict[str, object] = {"kind": one.kind, "name": one.name, "how": one.how.value}
    if one.installed:
        found |= {
            "installed": one.installed[:_SHOWN_LENGTH],
            "shipped": one.shipped[:_SHOWN_LENGTH],
        }
    return found


CHECKS = CheckGroup(
    (CODE_MISSING, CODE_CHANGED, CODE_OLDER),
    {"installed code": _check_code},
    lambda queue: queue.kind is Kind.INSTALLED,
)
