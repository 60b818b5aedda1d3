"""Proves all claims on all designs, one scratch queue after the other, and reports."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata

from console import catalog
from console.actions.install import missing_requirement, remove, scratch_queue
from console.actions.pause import installed_code
from console.actions.smoke import LARGEST_RING
from console.actions.upgrade import parts
from console.catalog import Queue, installed_queue, object_names, relations
from console.designs import DESIGNS, Design, designs_on
from console.designs.model import ARCHIVE_AT_POP, NOTIFY, PAYLOAD
from console.engines import Database, Product, Timeouts, time_limit
from console.errors import ConnectionFailedError, ConsoleError, RefusedError
from console.features.bench.candidate import (
    PROOF_APPLICATION,
    PROOF_PREFIX,
    drop_leftovers,
    find_leftovers,
    new_token,
)
from console.features.bench.queues import design_and_options
from console.features.bench.server import session_named
from console.features.prove import asking, calls, repairs, server
from console.features.prove.trial import (
    Claim,
    DisprovedError,
    Line,
    NotApplicableError,
    Outcome,
    Trial,
    let_interrupts_through,
    one_line,
    require,
)
from console.formats import plain

ALL, NONE = "all", "none"
MOST_SECONDS = 480.0
"""No claim is started later, so that all is done within 10 minutes."""
_QUESTIONS_SECONDS = 240.0
"""For the questions about the server, which come first; the designs have the rest."""
INSTALLS = "installs whole, as this console prints it"
LEAVES_NOTHING = "uninstalls without a trace"
_RENEWS = "is replaced by a new one after that"
_CLAIM_SECONDS = 120.0
"""Of one claim: more than two of its statements may take."""
NOT_TRIED = "not tried: the 10 minutes were over"

_OF_EVERY_DESIGN = (PAYLOAD, NOTIFY, ARCHIVE_AT_POP)
"""Options that do not affect any claim."""

InstallScratch = Callable[[Database, Queue], AbstractContextManager[None]]


class Proof:
    """One run on one database."""

    def __init__(
        self,
        database: Database,
        schema: str,
        on_progress: Callable[[str], None],
        *,
        install_scratch: InstallScratch = scratch_queue,
        most_seconds: float | None = None,
    ) -> None:
        """`schema` gets the scratch queues. `install_scratch` installs one while its context is
        open. `most_seconds` defaults to `MOST_SECONDS`."""
        self._database = database
        self._schema = schema
        self._on_progress = on_progress
        self._install_scratch = install_scratch
        self._until = time.monotonic() + (MOST_SECONDS if most_seconds is None else most_seconds)
        self._token = new_token()

    def run(self, designs: str = ALL, claims: str = "") -> Generator[Line, None, None]:
        """`claims`: the questions about the server, by their codes; as `asking.chosen`. UsageError
        for a design or a code that does not exist."""
        product = self._database.product
        queues = [self._queue(*one) for one in _chosen(designs, product)]
        questions = asking.chosen(claims or (ALL if designs in {ALL, NONE} else NONE), product)
        database, name = self._database, PROOF_APPLICATION + self._token
        # To other runs this session shows that the scratch queues are in use.
        with session_named(database, name):
            found = find_leftovers(database, PROOF_PREFIX)
            drop_leftovers(database, found, remove, self._on_progress, "proof")
            if questions:
                until = min(self._until, time.monotonic() + _QUESTIONS_SECONDS)
                yield from asking.ask(
                    database, self._schema, questions, self._token, until, self._on_progress
                )
            for label, queue in queues:
                yield from self._design(label, queue)

    def _queue(self, of: Design, given: dict[str, str]) -> tuple[str, Queue]:
        """The design's label in the report, and its queue."""
        product = self._database.product
        options = of.complete_options(given, product.name)
        if "consumers" in options:
            options["consumers"] = "direct"
        if "size" in options and "size" not in given:
            options["size"] = str(LARGEST_RING)
        name = f"{PROOF_PREFIX}{self._token}_{of.name}"
        queue = installed_queue(self._schema, name, of, options)
        object_names.check(product, queue)
        return ":".join((of.name, *(f"{key}={value}" for key, value in given.items()))), queue

    def _design(self, label: str, queue: Queue) -> Iterator[Line]:
        if why := missing_requirement(self._database, queue.design):
            yield Line(label, INSTALLS, Outcome.NOT_APPLICABLE, why)
            return
        trial = Trial(self._database, queue)
        made = ExitStack()
        with made:
            installing = Claim(INSTALLS, lambda _: self._installed(made, queue))
            yield (first := self._line(label, installing, trial))
            there = first.outcome is Outcome.PROVEN
            for claim in claims_of(self._database) if there else ():
                yield (line := self._line(label, claim, trial))
                if line.outcome in _PROBLEMS:
                    # The next claim gets a new queue.
                    renewing = Claim(_RENEWS, lambda _: self._renewed(made, queue))
                    renewed = self._line(label, renewing, trial)
                    if renewed.outcome is not Outcome.PROVEN:
                        yield renewed
                        break
                    trial = Trial(self._database, queue)
        yield self._line(label, Claim(LEAVES_NOTHING, self._nothing_left), trial)

    def _line(self, label: str, claim: Claim, trial: Trial) -> Line:
        if time.monotonic() > self._until and claim.text != LEAVES_NOTHING:
            return Line(label, claim.text, Outcome.NOT_APPLICABLE, NOT_TRIED)
        return prove_claim(label, claim, trial)

    def _installed(self, made: ExitStack, queue: Queue) -> str:
        made.enter_context(self._install_scratch(self._database, queue))
        there = parts(self._database, queue)
        others = [one for one in there if one.how is not None]
        require(not others, f"different from print: {', '.join(one.name for one in others)}")
        kinds = [one.kind for one in there]
        return f"{kinds.count('table')} tables, {kinds.count('function')} functions, as printed"

    def _renewed(self, made: ExitStack, queue: Queue) -> str:
        made.close()
        made.enter_context(self._install_scratch(self._database, queue))
        return "a new queue"

    def _nothing_left(self, trial: Trial) -> str:
        product, queue = self._database.product, trial.queue
        names = object_names.of(product, queue)
        with self._database.transaction("list what is left", read_only=True) as connection:
            left = [one.name for one in relations.named(connection, queue.schema, names)]
            left += [one.name for one in installed_code(connection, queue, names)]
            left += [one.name for one in catalog.queues(connection) if one.name == queue.name]
        require(not left, f"left behind: {', '.join(left)}")
        return f"0 objects of {len(names)} names"


def prove_claim(label: str, claim: Claim, trial: Trial) -> Line:
    """ConnectionFailedError if the server is gone, RefusedError if this login may not install:
    neither says anything about the design; nor does a claim that is over its time.
    """
    began = time.monotonic()

    def line(outcome: Outcome, evidence: str) -> Line:
        return Line(label, claim.text, outcome, evidence, time.monotonic() - began)

    if why := claim.lacks(trial.queue):
        return line(Outcome.NOT_APPLICABLE, why)
    try:
        with time_limit(_CLAIM_SECONDS):
            return line(Outcome.PROVEN, claim.prove(trial))
    except NotApplicableError as reason:
        return line(Outcome.NOT_APPLICABLE, str(reason))
    except DisprovedError as seen:
        let_interrupts_through(seen)
        return line(Outcome.FAILED, str(seen))
    except ConnectionFailedError as error:
        let_interrupts_through(error)
        if time.monotonic() - began < _CLAIM_SECONDS:
            raise
        return line(Outcome.NOT_ANSWERED, one_line(error))
    except ConsoleError as error:
        let_interrupts_through(error)
        if claim.text == INSTALLS and type(error) is RefusedError:
            raise
        return line(Outcome.FAILED, one_line(error))


def claims_of(database: Database) -> list[Claim]:
    """The claims about a queue while it is installed, each for all its subscribers."""
    claims = [*calls.claims(database), *repairs.CLAIMS, *server.CLAIMS]
    return [
        replace(one, prove=partial(Trial.with_each_subscriber, prove=one.prove)) for one in claims
    ]


def _chosen(words: str, product: Product) -> Sequence[tuple[Design, dict[str, str]]]:
    """The named designs; for `all` each design, also with each choice of its own options."""
    if words == NONE:
        return []
    if words != ALL:
        return [design_and_options(one, product) for one in _separated(words)]
    found: list[tuple[Design, dict[str, str]]] = []
    for of in designs_on(product.name).values():
        own = [one for one in of.options_on(product.name) if one not in _OF_EVERY_DESIGN]
        others = [{o.name: value} for o in own for value in o.choices if value != o.default]
        if any(one.name == "subscribers" for one in own):
            others.append({"subscribers": "a,b"})
        found += [(of, given) for given in ({}, *others)]
    return found


def _separated(words: str) -> list[str]:
    """`ring:subscribers=a,b,fifo` is two: a word that is no design continues the list before it."""
    found: list[str] = []
    for one in words.split(","):
        if found and "subscribers=" in found[-1] and one.partition(":")[0] not in DESIGNS:
            found[-1] += f",{one}"
        else:
            found.append(one)
    return found


TIMEOUTS = Timeouts(statement_seconds=60.0, lock_seconds=30.0)

_HEAD = ("| claim | result | evidence |", "| --- | --- | --- |")


@dataclass(frozen=True)
class Report:
    connection: str
    server: str
    """Product and version."""
    schema: str
    began: datetime
    seconds: float
    lines: Sequence[Line]

    @property
    def complete(self) -> bool:
        return all(line.evidence != NOT_TRIED for line in self.lines)

    @property
    def ok(self) -> bool:
        counts = self.counts
        return self.complete and not (counts[Outcome.FAILED] or counts[Outcome.NOT_ANSWERED])

    @property
    def counts(self) -> Counter[Outcome]:
        return Counter(line.outcome for line in self.lines)

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{self.counts[one]} {one.value}" for one in Outcome)
        late = "" if self.complete else f"; {NOT_TRIED}"
        return f"{counts}, in {self.seconds:.0f} s{late}"

    def as_json(self) -> dict[str, object]:
        """The stable object of `prove --json`."""
        return {
            "console": _version(),
            "connection": self.connection,
            "server": self.server,
            "schema": self.schema,
            "began": self.began.isoformat(),
            "seconds": round(self.seconds, 3),
            "ok": self.ok,
            "complete": self.complete,
            **{one.name.lower(): self.counts[one] for one in Outcome},
            "claims": [line.as_json() for line in self.lines],
        }

    @property
    def markdown(self) -> list[str]:
        """What does not hold first; then the server, for readers without this project; then each
        design."""
        problems = [line for line in self.lines if line.outcome in _PROBLEMS]
        of_server = [line for line in self.lines if line.code]
        of_designs = [line for line in self.lines if not line.code]
        designs = dict.fromkeys(line.design for line in of_designs)
        found = [
            f"# What dbq-console {_version()} proves on {plain(self.server)}",
            "",
            f"- {self.summary}",
            f"- {plain(self.connection)}, schema {plain(self.schema)}, "
            f"{self.began:%Y-%m-%d %H:%M:%S} UTC",
            "- on scratch queues, and in databases of its own where it may make them; all were "
            "removed, and no other queue was touched",
        ]
        if problems:
            found += ["", "## Failed, or not answered", ""]
            found += [
                f"- **{one.design}**: {one.code or one.claim}: {one.outcome.value}: "
                f"{_cell(one.evidence)}"
                for one in problems
            ]
        if of_server:
            found += ["", "## The server", "", *_INTRODUCTION]
            for code in dict.fromkeys(line.code for line in of_server):
                found += _question([line for line in of_server if line.code == code])
        for design in designs:
            found += ["", f"## {design}", "", *_HEAD]
            found += [
                f"| {line.claim} | {_shown(line.outcome)} | {_cell(line.evidence)} |"
                for line in of_designs
                if line.design == design
            ]
        return found


_PROBLEMS = (Outcome.FAILED, Outcome.NOT_ANSWERED)
_INTRODUCTION = (
    "dbq-console keeps message queues in tables of this database. Its SQL leans on what follows, "
    "most valuable first. Each was tried on tables of its own, in each of the databases named.",
    "",
    "`proven`: it is so. `failed`: it is not so. `not answered`: an error or a time-out came "
    "first, so it is unknown. `not applicable`: this server or login cannot show it.",
)
_FOLLOWS = {
    Outcome.FAILED: "**False here**: {otherwise}.",
    Outcome.NOT_ANSWERED: "Unknown here. If it is false: {otherwise}.",
    Outcome.NOT_APPLICABLE: "Not to be seen here. If it is false: {otherwise}.",
    Outcome.PROVEN: "It holds here. If it were false: {otherwise}.",
}
"""By the worst outcome."""


def _question(lines: Sequence[Line]) -> list[str]:
    """One question about the server, with what was seen in each database."""
    first = lines[0]
    outcomes = [line.outcome for line in lines]
    worst = next(outcome for outcome in _FOLLOWS if outcome in outcomes)
    return [
        "",
        f"### {first.code}: {first.claim}",
        "",
        f"- Why it was asked: {first.leans}.",
        *(
            f"- Seen in {plain(line.design)}: {_shown(line.outcome)}: {_cell(line.evidence)}"
            for line in lines
        ),
        f"- What follows: {_FOLLOWS[worst].format(otherwise=first.otherwise)}",
    ]


def prove_designs(
    database: Database,
    schema: str,
    designs: str,
    on_progress: Callable[[str], None],
    claims: str = "",
) -> Report:
    """RefusedError if this login may not install."""
    database.timeouts = TIMEOUTS  # before its first connection
    began, started = datetime.now(UTC), time.monotonic()
    lines: list[Line] = []
    for line in Proof(database, schema, on_progress).run(designs, claims):
        on_progress(f"{line.design}: {line.code or line.claim}: {line.outcome.value}")
        lines.append(line)
    return Report(
        database.label,
        f"{database.product.title} {database.capabilities.server_version}",
        schema,
        began,
        time.monotonic() - started,
        lines,
    )


def _shown(outcome: Outcome) -> str:
    return f"**{outcome.value}**" if outcome in _PROBLEMS else outcome.value


def _cell(text: str) -> str:
    return plain(" ".join(text.split())).replace("|", "\\|")


def _version() -> str:
    return metadata.version("dbq-console")
