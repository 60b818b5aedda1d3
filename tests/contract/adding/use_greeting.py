"""The feature `greeting`: its command and its page.

python -m tests.contract.adding.use_greeting
"""

from tests.cli.calls import call

if __name__ == "__main__":
    assert "  greet          Greet whoever is on call.\n" in call("--help").text
    assert call("greet").text == "good night\n"
    assert call("greet", "--json").json == {"greeting": "good night"}
    assert call("help", "greetings").text.startswith("# Greetings")
