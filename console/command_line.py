"""The connection options of the command line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandLineValues:
    """Empty means not given."""

    url: str | None = None
    profile: str | None = None
    rights: str | None = None

    def __repr__(self) -> str:
        """Without the URL."""
        return f"CommandLineValues(profile={self.profile!r}, rights={self.rights!r})"
