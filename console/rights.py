"""The rights of a connection, and what the server would allow its login."""

from dataclasses import dataclass
from enum import IntEnum


class Rights(IntEnum):
    """The rights of a connection; each includes those before it."""

    READ_ONLY = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


BY_WORD = {rights.word: rights for rights in Rights}


@dataclass(frozen=True)
class Login:
    """What the server allows a login besides reading, on any of the queues."""

    superuser: bool
    owns: bool
    """Tables of queues, which an owner may alter and drop."""
    writes: bool
    calls: bool
    """Push or pop, successfully."""
    ends_sessions: bool
    maintains: bool
    creates: bool

    @property
    def can(self) -> tuple[str, ...]:
        """As in `status --json`; empty: it can only read."""
        return tuple(word for name, word in _WORDS.items() if getattr(self, name))


_WORDS = {
    "superuser": "superuser",
    "owns": "alter",
    "writes": "write",
    "calls": "push and pop",
    "ends_sessions": "end sessions",
    "maintains": "maintain",
    "creates": "create",
}


@dataclass(frozen=True)
class ConnectionRights:
    """The rights of a connection, and whether the server enforces them."""

    rights: Rights
    login: Login | None = None
    """None: unknown (yet)."""
    transactions: bool = True
    """Whether the engine has read-only transactions."""

    @property
    def enforced(self) -> bool | None:
        """Whether the server itself refuses what read-only forbids. None: unknown, or nothing is
        forbidden."""
        if self.login is None or self.rights is not Rights.READ_ONLY:
            return None
        return not self.login.can

    @property
    def words(self) -> str:
        word = self.rights.word
        if self.login is not None and self.rights > Rights.READ_ONLY and not self.login.can:
            return f"{word}, but the login can only read"
        if self.enforced is not False:
            return word
        return f"{word} by this session only" if self.transactions else f"{word}, {_NOT_ENFORCED}"

    def as_json(self, name: str) -> dict[str, object]:
        return {
            "name": name,
            "rights": self.rights.word,
            "enforced": self.enforced,
            "can": None if self.login is None else list(self.login.can),
        }


_NOT_ENFORCED = "not enforced by the server"
