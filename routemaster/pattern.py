"""Patterns over addresses: RE2, searched anywhere in the address. RE2 takes time linear in the text,
whatever the pattern, so none can stall the bus; each is compiled alone and bounded in memory.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from routemaster.errors import InvalidInput

MAX_LENGTH = 500
MAX_PATTERNS = 50
MAX_MEMORY = 2**20
GLOB = re.compile(f"[A-Za-z0-9_.:*?-]{{1,{MAX_LENGTH}}}")

_options: Any = cast(Any, re2).Options()
_options.max_mem = MAX_MEMORY
_options.log_errors = False
_options.never_capture = True


@lru_cache(10_000)
def compiled(pattern: str) -> Any:
    """A pattern that was checked before; its `search` tells whether an address matches."""
    return cast(Any, re2).compile(pattern, _options)


def check(field: str, patterns: list[str]) -> None:
    """Raise InvalidInput for the first that cannot be used, with the place that is wrong."""
    if len(patterns) > MAX_PATTERNS:
        raise InvalidInput(field, f"at most {MAX_PATTERNS} patterns")
    for pattern in patterns:
        if not 1 <= len(pattern) <= MAX_LENGTH:
            raise InvalidInput(field, f"patterns of 1 to {MAX_LENGTH} characters")
        try:
            compiled(pattern)
        except cast(Any, re2).error as error:
            said = error.args[0] if error.args else b""
            text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
            raise InvalidInput(field, f"RE2 patterns; {pattern!r} is none: {text}") from None
        except (UnicodeError, ValueError):
            raise InvalidInput(field, "patterns of valid Unicode text") from None


def matches(patterns: tuple[str, ...], address: str) -> bool:
    return any(compiled(pattern).search(address) is not None for pattern in patterns)


# Globs: what grants and listeners are written in. `*` stands for any text, `?` for any character.


@lru_cache(10_000)
def _glob(text: str) -> Any:
    parts = {"*": ".*", "?": "."}
    return cast(Any, re2).compile("".join(parts.get(c) or re.escape(c) for c in text), _options)


def check_globs(field: str, globs: Iterable[str]) -> None:
    known = tuple(globs)
    if len(known) > MAX_PATTERNS:
        raise InvalidInput(field, f"at most {MAX_PATTERNS} globs")
    for glob in known:
        if not GLOB.fullmatch(glob):
            raise InvalidInput(field, f"globs of 1 to {MAX_LENGTH} letters, digits or any of _ . : - * ?")


def glob_matches(globs: Iterable[str], text: str) -> bool:
    return any(_glob(glob).fullmatch(text) is not None for glob in globs)
