"""A worker process: wiring, its heartbeat, wake-ups, and a graceful end."""

import asyncio
import os
import signal
import socket
from typing import Any

import structlog
import uvloop

from routemaster.errors import StoreError
from routemaster.sender import Sender
from routemaster.settings import Settings
from routemaster.store.check import wait_for
from routemaster.store.connection import Connection
from routemaster.store.deliveries import AUX, MAIN, Deliveries
from routemaster.store.figures import Reader
from routemaster.store.link import Link
from routemaster.store.primary import connect
from routemaster.store.upkeep import Upkeep
from routemaster.uid import Maker
from routemaster.worker.aux import Aux
from routemaster.worker.monitor import Monitor, adapter_of
from routemaster.worker.slots import Slots

log = structlog.get_logger("worker")
BEAT_S = 2.0
LISTEN_PATIENCE_S = 5.0


class Listener:
    """Hears wake-ups, on a connection of its own; after each new connection everything is looked at.
    It goes with the link: where that had to look for the primary again, so must this."""

    def __init__(self, link: Link, namespace: str, slots: Slots, aux: Aux) -> None:
        self._link = link
        self._channels = {f"{namespace}wake:{MAIN}".encode(): slots, f"{namespace}wake:{AUX}".encode(): aux}

    async def run(self) -> None:
        delay_s = 0.05
        while True:
            connected = self._link.connected
            try:
                connection: Connection = await connect(self._link.url, self._hear)
                delay_s = 0.05
                try:
                    await self._listen(connection, connected)
                finally:
                    connection.abort()
            except (StoreError, TimeoutError) as error:
                log.info("wake-ups cannot be heard", reason=str(error))
            await asyncio.sleep(delay_s)
            delay_s = min(1.0, delay_s * 2)

    async def _listen(self, connection: Connection, connected: int) -> None:
        """Until it ends or answers no more: a connection that looks open may have been dead for long."""
        for channel in self._channels:
            await asyncio.wait_for(connection.send("SUBSCRIBE", channel), LISTEN_PATIENCE_S)
        for part in self._channels.values():
            part.look_in(0)
        while connection.is_open and self._link.connected == connected:
            await asyncio.wait([connection.closed], timeout=LISTEN_PATIENCE_S)
            await asyncio.wait_for(connection.send("PING"), LISTEN_PATIENCE_S)

    def _hear(self, push: list[Any]) -> None:
        if push[0] == b"message":
            self._channels[push[1]].look_in(int(float(push[2])))


def run(settings: Settings, *, name: str | None) -> int:
    """Deliver until SIGTERM or SIGINT."""
    return uvloop.run(_work(settings, name or f"{socket.gethostname()}-{os.getpid()}-{Maker()()[-6:]}"))


async def _work(settings: Settings, name: str) -> int:
    leaving = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leaving.set)
    link = Link(settings.redis_url, patience_s=1.0)
    link.open()
    stop = asyncio.ensure_future(leaving.wait())
    found = asyncio.ensure_future(wait_for(link, settings.redis_prefix))
    await asyncio.wait([stop, found], return_when=asyncio.FIRST_COMPLETED)
    if not found.done():
        found.cancel()
        await link.close()
        return 0
    found.result()
    deliveries = Deliveries(
        link,
        settings.redis_prefix,
        lease_ms=settings.lease_ms,
        max_log_bytes=settings.deliveries_max_bytes,
    )
    sender = Sender(settings)
    sender.open()
    uids = Maker()
    slots = Slots(settings, name, deliveries, sender, uids)
    monitor = Monitor(
        Reader(link, settings.redis_prefix, settings.redis_max_mem),
        [adapter_of(wanted) for wanted in settings.metric_adapters],
    )
    aux = Aux(settings, name, deliveries, Upkeep(link, settings.redis_prefix, uids), monitor)
    listener = Listener(link, settings.redis_prefix, slots, aux)
    tasks = [
        asyncio.ensure_future(part)
        for part in (
            _beat(deliveries, name, slots, aux),
            slots.run(),
            aux.run(),
            listener.run(),
            *aux.tickers(),
        )
    ]
    done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    broken = [task for task in done if task is not stop]
    await slots.leave()
    for task in [stop, *tasks]:
        task.cancel()
    await asyncio.gather(stop, *tasks, return_exceptions=True)
    await sender.close()
    await link.close()
    if broken:
        log.error("a part of the worker ended", reason=repr(broken[0].exception()))
        return 1
    return 0


async def _beat(deliveries: Deliveries, name: str, slots: Slots, aux: Aux) -> None:
    while True:
        try:
            main_ms, aux_ms = await deliveries.beat(name)
            slots.look_in(main_ms)
            aux.look_in(aux_ms)
        except StoreError as error:
            log.info("no heartbeat", reason=str(error))
        await asyncio.sleep(BEAT_S)
