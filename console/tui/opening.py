"""From a profile to a connection of the console: its database, its feed, its words."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from console.config import Profile
from console.engines import Database
from console.monitor.limits import ThresholdsOf
from console.rights import Login, Standing
from console.tui.board import RightsWords
from console.tui.feed import SamplerFeed
from console.tui.places import Place, place_of


@dataclass(frozen=True)
class Opening:
    """A connection that is about to be looked at."""

    place: Place
    feed: SamplerFeed
    rights: RightsWords
    thresholds: ThresholdsOf


def open_profile(profile: Profile, taken: Collection[str] = ()) -> Opening:
    """Nothing is connected and no secret looked up yet; a password that a person must type is
    typed into the console. `taken`: the names that others have. ConnectionFailedError, UsageError.
    """
    credentials = profile.credentials()
    credentials.await_typing()
    database = profile.open(credentials)
    name = free_name(database.label, taken)
    feed = SamplerFeed(
        database,
        interval_seconds=profile.interval_seconds,
        stuck_after_seconds=profile.stuck_after_seconds,
        name=name,
    )
    place = place_of(profile, database, name, credentials)
    return Opening(place, feed, rights_words(profile, database), profile.thresholds)


def free_name(label: str, taken: Collection[str]) -> str:
    """The label, numbered where another connection has the same."""
    name, number = label, 1
    while name in taken:
        number += 1
        name = f"{label} ({number})"
    return name


def rights_words(profile: Profile, database: Database) -> Callable[[Login | None], str]:
    """What may be done, and who sees to it, once that is known."""
    transactions = bool(database.product.read_only_options)
    return lambda login: Standing(profile.rights, login, transactions=transactions).words
