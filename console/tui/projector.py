"""The thread of a replay: it reads recordings, makes boards of the past ready, and plays on."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from console.tui.board import Board
from console.tui.film import Film, Look, thinned
from console.tui.replay import Replay

_TICK_SECONDS = 0.1
_MOST_AT_ONCE = 3_000
"""So many figures of queues at most come at one tick: the screen shall not stand still for them."""


class Scene(NamedTuple):
    """A position that is ready to be seen."""

    at: datetime
    board: Board


class Stretch(NamedTuple):
    """What was seen up to a moment, since the one before."""

    until: datetime
    looks: Sequence[Look]


Shown = Scene | Stretch


class Projector:
    """`show` is called in its thread, and again only when `shown` was."""

    def __init__(
        self,
        replay: Replay,
        new_board: Callable[[datetime], Board],
        show: Callable[[Shown], None],
    ) -> None:
        self._replay = replay
        self._new_board = new_board
        self._show = show
        self._films = [Film(replay.root, name) for name in replay.connections]
        self._stop = threading.Event()
        self._free = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def shown(self) -> None:
        """What was given is on the screen."""
        self._free.set()

    def stop(self) -> None:
        """Show nothing more."""
        self._stop.set()
        self._free.set()

    def _run(self) -> None:
        player = self._replay.player
        while not self._stop.wait(_TICK_SECONDS):
            if (wanted := player.wanted) is not None:
                scene = self._scene(wanted)
                if scene is not None and player.wanted == wanted:
                    self._give(scene)
                continue
            following = player.following
            if following > player.at:
                self._give(Stretch(following, self._looks(player.at, following)))

    def _give(self, found: Shown) -> None:
        self._free.clear()
        self._show(found)
        self._free.wait()

    def _scene(self, moment: datetime) -> Scene | None:
        """The board as it would be had the console been open; None: it is over."""
        board = self._new_board(moment)
        for film in self._films:
            looks = film.before(moment)
            readings = [look for look in looks if look.reading is not None]
            for look in readings[:-1]:
                if self._stop.is_set():
                    return None
                if look.reading is not None:
                    board.fill(film.connection, look.reading, look.at.timestamp())
            _take_last(board, readings)
            for look in _latest([look for look in looks if look.reading is None]):
                take(board, look)
        return Scene(moment, board)

    def _looks(self, after: datetime, until: datetime) -> list[Look]:
        found: list[Look] = []
        for film in self._films:
            looks = film.between(after, until)
            queues = max((len(look.reading.queues) for look in looks if look.reading), default=1)
            most = max(1, _MOST_AT_ONCE // max(1, queues))
            readings = thinned([look for look in looks if look.reading is not None], most)
            found += [*readings, *(look for look in looks if look.reading is None)]
        return sorted(found, key=lambda look: look.at)


def take(board: Board, look: Look) -> None:
    """Let a board learn what was seen."""
    at = look.at.timestamp()
    if look.reading is not None:
        board.take(look.connection, look.reading, at)
    if look.diagnoses:
        board.take_diagnoses(look.connection, look.diagnoses, at, look.at)


def _take_last(board: Board, readings: Sequence[Look]) -> None:
    """The last look; where that failed, the last that did not, before it."""
    if not readings:
        return
    good = [look for look in readings if look.reading and look.reading.error is None]
    if good and good[-1] is not readings[-1]:
        take(board, good[-1])
    take(board, readings[-1])


def _latest(looks: Sequence[Look]) -> list[Look]:
    """Of each queue only what was said last."""
    last: dict[tuple[str, str], Look] = {}
    for look in looks:
        for one in look.diagnoses:
            last[one.queue.schema, one.queue.name] = Look(
                look.at, look.connection, diagnoses=(one,)
            )
    return sorted(last.values(), key=lambda look: look.at)
