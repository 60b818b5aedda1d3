"""What a bench found, in words that the command line and the screen share."""

from collections.abc import Sequence
from dataclasses import asdict

from console.bench.load import Load
from console.bench.ran_on import RanOn
from console.bench.results import Comparison, Result, comparisons
from console.formats import UNKNOWN, numbered, plain

_MANY_WAITS = 4


def load_in_words(load: Load) -> str:
    """How much of what."""
    room = f"at most {load.room:,} messages waiting" if load.room else "no limit to what waits"
    held = "; one old transaction open" if load.held_xmin else ""
    rounds = (
        f"{numbered(load.rounds, 'round')} of {load.seconds:g} s after {load.warmup_seconds:g} s"
    )
    return (
        f"{load.producers} producers, {load.consumers} consumers, {load.payload} bytes, {room}; "
        f"{rounds} of warm-up{held}"
    )


def as_json(about: RanOn, load: Load, results: Sequence[Result]) -> dict[str, object]:
    """The stable object of `bench --json`."""
    return {
        "ran_on": about.as_json(),
        "load": asdict(load),
        "results": [result.as_json() for result in results],
        "comparisons": [one.as_json() for one in comparisons(results)],
    }


def waits(results: Sequence[Result]) -> list[str]:
    """Of each contestant, what the sessions were seen waiting for."""
    shown = []
    for result in results:
        found = result.waits()
        if found is None:
            shown.append(f"{result.label} waits: {UNKNOWN}")
            continue
        words = [f"{wait['wait']} {wait['average_sessions']}" for wait in found[:_MANY_WAITS]]
        shown.append(f"{result.label}: sessions at a time: {', '.join(words)}")
    return shown


def compared_lines(compared: Sequence[Comparison]) -> list[str]:
    """One a line."""
    return [f"{one.ratio:8.2f}  {one.words}" for one in compared]


def checked(results: Sequence[Result]) -> list[str]:
    """What became of the messages."""
    bad = [result for result in results if not result.ok]
    popped = sum(result.verdict["popped"] for result in results)
    shown = [f"{popped:,} messages checked: none lost, doubled, damaged or out of order"]
    if bad:
        shown = [f"NOT OK: {result.label}: {_counts(result)}" for result in bad]
    shown += [f"in doubt: {r.label}: {_counts(r)}" for r in results if r.verdict["in_doubt"]]
    shown += [f"error: {r.label}: {plain(error)}" for r in results for error in r.errors]
    return shown


def _counts(result: Result) -> str:
    return ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in result.verdict.items())
