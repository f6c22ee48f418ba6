"""Which bus a command is about: flags that all such commands have, and what they come to.

A flag wins over the environment, and a bus that is named by its URL over one that is found by its folder. A
folder's `bus.json` has the URL, and the certificate to trust where that is https; a URL of one's own is
verified as any other, so that no credential goes to who is not meant.
"""

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

import typer

from routemaster.cli import folder as folders
from routemaster.errors import BusAway, SettingError
from routemaster.settings import PREFIX, check_names

DEFAULT_FOLDER = ".routemaster"
PANEL = "Which bus, and as whom"
STDIN = "-"
_P = ParamSpec("_P")
_PATH = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*/?")

Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        rich_help_panel=PANEL,
        help=f"The folder of a bus that runs here. (default ${PREFIX}DIR, or {DEFAULT_FOLDER})",
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN|-",
        rich_help_panel=PANEL,
        help="The credential; - reads it from standard input. One that stands here is seen by `ps`:"
        f" better set {PREFIX}TOKEN or use --token-file.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        rich_help_panel=PANEL,
        help=f"A file with the credential. (default ${PREFIX}TOKEN_FILE)",
    ),
]
Authorities = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        rich_help_panel=PANEL,
        help=f"Trust the certificates of this file (PEM) for https. (default ${PREFIX}CA)",
    ),
]
_URL_HELP = f"The bus, such as https://bus.example. (default ${PREFIX}URL)"


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the flags say."""

    url: str | None = None
    folder: Path | None = None
    token: str | None = None
    token_file: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """The bus that is meant."""

    url: str
    folder: Path | None = None  # it was found by this one
    certificate: Path | None = None  # trust this one and no other
    authorities: Path | None = None  # trust what these have signed; None for the machine's own


def at_bus(
    *url_flags: str,
) -> Callable[[Callable[Concatenate[Place, _P], None]], Callable[..., None]]:
    """Give a command the flags of this file; it gets what they say as its first argument."""
    url = Annotated[
        str | None,
        typer.Option(*(url_flags or ("--url", "--bus")), rich_help_panel=PANEL, help=_URL_HELP),
    ]
    flags: dict[str, Any] = {
        "url": url,
        "folder": Folder,
        "token": Token,
        "token_file": TokenFile,
        "ca": Authorities,
    }

    def give(command: Callable[Concatenate[Place, _P], None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[1:]
        names = {name: f"bus_{name}" for name in flags}  # a command may have a --url of its own

        @wraps(command)
        def run(**given: Any) -> None:
            place = Place(**{name: given.pop(names[name]) for name in flags})
            command(place, **given)  # pyright: ignore[reportCallIssue]

        parameters = [
            inspect.Parameter(names[name], inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag)
            for name, flag in flags.items()
        ]
        parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *parameters]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return give


def find(place: Place, environ: Mapping[str, str] | None = None) -> Target:
    """The bus that flags and environment name, or the one that runs in the folder."""
    environ = os.environ if environ is None else environ
    check_names(environ)
    if place.url is not None and place.folder is not None:
        raise SettingError("--url", place.url, "a bus by its URL or by its folder (--dir), not by both")
    if place.url is not None:
        return _remote("--url", place.url, place, environ)
    url = environ.get(PREFIX + "URL")
    if url and place.folder is None:
        return _remote(PREFIX + "URL", url, place, environ)
    return _in_folder(folder_of(place, environ), place, environ)


def folder_of(place: Place, environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    return place.folder or Path(environ.get(PREFIX + "DIR") or DEFAULT_FOLDER)


def without_credentials(text: str) -> str:
    """A URL that may be shown."""
    return re.sub(r"//[^/@]*@", "//…@", text)


def _remote(name: str, text: str, place: Place, environ: Mapping[str, str]) -> Target:
    return Target(url=_checked(name, text), authorities=_authorities(place, environ))


def _in_folder(folder: Path, place: Place, environ: Mapping[str, str]) -> Target:
    bus = folders.find(folder)
    if bus is None or not bus.runs:
        try:
            (folder / "bus.json").open("rb").close()
        except PermissionError as error:
            raise SettingError(
                "--dir", str(folder), f"a folder that you may read ({error.strerror})"
            ) from None
        except OSError:
            pass
        raise BusAway(
            f"no bus runs in {folder}: start one with `routemaster up`, or name another with --dir or --url"
        )
    certificate = Path(bus.tls_cert) if bus.tls_cert else None
    return Target(
        url=bus.url, folder=folder, certificate=certificate, authorities=_authorities(place, environ)
    )


def _authorities(place: Place, environ: Mapping[str, str]) -> Path | None:
    name, path = "--ca", place.ca
    if path is None and environ.get(PREFIX + "CA"):
        name, path = PREFIX + "CA", Path(environ[PREFIX + "CA"])
    if path is not None and not path.is_file():
        raise SettingError(name, str(path), "a file of certificates in PEM that is there")
    return path


def _checked(name: str, text: str) -> str:
    expected = "http://host:port or https://host:port, without credentials or a query"
    try:
        parts = urlsplit(text.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise SettingError(name, without_credentials(text), expected) from None
    usable = usable and "@" not in parts.netloc and parts.netloc.isprintable() and " " not in parts.netloc
    if not usable or parts.query or parts.fragment or not _PATH.fullmatch(parts.path):
        raise SettingError(name, without_credentials(text), expected)
    return text.strip().rstrip("/")
