"""The options that several designs have."""

from console.designs.model import Option

EVERYWHERE = ("postgresql", "mssql")
"""The engines of every design but Service Broker's."""

PAYLOAD = Option(
    "payload", "what a message is: text, JSON or bytes", "text", choices=("text", "json", "bytes")
)
MAX_BYTES = Option(
    "max_bytes",
    "the largest payload in bytes; a longer one is refused",
    "unlimited",
    maximum=1_000_000_000,
    words=("unlimited",),
)
NOTIFY = Option(
    "notify",
    "push wakes consumers that wait (NOTIFY). Its price: all commits that notify go one by one in "
    "the whole cluster, measured 2.2 times slower",
    "off",
    choices=("off", "on"),
    engines=("postgresql",),
)
ARCHIVE_AT_POP = Option(
    "archive_at_pop",
    "pop also writes the message to <queue>_archive, in the same statement",
    "off",
    choices=("off", "on"),
)

EVERY_VERB = (
    "install",
    "upgrade",
    "uninstall",
    "push",
    "pop",
    "smoke",
    "purge",
    "restore",
    "maintain",
)
"""The verbs that every design has."""
FINISHING_VERBS = ("complete", "fail", "requeue", "release", "archive")
"""What a queue whose popped rows stay has besides."""
SESSION_VERBS = ("release", "end-session")
"""A design that deletes at pop has no claimed rows: what is stuck there is a session."""
