"""The commands of the configuration."""

from console import config
from console.config.configuration import Configuration
from console.config.profile import Settings
from console.features.own_commands.command import OwnCommand
from console.features.own_commands.config import KEY, ON, RUN, TABLES, TIMEOUT


def own_commands(configuration: Configuration | None = None) -> list[OwnCommand]:
    """As configured; wrong ones are left out, `config validate` names them."""
    known = config.load() if configuration is None else configuration
    wrong = {mistake.table for mistake in known.mistakes}
    found = []
    for name, layer in known.document.tables_of(TABLES.word).items():
        settings = Settings((layer,))
        key, words = settings[KEY], settings[RUN]
        if (TABLES.word, name) not in wrong and key and words:
            found.append(OwnCommand(name, key, settings[ON], words, settings[TIMEOUT]))
    return found
