"""Every key of the configuration: its kind, its default, where it may stand."""

from typing import Any

from console.config import kinds
from console.config.passwords import PasswordSource, read_source
from console.config.urls import ConnectionUrl
from console.config.values import (
    CONNECTION,
    EVERYWHERE,
    PROFILE_ONLY,
    PROFILE_OR_GROUP,
    TOP_ONLY,
    Key,
    WrongValueError,
)
from console.errors import UsageError
from console.rights import Rights

_DAY = 86_400.0


def read_url(value: Any) -> ConnectionUrl:
    """A URL as a file may have it: without a password in clear."""
    if not isinstance(value, str):
        raise WrongValueError(f"wants a URL in quotes, not {kinds.named(value)}")
    try:
        url = ConnectionUrl.read(value)
    except UsageError as error:
        raise WrongValueError(f"cannot be used. {error.what} {error.why}".strip()) from None
    if url.tells_a_secret:
        raise WrongValueError(
            "has a password in clear, which no file should have: leave it to ~/.pgpass, put "
            "${env:NAME} in its place, or say where it is with the key password"
        )
    return url


URL: Key[ConnectionUrl | None] = Key("url", read_url, None, PROFILE_ONLY)
PASSWORD: Key[PasswordSource | None] = Key("password", read_source, None, PROFILE_ONLY)
RIGHTS: Key[Rights] = Key("rights", kinds.rights, "read-only", PROFILE_ONLY, "DBQ_RIGHTS")
GROUP: Key[str | None] = Key("group", kinds.text, None, PROFILE_ONLY)
COLOR: Key[str | None] = Key("color", kinds.one_of(kinds.COLORS), None, PROFILE_OR_GROUP)
PRODUCTION: Key[bool] = Key("production", kinds.flag, default=False, levels=PROFILE_ONLY)
INTERVAL: Key[float] = Key("interval", kinds.seconds(0.1, _DAY), "1s", CONNECTION, "DBQ_INTERVAL")
RECORD: Key[bool] = Key("record", kinds.flag, default=True, levels=CONNECTION)
DISPLAY_ZONE = Key("display_zone", kinds.zone, "UTC", CONNECTION, "DBQ_DISPLAY_ZONE")
MASKS = Key("masks", kinds.patterns, [], CONNECTION)
CONNECT_TIMEOUT: Key[float] = Key(
    "connect_timeout", kinds.seconds(1, 600), "10s", CONNECTION, "DBQ_CONNECT_TIMEOUT"
)
STATEMENT_TIMEOUT: Key[float] = Key(
    "statement_timeout", kinds.seconds(0.1, _DAY), "30s", CONNECTION, "DBQ_STATEMENT_TIMEOUT"
)
LOCK_TIMEOUT: Key[float] = Key(
    "lock_timeout", kinds.seconds(0.01, _DAY), "5s", CONNECTION, "DBQ_LOCK_TIMEOUT"
)
APPLICATION_NAME: Key[str] = Key(
    "application_name", kinds.text, "dbq-console", CONNECTION, "DBQ_APPLICATION_NAME"
)
THEME: Key[str] = Key("theme", kinds.one_of(kinds.THEMES), "dark", TOP_ONLY, "DBQ_THEME")
LOG_FILE: Key[str | None] = Key("log_file", kinds.text, None, TOP_ONLY, "DBQ_LOG_FILE")
LOG_LEVEL: Key[str] = Key(
    "log_level", kinds.one_of(kinds.LOG_LEVELS), "warning", TOP_ONLY, "DBQ_LOG_LEVEL"
)
STUCK_AFTER: Key[float] = Key("stuck_after", kinds.seconds(1, 3650 * _DAY), "5m", EVERYWHERE)

_amount = kinds.or_off(kinds.amount)
_share = kinds.or_off(kinds.share)
_age = kinds.or_off(kinds.seconds(0.001, 3650 * _DAY))
DEPTH_WARNING: Key[int | None] = Key("depth.warning", _amount, kinds.OFF, EVERYWHERE)
DEPTH_CRITICAL: Key[int | None] = Key("depth.critical", _amount, kinds.OFF, EVERYWHERE)
AGE_WARNING: Key[float | None] = Key("age.warning", _age, kinds.OFF, EVERYWHERE)
AGE_CRITICAL: Key[float | None] = Key("age.critical", _age, kinds.OFF, EVERYWHERE)
GAP_SHARE_WARNING: Key[float | None] = Key("gap_share.warning", _share, 0.9, EVERYWHERE)
GAP_SHARE_CRITICAL: Key[float | None] = Key("gap_share.critical", _share, 1.0, EVERYWHERE)
ERRORS_WARNING: Key[int | None] = Key("errors.warning", _amount, 1, EVERYWHERE)
ERRORS_CRITICAL: Key[int | None] = Key("errors.critical", _amount, kinds.OFF, EVERYWHERE)

LIMITS: tuple[tuple[Key[Any], Key[Any]], ...] = (
    (DEPTH_WARNING, DEPTH_CRITICAL),
    (AGE_WARNING, AGE_CRITICAL),
    (GAP_SHARE_WARNING, GAP_SHARE_CRITICAL),
    (ERRORS_WARNING, ERRORS_CRITICAL),
)
"""From the first on it is a warning, from the second on critical."""

_ALL: tuple[Key[Any], ...] = (
    *(URL, PASSWORD, RIGHTS, PRODUCTION, GROUP, COLOR),
    *(INTERVAL, RECORD, DISPLAY_ZONE, MASKS),
    *(CONNECT_TIMEOUT, STATEMENT_TIMEOUT, LOCK_TIMEOUT, APPLICATION_NAME),
    *(THEME, LOG_FILE, LOG_LEVEL),
    STUCK_AFTER,
    *(key for pair in LIMITS for key in pair),
)
KEYS = {key.name: key for key in _ALL}
