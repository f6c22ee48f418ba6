import json
import logging
import os
import pty
import subprocess
import sys

from routemaster.logs import redact

PROGRAM = """
import logging, structlog
from routemaster import logs
logs.configure("warning", "json")
log = structlog.stdlib.get_logger("routemaster.test")
log.info("too quiet to be seen")
log.warning("refused", token="hunter2", url="redis://me:hunter2@store:6379/0", client="shop--abcdefghijkl")
logging.getLogger("library").warning("sent %s", "Authorization: Bearer hunter2")
try:
    raise ValueError("redis://me:hunter2@store")
except ValueError:
    log.exception("failed")
"""


def test_lines_are_json_and_hold_no_credential():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert "hunter2" not in done.stderr
    assert [line["event"].split()[0] for line in lines] == ["refused", "sent", "failed"]
    assert lines[0]["client"] == "shop--abcdefghijkl"
    assert lines[0]["url"] == "redis://…@store:6379/0"
    assert "ValueError" in lines[2]["exception"]


def test_a_terminal_gets_text_and_all_else_json():
    program = PROGRAM.replace('"json"', '"auto"')
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(piped.stderr.splitlines()[0])["event"] == "refused"
    terminal, stderr = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", program], stderr=stderr, check=True)
        shown = os.read(terminal, 2**16).decode()
    finally:
        os.close(terminal)
        os.close(stderr)
    assert "refused" in shown
    assert not shown.startswith("{")
    assert "hunter2" not in shown


def test_nested_values_and_bare_tokens_are_redacted():
    event = {
        "event": "with shop--0123456789abcdef0123",
        "headers": [{"Authorization": "Basic aHVudGVyMg=="}, b"bearer hunter2"],
        "count": 3,
    }
    clean = redact(logging.getLogger(), "warning", event)
    assert clean == {"event": "with shop--…", "headers": [{"Authorization": "…"}, "bearer …"], "count": 3}
