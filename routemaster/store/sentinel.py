"""Asking sentinels which server is the primary.

All are asked at once, and the address that most of them name comes first: one that was cut off from the
others may still name the old primary. It costs no more time than the answer of the majority, or
ASK_TIMEOUT_S where some are down. Whether the server agrees is for the caller to find out.
"""

import asyncio
import ssl
from collections import Counter
from typing import Any

from routemaster.errors import StoreAway, StoreError
from routemaster.store.connection import Connection, open_connection
from routemaster.store_url import Host, StoreUrl, shown

ASK_TIMEOUT_S = 0.5


async def ask(url: StoreUrl, tls: ssl.SSLContext | None) -> list[Host]:
    """The addresses that the sentinels name, that of most of them first; StoreAway when none does."""
    votes, reasons = await _votes(url, tls)
    if not votes:
        raise StoreAway(f"no sentinel names a primary of {url.service!r}: {'; '.join(reasons)}")
    return [host for host, _ in votes.most_common()]


async def is_replaced(url: StoreUrl, tls: ssl.SSLContext | None, primary: Host) -> bool:
    """Whether most of the sentinels name another; one of them alone may be behind, or cut off."""
    votes, _ = await _votes(url, tls)
    return any(host != primary for host in votes if votes[host] * 2 > len(url.hosts))


async def _votes(url: StoreUrl, tls: ssl.SSLContext | None) -> tuple[Counter[Host], list[str]]:
    """How many named which address, and why others named none."""
    asked = {asyncio.create_task(_ask_one(url, host, tls)): host for host in url.hosts}
    votes: Counter[Host] = Counter()
    reasons: list[str] = []
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            waiting = set(asked)
            while waiting and not any(count * 2 > len(asked) for count in votes.values()):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    if isinstance(answer, str):
                        reasons.append(f"{shown(asked[task])} {answer}")
                    else:
                        votes[answer] += 1
    except TimeoutError:
        reasons += [f"{shown(host)} does not answer" for task, host in asked.items() if not task.done()]
    finally:
        for task in asked:
            task.cancel()
    return votes, reasons


async def _ask_one(url: StoreUrl, host: Host, tls: ssl.SSLContext | None) -> Host | str:
    """What it names, or why it names nothing."""
    connection: Connection | None = None
    try:
        connection = await open_connection(host, tls)
        if url.sentinel_password or url.sentinel_user:
            user = [url.sentinel_user] if url.sentinel_user else []
            await connection.send("AUTH", *user, url.sentinel_password)
        answer: Any = await connection.send("SENTINEL", "GET-MASTER-ADDR-BY-NAME", url.service)
    except (OSError, UnicodeError, StoreError) as error:
        return f"({error or type(error).__name__})"
    finally:
        if connection is not None:
            connection.abort()
    if answer is None:
        return "knows no such service"
    return answer[0].decode(), int(answer[1])
