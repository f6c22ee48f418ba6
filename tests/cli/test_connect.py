"""Which bus a command finds, as whom it asks, and what it says when that cannot be."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from tests.bus import ROOT_KEY, ROUTEMASTER, Bus, Store, running_bus, running_store
from tests.cli.commands import Commands
from tests.cli.conftest import OnTerminal
from tests.cli.page import running_page
from tests.wire import Caller

SECRET = "shop--abcdefgh12345678"


# A bus in a folder


def test_a_folder_is_all_that_is_needed(here: Commands):
    here.ok("topics")
    here.ok("token", "list")
    from_elsewhere = Commands(Path("/"), {}, here.secrets)
    from_elsewhere.ok("topics", "--dir", str(here.folder / ".routemaster"))
    from_elsewhere.ok("topics", dir=str(here.folder / ".routemaster"))


def test_without_a_bus_it_says_how_to_get_one(nowhere: Commands):
    ran = nowhere("topics")
    assert ran.code == 4
    assert "no bus runs in .routemaster" in ran.err
    assert all(hint in ran.err for hint in ("routemaster up", "--dir", "--url"))


def test_one_that_was_killed_is_not_asked(nowhere: Commands):
    """Somebody else may have its port by now."""
    folder = nowhere.folder / ".routemaster"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        gone = subprocess.Popen(["true"])
        gone.wait()
        (folder / "bus.json").write_text(f'{{"url":"{url}","store_url":"","pid":{gone.pid},"pids":{{}}}}')
        (folder / "root.key").write_text(ROOT_KEY)
        ran = nowhere("topics")
        assert ran.code == 4 and "no bus runs" in ran.err
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.fixture
def fresh(here: Commands) -> Iterator[Commands]:
    """The folder as before its first client command."""
    (here.folder / ".routemaster" / "cli.token").unlink(missing_ok=True)
    yield here
    for row in here.ok("token", "list", "--json").json:
        here.ok("token", "delete", row["token"], "--yes")


def cli_clients(here: Commands) -> list[str]:
    return [row["token"] for row in here.ok("token", "list", "--json").json if row["name"] == "cli"]


def test_client_commands_make_a_client_once_and_keep_its_token_to_themselves(fresh: Commands):
    first = fresh.ok("publish", "first_day", "--type", "noop", "--url", "https://a.example/")
    (client,) = cli_clients(fresh)
    kept = fresh.folder / ".routemaster" / "cli.token"
    assert f"made the client {client}" in first.err and str(kept.name) in first.err
    assert kept.stat().st_mode & 0o777 == 0o600
    again = fresh.having(kept.read_text().strip()).ok(
        "publish", "first_day", "--type", "noop", "--url", "https://a.example/"
    )
    assert again.err == ""
    assert cli_clients(fresh) == [client]


def test_two_first_commands_make_one_client(fresh: Commands):
    event = ("--type", "noop", "--url", "https://a.example/")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fresh.ok("publish", "race", *event), range(4)))
    assert len(cli_clients(fresh)) == 1


def test_a_client_that_was_deleted_is_made_again(fresh: Commands):
    event = ("--type", "noop", "--url", "https://a.example/")
    fresh.ok("publish", "again_a", *event)
    (before,) = cli_clients(fresh)
    fresh.ok("token", "delete", before, "--yes")
    assert "made the client" in fresh.ok("publish", "again_b", *event).err
    assert cli_clients(fresh) != [before]


def test_what_a_folder_has_is_not_sent_elsewhere(here: Commands):
    """A URL names another bus: the folder's keys are not for it."""
    with running_page({}) as page:
        for command in (("topics",), ("token", "list"), ("unsubscribe", "--yes")):
            ran = here(*command, "--url", page.url)
            assert ran.code == 2, ran
            assert "--token-file" in ran.err
        assert page.requests == []


def test_a_token_of_the_environment_wins_over_the_folder(here: Commands):
    token = here.ok("token", "create", "mine", "--quiet").out.strip()
    mine = here.having(token, token=token)
    mine.ok("publish", "mine_only", "--type", "noop", "--url", "https://a.example/")
    (row,) = [row for row in here.ok("topics", "--json").json if row["name"] == "mine_only"]
    assert row["publisher"].startswith("mine--")
    assert mine.ok("token", "list").code == 0  # for that, the folder's root key


# A bus by its URL


@pytest.mark.parametrize("how", ["flag", "file", "standard input", "variable", "variable for a file"])
def test_a_token_comes_from_where_one_likes(
    nowhere: Commands, bus: Bus, shop: Caller, how: str, topic: str, tmp_path: Path
):
    assert shop.token
    (tmp_path / "token").write_text(shop.token + "\n")
    shop.publish(topic)
    flags = {
        "flag": ("--token", shop.token),
        "file": ("--token-file", "token"),
        "standard input": ("--token", "-"),
    }
    variables = {"variable": {"token": shop.token}, "variable for a file": {"token_file": "token"}}
    ran = nowhere.having(shop.token).ok(
        *("topics", "delete", topic, "--yes", "--url", bus.url(), *flags.get(how, ())),
        stdin=shop.token if how == "standard input" else "",
        **variables.get(how, {}),
    )
    assert ran.out == ran.err == ""
    assert bus.owner_and_events(topic) is None


def test_flags_win_over_the_environment(root: Commands, bus: Bus, here: Commands):
    """Another URL, another token, another folder."""
    root.ok("topics", "--url", bus.url(), url="http://127.0.0.1:1")
    assert root("topics", url="http://127.0.0.1:1").code == 4
    assert root("topics", "--token", SECRET).code == 5
    folder = str(here.folder / ".routemaster")
    ran = Commands(root.folder).ok("topics", "--dir", folder, "--json", url=bus.url())
    assert ran.json == here.ok("topics", "--json").json


@pytest.mark.parametrize(
    ("args", "variables", "said"),
    [
        (("--url", "ftp://bus"), {}, "--url='ftp://bus': expected http://host:port"),
        ((), {"url": "http://user:hunter2@bus"}, "without credentials"),
        (("--url", "http://bus?x=1"), {}, "without credentials or a query"),
        (("--url", "http://bus:99999"), {}, "http://host:port"),
        (("--url", "http://a bus"), {}, "http://host:port"),
        (("--url", "http://a\x01bus"), {}, "http://host:port"),
        (("--url", "http://bus", "--dir", "x"), {}, "not by both"),
        (("--url", "http://bus"), {"token": "too bad"}, "ROUTEMASTER_TOKEN='…': expected 8 to 64"),
        (("--url", "http://bus", "--token", "x", "--token-file", "y"), {}, "either it or --token"),
        (("--url", "http://bus", "--token-file", "y"), {}, "No such file"),
        (("--url", "https://bus", "--ca", "y"), {"token": SECRET}, "certificates in PEM that is there"),
        (("--url", "http://bus"), {}, "ROUTEMASTER_TOKEN=''"),
        (("--nonsense",), {}, "--nonsense"),
        ((), {"tokn": "too bad"}, "is ROUTEMASTER_TOKEN meant?"),
    ],
)
def test_wrong_settings_are_named_with_what_was_expected(
    nowhere: Commands, args: tuple[str, ...], variables: dict[str, str], said: str
):
    ran = nowhere("topics", *args, **variables)
    assert ran.code == 2, ran
    assert said in ran.err
    assert "hunter2" not in ran.err and "too bad" not in ran.err


def test_an_unknown_token_is_told_by_where_it_came_from(nowhere: Commands, bus: Bus, tmp_path: Path):
    (tmp_path / "token").write_text(SECRET)
    ran = nowhere.having(SECRET)("topics", "--url", bus.url(), "--token-file", "token")
    assert ran.code == 5
    assert "does not know the credential from token" in ran.err


def test_a_store_that_is_away_is_no_refusal(tmp_path: Path):
    with running_store() as store, running_bus(store, workers=0) as bus:
        store.kill()
        ran = Commands(tmp_path, {"url": bus.url(), "token": ROOT_KEY}, [ROOT_KEY])("topics")
    assert ran.code == 4
    assert "cannot do this now: the store cannot take this now; try again" in ran.err


# What answers is no bus


OTHERS = {
    "/topics": (200, b"<html>"),
    "/old/topics": (308, b""),
    "/evil/topics": (400, b"\x1b[31mred"),
}


@pytest.mark.parametrize(
    ("path", "code", "said"),
    [
        ("", 1, "is not what was expected"),
        ("/old", 5, "name the bus by that URL"),
        ("/gone", 4, "no backend"),
        ("/evil", 5, "\\x1b[31mred"),
    ],
)
def test_other_servers_are_told_from_a_bus(nowhere: Commands, path: str, code: int, said: str):
    with running_page(OTHERS) as page:
        ran = nowhere("topics", "--url", page.url + path, token=SECRET)
    assert ran.code == code, ran
    assert said in ran.err
    assert ran.err.count("\n") == 1 and "\x1b" not in ran.err


def test_what_is_no_http_is_told(nowhere: Commands):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            peer.recv(10_000)
            peer.sendall(b"220 mail.example ESMTP\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        ran = nowhere("topics", "--url", f"http://127.0.0.1:{server.getsockname()[1]}", token=SECRET)
        thread.join()
    assert ran.code == 4
    assert "what came is no HTTP" in ran.err


# https


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(store: Store, authority: trustme.CA, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A bus that serves https, and the file of its authority."""
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(tmp_path / "bus.key"))
    made.cert_chain_pems[0].write_to_path(str(tmp_path / "bus.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    bus = Bus(store, workers=0, tls_cert=str(tmp_path / "bus.pem"), tls_key=str(tmp_path / "bus.key"))
    try:
        bus.web.start()
        yield bus.url().replace("http:", "https:"), tmp_path / "authority.pem"
    finally:
        bus.stop()


def test_https_is_verified(nowhere: Commands, secure: tuple[str, Path], tmp_path: Path):
    url, authority = secure
    commands = nowhere.having(ROOT_KEY, token=ROOT_KEY)
    commands.ok("topics", "--url", url, "--ca", str(authority))
    commands.ok("topics", url=url, ca=str(authority))
    ran = commands("topics", "--url", url)
    assert ran.code == 4
    assert "cannot be trusted" in ran.err and "--ca" in ran.err
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    assert commands("topics", "--url", url, "--ca", "other.pem").code == 4
    named = commands("topics", "--url", url.replace("127.0.0.1", "localhost"), "--ca", str(authority))
    assert named.code == 4 and "cannot be trusted" in named.err
    (tmp_path / "empty.pem").write_text("nothing")
    assert commands("topics", "--url", url, "--ca", "empty.pem").code == 2


def test_http_and_https_are_told_apart(nowhere: Commands, secure: tuple[str, Path], bus: Bus):
    url, _ = secure
    ran = nowhere("topics", "--url", bus.url().replace("http:", "https:"), token=SECRET)
    assert ran.code == 4 and "is it https?" in ran.err
    ran = nowhere("topics", "--url", url.replace("https:", "http:"), token=SECRET)
    assert ran.code == 4 and "does it serve https?" in ran.err


def test_a_bus_in_a_folder_is_trusted_by_its_very_certificate(
    nowhere: Commands, secure: tuple[str, Path], authority: trustme.CA, tmp_path: Path
):
    """Its name does not matter then; another certificate does, also one of the same authority."""
    url, _ = secure
    folder = tmp_path / ".routemaster"
    folder.mkdir()
    url = url.replace("127.0.0.1", "localhost")

    def announce(certificate: str) -> None:
        bus = {
            "url": url,
            "store_url": "",
            "pid": os.getpid(),
            "pids": {},
            "tls_cert": str(tmp_path / certificate),
        }
        (folder / "bus.json").write_text(json.dumps(bus))

    (folder / "root.key").write_text(ROOT_KEY)
    announce("bus.pem")
    nowhere.having(ROOT_KEY).ok("topics")
    authority.issue_cert("localhost").cert_chain_pems[0].write_to_path(str(tmp_path / "sibling.pem"))
    announce("sibling.pem")
    ran = nowhere("topics")
    assert ran.code == 4 and "does not have the certificate" in ran.err
    announce("missing.pem")
    ran = nowhere("topics")
    assert ran.code == 4 and "cannot be read" in ran.err


# What it prints, and to whom


def test_who_reads_may_leave(here: Commands):
    for command in (("topics",), ("topics", "--json"), ("doctor",)):
        process = here.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout and process.stderr
        process.stdout.close()
        err = process.stderr.read()
        process.stderr.close()
        assert process.wait(20) == 0
        assert err == b""


def test_colours_are_for_terminals_and_for_who_wants_them(here: Commands, on_terminal: OnTerminal):
    assert "\x1b" not in here.ok("topics", FORCE_COLOR="1").out
    coloured = on_terminal(here, "doctor")
    coloured.end()
    assert "\x1b[32m" in coloured.shown
    plain = on_terminal(Commands(here.folder, {"NO_COLOR": "1"}), "doctor")
    plain.end()
    assert "ok " in plain.shown
    assert not any(f"\x1b[{colour}" in plain.shown for colour in range(30, 48))


def test_streams_that_are_closed_are_no_accident(here: Commands):
    """As a daemon may start it."""
    for shell, code in (
        ("topics >&-", 0),
        ("topics --json >&- 2>&-", 0),
        ("topics --token - <&-", 2),
        ("topics delete none <&-", 2),
        ("publish none - <&-", 2),
    ):
        command = f"{' '.join(ROUTEMASTER)} {shell}"
        ran = subprocess.run(command, shell=True, cwd=here.folder, env=here.environ(), capture_output=True)
        assert (ran.returncode, b"Traceback" in ran.stderr) == (code, False), (shell, ran)


def test_a_folder_that_cannot_be_written_is_told(here: Commands, tmp_path: Path):
    """The client's token has to stay somewhere."""
    folder = tmp_path / ".routemaster"
    folder.mkdir()
    for name in ("bus.json", "root.key"):
        (folder / name).write_bytes((here.folder / ".routemaster" / name).read_bytes())
    (folder / "cli.lock").mkdir()
    ran = Commands(tmp_path)("unsubscribe", "--yes")
    assert ran.code == 2 and "--dir" in ran.err


def test_up_and_import_take_the_folder_of_the_environment(nowhere: Commands):
    (nowhere.folder / "file").touch()
    ran = nowhere("up", "--port", "0", dir="file/bus")
    assert ran.code == 2 and "--dir='file/bus'" in ran.err
    ran = nowhere("import", "--from", "redis://127.0.0.1:1", dir="elsewhere")
    assert "elsewhere" in ran.err


def test_what_throws_away_asks_first(here: Commands, on_terminal: OnTerminal):
    here.ok("publish", "asked", "--type", "noop", "--url", "https://a.example/")
    no = on_terminal(here, "topics", "delete", "asked")
    no.until_shows("[y/N]")
    no.type("n\n")
    assert no.end() == 1
    yes = on_terminal(here, "topics", "delete", "asked")
    yes.until_shows("[y/N]")
    yes.type("y\n")
    assert yes.end() == 0
    assert "asked" not in [row["name"] for row in here.ok("topics", "--json").json]
