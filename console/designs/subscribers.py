"""Who subscribes to a queue: the value of the option `subscribers`, read and written."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Subscriber:
    """Who gets every message of a queue once, beside others who do."""

    name: str
    number: int
    """Its objects are called by it. It is not used again when another one comes."""


NO_SUBSCRIBERS = "none"
_SUBSCRIBER = re.compile(r"(?P<name>[a-z][a-z0-9_]{0,30})(?::(?P<number>[1-9][0-9]{0,3}))?")


def subscribers_of(value: str) -> tuple[Subscriber, ...]:
    """Those of the option's value, `billing,search:3`: a number is told where it is not the place.

    Raises ValueError, with what is wrong.
    """
    if value == NO_SUBSCRIBERS:
        return ()
    found: list[Subscriber] = []
    for place, word in enumerate(value.split(","), start=1):
        read = _SUBSCRIBER.fullmatch(word)
        if read is None or read["name"] == NO_SUBSCRIBERS:
            raise ValueError(
                f"{word!r} is no name: a letter from a to z, then up to 30 of a-z 0-9 _."
            )
        one = Subscriber(read["name"], int(read["number"] or place))
        if any(one.name == other.name or one.number == other.number for other in found):
            raise ValueError(f"{word!r} is there twice.")
        found.append(one)
    return tuple(found)


def as_option(subscribers: Iterable[Subscriber]) -> str:
    """The option's value, in its one form."""
    words = [
        one.name if one.number == place else f"{one.name}:{one.number}"
        for place, one in enumerate(subscribers, start=1)
    ]
    return ",".join(words) or NO_SUBSCRIBERS
