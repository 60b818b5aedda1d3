"""The verb `serve-metrics`: figures and findings for Prometheus."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from console.cli.context import DURATION, Call, Rights, group_option, verb_options
from console.cli.interrupts import asked_to_end
from console.cli.streams import narrate
from console.config import Profile, Said
from console.errors import UsageError
from console.monitor.limits import DEFAULTS

if TYPE_CHECKING:
    from console.metrics.exporter import Watch

LISTEN = "127.0.0.1:9464"
_LEAST_SECONDS = 0.1


@click.command(name="serve-metrics")
@click.option("--listen", default=LISTEN, show_default=True, metavar="HOST:PORT")
@click.option("--anywhere", is_flag=True, help="Let --listen name more than a loopback address.")
@click.option(
    "--interval", type=DURATION, default=5.0, metavar="T", help="Between two looks.  [default: 5s]"
)
@click.option("--print-alerts", is_flag=True, help="Alert rules for Prometheus, and nothing else.")
@group_option
@verb_options
def serve_metrics(
    call: Call,
    listen: str,
    anywhere: bool,
    interval: float,
    print_alerts: bool,
    group: str | None,
) -> None:
    """Serve figures and findings in OpenMetrics until Ctrl-C or SIGTERM.

    Of the connection that is named, those of --group, else all that are configured; always
    read-only. A scrape asks no database: a sampler does, at its interval (up to 5 times less often
    while nothing changes), and the doctor once a minute; dbq_last_sample_timestamp_seconds says
    when. What is not known has no series, and a queue that cannot be read has dbq_queue_up 0.

    Nothing is encrypted and no password is asked: other than loopback addresses want --anywhere.
    --print-alerts needs no connection; its limits are those of the configuration.

    \b
    Examples:
      dbq-console serve-metrics --profile orders --listen 127.0.0.1:9464
      dbq-console serve-metrics --print-alerts > dbq-alerts.yml
    """
    if call.schema is not None:
        raise UsageError("serve-metrics serves all schemas: --schema does not go with it.")
    if call.said.rights not in (None, Rights.READ_ONLY.word):
        raise UsageError("serve-metrics only looks: it takes no --rights but read-only.")
    if interval < _LEAST_SECONDS:
        raise UsageError("--interval wants 100ms or more.")
    # Whatever they may elsewhere, here they only look.
    said = replace(call.said, rights=Rights.READ_ONLY.word)
    if print_alerts:
        _print_alerts(call, group, said, interval)
        return
    profiles = call.several(group, said)
    # Verbs shall start at once.
    from console.metrics.exporter import Exporter, address, is_loopback  # noqa: PLC0415

    host, port = address(listen, anywhere=anywhere)
    with asked_to_end() as ended:
        exporter = Exporter([_watch(profile, interval) for profile in profiles], host, port)
        try:
            exporter.start()
            labels = [profile.label for profile in profiles]
            call.answer({"url": exporter.url, "connections": labels}, [exporter.url])
            narrate(f"Serving metrics of {', '.join(labels)}.")
            if not is_loopback(host):
                narrate("Whoever reaches this address can read them: no password, no encryption.")
            ended.wait()
            narrate("Ending.")
        finally:
            exporter.stop()


def _watch(profile: Profile, interval_seconds: float) -> "Watch":
    from console.metrics.exporter import Watch  # noqa: PLC0415

    return Watch(
        profile.open(),
        interval_seconds=interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        thresholds_of=profile.thresholds,
    )


def _print_alerts(call: Call, group: str | None, said: Said, interval_seconds: float) -> None:
    from console.metrics.alerts import Limited, alerts  # noqa: PLC0415

    configured = bool(call.configuration.names or call.profile)
    profiles = call.several(group, said) if configured or group else []
    limited = [
        Limited(one.label, one.thresholds(), {name: one.thresholds(name) for name in one.queues})
        for one in profiles
    ] or [Limited(None, DEFAULTS, {})]
    lines = alerts(limited, interval_seconds)
    call.answer({"alerts": "".join(f"{line}\n" for line in lines)}, lines)


COMMANDS = (serve_metrics,)
