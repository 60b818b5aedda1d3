"""How figures are written, the same on every screen and in every plain table."""

import re
import unicodedata

from console.errors import UsageError

NOT_APPLICABLE = "·"
UNKNOWN = "?"
ESTIMATE = "≈"

_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories that a terminal would obey or hide instead of showing."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")


def duration(seconds: float) -> str:
    """One form for all durations: `250 ms`, `3.1 s`, `4 m 12 s`, `1 h 05 m`, `3 d 04 h`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def parse_duration(text: str) -> float:
    """Seconds of `500ms`, `5s`, `10m`, `1h`, `1h30m`, `2d`. UsageError for anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(
            f"{text!r} is not a duration.", next_step="Examples: 500ms, 5s, 10m, 1h30m, 2d."
        )
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


def count(number: int, *, estimated: bool = False) -> str:
    """`4,812`; an estimate in thousands where it is large: `≈12 k`, `≈3.4 M`."""
    if not estimated:
        return f"{number:,}"
    if number < 10_000:
        return f"{ESTIMATE}{number:,}"
    if number < 1_000_000:
        return f"{ESTIMATE}{number / 1000:,.0f} k"
    return f"{ESTIMATE}{number / 1_000_000:,.1f} M"


def rate(per_second: float) -> str:
    """Messages a second, with one decimal; never a zero where something flows."""
    if 0 < per_second < 0.05:
        return "<0.1"
    return f"{per_second:,.1f}"


def plain(text: str) -> str:
    """The text with everything made visible that would move the cursor, colour or turn around."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if unicodedata.category(character) not in _HIDDEN:
        return character
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of the control characters: ␀ to ␟
    return f"<{code:02X}>" if code < 0x100 else f"<U+{code:04X}>"
