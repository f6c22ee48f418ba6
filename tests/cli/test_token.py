"""`routemaster token` at a real bus: what is printed, and what a token may do then."""

import subprocess
from pathlib import Path

import pytest

from tests.bus import ROUTEMASTER, Bus
from tests.cli.commands import Commands
from tests.wire import Caller


def known(bus: Bus, token: str) -> int:
    caller = Caller(bus.address(), token)
    try:
        return caller.get("/pulse").status
    finally:
        caller.close()


def row_of(root: Commands, client: str) -> dict:
    return next(row for row in root.ok("token", "list", "--json").json if row["token"] == client)


def test_quiet_prints_the_token_alone(root: Commands, bus: Bus):
    ran = root.ok("token", "create", "quiet", "--quiet")
    token = ran.out.removesuffix("\n")
    assert "\n" not in token and ran.err == ""
    assert known(bus, token) == 204
    assert token not in root.ok("token", "list").out


def test_a_token_is_shown_once_with_its_client(root: Commands, bus: Bus):
    ran = root.ok("token", "create", "loud")
    (_, client), (_, token) = (line.split() for line in ran.out.splitlines())
    assert client.startswith("loud--")
    assert known(bus, token) == 204
    assert "shown this once" in ran.err
    assert row_of(root, client)["role"] == "client"


def test_role_and_grants_are_what_was_asked_for(root: Commands):
    made = root.ok(
        "token",
        "create",
        "limited",
        "--role",
        "monitor",
        "--publish",
        "a*",
        "--publish",
        "b",
        "--read-nothing",
        "--json",
    ).json
    assert row_of(root, made["client"]) == {
        "name": "limited",
        "token": made["client"],
        "role": "monitor",
        "grants": {"publish": ["a*", "b"], "read": []},
    }
    listed = root.ok("token", "list")
    assert [made["client"], "limited", "monitor", "a*, b", "nothing"] in [
        [cell.strip() for cell in row] for row in listed.rows
    ]


def test_grants_are_replaced_and_lifted(root: Commands):
    client = root.ok("token", "create", "granted", "--json").json["client"]
    root.ok("token", "grant", client, "--read", "*:orders:*")
    assert row_of(root, client)["grants"] == {"publish": None, "read": ["*:orders:*"]}
    root.ok("token", "grant", "granted", "--publish-nothing")
    assert row_of(root, client)["grants"] == {"publish": [], "read": None}
    root.ok("token", "grant", "granted", "--all")
    assert row_of(root, client)["grants"] is None


def test_rotation_keeps_the_client_and_the_old_token_for_its_grace(root: Commands, bus: Bus):
    made = root.ok("token", "create", "rotated", "--json").json
    kept = root.ok("token", "rotate", "rotated", "--grace", "1h", "--quiet").out.strip()
    assert known(bus, made["token"]) == known(bus, kept) == 204
    last = root.ok("token", "rotate", made["client"], "--json").json
    assert last["client"] == made["client"]
    assert [known(bus, token) for token in (made["token"], kept, last["token"])] == [401, 401, 204]


def test_a_client_is_deleted_with_all_its_tokens(root: Commands, bus: Bus):
    made = root.ok("token", "create", "doomed", "--json").json
    refused = root("token", "delete", made["client"])
    assert refused.code == 2 and "--yes" in refused.err
    assert known(bus, made["token"]) == 204
    root.ok("token", "delete", "doomed", "--yes")
    assert known(bus, made["token"]) == 401


def test_one_token_is_deleted_by_what_it_is_from_standard_input(root: Commands, bus: Bus):
    made = root.ok("token", "create", "leaked", "--json").json
    kept = root.ok("token", "rotate", "leaked", "--grace", "1h", "--quiet").out.strip()
    ran = root.having(made["token"]).ok("token", "delete", "-", "--yes", stdin=made["token"] + "\n")
    assert ran.out == ran.err == ""
    assert [known(bus, token) for token in (made["token"], kept)] == [401, 204]


def test_a_name_that_two_clients_bear_is_refused_with_their_ids(root: Commands):
    ids = [root.ok("token", "create", "twin", "--json").json["client"] for _ in range(2)]
    ran = root("token", "rotate", "twin")
    assert ran.code == 2
    assert all(client in ran.err for client in ids)


def test_nobody_of_that_name_is_refused_and_what_was_given_is_not_repeated(root: Commands):
    """It might be a token that was pasted."""
    ran = root("token", "delete", "shop--0123456789abcdef0123456789abcdef", "--yes")
    assert ran.code == 5
    assert "0123456789abcdef" not in ran.err
    assert "token list" in ran.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("create", "bad name"), 5, "name: expected 1 to 48 letters"),
        (("create", "x", "--publish", "a", "--publish-nothing"), 2, "--publish-nothing"),
        (("create", "x", "--publish", "a b"), 5, "grants.publish"),
        (("create", "x", "--role", "root"), 2, "--role"),
        (("rotate", "x", "--grace", "soon"), 2, "expected seconds, or a number with s, m, h or d"),
        (("grant", "x"), 2, "--all"),
        (("grant", "x", "--all", "--read", "*"), 2, "--all"),
        (("delete", "-"), 2, "standard input"),
    ],
)
def test_what_cannot_be_is_told_with_what_was_expected(
    root: Commands, args: tuple[str, ...], code: int, said: str
):
    ran = root("token", *args)
    assert ran.code == code, ran
    assert said in ran.err
    assert ran.out == ""


def test_it_is_for_root(as_shop: Commands):
    ran = as_shop("token", "list")
    assert ran.code == 5
    assert "the role client may not do this" in ran.err


def test_a_token_that_is_lost_on_its_way_is_no_success(root: Commands):
    with Path("/dev/full").open("wb") as full:
        command = [*ROUTEMASTER, "token", "create", "lost", "--quiet"]
        ran = subprocess.run(
            command, env=root.environ(), cwd=root.folder, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 1
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr
