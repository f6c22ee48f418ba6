"""Texts that calls take, as the document describes them.

The patterns are for the document alone: handlers check by themselves, in words that say what was expected.
Where a setting decides (the length of a topic's name) its default stands here.
"""

from typing import Annotated, Any

from msgspec import Meta

from routemaster.address import PART
from routemaster.event import KEY, MAX_URL


def _text(description: str, pattern: str, most: int | None = None) -> Any:
    schema: dict[str, Any] = {"pattern": f"^{pattern}$"}
    if most is not None:
        schema["maxLength"] = most
    return Meta(description=description, extra_json_schema=schema)


TOPIC_PATTERN = "[a-z_]{1,32}"
NAME_PATTERN = "[a-z0-9_-]{1,32}"
UID_PATTERN = "[-0-9A-Z_a-z]{20}"
_URL = "[hH][tT][tT][pP][sS]?://[!-.0->@-~][!-~]*"

Topic = Annotated[str, _text("name of a topic", TOPIC_PATTERN)]
EventUrl = Annotated[str, _text("http or https", _URL, MAX_URL)]
EventKey = Annotated[str, _text("idempotency key", KEY.pattern)]
Environment = Annotated[str, _text("the first part of the event's address", PART.pattern)]
Callback = Annotated[str, _text("http or https, to an address that callbacks may reach", _URL, MAX_URL)]
Uuid = Annotated[str, _text("goes along with deliveries as user name and password", "[!-9;-~]{1,256}")]
SubscriptionName = Annotated[str, _text("for a client with several subscriptions", NAME_PATTERN)]
Pattern = Annotated[str, Meta(description="RE2, searched anywhere in environment:topic:type")]
Secret = Annotated[
    str,
    _text(
        "signs deliveries (Standard Webhooks); empty to take it away",
        "((whsec_)?([A-Za-z0-9+/]{4}){8,20})?",
    ),
]
ClientName = Annotated[str, _text("name of a client", "[A-Za-z0-9_.-]{1,48}")]
TokenText = Annotated[str, _text("a token of one's own choice", "[A-Za-z0-9_-]{8,64}")]
Uid = Annotated[str, _text("a UID", UID_PATTERN)]

PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": ("name of a topic", {"type": "string", "pattern": f"^{TOPIC_PATTERN}$"}),
    "channel": ("name of a channel, which is a topic", {"type": "string", "pattern": f"^{TOPIC_PATTERN}$"}),
    "subscriber": ("id of a subscription", {"type": "string", "minLength": 1}),
    "client": (
        "id of a client (or, where it is deleted, one of its tokens)",
        {"type": "string", "minLength": 1},
    ),
    "id": ("UID of an event", {"type": "string", "pattern": f"^{UID_PATTERN}$"}),
    "name": (
        "which of the client's subscriptions; without it, the one that has no name",
        {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    ),
    "limit": ("how many at the most", {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100}),
}
