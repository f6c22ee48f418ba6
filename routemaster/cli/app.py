"""The command line: the table of all commands. Each turns flags and ROUTEMASTER_* into settings, and hands
over; those on one noun are in a file of its name, exit codes in exits.py.

A part is imported when its command runs, so that `--help` answers at once.
"""

import io
import os
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from routemaster import settings
from routemaster.cli import dead, events, subscribers, token, topics
from routemaster.cli.doctor.command import doctor
from routemaster.cli.exits import ASKS, DIAGNOSES, EXIT_CODES, RUNS, code_of
from routemaster.cli.importer.command import import_
from routemaster.cli.place import DEFAULT_FOLDER
from routemaster.cli.publish import publish
from routemaster.cli.status.command import status
from routemaster.cli.subscribe import subscribe, unsubscribe
from routemaster.errors import RoutemasterError
from routemaster.settings import PREFIX, Settings

RUNNING, USING, WATCHING = "Run a bus", "Use a bus", "Look after a bus"


def _show_version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        print(f"routemaster {version('routemaster-bus')}")
        raise typer.Exit


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


@app.command(epilog=RUNS, rich_help_panel=RUNNING)
def up(
    host: Host = None,
    port: Port = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    folder: Annotated[
        Path, typer.Option("--dir", envvar=PREFIX + "DIR", help="Where the bus keeps all it has.")
    ] = Path(DEFAULT_FOLDER),
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


@app.command(epilog=RUNS, rich_help_panel=RUNNING)
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
    import structlog

    from routemaster.web.process import run

    log = structlog.stdlib.get_logger(__name__)
    loaded = _load(_environ(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key))
    if loaded.root_key is None and not loaded.clients:
        log.warning("there is no ROUTEMASTER_ROOT_KEY: nobody can manage clients here")
    raise typer.Exit(run(loaded, sockets=None if fd is None else [socket.socket(fileno=fd)]))


@app.command(epilog=RUNS, rich_help_panel=RUNNING)
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


@app.command(epilog=RUNS, rich_help_panel=RUNNING)
def demo(
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to publish.")] = 30,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="A new folder to run in, and to keep. (default: a temporary one)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Only print the account, as JSON.")] = False,
) -> None:
    """Watch a bus at work: two publishers, three subscribers, half a minute, and the account of it.

    Everything is real and on this machine: the bus, its store, and an HTTP server
    for each subscriber. Ctrl-C stops it and prints the account; nothing stays
    behind.

    \b
    Examples:
      routemaster demo
      routemaster demo --seconds 10 --json
    """
    from routemaster.cli.demo.run import Plan, run

    raise typer.Exit(run(Plan(seconds=seconds, folder=folder, as_json=as_json)))


app.command(epilog=ASKS, rich_help_panel=USING)(publish)
app.command(epilog=ASKS, rich_help_panel=USING)(subscribe)
app.command(epilog=ASKS, rich_help_panel=USING)(unsubscribe)
app.add_typer(token.app, name="token", rich_help_panel=WATCHING)
app.add_typer(topics.app, name="topics", rich_help_panel=WATCHING)
app.add_typer(subscribers.app, name="subscribers", rich_help_panel=WATCHING)
app.add_typer(events.app, name="events", rich_help_panel=WATCHING)
app.add_typer(dead.app, name="dead", rich_help_panel=WATCHING)
app.command(epilog=ASKS, rich_help_panel=WATCHING)(status)
app.command(epilog=DIAGNOSES, rich_help_panel=WATCHING)(doctor)
app.command(name="import", epilog=RUNS, rich_help_panel=WATCHING)(import_)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where the locale has no …, a ? is better than an end
    try:
        app()
    except RoutemasterError as error:
        print(f"routemaster: {error}", file=sys.stderr)
        sys.exit(code_of(error))


def _environ(**flags: str | int | None) -> dict[str, str]:
    given = {PREFIX + name.upper(): str(value) for name, value in flags.items() if value is not None}
    return {**os.environ, **given}


def _load(environ: dict[str, str]) -> Settings:
    from routemaster import logs

    loaded = settings.load(environ)
    logs.configure(loaded.log_level, loaded.log_format)
    return loaded
