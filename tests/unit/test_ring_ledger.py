"""The ledger of the ring's campaigns: what is in doubt, and what a mark decides."""

import json
from pathlib import Path

import pytest

from tests.faults.harness.client import BEFORE, DONE, LOST, UNDONE
from tests.faults.harness.ledger import Ledger


def written(log: Path, *events: dict[str, object]) -> list[Path]:
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    return [log]


def work(
    kind: str, *pushed: str, popped: tuple[str, ...] = (), mark: str = ""
) -> dict[str, object]:
    rest = {"popped": list(popped), "kept": [], "unknown": 0, "mark": mark}
    return {"kind": kind, "pushed": list(pushed), "numbers": [7] * len(pushed), **rest}


@pytest.mark.parametrize("after", [work(UNDONE), work(BEFORE, "b"), None])
def test_a_call_in_doubt_stays_in_doubt_whatever_follows(
    tmp_path: Path, after: dict[str, object] | None
) -> None:
    events: list[dict[str, object]] = [work(BEFORE, "a"), {"kind": LOST}]
    events += [after] if after else []
    ledger = Ledger.read(written(tmp_path / "log", *events))
    assert ledger.pushed_in_doubt["a"] == 1
    assert not ledger.acknowledged


@pytest.mark.parametrize("mark_exists", [True, False])
def test_a_mark_resolves_a_call_in_doubt(tmp_path: Path, *, mark_exists: bool) -> None:
    events: list[dict[str, object]] = [
        work(BEFORE, "a", mark="m 1"),
        work(DONE, "a", mark="m 1"),
        work(BEFORE, "b", popped=("c",), mark="m 2"),
        {"kind": LOST},
        work(UNDONE, "d"),
    ]
    ledger = Ledger.read(
        written(tmp_path / "log", *events), {"m 1", *(["m 2"] if mark_exists else [])}
    )
    assert ledger.acknowledged == ({"a", "b"} if mark_exists else {"a"})
    assert ledger.numbers == ([("a", 7), ("b", 7)] if mark_exists else [("a", 7)])
    assert set(ledger.popped) == ({"c"} if mark_exists else set())
    assert (ledger.marked, ledger.pushed_in_doubt.total(), ledger.popped_in_doubt.total()) == (
        2,
        0,
        0,
    )
