"""A user with presets of their own, and the tables of a library that no shipped preset covers."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests.cli.calls import Answer, Console
from tests.servers import connect

TABLE = """
CREATE TABLE crates (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lane text NOT NULL,
    state text NOT NULL, body text NOT NULL, problem text, taken_at timestamptz, who text);
CREATE INDEX ON crates (state);
CREATE FUNCTION wipe() RETURNS boolean LANGUAGE sql
    AS 'DELETE FROM public.crates RETURNING true';
CREATE FUNCTION wiped(crates) RETURNS boolean LANGUAGE sql AS 'SELECT public.wipe()';
CREATE VIEW sly AS SELECT wipe() AS yes;
INSERT INTO crates (lane, state, body, problem, taken_at, who) VALUES
    ('a', 'new', 'x', NULL, NULL, NULL), ('b', 'new', 'x', NULL, NULL, NULL),
    ('a', 'taken', 'x', NULL, now() - interval '1 h', 'w1'), ('a', 'failed', 'x', 'no', now(), 'w1')
"""
PRESET = """\
-- preset: Crate 2
-- table: crates
-- queue: lane
-- roles: id=id status=state payload=body error=problem claimed_at=taken_at claimed_by=who
--
-- From its source.

-- define: is_ready
m.state = 'new'

-- define: is_claimed
m.state = 'taken'

-- define: is_error
m.state = 'failed'

-- define: requeue
state = 'new'
problem = NULL

-- define: release
state = 'new'
taken_at = NULL,
who = concat(m.who,
    ', given up')
"""
IS_READY = "m.state = 'new'\n\n-- define: is_claimed"


def ready_if(text: str) -> str:
    """The preset with another predicate for ready messages."""
    return PRESET.replace(IS_READY, f"{text}\n\n-- define: is_claimed")


@dataclass(frozen=True)
class User:
    """A user with a separate configuration, on a shared database."""

    home: Path
    url: str

    @property
    def file(self) -> Path:
        return self.home / "dbq-console" / "presets" / "crate.sql"

    def writes(self, text: str = PRESET) -> "User":
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)
        self.file.chmod(0o600)
        return self

    def __call__(self, *words: str) -> Answer:
        with mock.patch.dict("os.environ", {"XDG_CONFIG_HOME": str(self.home)}):
            return Console(self.url)(*words)

    def done(self, *words: str) -> Answer:
        answer = self(*words)
        assert answer.status == 0, answer
        return answer

    def trusts(self) -> "User":
        self.done("preset", "trust", "crate")
        return self

    def forgets_all(self) -> None:
        shutil.rmtree(self.home / "dbq-console", ignore_errors=True)


def run(url: str, text: str) -> list[tuple[object, ...]]:
    with connect(url) as connection:
        ran = connection.execute(text.encode())
        return ran.fetchall() if ran.description else []
