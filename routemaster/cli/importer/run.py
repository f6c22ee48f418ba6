"""`routemaster import`: wires the two stores together, says how far it is, and gives the account.

An old bus that is at work is refused, unless it is said to go on: what it delivers meanwhile would be
delivered twice.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from routemaster.cli.importer.account import Account, show
from routemaster.cli.importer.backlog import Backlog
from routemaster.cli.importer.enrolment import Enrolment
from routemaster.cli.importer.life import look_for_life
from routemaster.cli.importer.places import bus_in, find_original, open_link, source_url_of, tell_apart
from routemaster.cli.importer.source import Source
from routemaster.credential import is_same
from routemaster.errors import RoutemasterError
from routemaster.settings import Settings
from routemaster.store.check import check
from routemaster.store.imports import Imports
from routemaster.store.link import Link
from routemaster.store.upkeep import Upkeep
from routemaster.store_url import StoreUrl
from routemaster.uid import Maker

TELL_EVERY_S = 2.0
FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    source_url: str
    password: str | None  # of the source, where it is not in the URL
    prefix: str | None  # of the source; None to look for it
    settings: Settings
    folder: Path
    is_folder_given: bool
    is_url_given: bool
    dry_run: bool
    force: bool
    as_json: bool
    watch_s: float = 1.0  # how long to watch whether anything changes in the old store


def run(plan: Plan) -> int:
    account = asyncio.run(take_over(plan))
    if plan.as_json:
        print(msgspec.json.encode(account).decode())
    else:
        Console(highlight=False, soft_wrap=True).print(show(account), markup=False)
    return 0 if account.is_whole else FAILED


def forget(plan: Plan) -> int:
    batches = asyncio.run(_forget(plan))
    print(f"forgotten: the notes of {batches:,} batches")
    return 0


async def take_over(plan: Plan) -> Account:
    source_url = source_url_of(plan.source_url, plan.password)
    target_url, root_key = _target_of(plan)
    started_at = time.monotonic()
    async with open_link(source_url, "--from") as there, open_link(target_url, "the target") as here:
        source = await find_original(there, plan.prefix, source_url)
        await tell_apart(source, (there, source_url), (here, target_url), plan.settings)
        await _check_target(here, plan)
        before, is_at_work = await look_for_life(
            source, str(source_url), watch_s=plan.watch_s, force=plan.force or plan.dry_run
        )
        account = Account(
            source=f"{source_url} ({source.prefix or 'no prefix'})",
            target=f"{target_url} ({plan.settings.redis_prefix})",
            dry_run=plan.dry_run,
        )
        if is_at_work:
            account.notes.append(
                "The old bus is at work: stop it before the import itself."
                if plan.dry_run
                else "The old bus was at work: what it delivered meanwhile may be delivered twice."
            )
        try:
            await _take(plan, account, source, here, root_key)
            account.changed_meanwhile = not plan.dry_run and await source.look() != before
        except RoutemasterError as error:
            account.failed = str(error)
        account.seconds = round(time.monotonic() - started_at, 3)
        return account


async def _take(plan: Plan, account: Account, source: Source, here: Link, root_key: str | None) -> None:
    settings, uids = plan.settings, Maker()
    imports = Imports(here, settings.redis_prefix, uids)
    upkeep = Upkeep(here, settings.redis_prefix, uids)
    progress = Progress(account, await source.count_batches())

    async def lacks_room() -> bool:
        return await upkeep.lacking_bytes(settings.redis_max_mem, settings.redis_min_free, 2) > 0

    def is_root_key(token: str) -> bool:
        return root_key is not None and is_same(token, root_key)

    enrolment = Enrolment(source, imports, account, is_root_key)
    await enrolment.take()
    backlog = Backlog(
        source, imports, uids, account, enrolment, lacks_room=lacks_room, progress=progress.step
    )
    await backlog.take()


def _target_of(plan: Plan) -> tuple[StoreUrl, str | None]:
    """The store to take things into, and the root key of its bus, as far as that is known."""
    if plan.is_url_given and not plan.is_folder_given:
        return plan.settings.redis_url, plan.settings.root_key
    url, root_key = bus_in(plan.folder)
    return url, plan.settings.root_key or root_key


async def _forget(plan: Plan) -> int:
    url, _ = _target_of(plan)
    async with open_link(url, "the target") as link:
        return await Imports(link, plan.settings.redis_prefix, Maker()).forget()


async def _check_target(link: Link, plan: Plan) -> None:
    """A dry run does not even write which layout there is."""
    layout_key = f"{plan.settings.redis_prefix}layout"
    if not plan.dry_run or await link.call("EXISTS", layout_key):
        await check(link, plan.settings.redis_prefix)


class Progress:
    """Says on standard error how far it is, now and then."""

    def __init__(self, account: Account, batches: int) -> None:
        self._account = account
        self._batches = batches
        self._done = 0
        self._told_at = time.monotonic()

    def step(self, batches: int) -> None:
        self._done += batches
        if time.monotonic() - self._told_at < TELL_EVERY_S:
            return
        self._told_at = time.monotonic()
        events = self._account.events
        print(
            f"routemaster: {self._done:,} of {self._batches:,} batches, {events.taken:,} events taken",
            file=sys.stderr,
        )
