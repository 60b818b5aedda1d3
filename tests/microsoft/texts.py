"""Every T-SQL text that a server would get: printed installations, statements, composed samples.

The tests beside this file have Microsoft's own tools read them; `tests/unit/test_mssql_texts.py`
checks the rules that no tool knows, and that none has changed since.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from functools import cache

from console import sql
from console.actions import install
from console.catalog import Kind, Queue
from console.designs import DESIGNS, presets
from console.engines.mssql import PRODUCT
from console.monitor.scan_query import query
from console.monitor.scans import ScanRequest
from console.sql import templates
from tests.contract.variants import ALL, DEFAULTS, SUBSCRIBED, Variant, on
from tests.tools.statements import (
    MORE,
    _other_results,
    action_statements,
    library_queues,
    pipeline_statements,
    scan_requests,
    sources,
)
from tests.tools.statements import adopted as adopted_queues

COMMENT = re.compile(r"--(?: [^\n]*)?$", re.MULTILINE)
"""An option in a message, such as `--dry-run`, is not a comment."""
_BIND = re.compile(r"(?<![:\w\\]):(\w+)")
_NUMBER = re.compile(r"N'\d+'")
"""A number from an option; any other one parses as well."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_CONDITION = re.compile(r"-- (?:when|each) ")
_CREATES = re.compile(r"\bCREATE (?:OR ALTER )?[A-Z ]+? (?:\[sales\]\.)?\[(\w+)\]")

_OF_SERVERS = re.compile(r"-- when (?:counters|waits_of|check)=")
_ARCHIVING = Variant(DESIGNS["ring"], {"size": "300", "subscribers": "a,b", "archive_at_pop": "on"})
VARIANTS = [
    *on("mssql", ALL),
    *(dataclasses.replace(variant, only_on="mssql") for variant in SUBSCRIBED),
    _ARCHIVING,
]
_ADOPTED = {"status", "claims", "estimate"}
"""Statements that are also run on adopted tables."""
_STEPS = {
    *("messages", "in_hand_messages", "parked_messages"),
    *(
        "chunk",
        "matching",
        "counted",
        "chosen",
        "error_texts",
        "retried",
        "claimed",
        "contradictions",
    ),
    *("held", "codes", "left", "left_codes"),
}
"""Statements that are sent as parts of another one only."""
_OF_SUBSCRIBER = {
    *("void_for_subscriber", "owed", "number_older", "skip", "skip_numbers", "unsubscribe"),
    *("pop", "complete", "fail", "park_again", "stranded"),
    *("park_orphans", "drop_holes", "void_holes", "park_spent", "drop_voids"),
}
"""Statements that, if a ring has subscribers, are about one of them."""
_OF_SUBSCRIBED = {
    *("void_for_subscriber", "owed", "number_older", "skip", "skip_numbers", "unsubscribe"),
    *("subscribers", "beginnings"),
}
"""Statements only for rings with subscribers."""
_OF_FINISHING = {"claims", "complete", "consumers", "fail", "times"}
"""Statements for queues that finish what they popped."""


@dataclasses.dataclass(frozen=True)
class Text:
    """One text that a server would get; its name is that of the statement it comes from."""

    name: str
    variant: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.name} of {self.variant}"


class _Rendering:
    """Renders a statement once for all scopes that make no difference to it."""

    def __init__(self) -> None:
        self._rendered: set[tuple[str | None, ...]] = set()

    def texts(self, statement: sql.Statement, scope: sql.Scope, variant: object) -> Iterator[Text]:
        values = {**scope.values, **scope.roles}
        template = statement.template
        plain = not _CONDITION.search(template) and scope.values.keys() >= {
            *_PLACEHOLDER.findall(template)
        }
        chosen = template if plain else sql.chosen(statement, scope)
        named = (values.get(name) for name in _PLACEHOLDER.findall(chosen))
        key = (statement.label, chosen, *named)
        if key in self._rendered:
            return
        self._rendered.add(key)
        batches = sql.batches(statement, PRODUCT.dialect, scope)
        is_script = statement.comment.startswith("script: ")
        if not is_script:
            assert len(batches) == 1, statement.label
            batches = [with_variables(COMMENT.sub("", batches[0]))]
        for batch in batches:
            made = _CREATES.search(COMMENT.sub("", batch)) if is_script else None
            name = f"{statement.label} {made[1]}" if made else statement.label
            yield Text(name, str(variant), _NUMBER.sub("N'1'", batch).strip())


def with_variables(text: str) -> str:
    """The text with variables for bound values, as a driver sends it."""
    return _BIND.sub(r"@bound_\1", text).replace("\\:", ":")


def _scopes(queue: Queue, statement: sql.Statement) -> Iterator[sql.Scope]:
    """For a server that shows its counters, and for one that does not."""
    scope = queue.scope_of(statement.name, PRODUCT, **MORE)
    servers = (("yes", "server", "status"), ("no", "database", "only_row"))
    for counters, waits_of, check in (
        servers if _OF_SERVERS.search(statement.template) else servers[:1]
    ):
        server_options = {"counters": counters, "waits_of": waits_of, "check": check}
        yield dataclasses.replace(scope, options={**scope.options, **server_options})


def _statements(queue: Queue) -> Iterator[sql.Statement]:
    """The design's own statements, its shared ones, and those that belong to no design."""
    yield from templates.statements_of("mssql", queue.design.name).values()
    shared_files = {*templates.files("mssql")} - DESIGNS.keys() - presets("mssql").keys()
    for file in sorted(shared_files - {"actions", "doctor", "monitor", "pipeline", "preset"}):
        for name in templates.statements("mssql", file):
            own = file in templates.SHARED and sql.has(PRODUCT, f"{queue.design.name}.{name}")
            yield sql.statement("mssql", f"{queue.design.name if own else file}.{name}")


def _views(queue: Queue, name: str) -> list[Queue]:
    """A ring as seen by all its subscribers and by one of them; or the queue itself."""
    if not queue.subscribers:
        return [queue]
    return [queue.views[-1]] if name in _OF_SUBSCRIBER else [queue, queue.views[-1]]


def _of_queue(queue: Queue) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Every statement for an installed queue, with every scope that it may get."""
    for statement in _statements(queue):
        excluded = (
            statement.name in _STEPS
            or (statement.name in _OF_FINISHING and not queue.finishes)
            or (statement.name == "history" and not queue.keeps_history)
            or (statement.name in _OF_SUBSCRIBED and not queue.subscribers)
        )
        if not excluded:
            for view in _views(queue, statement.name):
                for scope in _scopes(view, statement):
                    yield statement, scope
    for view in (queue, *queue.views[-1:]):
        yield from action_statements(PRODUCT, view)
    for statement in templates.statements("mssql", "doctor").values():
        yield statement, queue.scope_of(statement.name, PRODUCT, **MORE)
    yield from pipeline_statements(PRODUCT, queue)


def _of_adopted() -> Iterator[tuple[sql.Statement, sql.Scope, str]]:
    """The samples of an adopted table, with all roles and with only the needed ones."""
    for design in DESIGNS.values():
        if "mssql" in design.engines:
            needed = dict.fromkeys(design.needed_roles, "column") | {"size": "5"}
            for roles in (needed, dict.fromkeys(design.roles, "column") | {"size": "5"}):
                queue = Queue("sales", "orders", design, {}, roles, kind=Kind.ADOPTED)
                own = templates.statements_of("mssql", design.name)
                for name in sorted(_ADOPTED & own.keys()):
                    for scope in _scopes(queue, own[name]):
                        yield own[name], scope, f"adopted {design.name}"
    for queue in adopted_queues(PRODUCT):
        # Without a rule for it, nothing is moved.
        if not queue.design.library or {"requeue", "release"} & set(queue.verbs):
            for statement, scope in action_statements(PRODUCT, queue):
                yield statement, scope, f"adopted {queue.design.name}"


def _of_libraries() -> Iterator[tuple[sql.Statement, sql.Scope, str]]:
    for queue in library_queues(PRODUCT):
        for statement, scope in _of_library(queue):
            yield statement, scope, f"preset {queue.design.name}"


def _of_library(queue: Queue) -> Iterator[tuple[sql.Statement, sql.Scope]]:
    """Every statement for a library's tables, except the scans of its messages."""
    for statement in templates.statements_of("mssql", queue.design.name).values():
        if statement.name not in _STEPS | {"history"}:
            for scope in _scopes(queue, statement):
                yield statement, scope


def texts_of_library(queue: Queue) -> Iterator[Text]:
    """The same as texts, and the scans of its messages."""
    rendering = _Rendering()
    for statement, scope in _of_library(queue):
        yield from rendering.texts(statement, scope, queue.design.name)
    yield from _composed(queue, queue.design.name, everything=False)


def printed(variant: Variant) -> Iterator[Text]:
    """The printed script of a variant, split as sqlcmd splits it."""
    queue = variant.queue("sales", "orders", "mssql")
    script = install.script(PRODUCT, queue)
    for number, text in enumerate(re.split(r"(?m)^GO$", script)):
        yield Text(f"install batch {number}", str(variant), _NUMBER.sub("N'1'", text).strip())


def statements_of(variants: Iterable[Variant]) -> Iterator[Text]:
    """Every statement of queues of these variants."""
    rendering = _Rendering()
    for variant in variants:
        for statement, scope in _of_queue(variant.queue("sales", "orders", "mssql")):
            yield from rendering.texts(statement, scope, variant)


@cache
def statements() -> tuple[Text, ...]:
    """Every statement of all installed and adopted queues, each text once."""
    rendering = _Rendering()
    adopted = (
        text
        for statement, scope, variant in (*_of_adopted(), *_of_libraries())
        for text in rendering.texts(statement, scope, variant)
    )
    return _distinct([*statements_of(VARIANTS), *adopted])


@cache
def installations() -> tuple[Text, ...]:
    """The batches of all printed installations, each text once."""
    return _distinct(text for variant in VARIANTS for text in printed(variant))


@cache
def batches() -> dict[str, str]:
    """Each text but the composed ones -> one statement and variant that has it."""
    return {text.text: text.where for text in _distinct([*installations(), *statements()])}


@cache
def composed(*, everything: bool) -> tuple[Text, ...]:
    """The queries on messages: all combinations, or only those with every filter and with none."""
    variants = VARIANTS if everything else on("mssql", DEFAULTS)
    queues = [(v.queue("sales", "orders", "mssql"), str(v)) for v in variants]
    queues += [(queue, f"adopted {queue.design.name}") for queue in adopted_queues(PRODUCT)]
    benches = [_of_the_bench(v.queue("sales", "orders", "mssql")) for v in VARIANTS]
    samples = [_composed(queue, variant, everything) for queue, variant in queues]
    return _distinct(text for texts in (*benches, *samples) for text in texts)


def every_text(*, everything: bool) -> list[Text]:
    """Each text, under each name that it has."""
    return [*statements(), *installations(), *composed(everything=everything)]


def _composed(queue: Queue, variant: str, everything: bool) -> Iterator[Text]:
    for source in sources(PRODUCT, queue):
        for request in scan_requests(source):
            narrow = request.filters.narrowing
            is_extreme = (request.after is not None, request.exactly, request.reverse) == (
                narrow,
                False,
                narrow,
            )
            if everything or is_extreme:
                for result in (
                    "matching",
                    *_other_results(request, ["chosen"]),
                    *_of_the_doctor(queue, request),
                ):
                    text = with_variables(query(source, request, result).text)
                    name = (
                        f"{queue.design.name}.{request.scan.statement} {request.scan.name} {result}"
                    )
                    yield Text(name, f"{variant} {source.payload} {request}", text)


def _of_the_doctor(queue: Queue, request: ScanRequest) -> list[str]:
    """The doctor's results from the scans of some states."""
    if request.filters.narrowing or request.scan.state not in {"ready", "claimed", "error"}:
        return []
    results = ["contradictions"] if queue.kind is Kind.INSTALLED else []
    return [*results, *(["claimed"] if request.scan.state == "claimed" else [])]


def _of_the_bench(queue: Queue) -> Iterator[Text]:
    """The bench's counts of messages that are left."""
    steps = [("held", "bench.held"), ("codes", "bench.codes")]
    for result in ("left", "left_codes"):
        text = sql.piped(steps, f"bench.{result}", PRODUCT.dialect, queue.scope(PRODUCT)).text
        yield Text(f"bench.{result}", queue.design.name, with_variables(text))


def _distinct(texts: Iterable[Text]) -> tuple[Text, ...]:
    """Each once under each of its names."""
    found: dict[tuple[str, str], Text] = {}
    for text in texts:
        if COMMENT.sub("", text.text).strip():
            found.setdefault((text.name, text.text), text)
    return tuple(found.values())
