"""Lua scripts: read from the file beside the caller, with the parts they share put in.

A script's first line is its `#!lua` line (so that the store refuses it whole when memory is full,
unless it is flagged `allow-oom`); a line `--@ use NAME` is replaced by `parts/NAME.lua`, once.
Every script gets the namespace as KEYS[1] and builds all keys from it: on a cluster the namespace
has a hash tag, so they share a slot.
"""

import hashlib
import re
from pathlib import Path

_FOLDER = Path(__file__).parent
_USE = re.compile(r"^--@ use ([a-z_]+)\n", re.MULTILINE)


class Script:
    """One script: its name, its expanded source, and the digest the store knows it by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = _expand((_FOLDER / f"{name}.lua").read_text(encoding="utf-8"))
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


def _expand(text: str) -> str:
    used: set[str] = set()

    def put_in(match: re.Match[str]) -> str:
        name = match[1]
        if name in used:
            return ""
        used.add(name)
        part = (_FOLDER / "parts" / f"{name}.lua").read_text(encoding="utf-8")
        return _USE.sub(put_in, part)

    return _USE.sub(put_in, text)
