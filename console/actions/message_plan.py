"""The plan of an action on messages, and its texts."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from console.actions.execute import Batching, execute, subject_of
from console.actions.message_action import MessageAction, select
from console.actions.selected import SelectedMessages
from console.engines import Database
from console.formats import duration
from console.monitor.filters import NOTHING, Filters
from console.monitor.message import Message
from console.plan import MANY_MESSAGES, Plan


def plan(
    database: Database,
    action: MessageAction,
    filters: Filters = NOTHING,
    batching: Batching | None = None,
    *,
    on_count: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Only reads the database. `on_count` gets the messages counted so far."""
    batching = batching or Batching()
    selected = select(database, action, filters, on_count=on_count)
    requires_name = action.requires_name or selected.production or selected.count > MANY_MESSAGES
    canary, sql = _canary(action, batching), action.script()
    return Plan(
        subject_of(database, action, selected),
        action.source.queue,
        tuple(_lines(database, action, selected, canary)),
        requires_name,
        partial(execute, database, action, selected, batching),
        needed=selected.count > 0,
        count=selected.count,
        sql=sql,
        sample=selected.sample,
        lines_beside_sample=tuple(_lines(database, action, selected, canary, sample=False)),
        obstacles=selected.obstacles,
        data={
            "verb": action.verb,
            "queue": action.source.queue.name,
            "schema": action.source.queue.schema,
            "design": action.source.queue.design.name,
            "connection": database.label,
            "production": selected.production,
            "filters": list(filters.words),
            "states": list(selected.states),
            "cutoff": selected.cutoff.isoformat(),
            "count": selected.count,
            "by_state": dict(selected.by_state),
            "totals": {state: asdict(total) for state, total in selected.totals.items()},
            "complete": selected.complete,
            "canary": canary or None,
            "skipped": dict(selected.excluded),
            "oldest_seconds": selected.oldest_seconds,
            "newest_seconds": selected.newest_seconds,
            "payload_bytes": selected.payload_bytes,
            "sample": [_sampled(message) for message in selected.sample],
            "sql": sql,
            "consequences": list(selected.consequences),
            "obstacles": list(selected.obstacles),
            "confirmation": "name" if requires_name else "y",
            "detail": selected.detail,
        },
    )


def _sampled(message: Message) -> dict[str, object]:
    """Its key and times, never a payload."""
    return {
        "id": message.id,
        "state": message.state,
        "age_seconds": message.age_seconds,
        "attempts": message.attempts,
        "error": message.error,
        "claimed_by": message.claimed_by,
    }


def _lines(
    database: Database,
    action: MessageAction,
    selected: SelectedMessages,
    canary: str,
    *,
    sample: bool = True,
) -> list[str]:
    """`sample`: with the names of the first messages."""
    queue, filters, count = action.source.queue, selected.filters, selected.count
    of = f"{queue.label} (design {queue.design.name}{queue.subscriber_suffix})"
    production = ", PRODUCTION" if selected.production else ""
    noun = "message" if count == 1 else "messages"
    lines = [
        f"{action.verb} {of} on {database.label}{production}",
        f"  {count:,} {noun}{_totals(selected)}",
    ]
    if filters.words:
        lines.append(f"  filters: {'  '.join(filters.words)}")
    if filters.error_group is not None:
        lines.append("  each by its id, attempts and error: what has changed is skipped")
    if not selected.complete:
        lines.append("  the search was cut short: there may be more of this group")
    if selected.oldest_seconds is not None and selected.newest_seconds is not None:
        ages = (duration(selected.newest_seconds), duration(selected.oldest_seconds))
        where = "in that state" if action.in_queue else "in the archive"
        lines.append(
            f"  {where} for {' to '.join(dict.fromkeys(ages))}, at "
            f"{selected.cutoff:%H:%M:%S} UTC, the cut-off"
        )
    if selected.payload_bytes is not None and count:
        lines.append(f"  payloads: {selected.payload_bytes:,} bytes")
    lines += [f"  skipped: {n:,} {why}" for why, n in selected.excluded.items()]
    if filters.keep_newest:
        lines.append(f"  skipped: the newest {filters.keep_newest:,}")
    lines += [f"  {line}" for line in selected.consequences]
    if canary:
        lines.append(f"  canary: {canary}")
    if selected.sample and sample:
        names = ", ".join(one.id or one.key or "?" for one in selected.sample)
        lines.append(f"  the first: {names}")
    return lines + [f"  REFUSED: {line}" for line in selected.obstacles]


def _totals(selected: SelectedMessages) -> str:
    if selected.count and not selected.totals:
        return ", the first that match; further matches were not counted"
    shown = {state: total for state, total in selected.totals.items() if total.count != 0}
    totals = [f"{total.text} {state}" for state, total in shown.items()]
    return f" (of {', '.join(totals)})" if totals else ""


def _canary(action: MessageAction, batching: Batching) -> str:
    """What it does; empty: there is none."""
    if not batching.canary:
        return ""
    steps = "1, then 10, then the rest"
    if action.tracker is None:
        return f"{steps}, without a verdict: {action.verb} has no results to wait for"
    share = batching.canary_share
    some = f"more than {share:.0%} fail" if share else "one fails"
    return (
        f"{steps}; after 1 and after 10 it waits up to {duration(batching.canary_wait)} for their "
        f"results, and stops if {some}, or one is not known by then"
    )
