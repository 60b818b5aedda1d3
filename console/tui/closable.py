"""Screens that may be closed while keys, messages, timers or calls for them are pending."""

from collections.abc import Callable
from typing import Any, cast

from textual.await_complete import AwaitComplete
from textual.screen import Screen


class Closable:
    """A mixin for screens: what arrives after the screen was closed does nothing."""

    @property
    def in_stack(self) -> bool:
        return self._screen in self._screen.app.screen_stack

    def close(self) -> bool:
        """Close it before something else opens. False if another screen is on top."""
        if self._screen.app.screen is not self._screen:
            return False
        self._screen.app.pop_screen()
        return True

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """As Textual's, but without effect if another screen is on top."""
        if self._screen.app.screen is not self._screen:
            return AwaitComplete()
        return Screen.dismiss(self._screen, result)

    def after_refresh(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call it after the next refresh, if the screen is still open."""
        self._screen.call_after_refresh(self._if_open(call), *arguments)

    def every(self, seconds: float, call: Callable[[], Any]) -> None:
        self._screen.set_interval(seconds, self._if_open(call))

    def _if_open(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: call(*arguments) if self.in_stack else None

    @property
    def _screen(self) -> Screen[Any]:
        return cast("Screen[Any]", self)
