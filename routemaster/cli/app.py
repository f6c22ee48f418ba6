"""The command line. Each command turns flags and ROUTEMASTER_* into settings and hands over.

Exit codes: 0 fine, 1 failed, 2 wrong usage or settings, 3 the folder is in use.
A part is imported when its command runs, so that `--help` answers at once.
"""

import io
import os
import socket
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import structlog
import typer

from routemaster import logs, settings
from routemaster.errors import BusRunning, RoutemasterError, SettingError
from routemaster.settings import PREFIX, Settings

FAILED, WRONG_USAGE, FOLDER_IN_USE = 1, 2, 3
EXIT_CODES = "Exit codes: 0 fine, 1 failed, 2 wrong usage or settings, 3 the folder is in use."


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"routemaster {version('routemaster-bus')}")
        raise typer.Exit


log = structlog.stdlib.get_logger(__name__)
app = typer.Typer(
    name="routemaster",
    help="An event bus over HTTP. Settings come from ROUTEMASTER_* or from flags; flags win.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _routemaster(  # pyright: ignore[reportUnusedFunction] (it carries the option)
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """See `help` above."""


Host = Annotated[str | None, typer.Option(help="Address to listen on. (default 127.0.0.1)")]
Port = Annotated[
    int | None, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes any. (default 7080)")
]
Slots = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Deliveries a worker has in the air at once. (default 512)"),
]
Cert = Annotated[
    str | None,
    typer.Option("--tls-cert", help="Serve https with this certificate (PEM, with its chain)."),
]
Key = Annotated[str | None, typer.Option("--tls-key", help="The certificate's key (PEM, no password).")]


@app.command(epilog=EXIT_CODES)
def up(
    host: Host = None,
    port: Port = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    folder: Annotated[Path, typer.Option("--dir", help="Where the bus keeps all it has.")] = Path(
        ".routemaster"
    ),
    web_processes: Annotated[int, typer.Option("--web", min=1, max=64, help="Web processes.")] = 1,
    slots: Slots = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Archive nothing (there is no pipeline yet).")
    ] = False,
) -> None:
    """Run a whole bus: store, web and worker, kept in one folder and started again when they die.

    The store is an embedded Valkey, unless ROUTEMASTER_REDIS_URL names another.
    SIGTERM or Ctrl-C stops it in order; a second Ctrl-C at once.

    \b
    Examples:
      routemaster up
      routemaster up --port 8080 --dir /var/lib/routemaster --web 2
      routemaster up --host 0.0.0.0 --tls-cert bus.pem --tls-key bus.key
    """
    from routemaster.cli.up import Plan
    from routemaster.cli.up import up as bring_up

    del no_pipeline
    environ = _environ(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, worker_threads=slots)
    bring_up(Plan(folder=folder, settings=_load(environ), environ=environ, web=web_processes))


@app.command(epilog=EXIT_CODES)
def web(
    host: Host = None,
    port: Port = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="An inherited listening socket.")] = None,
) -> None:
    """Run one web process against ROUTEMASTER_REDIS_URL.

    \b
    Example:
      export ROUTEMASTER_REDIS_URL=redis://store:6379 ROUTEMASTER_ROOT_KEY=…
      routemaster web --port 8080
    """
    from routemaster.web.process import run

    loaded = _load(_environ(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key))
    if loaded.root_key is None and not loaded.clients:
        log.warning("there is no ROUTEMASTER_ROOT_KEY: nobody can manage clients here")
    raise typer.Exit(run(loaded, sockets=None if fd is None else [socket.socket(fileno=fd)]))


@app.command(epilog=EXIT_CODES)
def worker(
    slots: Slots = None,
    name: Annotated[
        str | None, typer.Option(help="A name that is its own: started again, it resumes what it had.")
    ] = None,
) -> None:
    """Run one worker process against ROUTEMASTER_REDIS_URL.

    \b
    Example:
      ROUTEMASTER_REDIS_URL=redis://store:6379 routemaster worker --slots 200
    """
    from routemaster.worker.process import run

    raise typer.Exit(run(_load(_environ(worker_threads=slots)), name=name))


@app.command(epilog=EXIT_CODES)
def demo(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to publish.")] = 30,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="A new folder to run in, and to keep. (default: a temporary one)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only print the account, as JSON.")] = False,
) -> None:
    """Watch a bus at work: two publishers, three subscribers, half a minute, and the account of it.

    Everything is real and on this machine: the bus, its store, and an HTTP server for each subscriber.
    Ctrl-C stops it and prints the account; nothing stays behind.

    \b
    Examples:
      routemaster demo
      routemaster demo --seconds 10 --json
    """
    from routemaster.cli.demo.run import Plan, run

    raise typer.Exit(run(Plan(seconds=seconds, folder=folder, as_json=as_json)))


@app.command(name="import", epilog=EXIT_CODES)
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
        typer.Option("--dir", help="The bus to import into, by its folder. (default .routemaster)"),
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
    from routemaster.cli.importer import run as importer

    loaded = _load(_environ())
    plan = importer.Plan(
        source_url=source,
        password=password,
        prefix=prefix,
        settings=loaded,
        folder=folder or Path(".routemaster"),
        is_folder_given=folder is not None,
        is_url_given=bool(os.environ.get(PREFIX + "REDIS_URL")),
        dry_run=dry_run,
        force=force,
        as_json=as_json,
    )
    raise typer.Exit(importer.forget(plan) if forget else importer.run(plan))


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the locale has no …, a ? is better than an end
    try:
        app()
    except RoutemasterError as error:
        print(f"routemaster: {error}", file=sys.stderr)
        sys.exit(_exit_code(error))


def _exit_code(error: RoutemasterError) -> int:
    match error:
        case SettingError():
            return WRONG_USAGE
        case BusRunning():
            return FOLDER_IN_USE
        case _:
            return FAILED


def _environ(**flags: str | int | None) -> dict[str, str]:
    given = {PREFIX + name.upper(): str(value) for name, value in flags.items() if value is not None}
    return {**os.environ, **given}


def _load(environ: dict[str, str]) -> Settings:
    loaded = settings.load(environ)
    logs.configure(loaded.log_level, loaded.log_format)
    return loaded
