"""Settings of the database that its queues do not like."""

from collections.abc import Iterator

from console.doctor.context import CheckContext, CheckGroup
from console.doctor.finding import Code, Finding
from console.monitor.limits import Severity

_SIMPLE = "ALTER DATABASE CURRENT SET PARAMETERIZATION SIMPLE"
FORCED = Code(
    "parameterization_forced",
    Severity.NOTE,
    "the database has PARAMETERIZATION FORCED (SQL Server)",
    judgement=f"{_SIMPLE}, unless another program of this database needs it: its owner knows",
)


def _check_parameterization(context: CheckContext) -> Iterator[Finding]:
    if context.has("parameterization") and context.is_true("parameterization"):
        yield Finding(
            FORCED,
            "the database has PARAMETERIZATION FORCED",
            evidence={"is_parameterization_forced": True},
            cause="somebody set it for the whole database",
            consequence="constants of statements become parameters: samples and verbs get plans "
            "for any value, and may not use the filtered indexes of a queue",
        )


CHECKS = CheckGroup((FORCED,), {"the settings of the database": _check_parameterization})
