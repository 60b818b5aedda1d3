"""Whether the traffic of the last whole hour is usual for its hour of the week."""

from collections.abc import Iterator

from console import clock
from console.doctor.context import CheckContext, CheckGroup, command
from console.doctor.finding import Code, Finding
from console.features.history.forecast import Band
from console.features.history.forecast_files import BAND_PERCENT
from console.features.history.traffic import TrafficForecasts
from console.figures import FORECASTS
from console.formats import count
from console.monitor.limits import Severity
from console.monitor.rates import key_of

UNUSUAL = Code(
    "unusual",
    Severity.NOTE,
    "the pushes or pops of the last whole hour are outside the band of its hour of the week",
    judgement="one hour in ten is, by chance: see what its producers and consumers changed",
)


def _check_last_hour(context: CheckContext) -> Iterator[Finding]:
    if not isinstance(usual := context.forecasts, TrafficForecasts):
        return
    key = key_of(context.queue)
    known = usual.forecasts.get(key)
    if known is None or not known.holds(clock.utc()):
        return
    began, seen = usual.last_hour(key)
    expected = known.at(began)
    bands = {name: getattr(expected, name) for name in FORECASTS}
    outside = {n: v for n, v in seen.items() if bands[n] is not None and v not in bands[n]}
    if not outside:
        return
    local = began.astimezone(known.zone)
    texts = [_describe(name, value, bands[name]) for name, value in outside.items()]
    yield Finding(
        UNUSUAL,
        f"{', '.join(texts)} in the hour from {local:%H:%M} on a {local:%A}",
        evidence={
            "hour": began.isoformat(),
            "hour_of_week": f"{local:%A} {local:%H:%M} {local:%Z}",
            **{
                f"{name}_{what}": round(figure)
                for name, value in outside.items()
                for what, figure in {"seen": value, **vars(bands[name])}.items()
            },
            "band_percent": BAND_PERCENT,
            "weeks": known.weeks,
        },
        cause="producers or consumers behaved differently from the weeks before",
        consequence="none in itself; if it continues, depth and age follow",
        since=began,
        judgement="see what changed: "
        f"{command(context.queue, 'history', '--forecast', '24h', '--plot')}; "
        f"consumers and producers: {command(context.queue, 'consumers')}",
    )


def _describe(name: str, value: float, band: Band) -> str:
    usual = f"{count(round(band.low))} to {count(round(band.high))}"
    return f"{count(round(value))} {name} instead of the usual {usual}"


CHECK_GROUPS = (CheckGroup((UNUSUAL,), {"what is usual": _check_last_hour}),)
