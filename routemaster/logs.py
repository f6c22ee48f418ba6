"""Logging, set up once per process: one JSON object a line on standard error (text where that is a
terminal), quiet by default.

Our own loggers and those of libraries end in the same handler, so that one format and one rule hold
for both: whatever looks like a credential is replaced before a line is rendered, tracebacks included.
This is a net under the code that logs, which should not name credentials in the first place.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import structlog

REDACTED = "…"

_SECRET_KEY = re.compile(r"token|authorization|secret|password|root_?key", re.IGNORECASE)
# Client ids (name--12 characters) are public and must stay legible; tokens are longer.
_SECRET_TEXT = (
    (re.compile(r"//[^/@\s]+@"), f"//{REDACTED}@"),
    (re.compile(r"\b(Basic|Bearer|Digest) +\S+", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(r"--[A-Za-z0-9_-]{16,}"), f"--{REDACTED}"),
)


def configure(level: str, form: str) -> None:
    """Make every logger of this process write `form` ("json", "text" or "auto") from `level` up."""
    is_terminal = sys.stderr.isatty()
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if form == "json" or (form == "auto" and not is_terminal)
        else structlog.dev.ConsoleRenderer(colors=is_terminal)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)


def redact(_logger: object, _method: str, event_dict: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor that keeps credentials out of every line."""
    for key, value in event_dict.items():
        event_dict[key] = _clean(key, value)
    return event_dict


def _clean(key: str, value: object) -> object:
    if _SECRET_KEY.search(key):
        return REDACTED
    match value:
        case str():
            for pattern, replacement in _SECRET_TEXT:
                value = pattern.sub(replacement, value)
            return value
        case bytes():
            return _clean(key, value.decode("utf-8", "replace"))
        case Mapping():
            return {str(k): _clean(str(k), v) for k, v in cast(Mapping[object, object], value).items()}
        case list() | tuple():
            return [_clean(key, item) for item in cast(list[object], value)]
        case BaseException():
            return _clean(key, repr(value))
        case _:
            return value
