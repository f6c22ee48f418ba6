"""Connecting as somebody who may do what a command asks for.

Credentials are looked for in flags, then in the environment, then in the folder of the bus. Root's key is
used for what only root may do, and to read with where nothing else is at hand. To publish and subscribe at
a bus in a folder, a client named `cli` is made once with root's key; its token stays in the folder, for its
owner alone. What a folder has is for its own bus, and for no other.
"""

import contextlib

import msgspec

from routemaster.cli import credentials, output
from routemaster.cli.credentials import Credential
from routemaster.cli.folder import write_private
from routemaster.cli.place import Place, Target, find
from routemaster.cli.session import Session
from routemaster.errors import RoutemasterError, SettingError
from routemaster.settings import PREFIX

CLI_CLIENT, CLI_TOKEN = "cli", "cli.token"
ROOT_KEY = "root.key"


class _Created(msgspec.Struct):
    token: str
    client: str


def as_root(place: Place) -> Session:
    """For what only root may do."""
    target = find(place)
    found = (
        credentials.of_flags(place)
        or credentials.of_environ("ROOT_KEY")
        or credentials.of_folder(target, ROOT_KEY)
        or credentials.of_environ("TOKEN")
    )
    if found is None:
        raise _missing("ROOT_KEY", "the root key", target)
    return Session(target, found)


def as_reader(place: Place) -> Session:
    """For monitoring, which everybody may read."""
    target = find(place)
    found = (
        credentials.of_flags(place)
        or credentials.of_environ("TOKEN")
        or credentials.of_environ("ROOT_KEY")
        or credentials.of_folder(target, ROOT_KEY)
    )
    if found is None:
        raise _missing("TOKEN", "a token", target)
    return Session(target, found)


def as_client(place: Place) -> Session:
    """For publishing and subscribing, which root may not."""
    target = find(place)
    found = credentials.of_flags(place) or credentials.of_environ("TOKEN")
    return Session(target, found) if found else _as_cli(target)


def _as_cli(target: Target) -> Session:
    """As the client that this folder's commands are, which is made when there is none yet."""
    token = credentials.of_folder(target, CLI_TOKEN)
    if token is not None and _is_known(target, token):
        return Session(target, token)
    root_key = credentials.of_folder(target, ROOT_KEY)
    if target.folder is None or root_key is None:
        raise _missing("TOKEN", "a client's token; `routemaster token create` makes one", target)
    with credentials.alone(target.folder):
        others = credentials.of_folder(target, CLI_TOKEN)  # made by another command meanwhile
        if others is not None and others != token and _is_known(target, others):
            return Session(target, others)
        with contextlib.closing(Session(target, root_key)) as root:
            created = root.post("/api_tokens", {"name": CLI_CLIENT}, _Created)
        where = target.folder / CLI_TOKEN
        try:
            write_private(where, created.token.encode() + b"\n")
        except OSError as error:
            made = f"the client {created.client}, which was just made, is of no use"
            raise RoutemasterError(f"{where} cannot be written ({error.strerror}): {made}") from None
    output.note(f"made the client {created.client} for commands on this bus; its token is in {where}")
    return Session(target, Credential(created.token, str(where)))


def _is_known(target: Target, token: Credential) -> bool:
    """Whether the bus still knows a token: it may have been deleted, or the store be another one."""
    with contextlib.closing(Session(target, token)) as session:
        answer = session.ask("GET", "/pulse")
        if answer.status >= 300 and answer.status != 401:
            raise session.error(answer)
        return answer.status != 401


def _missing(variable: str, what: str, target: Target) -> SettingError:
    where = f"; {target.folder} has none that is its bus's" if target.folder is not None else ""
    return SettingError(PREFIX + variable, "", f"{what} there, in --token-file or in --token{where}")
