"""What a command prints: results on standard output, everything else on standard error.

Text that came from elsewhere is printed without control characters, so that nobody's callback or reason can
steer a terminal. Whoever reads our output may leave (`| head`): then there is nothing left to do.
"""

import io
import os
import re
import sys
import time
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from routemaster.errors import RoutemasterError

NOTHING = "–"
UNCUT = 10_000  # columns where no terminal is: whoever reads it there wants all of it
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def write(text: str) -> None:
    """A line of result; one that is lost must not look like one that was read: it may be a token."""
    try:
        print(text, flush=True)
    except OSError as error:
        # What is still buffered would fail again when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0) from None
        reason = f"standard output cannot be written ({error.strerror}): what was to be printed is lost"
        raise RoutemasterError(reason) from None


def is_terminal() -> bool:
    return os.isatty(sys.stdout.fileno()) if sys.stdout else False


def write_json(value: Any) -> None:
    write(msgspec.json.encode(value).decode())


def show(shown: RenderableType) -> None:
    """Something to read: in colour on a terminal, unless NO_COLOR is set; plain elsewhere."""
    on_terminal = is_terminal()
    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=on_terminal,
        width=None if on_terminal else UNCUT,
        highlight=False,
        soft_wrap=False,
    )
    console.print(shown)
    write("\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n")))


def note(text: str) -> None:
    """A word to whoever sits at the terminal; never a result."""
    print(f"routemaster: {printable(text)}", file=sys.stderr)


def printable(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def cell(value: Any, style: str = "") -> Text:
    """A value in a table: never read as markup."""
    match value:
        case None | "":
            return Text(NOTHING, style="dim")
        case bool():
            return Text("yes" if value else "no", style=style)
        case int():
            return Text(f"{value:,}", style=style)
        case str():
            return Text(printable(value), style=style)
        case _:
            return Text(printable(msgspec.json.encode(value).decode()), style=style)


def table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """A table without rules: columns of words, then columns of numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in left:
        made.add_column(name, overflow="fold")
    for name in right:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def fields(pairs: dict[str, Any]) -> Table:
    """Names and values, one pair a line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        made.add_row(name, value if isinstance(value, Text) else cell(value))
    return made


def age(since_ms: int | None, now_ms: int | None = None) -> str:
    """How long ago a time is."""
    if since_ms is None:
        return NOTHING
    return span((time.time_ns() // 1_000_000 if now_ms is None else now_ms) - since_ms)


def span(ms: float) -> str:
    """A length of time, in one unit or two."""
    seconds = max(0.0, ms / 1000)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    if hours == 0:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def moment(ms: int | None) -> str:
    """A time of day, in UTC, to the millisecond."""
    if ms is None:
        return NOTHING
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ms // 1000))
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return f"{text}.{ms % 1000:03}Z"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
