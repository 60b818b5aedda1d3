"""The console without the feature `notify`, with receivers configured: it records as before, and
says that these are not read.

python -m tests.contract.adding.use_unread URL FOLDER
"""

import sys
import tomllib
from pathlib import Path

from console.config import file_path
from console.config.file_writer import save_theme
from tests.cli.calls import Console, call
from tests.contract.adding.recorded import configure, record

RECEIVERS = 'notify = ["hook"]\n[notifications.hook]\nto = "bell"\n'
UNREAD = "config.toml:2: notifications.hook is not read, for its feature is not in this console"

if __name__ == "__main__":
    url, folder = sys.argv[1], Path(sys.argv[2])
    Console(url).done("install", "fifo", "orders")
    environment = configure(folder, url, RECEIVERS)
    recorded = record(folder, environment, lambda: True)
    assert recorded.status == 0
    assert recorded.err.count(UNREAD) == 1
    status = call("status", "--profile", "orders", environment=environment)
    assert (status.status, status.err) == (0, "")
    assert "notifications" not in call("config", "show", "--json", environment=environment).json
    assert "[notifications.oncall]" not in call("config", "show", "--example").text
    refused = call("config", "validate", environment=environment)
    assert refused.status == 2
    assert UNREAD in refused.err
    path = file_path(environment)
    assert path is not None
    save_theme(path, "light")
    assert tomllib.loads(path.read_text())["notifications"] == {"hook": {"to": "bell"}}
    environment = configure(folder, url, 'notify = ["other"]\n[notifications.hook]\n')
    refused = call("status", "--profile", "orders", environment=environment)
    assert "there is no [notifications.other]" in refused.err
    environment = configure(folder, url, "")
    assert "not read" not in record(folder, environment, lambda: True).err
