"""Asking before something goes that cannot be had again; --yes answers beforehand."""

import os
from typing import Annotated

import typer

from routemaster.cli.exits import FAILED
from routemaster.errors import SettingError

STDIN = 0

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def ask(question: str, yes: bool) -> None:
    """Return only with a yes."""
    if yes:
        return
    if not os.isatty(STDIN):
        raise SettingError("--yes", "", "to be given where nobody can be asked")
    if not typer.confirm(question, err=True):
        raise typer.Exit(FAILED)
