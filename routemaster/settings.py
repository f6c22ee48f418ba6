"""All settings of a process, read once from ROUTEMASTER_* and checked before anything starts.

The parts of the system receive plain values from here; nothing else reads the environment.
A value that cannot be used stops the start with an error that names the variable, the value and
what was expected. Secrets may come from a file (ROUTEMASTER_ROOT_KEY_FILE and others) so that they
need not stand in a process's environment.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from routemaster import store_url
from routemaster.errors import SettingError
from routemaster.store_url import StoreUrl

PREFIX = "ROUTEMASTER_"
TOKEN = re.compile(r"[A-Za-z0-9_-]{8,64}")
OF_COMMANDS = (
    "URL",
    "TOKEN",
    "TOKEN_FILE",
    "CA",
    "DIR",
    "SIGNING_SECRET",
    "IMPORT_FROM",
    "IMPORT_PASSWORD",
)  # which read them
NEAR = 0.75  # PROT is as near to PORT
# What Kubernetes and Docker put into the environment of those who run beside a service `routemaster-…`.
_INJECTED = re.compile(r"SERVICE_(HOST|PORT)|PORT_[0-9]+_(TCP|UDP|SCTP)")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Value = TypeVar("_Value")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    # store
    redis_url: StoreUrl = store_url.read("redis://127.0.0.1:6379")  # with all that comes from REDIS_*:
    redis_password: str | None = None
    redis_ca: str | None = None
    redis_tls_cert: str | None = None
    redis_tls_key: str | None = None
    redis_sentinel_user: str | None = None
    redis_sentinel_password: str | None = None
    redis_replicas: int = 0
    redis_replicas_timeout_ms: int = 250
    redis_prefix: str = "rm:"
    redis_max_mem: int = 0
    redis_min_free: int = 64 * 2**20
    log_max_bytes: int = 1 * 2**30
    log_max_age_ms: int = 3_600_000
    deliveries_max_bytes: int = 128 * 2**20
    # web
    host: str = "127.0.0.1"
    port: int = 7080
    root_key: str | None = None
    clients: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    max_failed_logins: int = 60  # a minute and address; 0 for no limit
    require_tls: bool | None = None  # None: unless the host is a loopback one
    trusted_proxies: tuple[Network, ...] = ()
    max_topic_name: int = 32
    max_event_data: int = 4096
    max_body_bytes: int = 8 * 2**20
    max_header_bytes: int = 32 * 2**10
    request_timeout_ms: int = 10_000
    max_pending_bytes: int = 64 * 2**20
    idempotency_window_s: int = 600
    idempotency_max_ids: int = 1_000_000
    scaling_threshold: int = 1_000  # jobs
    scaling_deadline: int = 5_000  # ms; named by the contract
    # callbacks
    allow_private_callbacks: tuple[Network, ...] = ()
    allow_http_callbacks: bool = False
    signing_grace_s: int = 86_400
    # worker
    worker_threads: int = 512
    connect_timeout_ms: int = 2_000
    delivery_timeout_ms: int = 20_000
    lease_ms: int = 30_000
    min_backoff_ms: int = 500
    max_backoff_ms: int = 300_000
    metric_adapters: tuple[str, ...] = ()
    monitor_interval_ms: int = 10_000
    # everything
    log_level: str = "warning"
    log_format: str = "auto"

    @property
    def needs_tls(self) -> bool:
        """Whether requests have to come over https."""
        return not _is_loopback(self.host) if self.require_tls is None else self.require_tls

    @property
    def needs_https_callbacks(self) -> bool:
        return self.needs_tls and not self.allow_http_callbacks


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read every ROUTEMASTER_* variable, or raise SettingError for the first that is unusable."""
    env = os.environ if environ is None else environ
    check_names(env)
    values: dict[str, object] = {}
    for field, parse in _PARSERS.items():
        name = PREFIX + field.upper()
        text = env.get(name)
        if text is not None and text != "":
            values[field] = parse(name, text.strip())
    for field in _FROM_FILES:
        name = PREFIX + field.upper() + "_FILE"
        path = env.get(name)
        if path and field not in values:
            values[field] = _PARSERS[field](name, _read_secret(name, path))
    settings = Settings(**values)  # type: ignore[arg-type]
    _check_together(settings)
    return msgspec.structs.replace(settings, redis_url=_whole_url(settings))


def _whole_url(settings: Settings) -> StoreUrl:
    """The store's URL with what other settings say of the way to it."""
    url = settings.redis_url
    more: dict[str, str] = {}
    for field, part in (("redis_ca", "ca"), ("redis_tls_cert", "cert"), ("redis_tls_key", "key")):
        value = getattr(settings, field)
        if value is not None:
            if not url.is_secure:
                raise SettingError(PREFIX + field.upper(), value, f"{PREFIX}REDIS_URL to be a rediss:// one")
            more[part] = value
    if ("cert" in more) != ("key" in more):
        missing = "REDIS_TLS_KEY" if "cert" in more else "REDIS_TLS_CERT"
        raise SettingError(PREFIX + missing, "", "a file: certificate and key come together")
    if url.ca:
        _file(store_url.NAME, url.ca)
    for field in ("redis_sentinel_user", "redis_sentinel_password"):
        value = getattr(settings, field)
        if value is not None:
            if not url.by_sentinel:
                expected = f"{PREFIX}REDIS_URL to be a redis+sentinel:// one"
                raise SettingError(PREFIX + field.upper(), "…", expected)
            more[field.removeprefix("redis_")] = value
    if settings.redis_password is not None:
        if url.password:
            raise SettingError(PREFIX + "REDIS_PASSWORD", "…", f"no password in {store_url.NAME} beside it")
        more["password"] = settings.redis_password
    return msgspec.structs.replace(url, **more)


def check_names(env: Mapping[str, str]) -> None:
    """A setting that is misspelt would be ignored in silence. What is no near miss is somebody else's."""
    files = [f"{field.upper()}_FILE" for field in _FROM_FILES]
    known = [*(field.upper() for field in _PARSERS), *files, *OF_COMMANDS]
    for variable, value in env.items():
        name = variable.removeprefix(PREFIX)
        if name == variable or name in known or not value or _is_injected(name, value):
            continue
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=NEAR)
        if near:
            raise SettingError(variable, "…", f"a setting's name; is {PREFIX}{near[0]} meant?")


def _is_injected(name: str, value: str) -> bool:
    return _INJECTED.search(name) is not None or _ADDRESS.match(value) is not None


def _check_together(settings: Settings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "TLS_KEY" if settings.tls_key is None else "TLS_CERT"
        raise SettingError(PREFIX + missing, "", "a file: certificate and key come together")
    if settings.root_key in settings.clients:
        raise SettingError(PREFIX + "CLIENTS", "…", "tokens other than the root key")
    if settings.delivery_timeout_ms + 1_000 > settings.lease_ms:
        raise SettingError(
            PREFIX + "LEASE_MS",
            str(settings.lease_ms),
            f"at least 1000 ms more than {PREFIX}DELIVERY_TIMEOUT_MS ({settings.delivery_timeout_ms}):"
            " a lane must not be taken back while its delivery may still be answered",
        )
    if settings.min_backoff_ms > settings.max_backoff_ms:
        raise SettingError(
            PREFIX + "MIN_BACKOFF_MS",
            str(settings.min_backoff_ms),
            f"at most {PREFIX}MAX_BACKOFF_MS ({settings.max_backoff_ms})",
        )


def _read_secret(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise SettingError(name, path, f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingError(name, path, "a text file with the secret alone") from None


def _whole(least: int, most: int, unit: str = "") -> Callable[[str, str], int]:
    expected = f"a whole number from {least} to {most}{unit}"

    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise SettingError(name, text, expected)
        return int(text)

    return parse


def _port(name: str, text: str) -> int:
    if _ADDRESS.match(text):
        raise SettingError(
            name,
            text,
            "a whole number from 0 to 65535; this is what Kubernetes sets for a service of the same name:"
            f" set {name} or --port yourself, or enableServiceLinks: false in the pod",
        )
    return _whole(0, 65_535)(name, text)


_NO, _YES = ("0", "false", "no", "off"), ("1", "true", "yes", "on")
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "kb": 2**10, "mb": 2**20, "gb": 2**30}


def _in_units(size: int) -> str:
    unit = next(unit for unit in ("g", "m", "k", "") if size % _UNITS[unit] == 0)
    return f"{size // _UNITS[unit]}{unit}"


def _size(least: int, most: int) -> Callable[[str, str], int]:
    expected = f"a size from {_in_units(least)} to {_in_units(most)}, such as 512m or 2g"

    def parse(name: str, text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15})\s*([kmg]?b?)", text.lower())
        if not match or match[2] not in _UNITS:
            raise SettingError(name, text, expected)
        size = int(match[1]) * _UNITS[match[2]]
        if not least <= size <= most:
            raise SettingError(name, text, expected)
        return size

    return parse


def _size_or_default(least: int, most: int) -> Callable[[str, str], int]:
    sized = _size(least, most)

    def parse(name: str, text: str) -> int:
        try:
            return 0 if text == "0" else sized(name, text)
        except SettingError as error:
            raise SettingError(name, text, f"{error.expected}; or 0 for the default") from None

    return parse


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text.lower() not in choices:
            raise SettingError(name, text, " or ".join(choices))
        return text.lower()

    return parse


def _store_url(name: str, text: str) -> StoreUrl:
    return store_url.read(text, name)


def _password(name: str, text: str) -> str:
    if not 1 <= len(text) <= 4_096 or not text.isprintable():
        raise SettingError(name, "…", "1 to 4096 printable characters (the value itself is not shown)")
    return text


def _prefix(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:{}-]{1,32}", text):
        raise SettingError(name, text, "1 to 32 letters, digits or any of _ . : { } -")
    return text


def _host(name: str, text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,253}", text):
        raise SettingError(name, text, "a host name or address to listen on")
    return text


def _root_key(name: str, text: str) -> str:
    if not TOKEN.fullmatch(text):
        raise SettingError(name, "…", "8 to 64 letters, digits, _ or - (the value itself is not shown)")
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _tokens(name: str, text: str) -> tuple[str, ...]:
    tokens = tuple(token for part in text.split(",") if (token := part.strip()))
    if not all(TOKEN.fullmatch(token) for token in tokens):
        expected = (
            "tokens between commas, each 8 to 64 letters, digits, _ or - (the value itself is not shown)"
        )
        raise SettingError(name, "…", expected)
    return tokens


def _file(name: str, text: str) -> str:
    if not Path(text).is_file():
        raise SettingError(name, text, "a file that is there")
    return text


def _yes_or_no(name: str, text: str) -> bool:
    known = dict.fromkeys(_NO, False) | dict.fromkeys(_YES, True)
    if text.lower() not in known:
        raise SettingError(name, text, "1 or 0")
    return known[text.lower()]


def _networks(name: str, text: str) -> tuple[Network, ...]:
    if text.lower() in _NO:
        return ()
    if text.lower() in _YES:
        return (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))
    networks: list[Network] = []
    for part in text.split(","):
        try:
            networks.append(ipaddress.ip_network(part.strip()))
        except ValueError:
            raise SettingError(name, text, "1, 0, or networks such as 127.0.0.0/8,10.0.0.0/8") from None
    return tuple(networks)


def _adapters(name: str, text: str) -> tuple[str, ...]:
    return tuple(_adapter(name, part) for item in text.split(",") if (part := item.strip()))


def _adapter(name: str, text: str) -> str:
    if text == "print":
        return text
    match = re.fullmatch(
        r"(?:statsd|datadog)://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", text
    )
    if not match or not 1 <= int(match[2]) <= 65_535:
        # Somebody may have written a password into it.
        shown = "…" if "@" in text else text
        raise SettingError(name, shown, "print, statsd://host:port or datadog://host:port, between commas")
    return text


_FROM_FILES = ("root_key", "redis_password", "redis_sentinel_password")
_PARSERS: dict[str, Callable[[str, str], object]] = {
    "redis_url": _store_url,
    "redis_password": _password,
    "redis_ca": _file,
    "redis_tls_cert": _file,
    "redis_tls_key": _file,
    "redis_sentinel_user": _password,
    "redis_sentinel_password": _password,
    "redis_replicas": _whole(0, 100),
    "redis_replicas_timeout_ms": _whole(10, 500, " ms"),
    "redis_prefix": _prefix,
    "redis_max_mem": _size_or_default(16 * 2**20, 2**50),
    "redis_min_free": _size(2**20, 2**50),
    "log_max_bytes": _size(2**20, 2**50),
    "log_max_age_ms": _whole(60_000, 31_536_000_000, " ms"),
    "deliveries_max_bytes": _size(2**20, 2**50),
    "host": _host,
    "port": _port,
    "root_key": _root_key,
    "clients": _tokens,
    "tls_cert": _file,
    "tls_key": _file,
    "max_failed_logins": _whole(0, 1_000_000),
    "require_tls": _yes_or_no,
    "trusted_proxies": _networks,
    "max_topic_name": _whole(1, 64),
    "max_event_data": _whole(2, 2**20, " bytes"),
    "max_body_bytes": _size(1_024, 2**30),
    "max_header_bytes": _size(1_024, 2**20),
    "request_timeout_ms": _whole(100, 600_000, " ms"),
    "max_pending_bytes": _size(2**20, 2**40),
    "idempotency_window_s": _whole(1, 86_400, " s"),
    "idempotency_max_ids": _whole(1_000, 100_000_000),
    "scaling_threshold": _whole(0, 1_000_000_000),
    "scaling_deadline": _whole(0, 3_600_000, " ms"),
    "allow_private_callbacks": _networks,
    "allow_http_callbacks": _yes_or_no,
    "signing_grace_s": _whole(0, 31_536_000, " s"),
    "worker_threads": _whole(1, 10_000),
    "connect_timeout_ms": _whole(10, 60_000, " ms"),
    "delivery_timeout_ms": _whole(10, 600_000, " ms"),
    "lease_ms": _whole(1_100, 3_600_000, " ms"),
    "min_backoff_ms": _whole(1, 3_600_000, " ms"),
    "max_backoff_ms": _whole(1, 86_400_000, " ms"),
    "metric_adapters": _adapters,
    "monitor_interval_ms": _whole(1_000, 3_600_000, " ms"),
    "log_level": _one_of("debug", "info", "warning", "error"),
    "log_format": _one_of("auto", "json", "text"),
}
