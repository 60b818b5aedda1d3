"""The fields of each verb's form, by the names that the command line has for them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from console.actions.execute import BATCH, MOST_BATCH, Pace
from console.actions.work import Asked
from console.catalog import Queue
from console.errors import UsageError
from console.formats import parse_duration
from console.monitor import filters as filtering
from console.monitor.saved import MARK, Words, expand


class Kind(Enum):
    """What may stand in a field."""

    FLAG = "flag"
    TEXT = "text"
    NUMBER = "number"
    RATE = "rate"
    DURATION = "duration"
    FILTERS = "filters"


class Put(Enum):
    """How the command line has it."""

    OPTION = "option"
    ARGUMENT = "argument"
    """Behind the queue's name, without a name of its own."""
    REDIRECTED = "redirected"
    """Where the shell writes the output to."""


@dataclass(frozen=True)
class Field:
    """One thing that can be said. What is said of a flag is "yes" or nothing."""

    name: str
    kind: Kind
    summary: str
    put: Put = Put.OPTION
    needed: bool = False
    least: int = 1
    most: int = 2**31 - 1
    default: str = ""
    only: str = ""
    """`finishes`: for queues that keep what was popped."""

    def check(self, text: str) -> None:
        """UsageError for what cannot stand in it."""
        if not text:
            if self.needed:
                raise UsageError(f"{self.name} is wanted.")
            return
        match self.kind:
            case Kind.NUMBER:
                self._number(text)
            case Kind.RATE:
                self._rate(text)
            case Kind.DURATION:
                parse_duration(text)
            case Kind.FILTERS:
                # What is saved is looked up for the queue, when the plan is made.
                filtering.parse(word for word in words_of(text) if not word.startswith(MARK))
            case _:
                pass

    def _number(self, text: str) -> None:
        if not text.isascii() or not text.isdecimal() or not self.least <= int(text) <= self.most:
            raise UsageError(f"It wants a whole number, {self.least:,} to {self.most:,}.")

    def _rate(self, text: str) -> None:
        try:
            good = 0 < float(text) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise UsageError("It wants a number above 0: messages a second.")


def words_of(text: str) -> tuple[str, ...]:
    """The filters of one line, quoted as a shell has them. UsageError for a quote left open."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError("The filters cannot be read.", why=f"{error}.") from error


def line_of(words: tuple[str, ...]) -> str:
    """The filters as one line of which `words_of` makes them again."""
    return shlex.join(words)


FILTER = Field("filter", Kind.FILTERS, "  ".join(filtering.FORMS))
BATCH_FIELD = Field(
    "batch", Kind.NUMBER, "messages a transaction", most=MOST_BATCH, default=str(BATCH)
)
RATE = Field("rate", Kind.RATE, "at most so many messages a second")
CANARY = Field("canary", Kind.FLAG, "first 1 message, then 10, then the rest")
_CHOSEN = (FILTER, BATCH_FIELD, RATE, CANARY)
_REASON = Field("reason", Kind.TEXT, "stands with them in the archive")
_WAIT = Field("wait", Kind.DURATION, "how long to try: 500ms, 5s, 10m")


@dataclass(frozen=True)
class Form:
    """A verb as an operator is offered it."""

    verb: str
    summary: str
    fields: tuple[Field, ...] = ()
    command: str = ""
    """The command line's name for it, where that is another one."""
    confirmed: bool = True
    """Whether the command line wants --yes for it."""
    fixed: tuple[str, ...] = ()
    """Options that it always has on the command line."""

    def fields_for(self, queue: Queue) -> tuple[Field, ...]:
        """Those that say something of such a queue."""
        if queue.design.waits_itself and self.verb in {"requeue", "release"}:
            return ()  # they are about the queue or its conversations, not about messages
        return tuple(one for one in self.fields if one.only != "finishes" or queue.finishes)

    def asked(self, said: Mapping[str, str], saved: Words | None = None) -> Asked:
        """What was said, as the actions take it. It has been checked field by field.

        `saved`: the filters that have names. UsageError for one that is not among them.
        """
        options = {one.name: said.get(one.name, "") for one in self.fields}
        words = expand(words_of(options.pop("filter", "")), saved or {})
        batch, rate = options.pop("batch", ""), options.pop("rate", "")
        pace = Pace(
            int(batch or BATCH), float(rate) if rate else None, options.pop("canary", "") == "yes"
        )
        given = {name: text for name, text in options.items() if text}
        return Asked(self.verb, words, given, pace)


FORMS: tuple[Form, ...] = (
    Form(
        "release",
        "let claims whose owner is gone be popped again",
        (
            FILTER,
            Field("unknown", Kind.FLAG, "also where nobody can tell if the owner lives"),
            Field("force", Kind.FLAG, "also where the owner is alive"),
            *_CHOSEN[1:],
        ),
    ),
    Form(
        "requeue",
        "let what failed be popped again",
        (
            FILTER,
            Field("back", Kind.FLAG, "behind all that are ready, not to their old place"),
            Field("to", Kind.TEXT, "into another queue, as new messages: its name"),
            *_CHOSEN[1:],
        ),
    ),
    Form("doctor", "mend what needs no judgement", fixed=("--fix",)),
    Form(
        "end-session",
        "end a session that holds rows of it",
        (
            Field(
                "session",
                Kind.TEXT,
                "its id, or a prepared transaction's name; empty tells who holds rows",
                Put.ARGUMENT,
            ),
        ),
    ),
    Form(
        "archive",
        "move what is finished into the archive",
        (
            FILTER,
            Field("older", Kind.DURATION, "finished so long ago: 1h, 7d"),
            _REASON,
            Field("every", Kind.DURATION, "again and again, until it is stopped: 5s"),
            Field("hot-above", Kind.NUMBER, "with every: wait while more are ready", least=0),
            *_CHOSEN[1:],
        ),
    ),
    Form(
        "purge",
        "take messages out, into the archive or for good",
        (
            FILTER,
            _REASON,
            Field("permanently", Kind.FLAG, "delete them; nothing brings them back"),
            *_CHOSEN[1:],
        ),
    ),
    Form(
        "restore",
        "bring messages back out of the archive",
        (
            FILTER,
            Field("action", Kind.NUMBER, "what this action took: see the audit", most=2**63 - 1),
            Field("reason", Kind.TEXT, "whose reason in the archive holds the text"),
            Field("popped", Kind.FLAG, "what consumers popped (archive_at_pop)"),
            *_CHOSEN[1:],
        ),
    ),
    Form(
        "resize",
        "give the ring another number of slots",
        (
            Field(
                "size",
                Kind.NUMBER,
                "slots; live messages keep their order",
                Put.ARGUMENT,
                needed=True,
                most=100_000_000,
            ),
        ),
    ),
    Form("relay", "number the ring's live messages anew"),
    Form("maintain", "vacuum and reindex what bloat calls for"),
    Form("upgrade", "make its code and columns this console's"),
    Form(
        "push",
        "add one message",
        (Field("payload", Kind.TEXT, "the message", Put.ARGUMENT, needed=True), _WAIT),
        confirmed=False,
    ),
    Form(
        "pop",
        "take messages, into a file",
        (
            Field("file", Kind.TEXT, "payloads are added to it", Put.REDIRECTED, needed=True),
            Field("count", Kind.NUMBER, "how many, at most", default="1"),
            _WAIT,
            Field(
                "complete",
                Kind.FLAG,
                "finish the claims once they are written",
                only="finishes",
            ),
            Field("fail", Kind.TEXT, "make them errors with this text instead", only="finishes"),
        ),
        confirmed=False,
    ),
    Form(
        "uninstall",
        "remove the queue with all its objects",
        (
            Field("with-messages", Kind.FLAG, "even if more than 1,000 messages go with it"),
            Field("keep-archive", Kind.FLAG, "leave the archive; it stays listed"),
        ),
    ),
    Form("forget", "take an adopted queue out of the catalog", confirmed=False),
)

BY_VERB = {form.verb: form for form in FORMS}
