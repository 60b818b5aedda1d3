"""All codes of all families: the stable words of `doctor --json`, the gravest first."""

from console.doctor import (
    anywhere,
    broker,
    claims,
    halves,
    installed,
    order,
    poison,
    ring,
    searches,
    sessions,
)
from console.doctor.finding import Code

CODES: tuple[Code, ...] = tuple(
    sorted(
        (
            *ring.CODES,
            *claims.CODES,
            *halves.CODES,
            *poison.CODES,
            *searches.CODES,
            *broker.CODES,
            *order.CODES,
            *sessions.CODES,
            *installed.CODES,
            *anywhere.CODES,
        ),
        key=lambda code: code.severity,
    )
)
