"""What a connection may do."""

from enum import IntEnum


class Rights(IntEnum):
    """What a connection may do; each includes those before it."""

    READ_ONLY = 0
    OPERATOR = 1
    ADMIN = 2

    @property
    def word(self) -> str:
        """As it is written on the command line and in the configuration."""
        return self.name.lower().replace("_", "-")


BY_WORD = {rights.word: rights for rights in Rights}
