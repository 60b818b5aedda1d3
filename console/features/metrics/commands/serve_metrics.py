"""Serve figures and findings as OpenMetrics until Ctrl-C or SIGTERM.

For the connection given, those of --group or --fleet, else all configured ones; always
read-only. Scrapes do not query the database: a sampler does, at its interval (up to 5 times
less often while nothing changes), and the doctor once a minute;
dbq_last_sample_timestamp_seconds says when. Unknown figures have no series, and a queue that
cannot be read has dbq_queue_up 0.

There is no encryption and no password: addresses that are not loopback require --anywhere.
--print-alerts needs no connection and uses the configured limits. The dashboard of
--print-dashboard can be imported into Grafana as it is; connections and queues are selected
there.

\b
Examples:
  dbq-console serve-metrics --profile orders --listen 127.0.0.1:9464
  dbq-console serve-metrics --print-alerts > dbq-alerts.yml
  dbq-console serve-metrics --print-dashboard > dbq-dashboard.json
"""

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from console.cli.command import FLEET, GROUP
from console.cli.context import Call
from console.cli.services import PRINT_UNIT, run_until, unit
from console.cli.several import profiles_of
from console.cli.streams import narrate, stop_requested
from console.command_line import CommandLineValues
from console.config import Profile
from console.errors import UsageError
from console.monitor.limits import DEFAULTS
from console.rights import Rights
from console.verbs.command import Command
from console.verbs.parameters import DURATION, Parameter

if TYPE_CHECKING:
    from console.features.metrics.exporter import Watch

LISTEN = "127.0.0.1:9464"
_LEAST_SECONDS = 0.1


def _run(  # noqa: PLR0913  # the options of the command line, by name
    call: Call,
    *,
    listen: str,
    anywhere: bool,
    interval: float,
    print_alerts: bool,
    print_dashboard: bool,
    print_unit: bool,
    group: str | None,
    fleet: str | None,
) -> None:
    if call.schema is not None:
        raise UsageError("serve-metrics serves all schemas: it does not accept --schema.")
    if call.command_line.rights not in (None, Rights.READ_ONLY.word):
        raise UsageError("serve-metrics only reads: it accepts no --rights but read-only.")
    if interval < _LEAST_SECONDS:
        raise UsageError("--interval must be 100ms or more.")
    if sum((print_alerts, print_dashboard, print_unit)) > 1:
        raise UsageError("--print-alerts, --print-dashboard and --print-unit exclude each other.")
    if print_unit:
        text = unit(call, "serve-metrics", "serves figures and findings of queues")
        call.answer({"unit": text}, text.splitlines())
        return
    if print_dashboard:
        from console.features.metrics.ready_made import dashboard  # noqa: PLC0415

        model = dashboard()
        call.answer({"dashboard": model}, json.dumps(model, indent=2).splitlines())
        return
    command_line = replace(call.command_line, rights=Rights.READ_ONLY.word)
    if print_alerts:
        _print_alerts(call, group, fleet, command_line, interval)
        return
    profiles = profiles_of(call, group, fleet, command_line)
    from console.features.metrics.exporter import Exporter, address, is_loopback  # noqa: PLC0415

    host, port = address(listen, anywhere=anywhere)
    with stop_requested() as stop:
        exporter = Exporter([_watch(profile, interval) for profile in profiles], host, port)
        try:
            exporter.start()
            labels = [profile.label for profile in profiles]
            call.answer({"url": exporter.url, "connections": labels}, [exporter.url])
            narrate(f"Serving metrics of {', '.join(labels)}.")
            if not is_loopback(host):
                narrate(
                    "Anyone who reaches this address can read them: no password, no encryption."
                )
            run_until(stop)
            narrate("Stopping.")
        finally:
            exporter.stop()


def _watch(profile: Profile, interval_seconds: float) -> "Watch":
    from console.features.metrics.exporter import Watch  # noqa: PLC0415

    return Watch(
        profile.open(),
        interval_seconds=interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        thresholds_of=profile.thresholds,
    )


def _print_alerts(
    call: Call,
    group: str | None,
    fleet: str | None,
    command_line: CommandLineValues,
    interval_seconds: float,
) -> None:
    from console.features.metrics.ready_made import Limited, alerts  # noqa: PLC0415

    configured = bool(call.configuration.names or call.profile)
    profiles = profiles_of(call, group, fleet, command_line) if configured or group or fleet else []
    limited = [
        Limited(
            profile.label,
            profile.thresholds(),
            {name: profile.thresholds(name) for name in profile.queues},
        )
        for profile in profiles
    ] or [Limited(None, DEFAULTS, {})]
    lines = alerts(limited, interval_seconds)
    call.answer({"alerts": "".join(f"{line}\n" for line in lines)}, lines)


_PARAMETERS = (
    Parameter("listen", default=LISTEN, metavar="HOST:PORT"),
    Parameter("anywhere", "Allow --listen on an address that is not loopback.", is_flag=True),
    Parameter("interval", "Time between two samples.", DURATION, default="5s", metavar="T"),
    Parameter("print-alerts", "Print alert rules for Prometheus and exit.", is_flag=True),
    Parameter("print-dashboard", "Print a dashboard for Grafana and exit.", is_flag=True),
    PRINT_UNIT,
    GROUP,
    FLEET,
)
COMMAND = Command("serve-metrics", _run, __doc__, _PARAMETERS)
