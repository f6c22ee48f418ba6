"""Addresses: `environment:type:name`. A topic event's is `environment:topic:type`.

An address is what patterns match and what a route is memoised by.
"""

import re

DEFAULT_ENVIRONMENT = "default"
PART = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def environment_text(value: str | int | None) -> str | None:
    """An environment in its text form; None when it is not a valid one."""
    if value is None:
        return DEFAULT_ENVIRONMENT
    if isinstance(value, int):
        value = str(value)
    return value if PART.fullmatch(value) else None


def address(environment: str, kind: str, name: str) -> str:
    return f"{environment}:{kind}:{name}"
