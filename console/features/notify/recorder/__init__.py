"""What runs beside a recorder: the threads that send."""

from collections.abc import Callable

from console.config import Configuration, Profile
from console.engines import Database
from console.features.history.recording import Companion
from console.features.notify.notifier import Notifier
from console.features.notify.receivers import targets
from console.features.notify.targets import Source


def companion(
    configuration: Configuration,
    profile: Profile,
    database: Database,
    on_message: Callable[[str], None],
) -> Companion:
    """It notifies the receivers of this connection."""
    source = Source(
        database.label,
        profile.group,
        production=profile.production,
        runbook_of=lambda queue, code: profile.thresholds(queue).runbooks.get(code, ""),
    )
    return Notifier(database, targets(configuration, profile), source, on_message)
