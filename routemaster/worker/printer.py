"""Printing readings: one JSON line on standard output for each report.

Written by a thread, because a pipe that nobody reads would hold the whole process; while one report is
stuck there, the next ones are left out.
"""

import contextlib
import os
import threading

import msgspec

from routemaster.worker.reading import Reading

STDOUT = 1


class Printer:
    name = "print"

    def __init__(self, fd: int = STDOUT) -> None:
        self._fd = fd
        self._writer: threading.Thread | None = None

    async def report(self, at_ms: int, readings: list[Reading]) -> None:
        if self._writer is not None and self._writer.is_alive():
            raise OSError("nobody reads the last report from standard output")
        rows = [{"name": name, "labels": dict(labels), "value": value} for name, labels, value in readings]
        line = msgspec.json.encode({"at": at_ms, "metrics": rows}) + b"\n"
        self._writer = threading.Thread(target=self._write, args=(line,), daemon=True)
        self._writer.start()

    def _write(self, line: bytes) -> None:
        """Straight to the descriptor: a lock of `sys.stdout` that is held here would hang the exit."""
        left = memoryview(line)
        with contextlib.suppress(OSError):  # nobody is there any more
            while left:
                left = left[os.write(self._fd, left) :]
