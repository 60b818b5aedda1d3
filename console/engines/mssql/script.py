"""Batches as one script for sqlcmd, SSMS and whatever else ends a batch at `GO`."""

import re
from collections.abc import Sequence

from console.errors import UsageError

_END = re.compile(r"^GO$", re.MULTILINE)
# What sqlcmd or SSMS take for their own, in a name or a literal as well: the end of a batch, a
# command, a variable.
_COMMAND = re.compile(r"[\r\n]\s*(?:GO\b|:|!!)|\$\(", re.IGNORECASE)
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|\[(?:[^\]]|\]\])*\]|'(?:[^']|'')*'|"(?:[^"]|"")*\"""", re.DOTALL
)

_FIRST = """\
-- For sqlcmd (-f 65001 where this file is UTF-8), SSMS and other clients that know GO.
-- After an error they go on with the next batch; here that runs nothing any more.
SET NOCOUNT ON;
SET XACT_ABORT ON;
SET IMPLICIT_TRANSACTIONS OFF;
SET NUMERIC_ROUNDABORT OFF;
SET ANSI_NULLS, ANSI_PADDING, ANSI_WARNINGS, ARITHABORT, CONCAT_NULL_YIELDS_NULL,
    QUOTED_IDENTIFIER ON;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
BEGIN TRANSACTION;"""

_GUARD = "IF @@ERROR <> 0 OR @@TRANCOUNT = 0 SET NOEXEC ON;"
"""XACT_ABORT rolls back after errors of running, but not after a batch that does not compile."""

_LAST = """\
DECLARE @done bit;
-- Under NOEXEC neither this commit nor this assignment runs.
COMMIT TRANSACTION;
SET @done = 1;
SET NOEXEC OFF;
IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
IF @done = 1 PRINT N'Done.';
ELSE RAISERROR(N'Nothing was changed; the first error above says why.', 16, 1);"""


def batches(text: str) -> list[str]:
    """The batches of a rendered script; UsageError where a name in it would be a command."""
    for token in _TOKEN.finditer(text):
        if token[0][0] in "['\"" and _COMMAND.search(token[0]):
            raise UsageError(
                "This cannot be printed as a script.",
                why="A name in it has what sqlcmd takes for a command: $(, or a line GO, : or !!.",
                next_step="Install it over a connection, or choose another name.",
            )
    return [batch.strip("\n") for batch in _END.split(text) if batch.strip()]


def as_script(head: str, pieces: Sequence[str]) -> str:
    """One transaction over all batches: all of it or nothing, whatever fails on the way."""
    parts = [f"{head}\n{_FIRST}"]
    for piece in pieces:
        for batch in batches(piece):
            parts += [batch, _GUARD]
    parts.append(_LAST)
    return "".join(f"{part}\nGO\n\n" for part in parts).rstrip("\n") + "\n"
