"""Greets beside a recorder, with the number of queues that were examined."""

from collections.abc import Callable
from threading import Event

from console.features.greeting.config import TABLES, WORDS  # type: ignore[import-untyped]

from console.config import Configuration, Profile, Settings
from console.doctor.watcher import DoctorUpdate
from console.engines import Database

EXAMINED = Event()


class _Greeter:
    def __init__(self, words: list[str], on_message: Callable[[str], None]) -> None:
        self._words = words
        self._on_message = on_message

    def start(self) -> None:
        for words in self._words:
            self._on_message(words)

    def examined(self, _: DoctorUpdate, /) -> None:
        EXAMINED.set()

    def stop(self, timeout_seconds: float) -> None:
        self._on_message(f"good morning, after {timeout_seconds:.0f} seconds at most")


def companion(
    configuration: Configuration,
    profile: Profile,
    database: Database,
    on_message: Callable[[str], None],
) -> _Greeter:
    names = configuration.document.tables_of(TABLES.word)
    words = [f"{Settings((layer,))[WORDS]}, {name}" for name, layer in names.items()]
    return _Greeter(words, on_message)
