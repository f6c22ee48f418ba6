"""The two stores of an import: how they are found, reached and told apart.

Refused are one and the same place as source and target, a source of our own kind, and one of an older layout.
"""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

from routemaster.cli import folder
from routemaster.cli.importer import layout
from routemaster.cli.importer.source import Source
from routemaster.errors import SettingError, StoreUnfit
from routemaster.settings import PREFIX, STORE_SCHEMES, Settings
from routemaster.store.check import fields_of
from routemaster.store.connection import connect, shown
from routemaster.store.link import Link


def source_url_of(url: str, password: str | None) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in STORE_SCHEMES or not (parts.hostname or parts.path.strip("/")):
        scheme = url.split("://", 1)[0] + "://…" if "://" in url else "…"
        raise SettingError(
            "--from", scheme, "redis://host:port/db, rediss://host:port/db or unix:///path/to/socket?db=0"
        )
    del port
    if password is None:
        return url
    user = quote(unquote(parts.username or ""), safe="")
    place = parts.netloc.rsplit("@", 1)[-1]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()


def bus_in(path: Path) -> tuple[str, str | None]:
    """The store of the bus that runs in a folder, and its root key if it has one of its own."""
    bus = folder.find(path)
    if bus is None:
        raise SettingError(
            "--dir",
            str(path),
            f"the folder of a bus that runs (routemaster up --dir {path}),"
            f" or {PREFIX}REDIS_URL as the store to take things into",
        )
    root_key = None
    with contextlib.suppress(OSError):
        root_key = (path / "root.key").read_text(encoding="ascii").strip()
    return bus.store_url, root_key


@contextlib.asynccontextmanager
async def open_link(url: str, what: str) -> AsyncGenerator[Link, None]:
    """A link that is open; who cannot be reached or will not have us is told at once."""
    try:
        (await connect(url)).abort()
    except StoreUnfit as error:
        raise StoreUnfit(f"{what}, {shown(url)}, refused: {error}") from None
    link = Link(url, silence_s=30.0)
    link.open()
    try:
        yield link
    finally:
        await link.close()


async def find_original(link: Link, prefix: str | None, url: str) -> Source:
    """The original's bus in the source store."""
    prefixes = layout.PREFIXES if prefix is None else (prefix,)
    found: list[Source] = []
    for source in (Source(link, one) for one in prefixes):
        if await source.has_any(layout.OURS):
            if prefix is not None:
                raise SettingError("--prefix", prefix, "a store of the original; this one is of our own kind")
        elif await source.has_any(*layout.SIGNS):
            found.append(source)
    if not found:
        names = " or ".join(repr(one) for one in prefixes)
        raise SettingError(
            "--from",
            shown(url),
            f"a store of the original; nothing of one begins with {names} in database {_database(url)}"
            " (--prefix says how its keys begin, the end of the URL which database)",
        )
    if len(found) > 1:
        raise SettingError(
            "--prefix", "", f"one of {' and '.join(repr(one.prefix) for one in found)}: both have one"
        )
    source = found[0]
    older = [*layout.OLDER, *(f"queue:new:{token}" for token in await source.subscribers())]
    if await source.has_any(*older):
        raise SettingError(
            "--from",
            shown(url),
            "the last layout of the original; what waits in an older one, its own version has to deliver",
        )
    return source


async def tell_apart(
    source: Source, there: tuple[Link, str], here: tuple[Link, str], settings: Settings
) -> None:
    runs = [fields_of(await link.call("INFO", "server")).get("run_id") for link, _ in (there, here)]
    databases = [_database(url) for _, url in (there, here)]
    if runs[0] == runs[1] and databases[0] == databases[1] and source.prefix == settings.redis_prefix:
        raise SettingError(
            "--from",
            shown(there[1]),
            f"another place than the target: set {PREFIX}REDIS_PREFIX, or choose another database or store",
        )


def _database(url: str) -> str:
    parts = urlsplit(url)
    text = parse_qs(parts.query).get("db", ["0"])[0] if parts.scheme == "unix" else parts.path.strip("/")
    return text if text.isdigit() else "0"
