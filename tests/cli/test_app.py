"""The command itself: what it says, wherever it says it."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest


def said(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUTEMASTER_")}
    command = [sys.executable, "-m", "routemaster", *args]
    return subprocess.run(
        command, env={**environ, **variables}, capture_output=True, encoding="latin-1", timeout=30
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_all_our_characters_is_no_trouble(encoding: str):
    done = said("web", "--help", PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ROUTEMASTER_ROOT_KEY=?" in done.stdout


def test_it_tells_its_version():
    done = said("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"routemaster {version('routemaster-bus')}")


def test_web_without_a_root_key_says_that_nobody_can_manage_clients():
    """It goes on: there may be some already. Here what is no certificate ends it."""
    command = ("web", "--tls-cert", __file__, "--tls-key", __file__)
    assert "nobody can manage clients" in said(*command).stderr
    assert "nobody can manage" not in said(*command, ROUTEMASTER_CLIENTS="shop--0123456789abcdef").stderr
    assert "nobody can manage" not in said(*command, ROUTEMASTER_ROOT_KEY="root--0123456789abcdef").stderr
