"""Reading a bus's metrics, in the text format of Prometheus, for the few of them that a status shows."""

import math
import re

from routemaster.cli.status.snapshot import Latency, Store, Workers

PREFIX = "routemaster_"
LATENCY = "delivery_latency_seconds_bucket"
QUEUE = "main"
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)")
_LABEL = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')
_WANTED = {"workers", "jobs", "store_memory_used_bytes", "store_memory_max_bytes", LATENCY}

Values = dict[str, dict[tuple[tuple[str, str], ...], float]]


class Metrics:
    def __init__(self, text: str) -> None:
        self._values: Values = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            name = match[1].removeprefix(PREFIX) if match else ""
            if match and name in _WANTED:
                labels = tuple(sorted(_LABEL.findall(match[2] or "")))
                self._values.setdefault(name, {})[labels] = _number(match[3])

    def workers(self) -> Workers | None:
        alive = self._plain("workers")
        if alive is None:
            return None
        jobs = self._values.get("jobs", {})
        states = {dict(labels).get("state"): n for labels, n in jobs.items() if ("queue", QUEUE) in labels}
        return Workers(
            alive=int(alive), working=int(states.get("pending", 0)), ready=int(states.get("instant", 0))
        )

    def store(self) -> Store | None:
        used, most = self._plain("store_memory_used_bytes"), self._plain("store_memory_max_bytes")
        return None if used is None else Store(used_bytes=int(used), max_bytes=int(most or 0) or None)

    def latency(self, earlier: "Metrics") -> Latency | None:
        """Of what was delivered since an earlier look; None for nothing, or when its counters began anew."""
        before = earlier.buckets()
        counts = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(self.buckets().items())]
        total = counts[-1][1] if counts else 0.0
        if total <= 0 or any(count < 0 for _, count in counts):
            return None
        return Latency(p50_ms=_quantile(counts, 0.50 * total), p99_ms=_quantile(counts, 0.99 * total))

    def buckets(self) -> dict[float, float]:
        """How many latencies there were of at most so many seconds."""
        found = self._values.get(LATENCY, {})
        return {_number(dict(labels).get("le", "nan")): count for labels, count in found.items()}

    def _plain(self, name: str) -> float | None:
        return self._values.get(name, {}).get(())


def _quantile(counts: list[tuple[float, float]], wanted: float) -> float:
    """In ms, as if those between two bounds lay evenly between them."""
    below, least = 0.0, 0.0
    for bound, upto in counts:
        if upto >= wanted and upto > below:
            most = bound if math.isfinite(bound) else least
            return round((least + (most - least) * (wanted - below) / (upto - below)) * 1000, 1)
        below, least = upto, bound
    return round(least * 1000, 1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
