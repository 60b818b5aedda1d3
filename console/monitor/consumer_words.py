"""Consumers in words, for the command line and the screens. All texts are theirs: untrusted."""

from collections.abc import Iterable
from datetime import datetime

from console.formats import NOT_APPLICABLE, UNKNOWN, count, duration, rate
from console.monitor.consumers import Consumer

_TITLES = {"last_pop": "last pop", "messages_per_second": "messages a second", "does": "pops?"}


def name(one: Consumer) -> str:
    return one.name or UNKNOWN


def does(one: Consumer) -> str:
    """`pops`, `pops, pushes`."""
    return ", ".join(f"{what}{'es' if what == 'push' else 's'}" for what in one.does) or UNKNOWN


def where(one: Consumer) -> str:
    program = one.program if one.program != one.name else None
    parts = (one.host, program, f"user {one.user}" if one.user else None)
    return ", ".join(part for part in parts if part) or UNKNOWN


def sessions(one: Consumer) -> str:
    return UNKNOWN if one.sessions is None else count(one.sessions) if one.sessions else "gone"


def ago(then: datetime | None, now: datetime) -> str:
    return UNKNOWN if then is None else duration(max(0.0, (now - then).total_seconds()))


def last_pop(one: Consumer, now: datetime) -> str:
    if one.does == ("push",):
        return NOT_APPLICABLE
    return ago(one.last_pop, now)


def last_call(one: Consumer, now: datetime) -> str:
    return ago(one.last_call, now)


def per_second(one: Consumer) -> str:
    """An estimate, where anybody can tell."""
    known = one.messages_per_second
    return UNKNOWN if known is None else f"≈{rate(known)}"


def claims(one: Consumer) -> str:
    if one.claims is None:
        return NOT_APPLICABLE
    return count(one.claims, estimated="claims" in one.estimated)


def reasons(found: Iterable[Consumer]) -> list[str]:
    """Why something is not known, each reason once: `last pop: no claim of it was seen yet`."""
    told: dict[str, dict[str, None]] = {}
    for one in found:
        for what, why in one.unknown.items():
            told.setdefault(why, {})[_TITLES.get(what, what)] = None
    return [f"{', '.join(whats)}: {why}" for why, whats in told.items()]
