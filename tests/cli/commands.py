"""Running commands as a person or a script does: a process each, with what it printed and how it ended."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bus import HERE, ROUTEMASTER
from tests.until import until

DEADLINE_S = 40.0


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """A table's rows, without its head; columns are two spaces apart."""
        return [[cell for cell in line.split("  ") if cell] for line in self.out.splitlines()[1:]]


@dataclass
class Commands:
    """Runs commands in one folder, with settings of their own. No traceback is ever printed, nor a secret."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)

    def __call__(self, *args: str, stdin: str | bytes = b"", **variables: str) -> Ran:
        ended = subprocess.run(
            [*ROUTEMASTER, *args],
            env=self.environ(**variables),
            cwd=self.folder,
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        ran = Ran(ended.returncode, ended.stdout.decode(), ended.stderr.decode())
        assert "Traceback" not in ran.err, ran.err
        for secret in self.secrets:
            assert secret not in ran.out + ran.err
        return ran

    def ok(self, *args: str, stdin: str | bytes = b"", **variables: str) -> Ran:
        """A command that has to succeed."""
        ran = self(*args, stdin=stdin, **variables)
        assert ran.code == 0, ran
        return ran

    def start(self, *args: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*ROUTEMASTER, *args], env=self.environ(), cwd=self.folder, start_new_session=True, **streams
        )

    def having(self, *secrets: str, **variables: str) -> "Commands":
        """The same with these settings, given without their prefix."""
        return Commands(self.folder, {**self.variables, **variables}, [*self.secrets, *secrets])

    def environ(self, **variables: str) -> dict[str, str]:
        mute = ("ROUTEMASTER_", "COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "PYTHON", "JAVA_HOME")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(mute)}
        given = {**self.variables, **variables}
        return {
            **environ,
            "PYTHONPATH": HERE,
            "TERM": "xterm",
            **{
                name if name.isupper() else f"ROUTEMASTER_{name.upper()}": text
                for name, text in given.items()
            },
        }


class Terminal:
    """A command on a terminal of its own; what it shows is read as it comes."""

    def __init__(self, commands: Commands, *args: str, width: int = 100, height: int = 24) -> None:
        self._output, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.process = commands.start(*args, stdin=inner, stdout=inner, stderr=inner)
        os.close(inner)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._shown.decode(errors="replace")

    def until_shows(self, text: str) -> None:
        until(lambda: text in self.shown or self.process.poll() is not None, f"{text!r} on the screen")
        assert text in self.shown, self.shown

    def forget(self) -> None:
        self._shown.clear()

    def type(self, text: str) -> None:
        os.write(self._output, text.encode())

    def end(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.end()
        os.close(self._output)

    def _read(self) -> None:
        try:
            while chunk := os.read(self._output, 65_536):
                self._shown += chunk
        except OSError:
            pass  # the other side was closed
