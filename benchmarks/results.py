"""Results: a table with the goal beside each figure, and a picture of the ratios."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

PICTURE = Path("docs/bench.svg")


@dataclass(frozen=True)
class Result:
    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False  # the goal is an upper bound
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    @property
    def share(self) -> float:
        """How far beyond its goal: 1 is just met, more is better."""
        if not self.goal:
            return 0.0
        return self.goal / max(self.value, 1e-9) if self.at_most else self.value / self.goal


def show(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def print_table(results: list[Result]) -> None:
    table = Table(title="Routemaster, measured in one run", title_justify="left")
    for column in ("what", "measured", "goal", "", "how"):
        table.add_column(column, justify="right" if column in ("measured", "goal") else "left")
    for result in results:
        goal = "" if result.goal is None else f"{'≤' if result.at_most else '≥'} {show(result.goal)}"
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[result.met]
        table.add_row(result.name, f"{show(result.value)} {result.unit}", goal, mark, result.note)
    Console(width=140 if not Console().is_terminal else None).print(table)


def draw(results: list[Result], path: Path = PICTURE) -> None:
    """Bars of value over goal: the line is where a goal is met."""
    rows = [result for result in results if result.goal is not None]
    row_height, left, scale, most = 26, 330, 130, 3.0
    height, width = 64 + row_height * len(rows), left + int(scale * most) + 190
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<text x="12" y="24" font-size="15" font-weight="600">Measured against goals, in one run</text>',
    ]
    for index, result in enumerate(rows):
        y = 44 + index * row_height
        share = min(most, result.share)
        colour = "#2a7f62" if result.met else "#b3492d"
        sign = "≤" if result.at_most else "≥"
        text = f"{show(result.value)} {result.unit} (goal {sign} {show(result.goal or 0)})"
        parts += [
            f'<text x="{left - 10}" y="{y + 14}" text-anchor="end" fill="#222">{escape(result.name)}</text>',
            f'<rect x="{left}" y="{y}" width="{scale * share:.0f}" height="18" rx="3" fill="{colour}"/>',
            f'<text x="{left + scale * share + 8:.0f}" y="{y + 14}" fill="#444">{escape(text)}</text>',
        ]
    line = left + scale
    parts += [
        f'<line x1="{line}" y1="36" x2="{line}" y2="{height - 14}" stroke="#222" stroke-dasharray="3 3"/>',
        f'<text x="{line}" y="{height - 3}" text-anchor="middle" fill="#222" font-size="11">goal</text>',
        "</svg>",
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
