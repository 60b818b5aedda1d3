"""Writing a profile: existing text is kept, no password is written, all or nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.config.file_reader import read
from console.config.file_writer import WrongFieldError, add_profile, check, table
from console.errors import UsageError

URL = "postgresql+psycopg://u@h/x"
COMMENTED = """\
# ours
interval = "2s"   # not too often

[profiles."a b"]  # the first
url = "postgresql+psycopg://u@h/a"
[profiles."a b".queues.slow]
stuck_after = "2h"\
"""


@pytest.mark.parametrize("before", ["", "# only a comment\n", COMMENTED, COMMENTED + "\n"])
def test_existing_text_is_kept_byte_for_byte(tmp_path: Path, before: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before)
    path.chmod(0o640)
    add_profile(path, "new", {"url": URL, "rights": "operator", "production": True})
    text = path.read_text()
    assert text.startswith(before)
    found = read(path, text)
    assert not found.mistakes
    assert found.profiles["new"].values["production"].meaning is True
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_windows_line_ends_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b'interval = "2s"\r\n')
    add_profile(path, "new", {"url": URL})
    assert b"\n" not in path.read_bytes().replace(b"\r\n", b"")


def test_a_new_file_is_private_and_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "config.toml"
    add_profile(path, "new", {"url": URL})
    assert path.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    add_profile(link, "other", {"url": URL})
    assert link.is_symlink()
    assert list(read(path, path.read_text()).profiles) == ["new", "other"]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"url": "postgresql+psycopg://u:secret@h/x"}, "url"),
        ({"url": URL, "password": "secret"}, "password"),
        ({"url": URL, "rights": "all"}, "rights"),
        ({"url": URL, "no": "1"}, "no"),
    ],
)
def test_invalid_values_are_not_written(
    tmp_path: Path, values: dict[str, object], key: str
) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(WrongFieldError) as caught:
        add_profile(path, "new", values)
    assert caught.value.key == key
    assert "secret" not in str(caught.value)
    assert not path.exists()


@pytest.mark.parametrize("name", ["", " ", "a\nb", "postgresql://x", "a b"])
def test_invalid_and_duplicate_profile_names_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(COMMENTED)
    with pytest.raises(WrongFieldError) as caught:
        add_profile(path, name, {"url": URL})
    assert caught.value.key == "name"
    assert path.read_text() == COMMENTED


@pytest.mark.parametrize("before", ["not toml", "intervall = 1\n", "profiles = { a = 1 }\n"])
def test_a_file_with_mistakes_is_left_unchanged(tmp_path: Path, before: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before)
    with pytest.raises(UsageError):
        add_profile(path, "new", {"url": URL})
    assert path.read_text() == before


def test_an_inline_table_of_profiles_cannot_be_added_to(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    before = f'profiles = {{ a = {{ url = "{URL}" }} }}\n'
    path.write_text(before)
    with pytest.raises(UsageError) as caught:
        add_profile(path, "new", {"url": URL})
    assert "[profiles.new]" in caught.value.next_step
    assert path.read_text() == before


@given(st.text(min_size=1).filter(lambda text: text.isprintable() and bool(text.strip())))
def test_any_printable_profile_name_is_read_back(name: str) -> None:
    found = read(Path("x"), table(name, {"url": URL}))
    assert list(found.profiles) == [name]
    assert not found.mistakes


def test_a_url_that_is_one_variable_is_accepted() -> None:
    check({"url": "${env:X}", "password": "keyring:s/u"})
