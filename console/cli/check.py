"""The verb `check`: are the queues within their limits, for cron and monitoring plugins."""

import sys
from collections import Counter
from collections.abc import Sequence

import click

from console.cli.context import DURATION, Call, Rights, verb_options
from console.cli.looking import chosen, stuck_after
from console.errors import ConsoleError
from console.formats import numbered, plain
from console.monitor import snapshot, take_sample
from console.monitor.checking import Checked, Most, State, check, gravest

_COUNT = click.IntRange(min=0)


@click.command(name="check")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--max-depth", type=_COUNT, metavar="N", help="More ready messages are CRITICAL.")
@click.option("--max-age", type=DURATION, metavar="T", help="An older message is CRITICAL.")
@click.option("--max-errors", type=_COUNT, metavar="N", help="More errors are CRITICAL.")
@click.option("--max-stuck", type=_COUNT, metavar="N", help="More stuck claims are CRITICAL.")
@click.option("--plugin", is_flag=True, help="Exit as monitoring plugins do: 0, 1, 2 or 3.")
@verb_options
def check_queues(
    call: Call,
    names: Sequence[str],
    max_depth: int | None,
    max_age: float | None,
    max_errors: int | None,
    max_stuck: int | None,
    plugin: bool,
) -> None:
    """Are the queues within their limits? One line a queue, for cron and monitoring plugins.

    What no option limits has the limits of the configuration; of stuck claims the first one is a
    WARNING. A figure that has a limit and is not known is UNKNOWN, as is a queue that cannot be
    read, and a call that finds no queue. The first line is the summary with its performance data.

    Exit 0: all OK; 1: anything else; 3: cannot connect. With --plugin: 0 OK, 1 WARNING, 2 CRITICAL,
    3 UNKNOWN, which a failed connection is too, told on stdout.

    \b
    Examples:
      dbq-console check --profile orders
      dbq-console check mail --max-depth 10000 --max-age 10m --max-errors 0 --plugin
    """
    try:
        found = _checked(call, names, Most(max_depth, max_age, max_errors, max_stuck))
    except ConsoleError as error:
        if not plugin:
            raise
        words = plain(" ".join(str(error).split())).replace("|", "¦")
        empty = {"status": State.UNKNOWN.word, "summary": words, "queues": []}
        call.answer(empty, [f"DBQ UNKNOWN - {words}"])
        sys.exit(State.UNKNOWN.value)
    state = gravest([one.state for one in found]) if found else State.UNKNOWN
    queues = [one.as_json() for one in found]
    answer = {"status": state.word, "summary": _summary(found), "queues": queues}
    call.answer(answer, _lines(state, found))
    if state is not State.OK:
        sys.exit(state.value if plugin else 1)


def _checked(call: Call, names: Sequence[str], most: Most) -> list[Checked]:
    """Every queue that is meant, judged."""
    database = call.database(Rights.READ_ONLY, "check")
    only = chosen(call, database, names)
    sample = take_sample(database, only=only, stuck_after_seconds=stuck_after(call))
    seen = [snapshot(one, sample.connection) for one in sample.queues]
    return [
        check(one, call.thresholds(one.queue), most)
        for one in seen
        if call.schema in (None, one.schema)
    ]


def _lines(state: State, found: Sequence[Checked]) -> list[str]:
    data = " ".join(
        figure.perfdata(_label(_name(one, found))) for one in found for figure in one.figures
    )
    first = f"DBQ {state.name} - {_summary(found)}" + (f" | {data}" if data else "")
    return [first, *(f"{one.state.name} {_words(one, found)}" for one in found)]


def _summary(found: Sequence[Checked]) -> str:
    """How many of how many are not well, and the gravest one."""
    if not found:
        return "no queue is here"
    counted = Counter(one.state for one in found)
    wrong = [state for state in (State.CRITICAL, State.WARNING, State.UNKNOWN) if counted[state]]
    whole = numbered(len(found), "queue")
    if not wrong:
        return f"{whole} within limits"
    first = next(one for one in found if one.state is wrong[0])
    parts = ", ".join(f"{counted[state]} {state.word}" for state in wrong)
    return f"{parts} of {whole}: {_words(first, found)}"


def _words(one: Checked, among: Sequence[Checked]) -> str:
    # What stands behind a "|" is performance data.
    return f"{plain(_name(one, among))}: {one.words}".replace("|", "¦")


def _name(one: Checked, among: Sequence[Checked]) -> str:
    alone = sum(other.queue == one.queue for other in among) == 1
    return one.queue if alone else f"{one.schema}.{one.queue}"


def _label(name: str) -> str:
    """As performance data can have it."""
    return plain(name).replace("'", "''").replace("=", "_").replace("|", "¦")


COMMANDS = (check_queues,)
