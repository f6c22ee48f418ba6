"""A request's target, in the one form that everything else here looks at."""

import re

_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)


def origin_form(target: bytes) -> bytes:
    """It without scheme and host; every server must take it with them (RFC 9112, 3.2.2)."""
    if target.startswith(b"/"):
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
