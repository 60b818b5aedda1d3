"""What runs beside a recorder: the thread that repairs."""

from collections.abc import Callable

from console.config import Configuration, Profile
from console.engines import Database
from console.features.history.recording import Companion
from console.features.unattended.policy import Policy
from console.features.unattended.repairer import Repairer, RepairThread


def companion(
    configuration: Configuration,  # noqa: ARG001  # as every feature's
    profile: Profile,
    database: Database,
    on_message: Callable[[str], None],
) -> Companion:
    repairer = Repairer(
        database,
        lambda queue: Policy.of_settings(profile.settings_of(queue)),
        rights=profile.rights,
        thresholds_of=profile.thresholds,
    )
    return RepairThread(repairer, on_message)
