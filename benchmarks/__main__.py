"""`make bench`, or `make bench ONLY=publish`: measure, compare with the goals, draw docs/bench.svg."""

import sys
import time

from benchmarks import drain, footprint, latency, publish, wide
from benchmarks.results import PICTURE, Result, draw, print_table

SECTIONS = {
    "publish": publish.measure,
    "drain": drain.measure,
    "latency": latency.measure,
    "wide": wide.measure,
    "footprint": footprint.measure,
}


def main(wanted: list[str]) -> int:
    for name in wanted:
        if name not in SECTIONS:
            print(f"there is no benchmark {name!r}; expected one of {', '.join(SECTIONS)}", file=sys.stderr)
            return 2
    results: list[Result] = []
    for name in wanted or SECTIONS:
        started = time.monotonic()
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        results += SECTIONS[name]()
        print(f"  took {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    print_table(results)
    if not wanted:
        draw(results)
        print(f"drawn in {PICTURE}")
    return 0 if all(result.met is not False for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
