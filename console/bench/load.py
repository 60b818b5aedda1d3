"""How much of what a bench lets loose on a queue."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """How much of what."""

    producers: int = 16
    consumers: int = 16
    payload: int = 300
    """Bytes of a message."""
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    rounds: int = 3
    room: int = 0
    """Producers wait while so many messages are in the queue. 0: never, as in Kejser's article; a
    full ring makes them wait all the same."""
    held_xmin: bool = False
    """One old transaction is open during each round."""
    with_console: bool = False
    """Each round is done twice: without the console, and with one that looks every second."""
