"""All families of findings, and their codes."""

from console.doctor import (
    broker,
    claims,
    common,
    decisions,
    indexes,
    libraries,
    messages,
    order,
    ring,
    schema,
    sessions,
    unusual,
)
from console.doctor.consumers import SILENT
from console.doctor.consumption import STOPPED, SUBSCRIBER
from console.doctor.finding import Code

FAMILIES = (
    *(ring.FAMILY, claims.FAMILY, messages.INTEGRITY, messages.ATTEMPTS, indexes.INDEXES),
    *(broker.FAMILY, order.FAMILY, sessions.FAMILY, schema.FAMILY, libraries.FAMILY),
    *(indexes.CONSTRAINTS, decisions.FAMILY, unusual.FAMILY, common.FAMILY),
)
"""In the order in which a queue is examined."""

CODES: tuple[Code, ...] = tuple(
    sorted(
        (
            *(code for family in FAMILIES[:-1] for code in family.codes),
            *(STOPPED, SUBSCRIBER, SILENT, *common.FAMILY.codes),
        ),
        key=lambda code: -code.severity,
    )
)
"""The stable words of `doctor --json`, the gravest first."""
