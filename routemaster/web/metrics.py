"""GET /metrics: the bus's metrics in the text format of Prometheus.

All processes read the same figures from the store, so that any of them may be scraped, and one is enough.
"""

import asyncio

from routemaster.metrics import Distribution, Metric, Sample, metrics_of
from routemaster.store.figures import Reader
from routemaster.web.calls import READERS, Answer, Call, Operation

PREFIX = "routemaster_"
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/metrics",
                summary="What the bus does, as metrics in the text format of Prometheus.",
                roles=READERS,
                gives={200: str},
                serves=TEXT,
                act=self._metrics,
            )
        ]

    async def _metrics(self, call: Call) -> Answer:
        rendered: list[str] = []
        for metric in metrics_of(await self._reader.read()):
            rendered.append(render(metric))
            await asyncio.sleep(0)  # with thousands of subscribers this takes a while: others go first
        return Answer(200, "".join(rendered).encode(), TEXT.encode())


def render(metric: Metric) -> str:
    name = PREFIX + metric.name
    lines = [f"# HELP {name} {_escaped(metric.meaning)}", f"# TYPE {name} {metric.kind}"]
    if metric.distribution is not None:
        lines += _buckets(name, metric.distribution)
    lines += [_line(name, sample) for sample in metric.samples]
    return "\n".join(lines) + "\n"


def _buckets(name: str, distribution: Distribution) -> list[str]:
    pairs = zip(distribution.bounds, distribution.counts, strict=True)
    lines = [f'{name}_bucket{{le="{_number(bound)}"}} {count}' for bound, count in pairs]
    return [
        *lines,
        f'{name}_bucket{{le="+Inf"}} {distribution.total}',
        f"{name}_sum {_number(distribution.sum)}",
        f"{name}_count {distribution.total}",
    ]


def _line(name: str, sample: Sample) -> str:
    labels = ",".join([f'{label}="{_quoted(value)}"' for label, value in sample.labels])
    return f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
