"""All codes of all families: the stable words of `doctor --json`, the gravest first."""

from console.doctor import anywhere, broker, claims, ring, sessions
from console.doctor.finding import Code

CODES: tuple[Code, ...] = tuple(
    sorted(
        (*ring.CODES, *claims.CODES, *broker.CODES, *sessions.CODES, *anywhere.CODES),
        key=lambda code: code.severity,
    )
)
