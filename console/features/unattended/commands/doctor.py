"""Prove what is wrong with queues, most severe first, and show the repairs.

It replaces the core's command, which it runs without --unattended.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from console.cli.commands import doctor
from console.cli.context import Call
from console.cli.streams import narrate
from console.errors import UsageError
from console.rights import Rights
from console.verbs.command import Params
from console.verbs.parameters import Parameter
from console.views.doctor import VIEW
from console.views.view import Display

_NOT_WITH = ("fix", "code", "subscriber", "all_codes", "yes", "dry_run")


def _run(call: Call, *, unattended: bool, **values: Any) -> None:
    if unattended:
        _unattended(call, **values)
        return
    assert doctor.COMMAND.run is not None  # noqa: S101  # it is a command of its own
    doctor.COMMAND.run(call, **values)


def _unattended(call: Call, names: Sequence[str], idle_for: float, **others: Any) -> None:
    if given := [name for name in _NOT_WITH if others[name]]:
        other = given[0].removeprefix("all_").replace("_", "-")
        raise UsageError(f"--unattended and --{other} exclude each other.")
    from console.features.unattended.policy import Policy  # noqa: PLC0415
    from console.features.unattended.repairer import Repairer, run_once  # noqa: PLC0415

    database = call.database("doctor --unattended")
    queues = [call.find(database, name, any_design=True) for name in names] or call.queues(database)
    repairer = Repairer(
        database,
        lambda queue: Policy.of_settings(call.settings_of(queue)),
        rights=call.rights,
        thresholds_of=call.thresholds,
    )
    examine = doctor.examination(call, database, queues, idle_for)
    diagnoses, attempts, remains = run_once(repairer, examine)
    for attempt in attempts:
        for text in attempt.texts:
            narrate(text if attempt.repaired else f"not repaired: {text}")
    if repairer.held_by:
        narrate(f"Nothing was repaired here: that is done by {repairer.held_by}.")
    repairs = [text for attempt in attempts if attempt.repaired for text in attempt.texts]
    left = [text for attempt in attempts if not attempt.repaired for text in attempt.texts]
    display = Display(call.zone, datetime.now(UTC))
    data = {**VIEW.as_json(diagnoses), "repairs": repairs, "not_repaired": left}
    call.answer(data, [*VIEW.lines(diagnoses, display)])
    healthy = all(diagnosis.healthy for diagnosis in diagnoses)
    sys.exit(0 if healthy and not remains else 1)


def _right(values: Params) -> Rights:
    return Rights.OPERATOR if values["unattended"] else doctor.COMMAND.right(values)


_UNATTENDED = Parameter(
    "unattended",
    "Repair what the policy of the configuration allows without a person, for cron: each proven "
    "twice, 10 s apart (dbq-console help unattended).",
    is_flag=True,
)
COMMAND = replace(
    doctor.COMMAND, run=_run, parameters=(*doctor.COMMAND.parameters, _UNATTENDED), right=_right
)
