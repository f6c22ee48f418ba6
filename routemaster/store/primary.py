"""Coming in at the primary: by its address, or by that which its sentinels name.

Greets it with what the URL says: credentials and database. What sentinels name is believed only when
the server itself says that it is the primary; otherwise this fails, and whoever keeps a connection
tries again a little later. Nothing of the credentials is ever in an error.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any

from routemaster import store_url
from routemaster.errors import StoreAway, StoreUnfit
from routemaster.store import sentinel
from routemaster.store.connection import Connection, open_connection
from routemaster.store.tls import tls_of
from routemaster.store_url import Host, StoreUrl

CONNECT_TIMEOUT_S = 2.0
OnPush = Callable[[list[Any]], None]


async def connect(url: StoreUrl | str, on_push: OnPush | None = None) -> Connection:
    """Open a connection and greet the store. A text is read as ROUTEMASTER_REDIS_URL would be."""
    if isinstance(url, str):
        url = store_url.read(url)
    tls = tls_of(url)
    if not url.by_sentinel:
        return await _come_in(url, url.path or url.hosts[0], tls, on_push)
    reasons: list[str] = []
    for host in await sentinel.ask(url, tls):
        try:
            connection = await _come_in(url, host, tls, on_push)
        except StoreAway as error:
            reasons.append(f"{store_url.shown(host)}: {error}")
        else:
            connection.came_by = host, tls
            return connection
    raise StoreAway(f"the sentinels name no primary that can be used: {'; '.join(reasons)}")


async def is_replaced(url: StoreUrl, connection: Connection) -> bool:
    """Whether the sentinels have made another server the primary since."""
    if connection.came_by is None:
        return False
    host, tls = connection.came_by
    return await sentinel.is_replaced(url, tls, host)


async def _come_in(
    url: StoreUrl, where: Host | str, tls: ssl.SSLContext | None, on_push: OnPush | None
) -> Connection:
    shown = store_url.shown(where) if url.by_sentinel and not isinstance(where, str) else str(url)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection = await open_connection(where, tls, on_push)
            try:
                await _greet(url, connection)
            except BaseException:
                connection.abort()
                raise
    except ssl.SSLCertVerificationError as error:
        raise StoreUnfit(
            f"the certificate of the store at {shown} is not trusted ({error.verify_message}): expected one"
            " for this very address, from an authority that the system or ROUTEMASTER_REDIS_CA knows"
        ) from None
    except (OSError, UnicodeError) as error:  # the second: a name that is none
        reason = error or type(error).__name__
        raise StoreAway(f"the store at {shown} cannot be reached ({reason})") from None
    except StoreUnfit as error:
        raise StoreUnfit(f"the store at {shown} refuses: {error}") from None
    return connection


async def _greet(url: StoreUrl, connection: Connection) -> None:
    if url.password or url.user:
        user = [url.user] if url.user else []
        await connection.send("AUTH", *user, url.password)
    if url.database:
        await connection.send("SELECT", url.database)
    if url.by_sentinel:
        role: list[Any] = await connection.send("ROLE")
        if role[0] != b"master":
            raise StoreAway("it says that it is not the primary")
    else:
        await connection.send("PING")
