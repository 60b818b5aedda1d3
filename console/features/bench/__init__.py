"""How fast each design is on an operator's own server, every message checked; libraries too."""

from console.features import CommandKey, Feature

FEATURE = Feature(
    needs=("demo",),
    keys=(
        CommandKey("B", "bench", "how fast each design is on this server", about_connection=True),
    ),
)
