"""The command engines, which is about no queue, on the command line.

python -m tests.contract.adding.use_engines
"""

from tests.cli.calls import call, command

if __name__ == "__main__":
    assert "  engines        List the engines that the console knows.\n" in call("--help").text
    text = call("engines", "--help").text
    assert "dbq-console engines [OPTIONS] [ENGINE]" in text
    assert "dbq-console engines postgresql --schemas --json" in text
    assert "--schemas  " in text
    assert {"url", "schema", "as_json"} < {one.name for one in command("engines").params}
    assert call("engines").text.splitlines() == ["postgresql", "mssql"]
    assert call("engines", "postgresql", "--schemas").text == "postgresql public\n"
    found = call("engines", "mssql", "--schemas", "--json")
    assert (found.status, found.json) == (0, {"engines": {"mssql": "queues"}})
    assert call("engines", "oracle").status == 2
    assert call("engines", "--nothing").status == 2
