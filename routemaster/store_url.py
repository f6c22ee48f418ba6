"""Where the store is, and how to come in: a ROUTEMASTER_REDIS_URL that was read once and for all.

Reads all forms of it strictly: what cannot be meant is refused with what was expected, and what was
written is never shown, since it may hold a password. Its text is the URL without any credentials, so
that it can go into errors and logs as it is.
"""

import re
from typing import Literal
from urllib.parse import parse_qsl, unquote

import msgspec

from routemaster.errors import SettingError

NAME = "ROUTEMASTER_REDIS_URL"
FORMS = (
    "redis://[user:password@]host[:port][/db], rediss://… for TLS, unix:///path/to/socket[?db=n]"
    " or redis+sentinel://[user:password@]host[:port],host[:port],…/service[/db] (rediss+sentinel:// for TLS)"
)
STORE_PORT, SENTINEL_PORT = 6379, 26379
_SPLIT = re.compile(r"([a-z+]+)://([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?")
_SERVICE = re.compile(r"[A-Za-z0-9._-]{1,128}")  # what Sentinel takes
_DATABASE = re.compile(r"[0-9]{1,5}")

Host = tuple[str, int]


class StoreUrl(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """`hosts` is the store's own address or those of its sentinels; `path` its socket instead."""

    hosts: tuple[Host, ...] = ()
    path: str = ""
    service: str = ""  # what the sentinels call it
    database: int = 0
    user: str = ""
    password: str = ""
    is_secure: bool = False
    ca: str = ""  # trusted instead of the system's authorities
    cert: str = ""
    key: str = ""
    sentinel_user: str = ""
    sentinel_password: str = ""

    @property
    def by_sentinel(self) -> bool:
        return self.service != ""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        scheme = ("rediss" if self.is_secure else "redis") + ("+sentinel" if self.service else "")
        where = ",".join(shown(host) for host in self.hosts)
        return f"{scheme}://{where}" + (f"/{self.service}" if self.service else "")

    def __repr__(self) -> str:
        return f"StoreUrl({self})"


def shown(host: Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def read(text: str, name: str = NAME) -> StoreUrl:
    """The store that a URL names, or SettingError with what was expected."""
    split = _SPLIT.fullmatch(text)
    if split is None:
        raise _refusal(name, text, FORMS)
    scheme, authority, path, query = split[1], split[2], split[3], split[4] or ""
    credentials, at, where = authority.rpartition("@")
    user, colon, password = credentials.partition(":")
    if at and not (user or password):
        raise _refusal(name, text, "user:password before the @, or no @")
    options = _options(name, text, query)
    url = StoreUrl(user=unquote(user), password=unquote(password) if colon else "")
    match scheme:
        case "unix":
            if where or not path.startswith("/") or path == "/":
                raise _refusal(name, text, "unix:///path/to/socket[?db=n]")
            database = _database(name, text, options.pop("db", "0"))
            url = msgspec.structs.replace(url, path=unquote(path), database=database)
        case "redis" | "rediss":
            host = _host(name, text, where, STORE_PORT)
            database = _database(name, text, path.removeprefix("/") or "0")
            url = msgspec.structs.replace(url, hosts=(host,), database=database)
        case "redis+sentinel" | "rediss+sentinel":
            hosts = tuple(_host(name, text, part, SENTINEL_PORT) for part in where.split(","))
            service, _, db = path.removeprefix("/").partition("/")
            if not _SERVICE.fullmatch(service):
                raise _refusal(name, text, "the service's name, as the sentinels have it, after the hosts")
            database = _database(name, text, db or "0")
            url = msgspec.structs.replace(url, hosts=hosts, service=service, database=database)
        case _:
            raise _refusal(name, text, FORMS)
    if scheme.startswith("rediss"):
        url = msgspec.structs.replace(url, is_secure=True, ca=options.pop("ca", ""))
    if options:
        raise _refusal(
            name, text, f"no option {next(iter(options))!r}: db for unix://, ca for rediss:// only"
        )
    return url


def _options(name: str, text: str, query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise _refusal(name, text, "options as ?name=value") from None


def _host(name: str, text: str, where: str, port: int) -> Host:
    match = _HOST.fullmatch(where)
    if match is None or not 0 < int(match[3] or port) < 65_536:
        raise _refusal(
            name,
            text,
            f"host:port with a port from 1 to 65535 ({port} when left out);"
            " in a password, write / ? # @ : as %2F %3F %23 %40 %3A",
        )
    return (match[1] or match[2], int(match[3] or port))


def _database(name: str, text: str, number: str) -> int:
    if not _DATABASE.fullmatch(number):
        raise _refusal(name, text, "the number of a database, such as 0, at the end")
    return int(number)


def _refusal(name: str, text: str, expected: str) -> SettingError:
    """The URL may hold a password: of what is there, only a scheme that we know is shown."""
    scheme: Literal["…"] | str = text.split("://", 1)[0] if "://" in text else "…"
    known = scheme in ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "http", "https")
    return SettingError(name, f"{scheme}://…" if known else "…" if text else "", expected)
