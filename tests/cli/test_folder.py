import os
import subprocess
import sys
from pathlib import Path

import pytest

from routemaster.cli import folder as folders
from routemaster.cli.folder import Bus, Folder, find
from routemaster.errors import BusRunning, SettingError

# Takes the folder, hands the lock to a child as the store would have it, and is killed.
DIES = """
import os, signal, subprocess, sys
from pathlib import Path
from routemaster.cli.folder import Folder
folder = Folder(Path(sys.argv[1]))
store = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
                         stdin=0, stdout=subprocess.DEVNULL, pass_fds=(folder.lock_fd,))
os.kill(os.getpid(), signal.SIGKILL)
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_and_its_files_are_private(folder: Path):
    held = Folder(folder)
    assert held.make_root_key()
    held.announce(Bus(url="http://x", store_url="unix:///y", pid=1, pids={"web-1": 2}))
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    held.release()


def test_a_root_key_is_made_once(folder: Path):
    held = Folder(folder)
    assert held.make_root_key()
    key = held.root_key.read_text()
    assert key.startswith("root--")
    assert not held.make_root_key()
    assert held.root_key.read_text() == key
    held.release()


def test_a_second_holder_is_told_who_is_first(folder: Path):
    held = Folder(folder)
    held.announce(Bus(url="http://127.0.0.1:7080", store_url="unix:///y", pid=os.getpid(), pids={}))
    with pytest.raises(BusRunning, match=rf"pid {os.getpid()}\) at http://127.0.0.1:7080"):
        Folder(folder)
    held.release()
    assert find(folder) is None
    Folder(folder).release()


@pytest.mark.parametrize("store_ends", [True, False])
def test_after_a_kill_the_folder_is_taken_until_the_store_is_gone(
    folder: Path, store_ends: bool, monkeypatch: pytest.MonkeyPatch
):
    dead = subprocess.Popen([sys.executable, "-c", DIES, str(folder)], stdin=subprocess.PIPE)
    dead.wait()
    assert dead.stdin
    if store_ends:
        dead.stdin.close()
        Folder(folder).release()
    else:
        monkeypatch.setattr(folders, "ORPHAN_WAIT_S", 0.2)
        with pytest.raises(BusRunning, match="store of a bus that died"):
            Folder(folder)
        dead.stdin.close()


def test_a_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="--dir"):
        Folder(tmp_path / "file" / "bus")


def test_a_torn_announcement_is_no_bus(tmp_path: Path):
    (tmp_path / "bus.json").write_text('{"url": "htt')
    assert find(tmp_path) is None
