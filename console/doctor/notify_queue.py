"""The server's queue of NOTIFY, which one session that listens can fill for all."""

from collections.abc import Iterator
from dataclasses import dataclass

from console import sql
from console.catalog import lookups
from console.doctor.context import CheckContext, CheckGroup
from console.doctor.finding import Code, Finding
from console.formats import duration
from console.monitor.limits import Severity

FILLS_SHARE = 0.5
"""From here on the server's own log warns."""
FULL_SHARE = 0.8

_JUDGEMENT = "the session's transaction has to end, and only its owner knows what it is for"
FULL = Code(
    "notify_queue_full",
    Severity.CRITICAL,
    "the server's queue of NOTIFY is at least 80 % full; then no transaction that notifies commits",
    judgement=_JUDGEMENT,
)
FILLS = Code(
    "notify_queue_fills",
    Severity.WARNING,
    "the server's queue of NOTIFY is at least half full",
    judgement=_JUDGEMENT,
)


@dataclass(frozen=True)
class _Usage:
    usage: float
    session: int | None
    user: str | None
    application: str | None
    database: str | None
    state: str | None
    transaction_seconds: float | None

    @property
    def who(self) -> str:
        if self.session is None:
            return "a session that this login cannot see"
        words = f"session {self.session} of {self.user} ({self.application or self.state})"
        return f"{words}, in a transaction for {duration(self.transaction_seconds or 0.0)}"


def _oldest(context: CheckContext) -> list[_Usage]:
    with context.limited_transaction() as connection:
        return sql.rows(connection, _Usage, "notify_queue.usage", fills=FILLS_SHARE)


def _check(context: CheckContext) -> Iterator[Finding]:
    if not sql.has(context.database.product, "notify_queue.usage"):
        return
    oldest = lookups.once("notify", lambda: _oldest(context))
    if not oldest:
        return
    first = oldest[0]
    judgement = ""
    if first.session is not None:
        scope = sql.Scope({"session": str(first.session)})
        ends = sql.script("notify_queue.end", context.database.product.dialect, scope)
        judgement = f"{_JUDGEMENT}; if it need not go on:\n{sql.plain(ends)}"
    yield Finding(
        FULL if first.usage >= FULL_SHARE else FILLS,
        f"the queue of NOTIFY is {first.usage:.0%} full, held back by {first.who}",
        evidence={
            "used_percent": round(100 * first.usage, 1),
            "oldest_transactions": [
                {name: value for name, value in vars(usage).items() if name != "usage"}
                for usage in oldest
                if usage.session is not None
            ],
        },
        cause="a session that listens, in whatever database, is in a transaction: notifications "
        "since then are kept for it. The server does not say which one listens; the oldest "
        "transaction is the first suspect",
        consequence="once it is full, every transaction that notifies fails when it commits: "
        "pushes that wake a waiting consumer among them",
        judgement=judgement,
    )


CHECKS = CheckGroup(
    (FULL, FILLS),
    {"the queue of NOTIFY": _check},
    lambda queue: queue.options.get("notify") == "on" or bool(queue.design.library),
)
