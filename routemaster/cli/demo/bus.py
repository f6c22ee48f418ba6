"""The demo's own bus: `routemaster up` as a process, in a folder that held nothing before.

Its settings are the demo's alone: what the environment says of another bus (its store, its port) is
left out, so that a demo never writes where real events are. It is tethered to us: it and all it runs
end when we do, however that comes about. What it says goes into a file of its folder.
"""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp

from routemaster.cli.folder import find
from routemaster.cli.supervisor import TETHER
from routemaster.errors import StartFailed
from routemaster.settings import PREFIX

START_S = 60.0
STOP_S = 70.0  # more than all the times of grace that it gives its own processes
LOOK_S = 0.05
TAIL_LINES = 12
# Retries come sooner than a real subscriber would get them, so that half a minute shows many.
SETTINGS = {"MIN_BACKOFF_MS": "100", "MAX_BACKOFF_MS": "200"}


class DemoBus:
    def __init__(self, folder: Path) -> None:
        self.url = ""
        self.started_at = 0.0
        self._folder = folder
        self._said = folder / "demo.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Bring it up, or raise StartFailed with the end of what it said."""
        self._process = self._spawn()
        try:
            async with asyncio.timeout(START_S):
                await self._until_healthy(self._process)
        except TimeoutError:
            raise StartFailed(self._complaint("come up", f"no answer within {START_S:.0f} s")) from None

    async def ended(self) -> str:
        """Wait for an end that nobody asked for, and say what it was."""
        while True:
            code = self._process.poll() if self._process else None
            if code is not None:
                return self._complaint("stay up", f"exit code {code}")
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """In order, and by force if that takes too long."""
        process = self._process
        if process is None:
            return
        deadline = time.monotonic() + STOP_S
        process.terminate()
        while process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
            await asyncio.sleep(LOOK_S)

    def kill(self) -> None:
        """At once; what it runs is tethered to it."""
        if self._process:
            self._process.kill()

    def root_key(self) -> str:
        return (self._folder / "root.key").read_text(encoding="ascii").strip()

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.started_at = time.monotonic()
        command = (sys.executable, "-P", "-m", "routemaster", "up", "--port", "0", "--dir", str(self._folder))
        with self._said.open("wb") as said:
            return subprocess.Popen(
                (*TETHER, str(os.getpid()), *command),
                env=_environ(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    async def _until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while (code := process.poll()) is None:
                if found := find(self._folder):
                    with suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"{found.url}/health") as answer:
                            if answer.status == 200:
                                self.url = found.url
                                return
                await asyncio.sleep(LOOK_S)
        raise StartFailed(self._complaint("come up", f"exit code {code}"))

    def _complaint(self, wanted: str, why: str) -> str:
        text = f"the demo's bus did not {wanted} ({why})"
        with suppress(OSError):
            lines = self._said.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            if lines:
                text += "; the last that it said:\n" + "\n".join(f"    {line}" for line in lines)
        return text


def _environ() -> dict[str, str]:
    ours = {PREFIX + name: value for name, value in SETTINGS.items()}
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | ours
