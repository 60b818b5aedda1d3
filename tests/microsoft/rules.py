"""What the model takes for the engine's rules, and who says so.

Where a rule is applied, `rule:` names it. Nothing here was seen on a server by this project.
"""

from dataclasses import dataclass

NO_SOURCE = "no source"
_MANUAL = "manual: "
"""Microsoft's manual, the page of that name."""
_PROBED = "probed: RyanLamansky/sql-server-simulator docs/claude/"
"""On SQL Server 2025, and written down there; or, with the name of another repository, there."""


@dataclass(frozen=True)
class Rule:
    name: str
    says: str
    source: str


RULES = (
    Rule(
        "read-committed",
        "a read waits for a row that another transaction has changed, and for no update lock",
        _PROBED + "locking.md, Granularity dispatch",
    ),
    Rule(
        "readpast",
        "a row whose lock would have to be waited for is skipped, also where UPDLOCK is asked for",
        _PROBED + "locking.md, Granularity dispatch",
    ),
    Rule("nolock", "a read sees what is not committed", _PROBED + "locking.md"),
    Rule(
        "update-lock",
        "a write, or UPDLOCK, locks each row before it judges it, one session at a time, to the end"
        " of the transaction",
        _PROBED + "locking.md, Granularity dispatch",
    ),
    Rule(
        "released-unmatched",
        "the update lock of a row that does not match is released at once",
        _PROBED + "locking.md (UPDLOCK of a rejected row); "
        "for UPDATE and DELETE " + _MANUAL + "Transaction Locking Guide",
    ),
    Rule(
        "repeatable-read",
        "WITH (REPEATABLEREAD) keeps its shared lock to the end of the transaction",
        _PROBED + "locking.md",
    ),
    Rule(
        "table-lock",
        "TABLOCKX, or XLOCK on the only row, is not granted beside another session's lock",
        _PROBED + "locking.md, Lock modes",
    ),
    Rule(
        "range",
        "UPDLOCK, HOLDLOCK lock the gaps of an index up to each key that is read; no other session "
        "inserts into them, and only one holds the end",
        _PROBED + "locking.md, Lock modes (RangeS-U, RangeI-N)",
    ),
    Rule(
        "ghost",
        "what a transaction deleted or changed stays in its place in the index, locked, until it "
        "ends, also what it had inserted itself",
        _MANUAL + "Ghost Record Cleanup Process Guide; for its own rows " + NO_SOURCE,
    ),
    Rule(
        "row-goal",
        "TOP with ORDER BY along an index locks no row behind the last one that it returns",
        NO_SOURCE,
    ),
    Rule("heap-order", "a heap's rows are met in any order", _MANUAL + "Heaps"),
    Rule(
        "deadlock",
        "of sessions that wait in a circle one gets 1205, and its transaction is rolled back; here "
        "the one that closes it, on a server the cheapest",
        _PROBED + "locking.md; " + _MANUAL + "Deadlocks Guide",
    ),
    Rule(
        "statement",
        "a statement that fails has done nothing, and one outside a transaction is one",
        _PROBED + "transactions.md, Statement-level atomicity",
    ),
    Rule(
        "nesting",
        "only the outermost COMMIT commits; ROLLBACK undoes all levels",
        _PROBED + "transactions.md, Explicit txs",
    ),
    Rule(
        "xact-abort",
        "under XACT_ABORT an error, THROW too, rolls the whole transaction back",
        _PROBED + "transactions.md, SET XACT_ABORT",
    ),
    Rule(
        "set-in-procedure",
        "XACT_ABORT set in a procedure ends with it, and holds in what it calls",
        _PROBED + "transactions.md, Scoping",
    ),
    Rule(
        "attention",
        "a client's cancel rolls back under XACT_ABORT, else the transaction stays open",
        _PROBED + "transactions.md; mirek/msduck reference/attention.json",
    ),
    Rule("attention-in-statement", "the statement that a cancel meets has done nothing", NO_SOURCE),
    Rule(
        "application-lock",
        "sp_getapplock waits, and a circle through it is -3 without an error; the lock ends with "
        "the transaction, or where it is released",
        _PROBED + "app-locks.md",
    ),
    Rule(
        "drawn-stays",
        "what is drawn from a sequence or an identity stays drawn after a rollback",
        _MANUAL + "Sequence Numbers; identities " + _PROBED + "transactions.md",
    ),
    Rule(
        "identity",
        "a number is drawn before its row is inserted, in the order of INSERT ... SELECT ... ORDER "
        "BY; others may insert between",
        _MANUAL + "INSERT, Remarks (the order); the gap " + NO_SOURCE,
    ),
    Rule(
        "cache",
        "a sequence and an identity write down the end of what they cache, and no more",
        _MANUAL + "CREATE SEQUENCE, Cache management",
    ),
    Rule(
        "fail-over",
        "open transactions are rolled back, sessions are gone, the rest of each cache is skipped",
        _MANUAL + "CREATE SEQUENCE (a crash); a fail-over " + NO_SOURCE,
    ),
    Rule(
        "restart",
        "after RESTART WITH n the next draw gives n",
        _PROBED + "sequences.md, Catalog state",
    ),
    Rule(
        "conversation",
        "SEND locks its conversation, RECEIVE the one it takes from, to the end of the transaction;"
        " messages are there when it commits, in order",
        _MANUAL + "SEND; RECEIVE",
    ),
    Rule(
        "definition",
        "OBJECT_DEFINITION has CREATE where the text said ALTER or CREATE OR ALTER",
        NO_SOURCE,
    ),
)
