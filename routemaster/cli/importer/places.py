"""The two stores of an import: how they are found, reached and told apart.

Refused are one and the same place as source and target, a source of our own kind, and one of an older layout.
"""

import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from routemaster import store_url
from routemaster.cli import folder
from routemaster.cli.importer import layout
from routemaster.cli.importer.source import Source
from routemaster.errors import SettingError, StoreUnfit
from routemaster.settings import PREFIX, Settings
from routemaster.store.check import fields_of
from routemaster.store.link import Link
from routemaster.store.primary import connect
from routemaster.store_url import StoreUrl


def source_url_of(text: str, password: str | None) -> StoreUrl:
    url = store_url.read(text, "--from")
    return url if password is None else msgspec.structs.replace(url, password=password)


def bus_in(path: Path) -> tuple[StoreUrl, str | None]:
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
    return store_url.read(bus.store_url), root_key


@contextlib.asynccontextmanager
async def open_link(url: StoreUrl, what: str) -> AsyncGenerator[Link, None]:
    """A link that is open; who cannot be reached or will not have us is told at once."""
    try:
        (await connect(url)).abort()
    except StoreUnfit as error:
        raise StoreUnfit(f"{what}, {url}, refused: {error}") from None
    link = Link(url, silence_s=30.0)
    link.open()
    try:
        yield link
    finally:
        await link.close()


async def find_original(link: Link, prefix: str | None, url: StoreUrl) -> Source:
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
            str(url),
            f"a store of the original; nothing of one begins with {names} in database {url.database}"
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
            str(url),
            "the last layout of the original; what waits in an older one, its own version has to deliver",
        )
    return source


async def tell_apart(
    source: Source, there: tuple[Link, StoreUrl], here: tuple[Link, StoreUrl], settings: Settings
) -> None:
    runs = [fields_of(await link.call("INFO", "server")).get("run_id") for link, _ in (there, here)]
    databases = [url.database for _, url in (there, here)]
    if runs[0] == runs[1] and databases[0] == databases[1] and source.prefix == settings.redis_prefix:
        raise SettingError(
            "--from",
            str(there[1]),
            f"another place than the target: set {PREFIX}REDIS_PREFIX, or choose another database or store",
        )
