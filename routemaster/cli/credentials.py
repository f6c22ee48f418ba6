"""Credentials, from a flag, the environment, or a file. Errors name where one came from, never what it is."""

import contextlib
import fcntl
import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from routemaster.cli.place import STDIN, Place, Target
from routemaster.errors import SettingError
from routemaster.settings import PREFIX, TOKEN

EXPECTED = "8 to 64 letters, digits, _ or - (the value itself is not shown)"
MAX_BYTES = 1_000


@dataclass(frozen=True)
class Credential:
    secret: str
    source: str  # where it came from


def of_flags(place: Place) -> Credential | None:
    if place.token is not None and place.token_file is not None:
        raise SettingError("--token-file", str(place.token_file), "either it or --token")
    if place.token_file is not None:
        return _of_file("--token-file", place.token_file)
    if place.token == STDIN:
        return _checked("standard input", piped())
    return None if place.token is None else _checked("--token", place.token)


def of_environ(name: str) -> Credential | None:
    """What ROUTEMASTER_<name> holds, or the file that ROUTEMASTER_<name>_FILE names."""
    name = PREFIX + name
    if text := os.environ.get(name):
        return _checked(name, text)
    if path := os.environ.get(name + "_FILE"):
        return _of_file(name + "_FILE", Path(path))
    return None


def of_folder(target: Target, name: str) -> Credential | None:
    """What the folder of the bus keeps, where it was found by its folder."""
    if target.folder is None or not (target.folder / name).exists():
        return None
    return _of_file("--dir", target.folder / name)


@contextlib.contextmanager
def alone(folder: Path) -> Generator[None]:
    """For one command at a time, so that two first ones do not make two clients."""
    try:
        fd = os.open(folder / "cli.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingError("--dir", str(folder), f"a folder that you may write ({error.strerror})") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def piped() -> str:
    """A secret from standard input: its first line."""
    try:
        with open(0, "rb", closefd=False) as stdin:
            return stdin.readline(MAX_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _of_file(name: str, path: Path) -> Credential:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(name, str(path), f"a readable file with a token ({reason})") from None
    return _checked(str(path), text)


def _checked(source: str, text: str) -> Credential:
    secret = text.strip()
    if not TOKEN.fullmatch(secret):
        raise SettingError(source, "…", EXPECTED)
    return Credential(secret, source)
