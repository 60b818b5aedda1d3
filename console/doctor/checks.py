"""All checks, those of features among them, and the codes of their findings."""

from console import features
from console.doctor import (
    broker,
    claims,
    database_settings,
    decisions,
    general,
    indexes,
    messages,
    notify_queue,
    order,
    overdue,
    ring,
    schema,
    sequences,
    sessions,
    times,
)
from console.doctor.finding import Code
from console.doctor.silent_consumers import SILENT
from console.doctor.stopped_consumers import HEAD_STUCK, STOPPED, SUBSCRIBER

CHECK_GROUPS = (
    *(
        ring.CHECKS,
        claims.CHECKS,
        messages.PAYLOAD_CHECKS,
        messages.ATTEMPT_CHECKS,
        indexes.INDEX_CHECKS,
    ),
    *(broker.CHECKS, order.CHECKS, sessions.CHECKS, indexes.KEY_CHECKS),
    schema.CHECKS,
    *(group for added in features.modules("checks") for group in added.CHECK_GROUPS),
    *(overdue.CHECKS, times.CHECKS),
    *(
        sequences.CHECKS,
        notify_queue.CHECKS,
        indexes.CONSTRAINT_CHECKS,
        decisions.CHECKS,
        database_settings.CHECKS,
        general.CHECKS,
    ),
)
"""In the order in which they run."""

CODES: tuple[Code, ...] = tuple(
    sorted(
        (
            *(code for group in CHECK_GROUPS[:-1] for code in group.codes),
            *(STOPPED, HEAD_STUCK, SUBSCRIBER, SILENT, *general.CHECKS.codes),
        ),
        key=lambda code: -code.severity,
    )
)
"""The most severe first."""
