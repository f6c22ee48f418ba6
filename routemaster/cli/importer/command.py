"""The command `import`: its flags, as a plan."""

import os
from pathlib import Path
from typing import Annotated

import typer

from routemaster import settings
from routemaster.cli.place import DEFAULT_FOLDER
from routemaster.settings import PREFIX


def import_(
    source: Annotated[
        str,
        typer.Option(
            "--from", envvar="ROUTEMASTER_IMPORT_FROM", show_envvar=True, help="The old store's URL."
        ),
    ] = "",
    password: Annotated[
        str | None,
        typer.Option(
            envvar="ROUTEMASTER_IMPORT_PASSWORD",
            show_envvar=True,
            hidden=True,
            help="The old store's password, to keep it out of the list of processes.",
        ),
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="How the old store's keys begin. (default: nothing, or rm:, as found)")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            help=f"The bus to import into, by its folder. (default ${PREFIX}DIR, or {DEFAULT_FOLDER})",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on although the old bus is at work.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Drop the notes of what was taken, once the old store is gone.")
    ] = False,
) -> None:
    """Take over a store of the original Routemaster: tokens, topics, subscriptions, and what is queued.

    The old store is only read. Run again, it goes on where it was, and adds nothing twice.
    Into ROUTEMASTER_REDIS_URL, or the bus that runs in --dir. Exits with 1 when something was left.

    \b
    Examples:
      routemaster import --from redis://old-store:6379 --dry-run
      ROUTEMASTER_IMPORT_FROM=rediss://:secret@old-store:6379/2 routemaster import --json
    """
    from routemaster import logs
    from routemaster.cli.importer import run as importer

    loaded = settings.load()
    logs.configure(loaded.log_level, loaded.log_format)
    plan = importer.Plan(
        source_url=source,
        password=password,
        prefix=prefix,
        settings=loaded,
        folder=folder or Path(os.environ.get(PREFIX + "DIR") or DEFAULT_FOLDER),
        is_folder_given=folder is not None,
        is_url_given=bool(os.environ.get(PREFIX + "REDIS_URL")),
        dry_run=dry_run,
        force=force,
        as_json=as_json,
    )
    raise typer.Exit(importer.forget(plan) if forget else importer.run(plan))
