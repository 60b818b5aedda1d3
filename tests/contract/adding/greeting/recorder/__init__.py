"""Greets beside a recorder."""

from collections.abc import Callable
from threading import Event

from console.config import Configuration, Profile
from console.doctor.watcher import DoctorUpdate
from console.engines import Database

EXAMINED = Event()


class _Greeter:
    def __init__(self, words: list[str], on_message: Callable[[str], None]) -> None:
        self._words = words
        self._on_message = on_message

    def start(self, _: object, /) -> None:
        for words in self._words:
            self._on_message(words)

    def marked(self, update: DoctorUpdate, /) -> DoctorUpdate:
        return update

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
    tables = configuration.document.tables_of("greetings")
    return _Greeter([f"{of['words'].meaning}, {name}" for name, of in tables.items()], on_message)
