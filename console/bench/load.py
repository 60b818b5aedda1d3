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
    room: int = 5_000
    """Producers wait while so many messages are in the queue: all contestants get the same room,
    and what is pushed is what is popped. 0: they never wait."""
    held_xmin: bool = False
    """One old transaction is open during each round."""
    with_console: bool = False
    """Each round is done twice: without the console, and with one that looks every second."""
