"""What is said of a body that cannot be taken."""

from typing import Annotated, Literal

import msgspec
import pytest

from routemaster.errors import InvalidInput
from routemaster.web.body import in_words, parse
from routemaster.web.channels import NewQueue
from routemaster.web.dead_letters import Retry
from routemaster.web.subscriptions import NewSubscription
from routemaster.web.tokens import Change, NewToken, Rotation


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    globs: tuple[str, ...] | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None
    least: Annotated[int, msgspec.Meta(ge=1)] = 1
    rate: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    role: Literal["client", "monitor"] = "client"
    texts: str | list[str] | None = None
    paused: bool = False
    inner: Inner | None = None
    headers: dict[str, str] | None = None
    told: Annotated[int, msgspec.Meta(ge=0, le=9, description="for the document")] | None = None
    topics: list[Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^a$"})]] | None = None


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        ("{}", "name", "to be present"),
        ('{"name": 1}', "name", "a text"),
        ('{"name": null}', "name", "a text"),
        ('{"name": "a", "count": -1}', "count", "a whole number from 0 to 9"),
        ('{"name": "a", "count": 1.5}', "count", "a whole number from 0 to 9"),
        ('{"name": "a", "count": "x"}', "count", "a whole number from 0 to 9"),
        ('{"name": "a", "least": 0}', "least", "a whole number of at least 1"),
        ('{"name": "a", "rate": 0}', "rate", "a number above 0, of at most 10"),
        ('{"name": "a", "role": "root"}', "role", "one of client, monitor"),
        ('{"name": "a", "texts": [1]}', "texts", "a text"),
        ('{"name": "a", "texts": 1}', "texts", "a text or a list, each of it a text"),
        ('{"name": "a", "paused": 1}', "paused", "true or false"),
        ('{"name": "a", "inner": {"globs": [1]}}', "inner.globs", "a text"),
        ('{"name": "a", "inner": {"globs": "x"}}', "inner.globs", "a list, each of it a text"),
        ('{"name": "a", "inner": {"glob": []}}', "inner.glob", "no such field; the fields are globs"),
        ('{"name": "a", "inner": 3}', "inner", "an object with globs"),
        ('{"name": "a", "headers": {"x": 1}}', "headers", "a text"),
        ('{"name": "a", "headers": 1}', "headers", "an object whose values are each a text"),
        ('{"name": "a", "told": 10}', "told", "a whole number from 0 to 9"),
        ('{"name": "a", "topics": "a"}', "topics", "a list, each of it a text"),
        ('{"name": "a", "topics": [1]}', "topics", "a text"),
        ("[]", "body", "an object with name, count"),
        ("", "body", "valid JSON"),
        ("{", "body", "valid JSON"),
        ('{"name": "a", "inner": {"globs": ' + "[" * 100_000, "inner.globs", "a text"),
        ('{"name": "a", "' + "x" * 500 + '": 1}', "x" * 100, "no such field"),
    ],
)
def test_the_field_and_what_was_expected_are_named(text: str, field: str, expected: str):
    with pytest.raises(InvalidInput) as caught:
        parse(text.encode(), Body)
    assert caught.value.field == field
    assert expected in caught.value.expected


def test_what_is_not_utf_8_is_told():
    with pytest.raises(InvalidInput) as caught:
        parse(b'{"name": "\xff"}', Body)
    assert caught.value.field == "body"


@pytest.mark.parametrize("kind", [NewSubscription, NewQueue, NewToken, Rotation, Change, Retry])
def test_there_are_words_for_all_that_calls_take(kind: type[msgspec.Struct]):
    for field in msgspec.inspect.type_info(kind).fields:
        assert "something else" not in in_words(field.type), field.name
