"""Checks of this machine: Python, the packages, limits, and what the pipeline will need."""

import importlib
import importlib.metadata
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import routemaster
from routemaster.cli.doctor.finding import Finding
from routemaster.cli.output import size

DISTRIBUTION = "routemaster-bus"
OLDEST, NEWEST = (3, 11), (3, 14)
NATIVE = ("hiredis", "httptools", "msgspec", "re2", "uvloop")
SPARE_FILES = 512  # beside one for each slot: clients' connections, the store's, logs
LEAST_MEMORY = 512 * 2**20
RELEASED_S = 1_735_689_600  # no clock that is right is before 2025
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)[^;]*?(?:>=([0-9.]+))?[^;]*(;.*)?")
_LOCKED = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)(.*)")


def python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    seen = f"{platform.python_implementation()} {version} on {sys.platform} {platform.machine()}"
    wanted = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        yield Finding("python", "problem", seen, f"use CPython {wanted}")
    elif sys.maxsize < 2**32:
        yield Finding("python", "problem", f"{seen}, 32 bits", "use a 64-bit Python")
    else:
        yield Finding("python", "ok", seen)
    if sys.platform not in ("linux", "darwin"):
        yield Finding(
            "platform", "warning", platform.platform(), "use Linux or macOS: nothing else was tried"
        )
    else:
        yield Finding("platform", "ok", platform.platform())


def packages() -> Iterator[Finding]:
    """What was declared is there and loads; in a checkout, in the versions of its lock."""
    try:
        declared = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "warning", f"{DISTRIBUTION} is not installed as a package", "run `make`")
        return
    wrong = [text for line in declared if (text := _unmet(line))]
    for name in NATIVE:
        try:
            importlib.import_module(name)
        except ImportError as error:
            wrong.append(f"{name} does not load ({error})")
    if wrong:
        yield Finding(
            "packages", "problem", "; ".join(wrong), "install again: `make`, or pip install --force-reinstall"
        )
        return
    yield Finding("packages", "ok", f"{len(declared)} that are required are there, and load")
    lock = Path(routemaster.__file__).parent.parent / "requirements.lock"
    if lock.is_file():
        other = _other_than(lock.read_text(encoding="utf-8"))
        if other:
            yield Finding(
                "lock", "warning", "; ".join(other), "run `make`, which installs what the lock says"
            )
        else:
            yield Finding("lock", "ok", f"all versions are those of {lock}")


def limits(slots: int) -> Iterator[Finding]:
    from routemaster.cli.embedded import machine_memory_bytes

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = slots + SPARE_FILES
    seen = f"{soft if soft != resource.RLIM_INFINITY else 'unlimited'} open files"
    if soft != resource.RLIM_INFINITY and soft < wanted:
        hint = f"raise it to {wanted} or more for {slots} slots: `ulimit -n {max(wanted, 4_096)}`"
        if hard != resource.RLIM_INFINITY and hard < wanted:
            hint += f" (its hard limit is {hard}: the system's administrator sets that)"
        yield Finding("files", "problem" if soft < 256 else "warning", seen, hint)
    else:
        yield Finding("files", "ok", seen)
    memory = machine_memory_bytes()
    verdict = "warning" if memory < LEAST_MEMORY else "ok"
    advice = f"have {size(LEAST_MEMORY)} or more" if verdict == "warning" else ""
    yield Finding("memory", verdict, f"{size(memory)}, {os.cpu_count()} processors", advice)


def clock() -> Iterator[Finding]:
    seen = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < RELEASED_S:
        yield Finding("clock", "problem", seen, "set the clock: ids and times of events come from it")
    else:
        yield Finding("clock", "ok", seen)


def pipeline() -> Iterator[Finding]:
    """For information: this version archives nothing, and needs none of it."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    seen = "no Java" if java is None else f"{_java_version(java)} ({java})"
    spark = next((f"pyspark {v}" for v in [_version("pyspark")] if v), "no pyspark")
    yield Finding(
        "pipeline", "info", f"not in this version; nothing of it is needed (found: {seen}, {spark})"
    )


def _unmet(requirement: str) -> str | None:
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None or (match[3] and "extra" in match[3]):
        return None
    version = _version(match[1])
    if version is None:
        return f"{match[1]} is missing"
    if match[2] and _parts(version) < _parts(match[2]):
        return f"{match[1]} is {version}, older than {match[2]}"
    return None


def _other_than(lock: str) -> list[str]:
    """Which packages are not in the version that a lock says. One that is for other systems may be away."""
    other: list[str] = []
    for line in lock.splitlines():
        match = _LOCKED.match(line)
        if match is None:
            continue
        version = _version(match[1])
        if version is None and ";" not in match[3]:
            other.append(f"{match[1]} is missing")
        elif version is not None and version != match[2]:
            other.append(f"{match[1]} is {version}, not {match[2]}")
    return other


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version)[:3])


def _java_version(java: str) -> str:
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, timeout=15, check=False)
        return (ran.stderr or ran.stdout).decode("utf-8", "replace").splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "a Java that does not start"
