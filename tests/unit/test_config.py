"""A connection's settings, their sources, and how the connection is opened."""

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import make_url

from console.catalog import STUCK_AFTER_SECONDS
from console.command_line import CommandLineValues
from console.config import (
    KEYS,
    Configuration,
    Limits,
    Origin,
    Profile,
    Thresholds,
    ValueSource,
    load,
)
from console.engines import Timeouts
from console.errors import ConnectionFailedError, UsageError
from console.rights import Rights
from tests.servers import Server

SECRET = "hunter2"
TEXT = """\
interval = "2s"
depth.warning = 10
connect_timeout = "1500ms"

[profiles.plain]
url = "postgresql+psycopg://u@h:1/d"

[profiles.full]
url = "postgresql+psycopg://u@h:1/d"
rights = "operator"
production = true
interval = "3s"
display_zone = "Europe/Prague"
masks = ['\\d{16}', 'iban']
statement_timeout = "250ms"
lock_timeout = "10ms"
application_name = "the console"
stuck_after = "1m"
depth.critical = 100
errors.warning = "off"

[profiles.full.queues."a.b c"]
stuck_after = "1h"
depth = { critical = 20 }
age = { warning = "1m", critical = "10m" }
gap_share.warning = 0.5
"""

Loading = Callable[..., Configuration]


@pytest.fixture
def loaded(tmp_path: Path) -> Loading:
    def load_text(text: str = TEXT, **environment: str) -> Configuration:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return load({"DBQ_CONFIG": str(path), **environment})

    return load_text


def chosen(configuration: Configuration, **arguments: str) -> Profile:
    profile = configuration.selected_profile(
        CommandLineValues(**arguments), url_rights=Rights.ADMIN
    )
    assert profile is not None
    return profile


def test_defaults_apply_where_nothing_is_configured(loaded: Loading) -> None:
    profile = chosen(loaded(""), url="postgresql://u@h/d")
    assert profile.rights is Rights.ADMIN
    assert not profile.production
    assert profile.interval_seconds == 1.0
    assert profile.display_zone is UTC
    assert profile.masks == ()
    assert profile.timeouts == Timeouts()
    limits = {"gap_share": Limits(0.9, 1.0), "errors_share": Limits(0.1), "overdue": Limits(300.0)}
    expected = Thresholds(STUCK_AFTER_SECONDS, limits)
    assert profile.thresholds() == profile.thresholds("any") == expected
    origins = {str(profile.settings.value(key).origin) for key in KEYS.values()}
    assert origins == {"default", "command line --url"}


def test_a_profile_sets_rights_interval_zone_masks_and_timeouts(loaded: Loading) -> None:
    profile = chosen(loaded(), profile="full")
    assert profile.rights is Rights.OPERATOR
    assert profile.production
    assert profile.interval_seconds == 3.0
    assert profile.display_zone == ZoneInfo("Europe/Prague")
    own = loaded('display_zone = "local"')
    assert chosen(own, url="postgresql://h/d").display_zone is None
    assert [mask.pattern for mask in profile.masks] == [r"\d{16}", "iban"]
    assert profile.timeouts == Timeouts(2, 0.25, 0.01)
    assert profile.thresholds()["depth"] == Limits(10, 100)
    database = profile.open()
    assert (database.label, database.production) == ("full", True)
    assert database.timeouts == profile.timeouts
    assert not chosen(loaded(), profile="plain").open().production
    profiles = loaded().profiles()
    assert [one.name for one in profiles] == ["plain", "full"]
    assert [one.rights for one in profiles] == [Rights.READ_ONLY, Rights.OPERATOR]


def test_a_queue_can_have_its_own_thresholds(loaded: Loading) -> None:
    profile = chosen(loaded(), profile="full")
    assert profile.thresholds("a.b c") == Thresholds(3600.0).with_limits(
        depth=Limits(10, 20),
        age=Limits(60.0, 600.0),
        gap_share=Limits(0.5, 1.0),
        overdue=Limits(300.0),
    )
    assert profile.thresholds("a") == profile.thresholds()
    assert profile.thresholds().stuck_after_seconds == 60.0


def test_command_line_beats_environment_beats_file_and_the_origin_is_shown(
    loaded: Loading, tmp_path: Path
) -> None:
    file = str(tmp_path / "config.toml")
    environment = {"DBQ_RIGHTS": "admin", "DBQ_INTERVAL": "5s", "DBQ_APPLICATION_NAME": "env"}

    def origins(profile: Profile, *names: str) -> list[Origin]:
        return [profile.settings.value(KEYS[name]).origin for name in names]

    in_file = chosen(loaded(), profile="full")
    assert origins(in_file, "interval", "depth.warning", "rights", "errors.critical") == [
        Origin(ValueSource.FILE, file, 12),
        Origin(ValueSource.FILE, file, 2),
        Origin(ValueSource.FILE, file, 10),
        Origin(ValueSource.DEFAULT),
    ]
    overridden = chosen(loaded(**environment), profile="full", rights="read-only")
    assert (overridden.rights, overridden.interval_seconds) == (Rights.READ_ONLY, 5.0)
    assert list(map(str, origins(overridden, "rights", "interval", "application_name"))) == [
        "command line --rights",
        "environment DBQ_INTERVAL",
        "environment DBQ_APPLICATION_NAME",
    ]
    assert chosen(loaded(**environment), profile="plain").rights is Rights.ADMIN
    assert chosen(loaded(), profile="plain").rights is Rights.READ_ONLY
    assert chosen(loaded(DBQ_INTERVAL=""), profile="plain").interval_seconds == 2.0


def test_a_url_without_a_profile_has_the_callers_rights_unless_dbq_rights_is_set(
    loaded: Loading,
) -> None:
    values = CommandLineValues(url="postgresql://h/d")
    for given in Rights:
        profile = loaded().selected_profile(values, url_rights=given)
        assert profile is not None
        assert profile.rights is given
    profile = loaded(DBQ_RIGHTS="operator").selected_profile(values, url_rights=Rights.READ_ONLY)
    assert profile is not None
    assert profile.rights is Rights.OPERATOR


URL = "postgresql://h/d"


@pytest.mark.parametrize(
    ("values", "environment", "label"),
    [
        (CommandLineValues(), {}, None),
        (CommandLineValues("", "", ""), {"DBQ_URL": "", "DBQ_PROFILE": ""}, None),
        (
            CommandLineValues(url=URL),
            {"DBQ_PROFILE": "plain", "DBQ_URL": "postgresql://h/e"},
            "h/d",
        ),
        (CommandLineValues(profile="full"), {"DBQ_PROFILE": "plain", "DBQ_URL": URL}, "full"),
        (CommandLineValues(), {"DBQ_PROFILE": "plain"}, "plain"),
        (CommandLineValues(), {"DBQ_URL": URL}, "h/d"),
    ],
)
def test_the_command_line_then_the_environment_selects_the_connection(
    loaded: Loading, values: CommandLineValues, environment: dict[str, str], label: str | None
) -> None:
    profile = loaded(**environment).selected_profile(values, url_rights=Rights.ADMIN)
    assert (None if profile is None else profile.open().label) == label


def test_url_and_profile_together_are_refused(loaded: Loading) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        loaded().selected_profile(CommandLineValues(URL, "plain"), url_rights=Rights.ADMIN)
    configuration = loaded(DBQ_URL=URL, DBQ_PROFILE="plain")
    with pytest.raises(UsageError, match="both set"):
        configuration.selected_profile(CommandLineValues(), url_rights=Rights.ADMIN)


def test_an_unknown_profile_is_refused_with_suggestions(loaded: Loading) -> None:
    for name, complaint in (
        ("ful", "Did you mean: full"),
        ("zzz", "plain, full"),
        ("postgresql://u:hunter2@h/d", "by its name"),
    ):
        with pytest.raises(UsageError, match=complaint) as refused:
            chosen(loaded(), profile=name)
        assert SECRET not in str(refused.value)
    with pytest.raises(UsageError, match="no configuration file"):
        load({"XDG_CONFIG_HOME": "/no/such"}).selected_profile(
            CommandLineValues(profile="p"), url_rights=Rights.ADMIN
        )


def test_variables_and_passwords_are_looked_up_only_when_needed(loaded: Loading) -> None:
    text = """
[profiles.a]
url = "postgresql://${env:U}@${env:H}/d"
password = "command:/no/such/program"
[profiles.b]
url = "${env:WHOLE}"
"""
    a, b = loaded(text).profiles()
    database = a.open()
    assert database.label == "a"
    assert database.product.name == "postgresql"
    with (
        pytest.raises(ConnectionFailedError, match="/no/such/program"),
        database.autocommit("look", read_only=True),
    ):
        pass
    with pytest.raises(ConnectionFailedError, match="WHOLE is not set"):
        b.open()


def test_no_configuration_object_shows_a_secret(loaded: Loading) -> None:
    url = f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/d?sslpassword={SECRET}"
    configuration = loaded("", DBQ_URL=url)
    profile = chosen(configuration)
    database = profile.open()
    values = CommandLineValues(url=url)
    objects = [
        profile,
        configuration,
        values,
        profile.settings,
        database,
        database.url,
        database.label,
    ]
    objects += [vars(database), *(profile.settings.value(key) for key in KEYS.values())]
    assert SECRET not in "".join(map(repr, objects))
    assert SECRET not in database.url.render_as_string(hide_password=False)
    with (
        pytest.raises(ConnectionFailedError) as failed,
        database.autocommit("look", read_only=True),
    ):
        pass
    assert SECRET not in str(failed.value) + repr(vars(database))


def test_application_name_and_timeouts_reach_the_server(loaded: Loading, server: Server) -> None:
    text = """
application_name = "the console"
statement_timeout = "7s"
[profiles.a]
url = "${env:WHOLE}"
lock_timeout = "3s"
"""
    (profile,) = loaded(text, WHOLE=server.url).profiles()
    database = profile.open()
    try:
        with database.autocommit("look", read_only=True) as connection:
            found = connection.exec_driver_sql(
                "SELECT current_setting('application_name'), "
                "current_setting('statement_timeout'), current_setting('lock_timeout')"
            ).one()
    finally:
        database.close()
    assert tuple(found) == ("the console", "7s", "3s")


def test_a_changed_password_is_looked_up_again(
    loaded: Loading, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When a token has expired, new connections use the new one."""
    token = tmp_path / "token"
    token.write_text("wrong")
    url = make_url(server.url)
    text = f"""
[profiles.a]
url = "{url.set(password="").render_as_string(hide_password=False)}"
password = "command:cat '{token}'"
"""
    monkeypatch.setattr("console.config.passwords._KEPT_SECONDS", 0.0)
    (profile,) = loaded(text, PATH="/usr/bin:/bin").profiles()
    database = profile.open()
    try:
        with pytest.raises(ConnectionFailedError), database.autocommit("look", read_only=True):
            pass
        token.write_text(str(url.password))
        with database.autocommit("look", read_only=True) as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    finally:
        database.close()


def test_the_default_limit_of_the_errors_share_applies_only_without_error_limits(
    loaded: Loading,
) -> None:
    """A configured limit of errors replaces the default share."""

    def error_limits(text: str) -> tuple[Limits, Limits]:
        thresholds = chosen(loaded(text), url="postgresql://u@h/d").thresholds()
        return thresholds["errors"], thresholds["errors_share"]

    assert error_limits("") == (Limits(), Limits(0.1))
    assert error_limits("errors.warning = 5") == (Limits(5), Limits())
    assert error_limits('errors.warning = "off"') == (Limits(), Limits())
    assert error_limits("errors_share.warning = 0.5") == (Limits(), Limits(0.5))
    assert error_limits('errors_share.warning = "off"') == (Limits(), Limits())
    both = 'errors = { warning = "off" }\nerrors_share = { warning = 0.2, critical = 0.6 }'
    assert error_limits(both) == (Limits(), Limits(0.2, 0.6))
