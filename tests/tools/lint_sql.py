"""Lints the SQL: every file of `queries/`, rendered as it is sent to servers, with sqlfluff.

    python -m tests.tools.lint_sql

The files are templates, so what is linted is their SQL for a queue with default options, and for
one with the last choice of every option. Exit 1: violations.
"""

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache

from sqlfluff.core import FluffConfig, Linter

from console import sql
from console.actions.rows import Storage
from console.catalog import Queue, installed_queue
from console.designs import Design, Flow, designs_on
from console.engines import PRODUCTS, Product
from console.features.presets.designs.libraries import design_of
from console.features.presets.designs.own_file import parse
from console.features.presets.discovery import LibraryTable, queue_of
from console.sql import templates
from tests.cli.own_presets import PRESET
from tests.tools.statements import (
    BIND,
    MORE,
    action_statements,
    library_queues,
    message_queries,
    pipeline_statements,
)

DIALECTS = {"postgresql": "postgres", "mssql": "tsql"}
"""Engine -> sqlfluff's name for it."""

RULES = "aliasing,ambiguous,capitalisation,convention,references,structure,layout.spacing"
EXCLUDED = ",".join(
    (
        "aliasing.length",  # short aliases are the style here, each next to its table
        "aliasing.unused",  # a definition's condition on the row m may be "true"
        "aliasing.self_alias.column",  # row types are filled by name, so every column is named
        "aliasing.expression",  # a single value, or an insert's, named by its column
        "ambiguous.order_by_limit",  # a bounded count reads any rows
        "capitalisation.literals",  # NULL is written as a keyword, true and false as values
        "structure.column_order",  # columns are in the order of their row type
        "convention.terminator",  # statements joined by UNION ALL have none
        "convention.casting_style",  # SQLAlchemy reads "::" as a bind parameter
        "references.keywords",  # size, time, number: the sources' own column names
        "references.special_chars",  # a queue's name may contain anything
        "references.quoting",  # all names of queues are quoted
        "structure.subquery",  # a bounded count is a subquery
    )
)
EXCLUDED_BY_ENGINE = {
    "postgresql": (),
    "mssql": (
        "structure.join_condition_order",  # a delete by numbers starts with the numbers
        "capitalisation.keywords",  # types, and columns like time, are among tsql's keywords
        "capitalisation.identifiers",  # so are the names of collations
        "layout.spacing",  # IDENTITY(1, 1) as in Microsoft's documentation
    ),
}


def variants(design: Design, engine: str) -> Iterator[dict[str, str]]:
    """The design's options on an engine: the defaults, and the last choice of each."""
    yield design.complete_options({}, engine)
    options = design.options_on(engine)
    last = {option.name: option.choices[-1] for option in options if option.choices}
    if "in_hand" in last:
        last["archive_at_pop"] = "off"
    yield design.complete_options(last, engine)


def texts(product: Product) -> Iterator[tuple[str, str]]:
    """(origin, SQL) of everything in this engine's files, each text once."""
    yielded: set[str] = set()
    for where, text in _all_texts(product):
        if text not in yielded:
            yielded.add(text)
            yield where, text


def _all_texts(product: Product) -> Iterator[tuple[str, str]]:
    done: set[str] = set()
    for design in designs_on(product.name).values():
        for options in variants(design, product.name):
            queue = installed_queue("sales", "orders", design, options)
            for file in (design.name, "common", "catalog", "replay", "roles"):
                yield from _file(product, queue, file, done)
    for file in ("server", "activity", "maintenance", "sessions", "upgrade"):
        yield from _file(product, queue, file, done)
    for name in ("exists", "queues"):
        of = templates.statement(product.name, f"catalog.{name}")
        where = f"{product.name}/catalog.sql {name}, with code of others"
        yield where, _rendered(product, of, sql.Scope(options={"others": "yes"}))
    yield from _libraries(product)
    yield from _own_presets(product)
    yield from _of_designs(product)


def _libraries(product: Product) -> Iterator[tuple[str, str]]:
    """The statements on libraries' tables."""
    for queue in library_queues(product):
        for statement in templates.statements_of(product.name, queue.design.name).values():
            scope = queue.scope_of(statement.name, product, **MORE)
            scope = replace(scope, options={**scope.options, "hashed": "no"})
            where = f"{product.name}/{queue.design.name}.sql {statement.name}"
            yield where, _rendered(product, statement, scope)
        for where, text in message_queries(product, queue).items():
            yield f"{product.name}/{queue.design.name}.sql messages {where}", text


def _own_presets(product: Product) -> Iterator[tuple[str, str]]:
    """The statements on tables of a user's own preset."""
    file = parse(PRESET)
    if product.name != file.engine:
        return
    templates.set_user_presets(
        product.name, {"crate": file.definitions()}, like="own", untrusted=()
    )
    design = design_of(product.name, "crate", {**_NO_WORDS, **file.head}, (), file.written)
    queue = queue_of(design, LibraryTable("s", "crates", "beside it", None), "t", "its's")
    for statement in templates.statements(product.name, "own").values():
        for verb in file.sets if statement.name == "make_ready" else ("",):
            scope = queue.scope(product)
            scope = replace(scope, options={**scope.options, "verb": verb})
            text = _rendered(product, f"crate.{statement.name}", scope)
            yield f"{product.name}/own.sql {statement.name} {verb}", text


_NO_WORDS = dict.fromkeys(("summary", "advice", "columns"), "")


def _of_designs(product: Product) -> Iterator[tuple[str, str]]:
    """The statements on each design's queues that are not in the design's own file."""
    has_doctor = (templates.queries_folder() / product.name / "doctor.sql").is_file()
    for design in designs_on(product.name).values():
        for options in variants(design, product.name):
            queue = installed_queue("sales", "orders", design, options)
            checks = templates.statements(product.name, "doctor").values() if has_doctor else ()
            stored = Storage.SLOTS if design.flow is Flow.NUMBERS else Storage.TABLE
            for statement in checks:
                scope = queue.scope_of(statement.name, product, **MORE)
                far = {"time": "pushed_at", "scan": "any", "bounded": "yes", "storage": stored}
                scope = replace(scope, options={**scope.options, **far})
                text = _rendered(product, statement, scope)
                # Empty for some designs: only a comment and the end are left.
                if any(not line.startswith("--") and line != ";" for line in text.split("\n")):
                    yield f"{product.name}/doctor.sql {statement.name} {dict(options)}", text
        for statement, scope in pipeline_statements(product, queue):
            where = f"{product.name}/pipeline.sql {statement.name} {design.name}"
            yield where, _rendered(product, statement, scope)
        scope = queue.scope(product, rows="10", width="10")
        for statement in templates.statements(product.name, "bench").values():
            if queue.finishes or not statement.name.startswith("complete"):
                where = f"{product.name}/bench.sql {statement.name} {design.name}"
                yield where, _rendered(product, statement, scope)
        queue = installed_queue("sales", "orders", design, options | {"payload": "json"})
        for statement, scope in action_statements(product, queue):
            where = f"{product.name}/actions.sql {statement.name} {design.name}"
            yield where, _rendered(product, statement, scope)
        for where, text in message_queries(product, queue).items():
            yield f"{product.name}/{design.name}.sql messages {where}", text


def _rendered(product: Product, statement: sql.Statement | str, scope: sql.Scope) -> str:
    return BIND.sub("1", sql.script(statement, product.dialect, scope).strip())


def _file(product: Product, queue: Queue, file: str, done: set[str]) -> Iterator[tuple[str, str]]:
    names: tuple[str, ...] = ("kind", "options_json", "roles_json", "version", "installed_from")
    names += ("relation", "index", "session", "function", "role")
    names += ("constraint", "column", "second")
    chosen = {
        "with_payload": "yes",
        "waits_of": "server",
        "key": "primary",
        "hashed": "no",
        "sorted": "no",
        "scan": "ready",
        "check": "status",
    }
    if file != queue.design.name and file in done:
        return
    done.add(file)
    own = templates.statements_of if file == queue.design.name else templates.statements
    for statement in own(product.name, file).values():
        if file == "common" and statement.name in _FINISHING and not queue.finishes:
            continue
        values = {**MORE, **dict.fromkeys(names, "{}")}
        scope = queue.scope_of(statement.name, product, **values)
        scope = replace(scope, options={**scope.options, **chosen})
        text = sql.script(statement, product.dialect, scope).strip()
        if not statement.comment.startswith("script: "):
            text = BIND.sub("1", text)  # not every dialect of sqlfluff knows binds
        yield f"{product.name}/{file}.sql {statement.name} {dict(queue.options)}", text


_FINISHING = {"complete", "fail"}
_PARSED_ELSEWHERE = {"mssql"}
"""Parsed by Microsoft's own tools: tests/microsoft."""

_UNPARSED = ("postgresql/sessions.sql end_prepared", "postgresql/bench.sql begin_old")
"""Unknown to sqlfluff: ROLLBACK PREPARED, BEGIN with a level. Servers run them in
test_end_session_postgresql and test_bench."""


@cache
def _linter(engine: str, parser_in_rust: str = "auto") -> Linter:
    config = FluffConfig(
        configs={
            "core": {
                "dialect": DIALECTS[engine],
                "templater": "raw",
                "rules": RULES,
                "exclude_rules": ",".join((EXCLUDED, *EXCLUDED_BY_ENGINE[engine])),
                "large_file_skip_byte_limit": 0,
                "use_rust_parser": parser_in_rust,
            },
            # Syntax that looks like a function but is a keyword.
            "rules": {
                "capitalisation.functions": {"ignore_words": "ANY,ARRAY,CAST,EXISTS,EXTRACT"}
            },
        }
    )
    return Linter(config=config)


def violations(job: tuple[str, str, str]) -> list[str]:
    """The violations of one text: (engine, origin, text)."""
    engine, where, text = job
    elsewhere = engine in _PARSED_ELSEWHERE or where.startswith(_UNPARSED)
    errors = _linter(engine).lint_string(text + "\n").get_violations()
    if not elsewhere and any(error.rule_code() == "PRS" for error in errors):
        # The parser in Rust knows less, for example no OFFSET after a join: the slower one decides.
        errors = _linter(engine, "false").lint_string(text + "\n").get_violations()
    return [
        f"{where}: line {error.line_no}: {error.rule_code()} {error.desc()}"
        for error in errors
        if not (error.rule_code() == "PRS" and elsewhere)
    ]


def _collect_less() -> None:
    """Each text leaves a tree of many objects: collecting them takes a quarter of the time."""
    gc.set_threshold(100_000, 20, 20)


def main() -> int:
    """Lint everything, on all processors; print each violation with its position."""
    jobs = [
        (product.name, where, text)
        for product in PRODUCTS.values()
        for where, text in texts(product)
    ]
    count = 0
    # The longest first, so that no processor works alone at the end.
    jobs.sort(key=lambda job: len(job[2]), reverse=True)
    with ProcessPoolExecutor(initializer=_collect_less) as pool:
        for found in pool.map(violations, jobs, chunksize=2):
            count += len(found)
            for line in found:
                print(line)
    print(f"{len(jobs)} statements linted, {count} violations")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
