"""What all ways of sending a notification share."""

LOCAL = {"localhost", "127.0.0.1", "::1"}
"""Hosts to which a secret may be sent without encryption."""


class NotSentError(Exception):
    """The receiver has not accepted it; the text says why, without secrets."""

    def __init__(self, why: str, *, reached: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.reached = reached
        """Whether the receiver has answered with a refusal."""
        self.retry_after = retry_after
