"""`prove` on the command line: the report, where it goes, and the exit status."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from console.prove import run
from console.prove.run import NOT_TRIED
from console.prove.trial import Line, Outcome
from tests.cli.calls import Console

PROVEN = Line("heap", "it holds", Outcome.PROVEN, "a | b\nc", 0.5)
FAILED = Line("fifo", "it does not hold", Outcome.FAILED, "1 lost")
LATE = Line("fifo", "it was late", Outcome.NOT_APPLICABLE, NOT_TRIED)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no defect."""
    monkeypatch.setattr(run, "MOST_SECONDS", 3600.0)


def proving(monkeypatch: pytest.MonkeyPatch, *lines: Line) -> None:
    """Without a proof."""

    class Proof:
        def __init__(self, *_: object) -> None:
            pass

        def run(self, _: str) -> Iterator[Line]:
            yield from lines

    monkeypatch.setattr(run, "Proof", Proof)


def test_the_report_of_one_design(console: Console) -> None:
    answer = console.done("prove", "--designs", "heap")
    head, _, counts, *_, last = answer.text.splitlines()
    assert head.startswith("# What dbq-console ")
    assert " proves on PostgreSQL " in head
    assert " 0 failed, " in counts
    assert last.startswith("| uninstalls without a trace | proven | 0 objects")
    assert "heap: installs whole, as this console prints it: proven\n" in answer.err


def test_the_stable_object(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    proving(monkeypatch, PROVEN)
    found = console.done("prove", "--json").json
    told = found.pop("markdown")
    assert [found.pop(name) for name in ("connection", "schema")][1] == "public"
    assert found.pop("server").startswith("PostgreSQL ")
    assert found.pop("began").endswith("+00:00")
    assert {type(found.pop(name)) for name in ("console", "seconds")} == {str, float}
    assert found == {
        "ok": True,
        "complete": True,
        "proven": 1,
        "failed": 0,
        "not_applicable": 0,
        "claims": [
            {
                "design": "heap",
                "claim": "it holds",
                "result": "proven",
                "evidence": "a | b\nc",
                "seconds": 0.5,
            }
        ],
    }
    assert "| it holds | proven | a \\| b c |" in told


@pytest.mark.parametrize("line", [FAILED, LATE], ids=["failed", "late"])
def test_what_is_not_proven_is_exit_1(
    console: Console, monkeypatch: pytest.MonkeyPatch, line: Line
) -> None:
    proving(monkeypatch, PROVEN, line)
    answer = console("prove")
    assert answer.status == 1
    assert ("- **fifo**: it does not hold: 1 lost" in answer.text) == (line is FAILED)
    assert (f"; {NOT_TRIED}" in answer.text) == (line is LATE)


def test_the_report_in_a_file(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proving(monkeypatch, PROVEN)
    whole = console.done("prove").text
    file = tmp_path / "proof.md"
    assert str(file) in console.done("prove", "--output", str(file)).text
    assert file.read_text().splitlines()[-4:] == whole.splitlines()[-4:]
    answer = console.done("prove", "--output", str(tmp_path / "none" / "proof.md"))
    assert "could not be written" in answer.err
    assert answer.text.splitlines()[-4:] == whole.splitlines()[-4:]
