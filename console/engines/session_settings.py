"""The settings that every statement relies on, in a session of PostgreSQL.

They are startup options of the connection and are read back, since a pooler drops or refuses them.
Where they do not hold, each transaction sets them for itself: a session-level SET behind a pooler
would be left to the next client of that server session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from console.engines.product import Timeouts

_FIXED: Mapping[str, str] = {
    "standard_conforming_strings": "on",
    # An adopted table may have UTC times without a zone.
    "timezone": "UTC",
    "datestyle": "ISO",
    # The only one that the driver can read.
    "intervalstyle": "postgres",
    # Nothing that others created is found by a name without its schema.
    "search_path": "pg_catalog, pg_temp",
    "default_transaction_isolation": "read committed",
}
"""Not to be overridden: another value makes times, texts or names mean something else."""

_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
READ_BACK = (*_TIMEOUTS, *_FIXED)
"""The settings that every connection has, and that are read back after it was made."""

_LISTS = {"search_path"}
"""Settings whose value is a list of names: quoted as a whole it would be one name."""

_IDLE_MILLISECONDS = "600000"
_WORDS = re.compile(r"(?:[^\s\\]|\\.)+", re.DOTALL)
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d)?\s*")


def read_options(text: str) -> tuple[dict[str, str], list[str]]:
    """The settings in libpq's `options`, and the words that set nothing.

    As the server splits them: at white space, a backslash takes the next character as it is.
    """
    words = [re.sub(r"\\(.)", r"\1", word) for word in _WORDS.findall(text)]
    settings: dict[str, str] = {}
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        given = word
        if word == "-c":
            given = next(remaining, "")
        elif word.startswith(("-c", "--")):
            given = word[2:]
        name, equals, value = given.partition("=")
        if given is word or not equals:
            others.append(word)
        else:
            settings[name.strip().replace("-", "_").lower()] = value.strip()
    return settings, others


def milliseconds(value: str) -> float | None:
    """A time setting without a unit is in milliseconds. None: the server alone understands it."""
    match = _DURATION.fullmatch(value.strip("'"))
    return float(match[1]) * _MILLISECONDS[match[2] or "ms"] if match else None


@dataclass(frozen=True)
class SessionSettings:
    """Of all connections by one URL."""

    timeouts: Timeouts
    options: str
    """libpq's, from the URL: they win over our time-outs, not over what is fixed."""

    @cached_property
    def _read(self) -> tuple[dict[str, str], list[str]]:
        return read_options(self.options)

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Name -> value, in lower case."""
        return {
            "statement_timeout": f"{round(self.timeouts.statement_seconds * 1000)}",
            "lock_timeout": f"{round(self.timeouts.lock_seconds * 1000)}",
            "idle_in_transaction_session_timeout": _IDLE_MILLISECONDS,
            "jit": "off",  # compiling takes longer than any statement of ours that is sent often
            "row_security": "off",  # refused is not zero: a policy hides rows without a word
            **self._read[0],
            # Else the planner would run what a constraint of an adopted table calls.
            "constraint_exclusion": "partition",
            # What the catalog prints is compared with what is shipped.
            "quote_all_identifiers": "off",
            **_FIXED,
        }

    @property
    def others(self) -> list[str]:
        """Words of the URL's options that are no settings: only a server can be given those."""
        return self._read[1]

    @property
    def statement_seconds(self) -> float:
        """The statement time-out in force; 0: no limit."""
        found = milliseconds(self.values["statement_timeout"])
        return self.timeouts.statement_seconds if found is None else found / 1000

    @property
    def startup(self) -> str:
        """libpq's `options`."""
        ours = (f"-c {name}={_escaped(value)}" for name, value in self.values.items())
        return " ".join((*map(_escaped, self.others), *ours))

    @cached_property
    def set_local(self) -> bytes:
        """To follow BEGIN, in the same message."""
        from psycopg.sql import Literal  # noqa: PLC0415  # a verb imports what it uses

        return b"".join(
            b"; SET LOCAL "
            + name.encode()
            + b" = "
            + (value.encode() if name in _LISTS else Literal(value).as_bytes(None))
            for name, value in self.values.items()
        )

    def hold(self, found: Mapping[str, str]) -> bool:
        """Whether a session has them; `found` is what it has of `READ_BACK`, by name.

        Whoever drops or refuses one of the URL's other options does so with these too.
        """
        return all(_same(self.values[name], found[name]) for name in READ_BACK)


def _escaped(word: str) -> str:
    return re.sub(r"([\s\\])", r"\\\1", word)


def _same(wanted: str, found: str) -> bool:
    """The server writes values its own way: `60000` as `1min`, `ISO` as `ISO, MDY`."""
    wanted, found = wanted.casefold(), found.casefold()
    if wanted == found or found.startswith(f"{wanted},"):
        return True
    time = milliseconds(wanted)
    return time is not None and time == milliseconds(found)
