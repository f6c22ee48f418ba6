"""The bus's folder: who holds it, its root key, and where its bus is to be found.

One supervisor holds a folder at a time: a lock on `<dir>/lock`, whose content is its pid. The store
process inherits the lock, so that after a kill -9 of the supervisor the folder stays taken until the
store is really gone, and no two stores ever write one append-only file.
"""

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path

import msgspec

from routemaster.errors import BusRunning, SettingError

ORPHAN_WAIT_S = 10.0


class Bus(msgspec.Struct, frozen=True, kw_only=True):
    """What `bus.json` says to tools that find a bus by its folder."""

    url: str
    store_url: str
    pid: int
    pids: dict[str, int]
    tls_cert: str | None = None  # what it serves with, where that is https

    @property
    def runs(self) -> bool:
        """Whether who announced it still lives: one that was killed leaves its announcement."""
        return _alive(self.pid)


class Folder:
    """A folder that is held by this process, from its making to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock_fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingError(
                "--dir", str(path), f"a folder that can be made and written ({error.strerror})"
            ) from None
        try:
            self._take()
        except BaseException:
            os.close(self.lock_fd)
            raise

    @property
    def root_key(self) -> Path:
        return self.path / "root.key"

    @property
    def id(self) -> str:
        """Tells this folder's bus from another one on the same store."""
        path = self.path / "id"
        if not path.exists():
            write_private(path, secrets.token_hex(4).encode())
        return path.read_text(encoding="ascii").strip()

    def make_root_key(self) -> bool:
        """Make a root key unless there is one; True when it is new."""
        if self.root_key.exists():
            return False
        write_private(self.root_key, f"root--{secrets.token_urlsafe(24)}\n".encode())
        return True

    def announce(self, bus: Bus) -> None:
        write_private(self.path / "bus.json", msgspec.json.encode(bus))

    def release(self) -> None:
        (self.path / "bus.json").unlink(missing_ok=True)
        os.close(self.lock_fd)

    def _take(self) -> None:
        deadline = time.monotonic() + ORPHAN_WAIT_S
        while not _locked(self.lock_fd):
            holder = _holder(self.lock_fd)
            if _alive(holder) or time.monotonic() > deadline:
                raise BusRunning(self._taken(holder))
            time.sleep(0.05)
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, b"%d\n" % os.getpid(), 0)

    def _taken(self, holder: int) -> str:
        if not _alive(holder):
            return f"the store of a bus that died still runs in {self.path}: wait for it to end, or end it"
        bus = find(self.path)
        at = f" at {bus.url}" if bus and bus.pid == holder else ""
        return f"a bus is already running in {self.path} (pid {holder}){at}: stop it, or choose another --dir"


def find(path: Path) -> Bus | None:
    """The bus that was last announced in a folder, if any."""
    try:
        return msgspec.json.decode((path / "bus.json").read_bytes(), type=Bus)
    except (OSError, msgspec.DecodeError):
        return None


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable by its owner alone."""
    draft = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> int:
    text = os.pread(fd, 20, 0).strip()
    return int(text) if text.isdigit() else 0


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
