"""How often a screen asks for what costs more than a sample: the dearer, the seldomer."""

from collections.abc import Callable

_PAUSE = 19
"""The pause after an answer is at least so many times as long as it took."""


class Pace:
    """When it is due again, after how long the last answer took."""

    def __init__(self, now: Callable[[], float], every_seconds: float) -> None:
        self._now = now
        self._every = every_seconds
        self._asked_at: float | None = None
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether it may be asked again without anybody having said so."""
        return self._asked_at is None or self._now() >= self._next

    def asked(self) -> None:
        """It is asked now."""
        self._asked_at = self._now()
        self._next = self._asked_at + self._every

    def answered(self) -> None:
        """The answer is there, or that there is none."""
        if self._asked_at is not None:
            took = self._now() - self._asked_at
            self._next = self._now() + max(self._every - took, _PAUSE * took)
