"""Asks the questions about the server, most valuable first, in each of the proof's databases."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from console.engines import Database, Product
from console.errors import ConnectionFailedError, ConsoleError, UsageError
from console.features.bench.candidate import PROOF_PREFIX
from console.features.prove import (
    broker_questions,
    lock_questions,
    number_questions,
    role_questions,
    session_questions,
    site,
)
from console.features.prove.questions import Question, try_question
from console.features.prove.site import Setting, Site
from console.features.prove.trial import Line, Outcome, one_line

_ALL = {
    **broker_questions.QUESTIONS,
    **lock_questions.QUESTIONS,
    **number_questions.QUESTIONS,
    **role_questions.QUESTIONS,
    **session_questions.QUESTIONS,
}
_ORDER = (
    *("held-lock", "next-number", "execute-alone", "performance-state", "readpast"),
    *("no-escalation", "as-reader", "as-operator", "as-admin", "admin-alone", "ends-sessions"),
    *("session-settings", "relay-beside", "row-of-configuration", "smaller-cache"),
    *("catalog-during-ddl", "login-time", "identity-order", "error-after-batch"),
    *("open-transaction", "attention", "conversations", "conversation-states"),
    *("activation", "release-unheld", "table-lock"),
    *("refused-levels", "describe", "own-row", "index-zero", "sampling"),
)
QUESTIONS = tuple(_ALL[code] for code in _ORDER)
"""Most valuable first; the last one leaves its queues to the end of its database."""
_LATE = "not asked: the time for the questions was over"


def chosen(words: str, product: Product) -> Sequence[Question]:
    """`all`, `none`, or those of these codes that the engine can answer. UsageError."""
    here = [question for question in QUESTIONS if product.name in question.engines]
    if words in {"all", "none"}:
        return here if words == "all" else ()
    codes = words.split(",")
    if unknown := [code for code in codes if code not in _ALL]:
        raise UsageError(
            f"There is no claim {unknown[0]!r}.", why=f"There are: {', '.join(_ORDER)}."
        )
    return [question for question in here if question.code in codes]


def ask(
    database: Database,
    schema: str,
    questions: Sequence[Question],
    token: str,
    until: float,
    report: Callable[[str], None],
) -> Iterator[Line]:
    """In databases of the proof's own; where it may make none, in the operator's. ConsoleError if
    that cannot be reached at all."""
    site.drop_left_databases(database, report)
    settings = site.settings(database)
    why = site.why_no_database(database)
    for number, setting in enumerate(settings):
        for_this = [question for question in questions if question.everywhere or not number]
        if why or not for_this:
            break
        name = f"{PROOF_PREFIX}{token}_{number}"
        with ExitStack() as stack:
            try:
                place = _own(stack, database, setting, name, token, report)
            except ConnectionFailedError:
                raise
            except ConsoleError as error:
                reason = one_line(error)
                if not number:
                    why = reason
                    break
                yield _not_made(setting, reason)
                continue
            yield from _ask_in(place, for_this, until)
    if why:
        report(f"No database of the proof's own: {why}")
        place = Site(database, schema, site.OPERATORS, token, report)
        yield from _ask_in(place, questions, until)


def _own(
    stack: ExitStack,
    database: Database,
    setting: Setting,
    name: str,
    token: str,
    report: Callable[[str], None],
) -> Site:
    own = stack.enter_context(site.own_database(database, setting, name))
    schema = database.product.default_schema
    roles = site.prepare_roles(own, schema)
    return Site(own, schema, setting.label, token, report, own=True, roles=roles)


def _not_made(setting: Setting, reason: str) -> Line:
    return Line(
        setting.label,
        "a database can be set so, and be asked",
        Outcome.NOT_ANSWERED,
        reason,
        code="database",
        leans="what follows is asked in databases with several settings",
        otherwise="databases with this setting were not asked",
    )


def _ask_in(place: Site, questions: Sequence[Question], until: float) -> Iterator[Line]:
    for question in questions:
        left = until - time.monotonic()
        if left <= 0:
            yield Line(
                place.label,
                question.claim,
                Outcome.NOT_ANSWERED,
                _LATE,
                code=question.code,
                leans=question.leans,
                otherwise=question.otherwise,
            )
        else:
            yield try_question(question, place, left)
