"""The one family of errors a user sees: what could not be done, why, and what to do next."""


class ConsoleError(Exception):
    """An error meant for the operator. `exit_status` follows DESIGN section 9."""

    exit_status = 2

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        """The whole message: one line for each of the three parts that is there."""
        return "\n".join(part for part in (self.what, self.why, self.next_step) if part)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep everything when the error crosses from a worker process."""
        return (_rebuild, (type(self), self.what, self.why, self.next_step), vars(self))


def _rebuild(kind: type[ConsoleError], what: str, why: str, next_step: str) -> ConsoleError:
    return kind(what, why=why, next_step=next_step)


class UsageError(ConsoleError):
    """Wrong use: an unknown name, a bad value, something that is taken. Exit 2."""


class ConnectionFailedError(ConsoleError):
    """The database cannot be reached, or the connection was lost. Exit 3."""

    exit_status = 3


class InDoubtError(ConnectionFailedError):
    """The connection was lost with the answer to a commit: it may have happened."""


class RefusedError(ConsoleError):
    """Refused for safety or for lack of rights, or only planned. Exit 4."""

    exit_status = 4


class BusyError(RefusedError):
    """A lock was not to be had in time; nothing was changed and it may be tried again."""


class TooSlowError(BusyError):
    """It took longer than its time-out; nothing was changed."""


class TransientError(BusyError):
    """The server undid the whole transaction by itself (a deadlock, a failover): running it again
    is the remedy."""


def interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that is the error, or in whose wake it came (a driver cut off in a call)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error
