"""The subscription that a command operates: one's own, or for root anybody's, whose calls are elsewhere."""

from typing import NamedTuple
from urllib.parse import quote, urlencode

from routemaster.cli.connect import as_client, as_root
from routemaster.cli.place import Place
from routemaster.cli.session import Session
from routemaster.errors import SettingError


class Subscription(NamedTuple):
    session: Session
    prefix: str
    query: dict[str, str]

    def path(self, call: str = "", **more: str | int) -> str:
        query = urlencode({**self.query, **more})
        return self.prefix + call + (f"?{query}" if query else "")


def find(place: Place, subscriber: str | None, name: str | None) -> Subscription:
    """The one that is called by its id, or one's own: that of this name, or the one without a name."""
    if subscriber is None:
        return Subscription(as_client(place), "/subscriber", {} if name is None else {"name": name})
    if name is not None:
        raise SettingError("--name", name, "either it, for your own subscription, or a subscriber's id")
    return Subscription(as_root(place), f"/subscribers/{quote(subscriber, safe='')}", {})
