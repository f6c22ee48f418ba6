"""The document, and whether what is served is what it says."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiopenapi3 import OpenAPI

from routemaster.settings import Settings
from tests.bus import Bus, Store, running_bus
from tests.web.problem import is_problem

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
EVENT = {"type": "create", "url": "https://example.com/1"}


@pytest.fixture(scope="module")
def known(store: Store) -> Iterator[Bus]:
    with running_bus(store) as bus:
        yield bus
        assert "Traceback" not in bus.log, bus.log


@pytest.fixture(scope="module")
def document(known: Bus) -> dict[str, Any]:
    answer = known.root.get("/openapi.json")
    assert (answer.status, answer.kind) == (200, "application/json")
    return answer.json


def test_every_route_of_the_contract_is_in_it(document: dict[str, Any]):
    served = {f"{method.upper()} {path}" for path, row in document["paths"].items() for method in row}
    assert served >= {
        "POST /topics/{topic}",
        "POST /channel/{channel}",
        "POST /queue",
        "POST /subscription",
        "POST /subscriber",
        "DELETE /subscriber",
        "DELETE /subscriber/topics/{topic}",
        "DELETE /topics/{topic}",
        "DELETE /topic/{topic}",
        "POST /subscriber/pause",
        "POST /subscriber/resume",
        "POST /subscriber/test",
        "GET /subscriber/dead",
        "POST /subscriber/dead/retry",
        "POST /subscribers/{subscriber}/pause",
        "GET /subscribers/{subscriber}/dead",
        "GET /api_tokens",
        "POST /api_tokens",
        "POST /api_tokens/{client}/rotate",
        "PATCH /api_tokens/{client}",
        "DELETE /api_tokens/{client}",
        "GET /topics",
        "GET /subscriptions",
        "GET /subscribers",
        "GET /pulse",
        "GET /health",
        "GET /health/ping",
        "GET /health/ping.json",
        "GET /openapi.json",
        "GET /docs",
    }


def test_operations_have_names_of_their_own(document: dict[str, Any]):
    names = [row["operationId"] for path in document["paths"].values() for row in path.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


def test_only_health_is_open_to_anybody(document: dict[str, Any]):
    is_open = {
        path for path, row in document["paths"].items() for one in row.values() if one.get("security") == []
    }
    assert is_open == {"/health", "/health/ping", "/health/ping.json"}
    assert set(document["components"]["securitySchemes"]) == {"basic", "bearer", "digest"}


def test_its_defaults_are_those_of_the_settings(document: dict[str, Any]):
    (topic,) = document["paths"]["/topics/{topic}"]["post"]["parameters"]
    assert f"{{1,{Settings().max_topic_name}}}" in topic["schema"]["pattern"]


def test_a_stranger_does_not_read_it(known: Bus):
    for path in ("/openapi.json", "/docs"):
        assert is_problem(known.caller(None).get(path), 401)


def test_the_page_shows_every_call_and_fetches_nothing(known: Bus, document: dict[str, Any]):
    answer = known.client("reader", "monitor").get("/docs")
    assert (answer.status, answer.kind) == (200, "text/html; charset=utf-8")
    text = answer.body.decode()
    for path, row in document["paths"].items():
        for method, one in row.items():
            assert f'id="{one["operationId"]}"' in text
            assert f"<code>{path}</code>" in text, method
    assert not re.search(r'(src|href)="(?!openapi\.json)', text)


# Whether it is true


@pytest.mark.parametrize("who", ["root", "client", "monitor", "nobody"])
def test_no_answer_is_without_a_description(known: Bus, document: dict[str, Any], tmp_path: Path, who: str):
    """schemathesis asks every route for what it describes and for what it does not."""
    token = {"root": lambda: known.root_key, "nobody": lambda: None}.get(
        who, lambda: known.token("st", who)[0]
    )()
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    command = [
        str(SCHEMATHESIS),
        "run",
        str(path),
        "--url",
        known.url(),
        "--no-color",
        "--suppress-health-check=all",
    ]
    # JSON Schema cannot say all that is checked: an address that callbacks may reach, say.
    command += ["--exclude-checks=positive_data_acceptance", "--phases=examples,coverage,fuzzing"]
    command += ["--max-examples=15", "--continue-on-failure", "--request-timeout=10"]
    command += [] if token is None else ["-H", f"Authorization: Bearer {token}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr


def test_what_it_describes_is_taken(known: Bus, document: dict[str, Any]):
    """Its patterns and bounds, tried with what lies just inside."""
    schema = document["components"]["schemas"]["EventShape"]["properties"]
    assert schema["type"]["enum"] == ["create", "delete", "noop", "update"]
    publisher = known.client("publisher")
    for event in (
        {**EVENT, "timestamp": 0, "data": {}, "environment": "a" * 64, "id": "a.b:c_d-1"},
        {**EVENT, "timestamp": 253_402_300_799_999, "environment": 5, "id": "x" * 64},
        {**EVENT, "timestamp": None, "data": None, "environment": None, "id": None},
        {**EVENT, "url": "HTTP://e/" + "x" * 1015},
    ):
        assert publisher.post("/topics/" + "a" * 32, event).status == 200, event


def test_a_client_made_of_it_works(known: Bus):
    """By a library that knows nothing of us; it checks every answer against the document."""
    token, client = known.token("generated")
    fetched = known.caller(token).get("/openapi.json").body.decode()
    bus = OpenAPI.loads(f"{known.url()}/openapi.json", fetched, session_factory=httpx2.Client)
    bus.authenticate(bearer=token)
    wanted = {"callback": "http://127.0.0.1:9/", "uuid": "u", "topics": ["generated"]}
    bus._.post_subscription(data=wanted)
    bus._.post_topics_topic(parameters={"topic": "generated"}, data=EVENT)
    bus._.post_topics_topic(parameters={"topic": "generated"}, data=[EVENT, EVENT])
    (topic,) = [row for row in bus._.get_topics() if row.name == "generated"]
    assert (topic.publisher, topic.events) == (client, 3)
    (row,) = [row for row in bus._.get_subscriptions() if row.subscriber == client]
    assert (row.callback, row.events.queued) == ("http://127.0.0.1:9/", 3)
    assert bus._.get_subscriber_dead() == []
