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
    "installed code or a column's default was modified locally: this console installs another",
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
    with context.limited_transaction() as connection:
        found = upgrade.differences_in(connection, queue)
    if queue.version > INTERFACE_VERSION:
        yield Finding(
            CODE_OLDER,
            f"the queue has version {queue.version}, this console {INTERFACE_VERSION}",
            evidence={"version": queue.version, "shipped_version": INTERFACE_VERSION},
            cause="a newer console installed it",
            consequence="this console may not know all of it: use the newer console",
        )
        return
    hidden = [difference for difference in found if difference.how is How.HIDDEN]
    context.unseen.extend(difference.line for difference in hidden)
    # Missing indexes and keys have findings of their own.
    found = [
        difference
        for difference in found
        if difference not in hidden
        and difference.how is not How.NOT_PAUSED
        and difference.kind not in {"index", "key"}
    ]
    missing = [
        difference
        for difference in found
        if _breaks_callers(difference, older=queue.version != INTERFACE_VERSION)
    ]
    by_hand = upgrade.changed_by_hand(queue, found)
    changed = [
        difference
        for difference in found
        if difference not in missing and by_hand and difference.kind in {"function", "default"}
    ]
    older = [
        difference
        for difference in found
        if difference not in missing and difference not in changed
    ]
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
                first_few([difference.line for difference in differences], most=5),
                evidence={"differences": [_evidence(difference) for difference in differences]},
                cause=cause,
                consequence=consequence,
                repair=repairs.upgrade(queue, by_hand=by_hand)
                if all(difference.repairable for difference in found)
                else None,
            )


def _breaks_callers(difference: Difference, *, older: bool) -> bool:
    """An older version may lack what a newer one has, or have other signatures."""
    if difference.kind in {"catalog", "version"}:
        return False
    if difference.how is How.MISSING:
        return not older or not difference.repairable
    return difference.how is How.OTHER_SIGNATURE and not older


def _evidence(difference: Difference) -> dict[str, object]:
    evidence: dict[str, object] = {
        "kind": difference.kind,
        "name": difference.name,
        "how": difference.how.value,
    }
    if difference.installed:
        evidence |= {
            "installed": difference.installed[:_SHOWN_LENGTH],
            "shipped": difference.shipped[:_SHOWN_LENGTH],
        }
    return evidence


CHECKS = CheckGroup(
    (CODE_MISSING, CODE_CHANGED, CODE_OLDER),
    {"installed code": _check_code},
    lambda queue: queue.kind is Kind.INSTALLED,
)
