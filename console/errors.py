"""The errors that users see: what could not be done, why, and what to do next."""


class ConsoleError(Exception):
    """An error for the operator, with the exit status of the command line.

    Of this class itself: the server, a file or this machine failed. Exit 3.
    """

    exit_status = 3
    of_a_row = False
    """Whether a value of one row is the cause: without that row, the same may succeed."""

    def __init__(self, what: str, *, why: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next_step = next_step

    def __str__(self) -> str:
        """One line for each part present."""
        return "\n".join(part for part in (self.what, self.why, self.next_step) if part)

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all parts when pickled by a worker process."""
        return (_rebuild, (type(self), self.what, self.why, self.next_step), vars(self))


def _rebuild(kind: type[ConsoleError], what: str, why: str, next_step: str) -> ConsoleError:
    return kind(what, why=why, next_step=next_step)


class UsageError(ConsoleError):
    """Wrong usage: an unknown name, a bad value, a name already taken. Exit 2."""

    exit_status = 2

    def __init__(self, what: str, *, why: str = "", next_step: str = "", about: str = "") -> None:
        """`about`: the field of a form that is wrong, if it is known."""
        super().__init__(what, why=why, next_step=next_step)
        self.about = about


class ConnectionFailedError(ConsoleError):
    """The database cannot be reached, or the connection was lost. Exit 3."""


class InDoubtError(ConnectionFailedError):
    """The connection was lost during a commit, which may have happened."""


class RefusedError(ConsoleError):
    """Refused for safety or for lack of rights, or only planned. Exit 4."""

    exit_status = 4


class BusyError(RefusedError):
    """A lock was not available in time; nothing was changed, and a retry may succeed."""


class ReadOnlyError(RefusedError):
    """The server refuses writes: a standby, or a setting; nothing was changed."""


class TooSlowError(BusyError):
    """A time-out expired; nothing was changed."""


class TransientError(BusyError):
    """The server rolled back the transaction (a deadlock, a failover): run it again."""


def interrupt_cause(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that is the error or caused it (in a driver's call, for example)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error
