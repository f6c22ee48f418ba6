"""What the commands on one noun share, and how their words are read.

`routemaster topics` alone lists them, as `topics list` does. The ids of events and batches begin with a dash
(they sort by time, and the dash comes first): they are taken for what they are, not for options.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from routemaster.cli.exits import ASKS
from routemaster.uid import is_uid

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


class Listing(TyperGroup):
    """A group whose first command need not be said: `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asks_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_help and (not args or args[0].startswith("-")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class TakesIds(TyperCommand):
    """A command whose arguments may be ids of events or batches."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" not in args:
            ids = [arg for arg in args if is_uid(arg) and arg[0] == "-" != arg[1]]
            args = [*(arg for arg in args if arg not in ids), "--", *ids]
        return super().parse_args(ctx, args)


def noun(help: str, *, lists: bool = False) -> typer.Typer:
    """A group of commands on one noun."""
    return typer.Typer(
        cls=Listing if lists else TyperGroup,
        help=help,
        epilog=ASKS,
        no_args_is_help=not lists,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
