"""A recorder of the copied package, in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tests.cli.calls import Answer, call, profile
from tests.servers import wait_until


class _Stop:
    """Comes when the condition holds, as a signal would."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def is_set(self) -> bool:
        wait_until(self._condition, "it is recorded")
        return True


def configure(folder: Path, url: str, more: str) -> dict[str, str]:
    """The environment of a configuration with the profile `orders` and more."""
    text, password = profile(url, "orders", 'rights = "operator"')
    file = folder / "config.toml"
    file.write_text(f"{more}{text}", encoding="utf-8")
    return {"DBQ_CONFIG": str(file), "PW": password, "XDG_STATE_HOME": str(folder / "state")}


def record(folder: Path, environment: dict[str, str], until: Callable[[], bool]) -> Answer:
    """`record`, until the condition holds and a sample is recorded."""
    recordings = folder / "recordings"

    @contextmanager
    def requested() -> Iterator[_Stop]:
        yield _Stop(lambda: until() and bool([*recordings.glob("open/*/*.jsonl")]))

    with mock.patch("console.features.history.commands.record.stop_requested", requested):
        answer = call("record", "--recordings", str(recordings), environment=environment)
    assert [*recordings.glob("samples/*/*/*.parquet")], answer
    return answer
