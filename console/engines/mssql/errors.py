"""The driver's errors as what, why and next step.

A driver puts everything into one text: `[42000] [Microsoft][ODBC Driver 18 for SQL Server][SQL
Server]text (1205) (SQLExecDirectW); [01000] ...`. The server's error number, before the function's
name, identifies the error in any language.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from console.engines.mssql.session import CONNECTING, IN_DOUBT
from console.engines.product import ALREADY_STORED, LOCKED, UNREACHABLE, behind_sequence
from console.errors import (
    BusyError,
    ConnectionFailedError,
    ConsoleError,
    InDoubtError,
    ReadOnlyError,
    RefusedError,
    TooSlowError,
    TransientError,
    UsageError,
)


@dataclass(frozen=True)
class DiagnosticRecord:
    """One message of a driver's error."""

    state: str
    number: int
    text: str


_ORIGIN = (
    r"\[(?:Microsoft|FreeTDS|unixODBC|iODBC|Driver Manager|SQL Server[^\]]*|ODBC [^\]]*"
    r"|DBNETLIB|TCP/IP Sockets|Named Pipes|Shared Memory)\]"
)
_NEXT = r"; \[[0-9A-Z]{5}\] \["
_RECORD = re.compile(
    rf"\[(?P<state>[0-9A-Z]{{5}})\] (?:{_ORIGIN})*\s*(?P<text>.*?) ?"
    rf"\((?P<number>-?\d+)\)(?: \(SQL\w+\))?(?={_NEXT}|\s*\Z)",
    re.DOTALL,
)


def records(text: str) -> list[DiagnosticRecord]:
    """The messages in the text of a driver's error; none if it has another form."""
    return [
        DiagnosticRecord(match["state"], int(match["number"]), match["text"].strip())
        for match in _RECORD.finditer(text)
    ]


def translate(error: DBAPIError, doing: str) -> ConsoleError:
    """What could not be done, why, and what to do next."""
    original = error.orig
    what = f"Could not {doing}."
    arguments = [str(argument) for argument in original.args] if original else []
    diagnostic_records = records(arguments[-1]) if arguments else []
    if original is None or not diagnostic_records:
        return _driver_error(what, str(original), arguments)
    record = _main_record(diagnostic_records)
    if record.number in _OURS:
        why, *more = (part.strip() for part in record.text.split("|", 2))
        reason, next_step = (*more, "", "")[:2]
        return _OURS[record.number](f"{what} {why}", why=reason, next_step=next_step)
    why = _why(record, diagnostic_records)
    notes: Sequence[str] = getattr(original, "__notes__", ())
    if IN_DOUBT in notes and record.number not in _UNDONE:
        return InDoubtError(
            what, why=f"{why} {IN_DOUBT} It may or may not have been done.", next_step=_CHECK_FIRST
        )
    login = [note for note in notes if note.startswith(CONNECTING)]
    at_login = bool(login) or "(SQLDriverConnect" in arguments[-1]
    why = ": ".join([*login, why])
    kind, next_step = _meaning(record, at_login=at_login)
    if at_login and any(sign in arguments[-1] for sign in _CERTIFICATE):
        next_step = _TRUST
    translated = kind(what, why=why, next_step=next_step)
    translated.of_a_row = next_step == _PAYLOAD
    return translated


def _driver_error(what: str, text: str, arguments: list[str]) -> ConsoleError:
    """An error of pyodbc itself, which has no number."""
    if "closed" in text and "connection" in text:
        return ConnectionFailedError(what, why=text, next_step=UNREACHABLE)
    state = arguments[0] if len(arguments) > 1 else ""
    kind, next_step = _meaning(DiagnosticRecord(state, 0, text), at_login=False)
    return kind(what, why=arguments[-1] if arguments else text, next_step=next_step)


def _main_record(diagnostic_records: Sequence[DiagnosticRecord]) -> DiagnosticRecord:
    """The message about the error itself; others are about its consequences."""
    known = [record for record in diagnostic_records if record.number not in _CONSEQUENCES]
    if not known:
        return diagnostic_records[0]
    ours = [record for record in known if record.number in _OURS]
    meant = [record for record in known if record.number in _MEANINGS]
    return (ours or meant or known)[0]


def _why(record: DiagnosticRecord, diagnostic_records: Iterable[DiagnosticRecord]) -> str:
    """The texts, the main one first, without any of a row's values."""
    texts = [record, *(r for r in diagnostic_records if r.number not in _CONSEQUENCES)]
    return " ".join(dict.fromkeys(text for r in texts[:3] if (text := _without_data(r))))


def _without_data(record: DiagnosticRecord) -> str:
    if record.number not in _DATA:
        return record.text
    pattern, replacement = _DATA[record.number]
    text, count = pattern.subn(replacement, record.text)
    # In another language: the number alone, because payloads do not belong in messages.
    return text if count else f"SQL Server error {record.number}."


def _taken_key(text: str) -> tuple[type[ConsoleError], str]:
    """By its value: a caller's own id is a UUID; a whole number was drawn from a sequence."""
    if _OWN_ID.search(text):
        return UsageError, ALREADY_STORED
    of = re.search(r"'([^'.]+)\.([^']+?)(?:_archive|_meta|_data|_in_hand)?'", text)
    return ConsoleError, behind_sequence(of[2] if of and of[1] != "dbq" else "")


def _meaning(record: DiagnosticRecord, *, at_login: bool) -> tuple[type[ConsoleError], str]:
    if record.number in {2601, 2627}:
        return _taken_key(record.text)
    if meaning := _MEANINGS.get(record.number):
        return meaning
    if record.state == "01000" and "Can't open lib" in record.text:
        return ConnectionFailedError, _DRIVER
    if at_login and record.state in {"HYT00", "HYT01", "42000", "HY000"}:
        return ConnectionFailedError, UNREACHABLE
    for length in (5, 2):
        if meaning := _STATES.get(record.state[:length]):
            return meaning
    return ConsoleError, ""


_TRUST = (
    "Install the certificate of the server's authority here, or, where the network is safe, "
    "add TrustServerCertificate=yes to the URL."
)
_CHECK_FIRST = "Check before you try again: dbq-console status"
_DRIVER = "Check the driver and the data source that the URL names: odbcinst -q -d, odbcinst -q -s"
_LOGIN = "Check user and password, and that the login may use this database."
_DATABASE = "Check the database's name in the URL, and that the login may use it."
_LATER = "The server is starting, stopping or paused; try again in a moment."
_OVERLOADED = "The server is short of resources or failing over; nothing was changed. Try again."
_AGAIN = "Nothing was changed. Try again."
_TIMED_OUT = "The statement time-out ended it; nothing was changed. Try again."
_CHANGED = "The queue was dropped or changed; check with: dbq-console status"
_OTHER_NAME = "Choose another name for the queue."
_GRANT = "Ask the owner of the queue for the grant, or use another login."
_POLICY = (
    "A security policy of that table forbids this row's change; nothing was changed. Use a login "
    "that its function permits, or ask whoever may ALTER ANY SECURITY POLICY."
)
_FREE = "Free the resource that the server is short of, then try again."
_ISOLATION = "Call it at READ COMMITTED, as the console does."
_PAYLOAD = "The payload is not valid for the queue's payload type."
_READ_ONLY = "This database accepts no writes; connect to the one that does."
_OWNER = (
    "Upgrade the queue: its procedures then run as dbq_owner, a user of the database. If that "
    "does not help, the database's owner is gone: ALTER AUTHORIZATION ON DATABASE::... TO a login."
)
_REPLICA = "This replica does not allow that; connect to the primary, or see ApplicationIntent."
_BROKEN = "The server found damage on its disk: run DBCC CHECKDB, and check its error log."

_OURS: dict[int, type[ConsoleError]] = {51002: UsageError, 51003: BusyError, 51004: RefusedError}
"""Errors that our procedures throw, as `what|why|next`."""

_CONSEQUENCES = {3621, 1750, 5701, 5703, 8180}
"""Statement terminated, see previous errors, database and language changed, not prepared."""

_UNDONE = {1205, 3902, 3930, 3960, 3998}
"""Errors of a commit after which certainly nothing was done."""

_CERTIFICATE = ("certificate", "SSL Provider")

_KEY = re.compile(r" The duplicate key value is \(.*\)\.?\Z", re.DOTALL)
_OWN_ID = re.compile(r"\([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\)")
_VALUE = re.compile(r"value '.*'", re.DOTALL)
_TRUNCATED = re.compile(r" Truncated value: '.*'\.?\Z", re.DOTALL)
_DATA: dict[int, tuple[re.Pattern[str], str]] = {
    2627: (_KEY, ""),
    2601: (_KEY, ""),
    1505: (_KEY, ""),
    244: (_VALUE, "value"),
    245: (_VALUE, "value"),
    248: (_VALUE, "value"),
    2628: (_TRUNCATED, ""),
}
"""Errors whose text repeats a row's values, and how to remove those."""

_MEANINGS: dict[int, tuple[type[ConsoleError], str]] = {
    **dict.fromkeys(
        # Login failed, untrusted domain, single user, disabled, password expired or locked out;
        # Azure: no such server, address not allowed, no public access.
        (18456, 18452, 18461, 18470, 18486, 18487, 18488, 40532, 40615, 47073),
        (ConnectionFailedError, _LOGIN),
    ),
    **dict.fromkeys((911, 916, 4060, 4064), (ConnectionFailedError, _DATABASE)),
    # Paused, stopping, starting, recovering, killed, offline, in single-user mode, in transition.
    **dict.fromkeys(
        (596, 921, 922, 924, 927, 942, 952, 6005, 17142, 17187, 17809, 18401, 42108, 42109),
        (ConnectionFailedError, _LATER),
    ),
    **dict.fromkeys((976, 978, 982, 983), (ConnectionFailedError, _REPLICA)),
    # A deadlock; a conversation that ended meanwhile; an update conflict of a snapshot;
    # the equivalents of both for memory-optimized tables.
    **dict.fromkeys((1205, 8426, 3960, 41301, 41302, 41305, 41325), (TransientError, _AGAIN)),
    # Azure: not available, service error, busy, too many requests, login to a stale replica,
    # session limits, elastic pool, a database in transition.
    **dict.fromkeys(
        (
            *(4221, 10928, 10929, 10936, 40020, 40143, 40166, 40197, 40501, 40540, 40613),
            *(49918, 49919, 49920),
        ),
        (TransientError, _OVERLOADED),
    ),
    6106: (UsageError, "That session has ended; nothing was done."),
    1222: (BusyError, LOCKED),
    # No locks left, memory not granted in time, data moved under a scan without locks.
    **dict.fromkeys((601, 1204, 8645, 8651), (BusyError, _AGAIN)),
    # Out of memory, or of room in a file group, the log, tempdb; Azure's size limit.
    **dict.fromkeys(
        (701, 802, 1101, 1105, 3967, 9002, 40544, 40551, 40552, 40553), (ConsoleError, _FREE)
    ),
    **dict.fromkeys((823, 824, 825, 829), (ConsoleError, _BROKEN)),
    # The server had ended the transaction: later statements ran without one.
    **dict.fromkeys((3902, 3903), (ConsoleError, _CHECK_FIRST)),
    # It can only be rolled back.
    **dict.fromkeys((3930, 3998), (ConsoleError, _AGAIN)),
    **dict.fromkeys((650, 3951, 3952), (ConsoleError, _ISOLATION)),
    # No such object, procedure, column, parameter.
    **dict.fromkeys(
        (201, 207, 208, 213, 2812, 3701, 4902, 8144, 8145, 8146, 9401), (ConsoleError, _CHANGED)
    ),
    2760: (UsageError, "Create the schema first, or name another with --schema."),
    **dict.fromkeys((1913, 2705, 2714, 2759, 15025), (UsageError, _OTHER_NAME)),
    515: (UsageError, "A message needs a payload."),
    # Conversions, overflows, truncation, invalid JSON.
    **dict.fromkeys(
        (241, 242, 244, 245, 248, 257, 2628, 8114, 8115, 8152, 8169, 13608, 13609),
        (UsageError, _PAYLOAD),
    ),
    # Permission denied: on an object, a column, a statement, a state; or not visible without one.
    **dict.fromkeys(
        (229, 230, 262, 297, 300, 371, 1088, 6004, 6102, 15151, 15247), (RefusedError, _GRANT)
    ),
    # A block predicate of a security policy.
    33504: (RefusedError, _POLICY),
    # A procedure's EXECUTE AS names a user that does not exist, as after a restore.
    15517: (RefusedError, _OWNER),
    **dict.fromkeys((3906, 3908), (ReadOnlyError, _READ_ONLY)),
    9617: (RefusedError, "Enable the queue again with: dbq-console requeue"),
}

_STATES: dict[str, tuple[type[ConsoleError], str]] = {
    "08": (ConnectionFailedError, UNREACHABLE),
    "28": (ConnectionFailedError, _LOGIN),
    "IM": (ConnectionFailedError, _DRIVER),
    "01000": (ConnectionFailedError, UNREACHABLE),
    "HYT01": (ConnectionFailedError, UNREACHABLE),
    "HYT00": (TooSlowError, _TIMED_OUT),
    "HY008": (TooSlowError, _TIMED_OUT),
    "40": (TransientError, _AGAIN),
    "42S02": (ConsoleError, _CHANGED),
    "42S22": (ConsoleError, _CHANGED),
    "42S01": (UsageError, _OTHER_NAME),
    **dict.fromkeys(("22001", "22003", "22007", "22018"), (UsageError, _PAYLOAD)),
    "23": (ConsoleError, behind_sequence("")),
}
"""By SQLSTATE, for unknown error numbers."""
